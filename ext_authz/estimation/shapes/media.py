"""Parts of a conversation that are no text: pictures, sound, papers.

PURE. A picture costs the configured price, whatever it is asked to be looked at with: engines
ignore `detail`, so a word of the client's would make it cheaper here and not there. Sound costs
`AUDIO_TOKENS_PER_S` for its length, which follows from its size; a PDF a token for every
`PDF_BYTES_PER_TOKEN`. What is not declared to be one of these is text.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Mapping
from enum import Enum

from ext_authz.estimation.shapes.tally import Tally, utf8_bytes

# Whisper's encoder makes 1,500 positions of 30 s; other models make 12.5 to 25 a second.
AUDIO_TOKENS_PER_S = 50
# Sound that is compressed, at the least rate that speech is usually sent with (Opus, 24 kbit/s).
AUDIO_BYTES_PER_S = 3_000
# Two channels of 32 bits, 48,000 a second: no speech is larger, whatever a header says.
MOST_PCM_BYTES_PER_S = 384_000
WAV_HEADER_BYTES = 36
# Sound that is only pointed at: one window of Whisper.
UNSEEN_AUDIO_S = 30
# A page is about 2,000 tokens (text and picture of it) and about 32 kB.
PDF_BYTES_PER_TOKEN = 16
# Papers that are only pointed at: ten pages.
UNSEEN_PDF_TOKENS = 20_000

# Fields of a part that hold its data, or an object that does.
_HOLDERS = frozenset(
    {
        "image_url",
        "image",
        "source",
        "input_audio",
        "audio_url",
        "audio",
        "file",
        "file_data",
        "file_url",
        "file_id",
    }
)
_DATA_FIELDS = frozenset({"url", "data", "file_data", "file_url", "file_id"})
_POINTERS = frozenset({"url", "file_url", "file_id"})
_POINTS = ("http:", "https:", "file:", "file-", "file_")
MAX_POINTER_CHARS = 2048
# Few objects have one of these, so that the others are told by one look.
MEDIA_SIGNS = frozenset({"type", "image_url", "source", "input_audio", "audio_url"})


class Media(Enum):
    """What a part shows."""

    PICTURE = "picture"
    SOUND = "sound"
    PAPER = "paper"


_KINDS = {
    "image_url": Media.PICTURE,
    "input_image": Media.PICTURE,
    "image": Media.PICTURE,
    "input_audio": Media.SOUND,
    "audio_url": Media.SOUND,
    "audio": Media.SOUND,
    "document": Media.PAPER,
    "file": Media.PAPER,
    "input_file": Media.PAPER,
}


def media_of(part: Mapping[str, object]) -> Media | None:
    """What a content part shows, None for text; one cut before its `type` is told by its fields."""
    if "type" in part:
        name = part["type"]
        kind = _KINDS.get(name) if isinstance(name, str) else None
        return None if kind is Media.PAPER and not _is_pdf(part) else kind
    if "image_url" in part:
        return Media.PICTURE
    if "input_audio" in part or "audio_url" in part:
        return Media.SOUND
    source = part.get("source")
    if isinstance(source, dict) and source.get("type") == "base64":
        return Media.PAPER if _is_pdf(part) else Media.PICTURE
    return None


def _is_pdf(part: Mapping[str, object]) -> bool:
    """Whether papers are a PDF, or only pointed at. Any others are text, in whatever coding."""
    found = False
    for holder in (part, part.get("source"), part.get("file")):
        if not isinstance(holder, dict):
            continue
        declared = holder.get("media_type") == "application/pdf"
        for name in _DATA_FIELDS:
            datum = holder.get(name)
            if isinstance(datum, str):
                pointer = name in _POINTERS and len(datum) <= MAX_POINTER_CHARS
                if not (declared or pointer or datum.startswith("data:application/pdf")):
                    return False
                found = True
    return found


def add_media(kind: Media, part: Mapping[str, object], tally: Tally, stack: list[object]) -> None:
    """Count one part; whatever it carries beside its data goes to `stack`, to count as text."""
    data: list[str] = []
    for name, inner in part.items():
        if name not in _HOLDERS:
            stack.append(inner)
        elif isinstance(inner, str):
            data.append(inner)
        elif isinstance(inner, dict):
            for key, deeper in inner.items():
                if key in _DATA_FIELDS and isinstance(deeper, str):
                    data.append(deeper)
                else:
                    stack.append(deeper)
        else:
            stack.append(inner)
    _add_data(kind, data, tally)


def add_loose_media(kind: Media, value: object, tally: Tally) -> list[object]:
    """Count data that lies outside a conversation: a text, or lists of texts or of objects.

    Returns the objects (what was made of a picture already), to count as text besides.
    """
    stack: list[object] = [value]
    objects: list[object] = []
    while stack and not tally.overfull:
        item = stack.pop()
        tally.items += 1
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, str):
            _add_data(kind, [item], tally)
        elif item is not None:
            objects.append(item)
            _add_data(kind, [], tally)
    return objects


def _add_data(kind: Media, data: list[str], tally: Tally) -> None:
    for datum in data:
        size = utf8_bytes(datum)
        tally.media_bytes += size
        tally.largest_media_bytes = max(tally.largest_media_bytes, size)
    if kind is Media.PICTURE:
        tally.images += 1
    elif kind is Media.SOUND:
        tally.media_tokens += _sound_tokens(data)
    else:
        size = sum(_decoded_bytes(datum) for datum in data)
        tally.media_tokens += -(-size // PDF_BYTES_PER_TOKEN) or UNSEEN_PDF_TOKENS


def _sound_tokens(data: list[str]) -> int:
    tokens = 0
    for datum in data:
        size = _decoded_bytes(datum)
        at = datum.find(",", 0, 128) + 1 if datum.startswith("data:") else 0
        try:
            head = binascii.a2b_base64(datum[at : at + 64])
        except ValueError:
            head = b""
        tokens += -(-AUDIO_TOKENS_PER_S * size // audio_bytes_per_s(head))
    return tokens or AUDIO_TOKENS_PER_S * UNSEEN_AUDIO_S


def _decoded_bytes(datum: str) -> int:
    """The size of what base64 stands for; 0 for an address or a name, whose size nobody knows."""
    if len(datum) <= MAX_POINTER_CHARS and datum.startswith(_POINTS):
        return 0
    return len(datum) * 3 // 4


def audio_bytes_per_s(head: bytes) -> int:
    """How many bytes a second of the sound takes that begins with `head`.

    A WAV header says so (RIFF; the `fmt ` chunk of Microsoft's WAVEFORMATEX), and a decoder goes
    by the same numbers. Anything else is `AUDIO_BYTES_PER_S`.
    """
    if len(head) >= WAV_HEADER_BYTES and head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        form, channels, samples_per_s, _, _, bits = struct.unpack_from("<HHIIHH", head, 20)
        # Plain numbers, whole or floating, or a header that says more of them further on.
        if form in {1, 3, 0xFFFE}:
            rate: int = channels * samples_per_s * bits // 8
            return min(max(1, rate), MOST_PCM_BYTES_PER_S)
    return AUDIO_BYTES_PER_S
