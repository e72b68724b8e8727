"""From the bytes Envoy buffered to a parsed document, or a reason why there is none.

PURE. At most `MAX_PARSE_BYTES` are looked at; a longer body is a cut one. A document that readers
disagree about (duplicate names, lone surrogates, extreme nesting or numbers, bytes after its end)
is *odd*: it is still read for the model and the caps, but priced conservatively.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import jiter

from ext_authz.estimation.shapes.tally import CAP_FIELDS, CHOICE_FIELDS, MAX_COUNT, whole_number
from ext_authz.model import HttpCall, value

MAX_PARSE_BYTES = 65_536
MAX_BODY_BYTES = 1 << 40

_CAPS = re.compile(
    r'"({})"\s*:\s*"?([0-9]{{1,18}})'.format("|".join((*CAP_FIELDS, *CHOICE_FIELDS))).encode()
)
_CUT_NUMBER = re.compile(rb"[:\s][-+.0-9eE]+$")


@value
class Body:
    """What is known of a body. `window` is the part looked at, `whole_bytes` the size of all.

    `cut` means that `window` is not all; `size_unknown` that `whole_bytes` is only a lower bound.
    """

    window: bytes
    whole_bytes: int
    cut: bool
    size_unknown: bool

    @property
    def beyond_bytes(self) -> int:
        """Bytes known to exist that were not looked at."""
        return self.whole_bytes - len(self.window)

    def head(self, size: int) -> Body:
        """The first `size` bytes as a body of their own, `size` at most `whole_bytes`."""
        window = self.window[:size]
        return Body(window, size, cut=len(window) < size, size_unknown=False)


@value
class Document:
    """A parsed JSON object. `odd` when readers may disagree about its meaning.

    `raw_bytes` is the size of what follows the JSON, None when it is not known.
    """

    root: Mapping[str, Any]
    cut: bool
    odd: bool = False
    raw_bytes: int | None = None


def body_of(call: HttpCall) -> Body:
    """Size up the body of `call`.

    A declared length beyond what arrived makes it a cut one, whatever else the call claims.
    """
    seen = len(call.body)
    declared = call.headers.get("content-length", "")
    length = int(declared) if declared.isdecimal() and len(declared) <= 18 else -1
    whole = min(max(seen, call.body_bytes, length), MAX_BODY_BYTES)
    cut = call.partial or whole > seen
    return Body(
        window=call.body[:MAX_PARSE_BYTES],
        whole_bytes=whole,
        cut=cut or seen > MAX_PARSE_BYTES,
        size_unknown=cut and whole <= seen,
    )


def looks_like_json(window: bytes) -> bool:
    """Whether a JSON object may start here, in any encoding of Unicode."""
    return window.lstrip(b" \t\r\n\0\xef\xbb\xbf\xfe\xff")[:1] == b"{"


def read(body: Body) -> Document | None:
    """Parse the window of `body`; None when it holds no JSON object. Never raises."""
    window = body.window
    try:
        root = jiter.from_json(
            window,
            cache_mode="keys",
            partial_mode="trailing-strings" if body.cut else "off",
            catch_duplicate_keys=True,
        )
    except ValueError:
        return _read_odd(body)
    if not isinstance(root, dict):
        return None
    if body.cut:
        _drop_cut_value(root, window)
    return Document(root, body.cut)


def _read_odd(body: Body) -> Document | None:
    """Read what the strict reader refused: the last of duplicate names wins, as in most servers.

    Caps are also looked for in the bytes themselves, so that the largest of duplicates counts and
    an unreadable document does not hide one.
    """
    window = _utf8(body.window)
    root: object = None
    try:
        root = jiter.from_json(window, cache_mode="none", partial_mode="trailing-strings")
    except ValueError:
        # Reads what no strict reader does: lone surrogates, deep nesting, integers of any size.
        try:
            root = json.loads(window)
        except (ValueError, RecursionError):
            root = None
    if not isinstance(root, dict):
        root = {}
    elif body.cut:
        _drop_cut_value(root, window)
    # Each once: there may be thousands of them.
    for raw_name, digits in set(_CAPS.findall(window)):
        name, number = raw_name.decode(), int(digits)
        if number > (whole_number(root.get(name), MAX_COUNT) or 0):
            root[name] = number
    return Document(root, body.cut, odd=True) if root else None


def _utf8(window: bytes) -> bytes:
    """`window` in UTF-8 without a byte order mark: servers accept UTF-16 and UTF-32 as well."""
    if window[:3] == b"\xef\xbb\xbf":
        return window[3:]
    if b"\0" in window[:4] or window[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        text = window.decode(json.detect_encoding(window), "ignore").lstrip("\ufeff")
        return text.encode("utf-8", "surrogatepass")
    return window


def _drop_cut_value(root: dict[str, Any], window: bytes) -> None:
    """Remove a last value that the cut may have shortened: a wrong name or number misleads.

    Text that was shortened stays, because what is missing of it is priced by its size.
    """
    if not root:
        return
    name = next(reversed(root))
    value = root[name]
    if isinstance(value, (int, float)):
        if _CUT_NUMBER.search(window[-64:]):
            del root[name]
    elif name == "model" and isinstance(value, str):
        try:
            kept = jiter.from_json(window, cache_mode="none", partial_mode="on")
        except ValueError:
            kept = {}
        if "model" not in kept:
            del root[name]
