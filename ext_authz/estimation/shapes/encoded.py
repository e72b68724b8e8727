"""Compressed bodies, inflated as far as it takes to measure them.

PURE. gzip and deflate are read; of what comes out `MAX_PARSE_BYTES` are kept and at most
`MAX_INFLATED_BYTES` counted, so that a bomb takes no longer than any other body. What is beyond,
and what has not arrived, is taken to be packed as tightly as what was seen.
"""

from __future__ import annotations

import zlib

from ext_authz.estimation.shapes.document import (
    MAX_BODY_BYTES,
    MAX_PARSE_BYTES,
    Body,
    looks_like_json,
)

# Zlib's word for how the data is wrapped: 31 gzip, 15 zlib, -15 not at all.
_GZIP, _ZLIB, _RAW = 31, 15, -15
MAX_INFLATED_BYTES = 1 << 18
# Pieces in which a damaged body is inflated again; the last one is lost.
MAX_STEPS = 256
# JSON text packs no worse than this: junk in front makes nothing behind it cheaper.
LEAST_EXPANSION = 3


def codings(header: str) -> list[str]:
    """The codings a `content-encoding` or `grpc-encoding` names, those that do nothing left out."""
    names = (name.strip() for name in header.lower().split(","))
    return [name for name in names if name not in {"", "identity"}]


def inflate(body: Body, names: list[str]) -> Body | None:
    """The body that `body` is a packing of, None where it cannot be read: in more than one coding,
    an unknown one, or not what it claims to be."""
    if len(names) != 1 or not body.window:
        return None
    wrapping = _wrapping(names[0], body.window)
    if wrapping is None:
        return None
    machine = zlib.decompressobj(wrapping)
    try:
        window = machine.decompress(body.window, MAX_PARSE_BYTES)
        size, tight = len(window), 0
        while not machine.eof:
            before = len(machine.unconsumed_tail)
            piece = machine.decompress(machine.unconsumed_tail, MAX_PARSE_BYTES)
            if not piece:
                break
            size += len(piece)
            if size >= MAX_INFLATED_BYTES:
                # Whatever lies in front, what was read last tells best what follows.
                tight = len(piece) // max(1, before - len(machine.unconsumed_tail))
                break
    except zlib.error:
        return None if looks_like_json(body.window) else _inflate_damaged(body, wrapping)
    if not window:
        return None
    read_bytes = len(body.window) - len(machine.unconsumed_tail) - len(machine.unused_data)
    if machine.eof and read_bytes == body.whole_bytes:
        return Body(window, size, size > len(window), size_unknown=body.size_unknown)
    return _beyond(body, window, size, read_bytes, tight)


def _inflate_damaged(body: Body, wrapping: int) -> Body | None:
    """As far as it goes in small steps: some servers read that much, and do not look at the sum."""
    machine = zlib.decompressobj(wrapping)
    step = -(-len(body.window) // MAX_STEPS)
    kept, size = [], 0
    for at in range(0, len(body.window), step):
        try:
            piece = machine.decompress(body.window[at : at + step], MAX_PARSE_BYTES)
        except zlib.error:
            break
        if size < MAX_PARSE_BYTES:
            kept.append(piece)
        size += len(piece)
        if size >= MAX_INFLATED_BYTES:
            break
    window = b"".join(kept)[:MAX_PARSE_BYTES]
    return _beyond(body, window, size, at) if window else None


def _beyond(body: Body, window: bytes, size: int, read_bytes: int, tight: int = 0) -> Body:
    """A body of which `size` bytes came out of the first `read_bytes`, the last ones of them
    packed `tight` times."""
    left = body.whole_bytes - read_bytes
    each = max(LEAST_EXPANSION, tight)
    whole = size + max(each * left, -(-left * size // max(1, read_bytes)))
    whole = min(max(whole, body.whole_bytes), MAX_BODY_BYTES)
    return Body(window, whole, cut=True, size_unknown=body.size_unknown)


def _wrapping(name: str, window: bytes) -> int | None:
    if name in {"gzip", "x-gzip"}:
        return _GZIP
    if name != "deflate":
        return None
    # Half the world leaves out the header that the name stands for (RFC 9110, 8.4.1.2).
    wrapped = len(window) >= 2 and window[0] & 0x0F == 8 and not (window[0] << 8 | window[1]) % 31
    return _ZLIB if wrapped else _RAW
