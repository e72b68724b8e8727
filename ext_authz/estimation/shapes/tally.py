"""Counting what a document holds: text, token ids, pictures, prompts and output caps.

PURE. Everything counted is bounded, and numbers a client may write freely are read generously: what
some server could take for a number is one, so that no spelling of a cap hides it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_CAP_TOKENS = 10_000_000
MAX_CHOICES = 100_000
MAX_COUNT = 1_000_000_000

# Every name under which some server takes a limit of generated tokens; the largest one counts.
CAP_FIELDS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "max_tokens_to_sample",
)
CHOICE_FIELDS = ("n", "best_of")
# Names that only give a document its form: their values count, they themselves do not.
FORM = frozenset({"role", "content", "type", "text"})
IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
IMAGE_FIELDS = frozenset({"image_url", "image", "source"})
_PICTURE_SIGNS = frozenset({"type", "image_url", "source"})
IMAGE_DATA_FIELDS = frozenset({"url", "data"})
# A number or a boolean inside text-bearing fields: about one token.
SCALAR_BYTES = 4
# Objects and lists looked at in one document. What is written for people has far fewer in the bytes
# that are read; one of nothing but brackets would take a hundred times as long as a text.
MAX_ITEMS = 4096
# `{"type":"image"}`: what was not looked at could be full of these.
SMALLEST_IMAGE_BYTES = 16


@dataclass(slots=True)
class Tally:
    """A running count; the only mutable value here, alive during one parse.

    `media_bytes` is picture data in the document, `largest_media_bytes` its largest piece.
    `announced_bytes` is data declared in the document that explains bytes beyond a cut.
    `cap_tokens` 0 means that nothing is generated. `items` were looked at; beyond `MAX_ITEMS` the
    rest was not, and the whole is to be priced as the costliest it could be.
    """

    text_bytes: int = 0
    token_ids: int = 0
    images: int = 0
    media_bytes: int = 0
    largest_media_bytes: int = 0
    announced_bytes: int = 0
    prompts: int = 1
    choices: int = 1
    cap_tokens: int | None = None
    items: int = 0

    @property
    def overfull(self) -> bool:
        """Whether something was not looked at."""
        return self.items > MAX_ITEMS


def utf8_bytes(text: str) -> int:
    """The size of `text` in UTF-8; a lone surrogate counts as three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def whole_number(value: object, bound: int) -> int | None:
    """`value` as a count from 0 to `bound`, or None if no server would take it for one.

    Integers, floats (rounded up) and numeric strings are read; anything above `bound`, infinity
    included, becomes `bound`. Negative numbers, NaN, booleans and all else are None.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if len(value) > 64:
            return None
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, int):
        return None if value < 0 else min(value, bound)
    if not isinstance(value, float) or math.isnan(value) or value < 0:
        return None
    return bound if value >= bound else math.ceil(value)


def add_caps(root: Mapping[str, object], tally: Tally) -> None:
    """Read the largest output cap and the number of choices per prompt.

    A cap of 0 is not believed: some servers read it as unset.
    """
    for name in CAP_FIELDS:
        if name in root:
            cap = whole_number(root[name], MAX_CAP_TOKENS)
            if cap:
                tally.cap_tokens = max(cap, tally.cap_tokens or 0)
    for name in CHOICE_FIELDS:
        if name in root:
            tally.choices = max(tally.choices, whole_number(root[name], MAX_CHOICES) or 1)


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
            if not _PICTURE_SIGNS.isdisjoint(item) and is_image(item):
                _add_image(item, tally, stack)
            else:
                text_bytes += _fields_bytes(item, stack)
        elif isinstance(item, list):
            text_bytes += _list_bytes(item, stack)
        elif item is not None:
            text_bytes += SCALAR_BYTES
    tally.text_bytes += text_bytes
    tally.items = items


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


def is_image(part: Mapping[str, object]) -> bool:
    """Whether a content part is a picture; one cut before its `type` is told by its fields."""
    if "type" in part:
        kind = part["type"]
        return isinstance(kind, str) and kind in IMAGE_TYPES
    if "image_url" in part:
        return True
    source = part.get("source")
    return isinstance(source, dict) and source.get("type") == "base64"


def _add_image(part: Mapping[str, object], tally: Tally, stack: list[object]) -> None:
    """Count one picture; whatever else the part carries goes back to be counted as text."""
    tally.images += 1
    for name, inner in part.items():
        if name not in IMAGE_FIELDS:
            stack.append(inner)
        elif isinstance(inner, str):
            _add_media(inner, tally)
        elif isinstance(inner, dict):
            for key, data in inner.items():
                if key in IMAGE_DATA_FIELDS and isinstance(data, str):
                    _add_media(data, tally)
                else:
                    stack.append(data)
        else:
            stack.append(inner)


def _add_media(data: str, tally: Tally) -> None:
    size = utf8_bytes(data)
    tally.media_bytes += size
    tally.largest_media_bytes = max(tally.largest_media_bytes, size)


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
