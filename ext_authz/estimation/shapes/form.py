"""Forms with files (multipart/form-data): speech to be written down, pictures to be changed.

PURE. Sound becomes windows of 30 s, as Whisper makes of it: each `WINDOW_TOKENS` of prompt, and an
output of its own of at most `WINDOW_OUTPUT_TOKENS`. How long sound lasts follows from its size
(`media`), so that only its beginning has to be there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ext_authz.estimation.shapes.document import Body
from ext_authz.estimation.shapes.media import audio_bytes_per_s
from ext_authz.estimation.shapes.tally import MAX_CHOICES, Tally, add_caps, whole_number
from ext_authz.model import value

# Whisper's: positions of its encoder for one window, and the longest text of one (n_text_ctx).
WINDOW_S, WINDOW_TOKENS, WINDOW_OUTPUT_TOKENS = 30, 1_500, 448
MAX_PARTS = 64
# What any file's name in a form may be, for servers that go by it and need no `filename`.
FILE_FIELDS = frozenset({"file", "image", "image[]", "mask"})
_BOUNDARY = re.compile(r';\s*boundary="?([^";,\s]{1,70})"?\s*(?:;|$)', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="?([^";\r\n]*)"?', re.IGNORECASE)
_FILE = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)


@value
class Form:
    """A form as far as it was seen. `files` are sizes in bytes and beginnings; `odd` when servers
    may disagree about what it says."""

    fields: Mapping[str, str]
    files: list[tuple[int, bytes]]
    odd: bool


def boundary_of(headers: Mapping[str, str]) -> bytes | None:
    """What separates the parts of a form, None if the body is none or names several."""
    kind = headers.get("content-type", "")
    if not kind[:20].lstrip().lower().startswith("multipart/form"):
        return None
    if kind.lower().count("boundary") != 1:
        return None
    found = _BOUNDARY.search(kind)
    return None if found is None else found.group(1).encode("utf-8", "replace")


def read_form(body: Body, boundary: bytes) -> Form | None:
    """The form in `body`, None if there is none. What follows a part that is cut is not seen."""
    window, mark = body.window, b"\r\n--" + boundary
    if not window.startswith(mark[2:]):
        return None
    fields: dict[str, str] = {}
    files: list[tuple[int, bytes]] = []
    odd, at = False, len(mark) - 2
    for _ in range(MAX_PARTS):
        if window.startswith(b"--", at):
            return Form(fields, files, odd)
        start = window.find(b"\r\n\r\n", at) + 4
        if start < 4:
            # Nothing of this part but its headers, and no end: it has yet to come.
            return Form(fields, files, odd or not body.cut)
        end = window.find(mark, start)
        seen = window[start : end if end >= 0 else len(window)]
        size = len(seen) if end >= 0 else body.whole_bytes - start
        odd = _add_part(window[at : start - 4], seen, size, fields, files) or odd
        if end < 0:
            return Form(fields, files, odd or not body.cut)
        at = end + len(mark)
    files.append((body.whole_bytes - at, b""))
    return Form(fields, files, odd=True)


def _add_part(
    head: bytes, seen: bytes, size: int, fields: dict[str, str], files: list[tuple[int, bytes]]
) -> bool:
    """Add one part. Whether it is an odd one: without a name, or another with the same name."""
    named = _NAME.search(head)
    name = named.group(1).decode("utf-8", "replace") if named is not None else ""
    if _FILE.search(head) or name in FILE_FIELDS:
        files.append((size, seen[:64]))
        return not name
    odd = not name or name in fields
    if size == len(seen):
        fields[name] = seen.decode("utf-8", "replace")
    return odd


def add_speech(form: Form, tally: Tally) -> None:
    """Count sound to be written down, and the text that tells how."""
    windows = 0
    for size, head in form.files:
        windows += max(1, -(-size // (WINDOW_S * audio_bytes_per_s(head))))
    windows = max(1, windows)
    tally.token_ids += windows * WINDOW_TOKENS
    tally.prompts = max(tally.prompts, windows)
    tally.cap_tokens = WINDOW_OUTPUT_TOKENS
    _add_fields(form, tally)


def add_drawing(form: Form, tally: Tally) -> None:
    """Count pictures to be changed, and those to be made of them."""
    tally.drawn = whole_number(form.fields.get("n"), MAX_CHOICES) or 1
    tally.images += len(form.files)
    tally.cap_tokens = 0
    _add_fields(form, tally)


def _add_fields(form: Form, tally: Tally) -> None:
    for name, text in form.fields.items():
        if name != "model":
            tally.text_bytes += len(text.encode("utf-8", "surrogatepass"))


def add_form(form: Form, tally: Tally) -> None:
    """Count a form of any meaning: at least what each of the others would."""
    for shape in (add_speech, add_drawing):
        one = Tally()
        shape(form, one)
        tally.cover(one)
    add_caps(form.fields, tally)
