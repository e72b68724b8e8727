"""Counting what a document holds: text, token ids, pictures, prompts and output caps.

PURE. Everything counted is bounded, and numbers a client may write freely are read generously: what
some server could take for a number is one, so that no spelling of a cap hides it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jiter

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
# Objects and lists looked at in one document. What is written for people has far fewer in the bytes
# that are read; one of nothing but brackets would take a hundred times as long as a text.
MAX_ITEMS = 4096
# `{"type":"image"}`: what was not looked at could be full of these.
SMALLEST_IMAGE_BYTES = 16


@dataclass(slots=True)
class Tally:
    """A running count; the only mutable value here, alive during one parse.

    `images` are to be looked at, `drawn` to be made. `media_bytes` is data of pictures, sound and
    papers in the document, `largest_media_bytes` its largest piece, `media_tokens` what the sound
    and the papers among it come to.
    `announced_bytes` is data declared in the document that explains bytes beyond a cut.
    `cap_tokens` 0 means that nothing is generated. `items` were looked at; beyond `MAX_ITEMS` the
    rest was not, and the whole is to be priced as the costliest it could be.
    """

    text_bytes: int = 0
    token_ids: int = 0
    images: int = 0
    drawn: int = 0
    media_bytes: int = 0
    largest_media_bytes: int = 0
    media_tokens: int = 0
    announced_bytes: int = 0
    prompts: int = 1
    choices: int = 1
    cap_tokens: int | None = None
    items: int = 0

    @property
    def overfull(self) -> bool:
        """Whether something was not looked at."""
        return self.items > MAX_ITEMS

    def cover(self, other: Tally) -> None:
        """Become at least as costly as `other`, in each part. A cap of nothing is not taken."""
        self.text_bytes = max(self.text_bytes, other.text_bytes)
        self.token_ids = max(self.token_ids, other.token_ids)
        self.images = max(self.images, other.images)
        self.drawn = max(self.drawn, other.drawn)
        self.media_tokens = max(self.media_tokens, other.media_tokens)
        self.prompts = max(self.prompts, other.prompts)
        self.choices = max(self.choices, other.choices)
        self.items = max(self.items, other.items)
        if other.cap_tokens:
            self.cap_tokens = max(self.cap_tokens or 0, other.cap_tokens)


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


def add_parameters(value: object, tally: Tally) -> None:
    """Read caps and choices where they lie together: in an object, in a list of objects, one for
    each prompt, or in a text that is such an object. Of several the largest counts for all."""
    if isinstance(value, (str, bytes)):
        text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        try:
            value = jiter.from_json(text, cache_mode="none")
        except ValueError:
            return
    if isinstance(value, dict):
        add_caps(value, tally)
    elif isinstance(value, list):
        tally.items += len(value)
        for item in value[:MAX_ITEMS]:
            if isinstance(item, dict):
                add_caps(item, tally)
