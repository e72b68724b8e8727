"""What a field holds that is put before a model: texts, ids, batches, parts of a conversation.

PURE. However nested, in bounded time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from ext_authz.estimation.shapes.media import MEDIA_SIGNS, add_media, media_of
from ext_authz.estimation.shapes.tally import MAX_ITEMS, Tally, utf8_bytes

# Names that only give a document its form: their values count, they themselves do not.
FORM = frozenset({"role", "content", "type", "text"})
# What a message has that is one text and nothing else: the usual kind.
PLAIN = frozenset({"role", "content"})
# A number or a boolean inside text-bearing fields: about one token.
SCALAR_BYTES = 4


def add_text(value: object, tally: Tally) -> None:
    """Count all text in `value`, however nested; a picture counts as a picture."""
    text_bytes = 0
    items = tally.items
    stack: list[object] = [value]
    while stack and items <= MAX_ITEMS:
        item = stack.pop()
        items += 1
        if isinstance(item, str):
            text_bytes += len(item) if item.isascii() else utf8_bytes(item)
        elif isinstance(item, dict):
            # Most objects are messages, which have none of the fields that tell a picture.
            if not MEDIA_SIGNS.isdisjoint(item) and (kind := media_of(item)) is not None:
                add_media(kind, item, tally, stack)
            else:
                text_bytes += _fields_bytes(item, stack)
        elif isinstance(item, list):
            plain = _plain_bytes(item)
            if plain is None:
                text_bytes += _list_bytes(item, stack)
            else:
                items += len(item)
                text_bytes += plain
        elif item is not None:
            text_bytes += SCALAR_BYTES
    tally.text_bytes += text_bytes
    tally.items = items


def _plain_bytes(items: list[Any]) -> int | None:
    """The text of a list of messages that are one text each, None for any other. Looked at by what
    runs in C: most requests are nothing but this."""
    if len(items) > MAX_ITEMS or set(map(type, items)) != {dict}:
        return None
    if not PLAIN.issuperset(chain.from_iterable(items)):
        return None
    texts = [text for message in items for text in message.values()]
    return utf8_bytes("".join(texts)) if set(map(type, texts)) == {str} else None


def _list_bytes(items: list[Any], stack: list[object]) -> int:
    """The text of a list of one kind; what holds anything deeper goes onto `stack`."""
    kinds = set(map(type, items))
    if kinds == {str}:
        return utf8_bytes("".join(items))
    if kinds.isdisjoint((str, list, dict)):
        return SCALAR_BYTES * (len(items) - items.count(None))
    stack.extend(items)
    return 0


def _fields_bytes(item: Mapping[str, object], stack: list[object]) -> int:
    """The text right in an object, names included; what lies deeper goes onto `stack`."""
    text_bytes = 0
    for name, inner in item.items():
        if name not in FORM:
            text_bytes += utf8_bytes(name)
        if isinstance(inner, str):
            # Inlined for speed: most of a conversation is text right here.
            text_bytes += len(inner) if inner.isascii() else utf8_bytes(inner)
        elif inner is not None:
            stack.append(inner)
    return text_bytes


def add_prompts(value: object, tally: Tally) -> None:
    """Count a prompt field: a text, token ids, or a batch of either.

    An empty array is one empty prompt. In a mixed array a number is one token id, and every
    element counts as a prompt.
    """
    if not isinstance(value, list):
        add_text(value, tally)
        return
    if _flat(value):
        tally.token_ids += len(value)
        return
    tally.prompts = max(tally.prompts, len(value))
    if set(map(type, value)) == {str}:
        add_text(value, tally)
        return
    tally.items += len(value)
    for item in value[:MAX_ITEMS]:
        if isinstance(item, list) and _flat(item):
            tally.token_ids += len(item)
        elif isinstance(item, (str, list, dict)):
            add_text(item, tally)
        else:
            tally.token_ids += 1


def _flat(items: list[object]) -> bool:
    """Whether `items` holds neither text nor another container: then it is token ids."""
    return set(map(type, items)).isdisjoint((str, list, dict))
