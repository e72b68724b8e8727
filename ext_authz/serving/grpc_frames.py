"""gRPC as it lies on HTTP/2: messages with their prefix, deadlines, how a call ends.

Source: "gRPC over HTTP2" of the gRPC project. Bytes and values only; what carries them is the
host's.
"""

from __future__ import annotations

import re
from enum import IntEnum
from urllib.parse import quote

PREFIX_BYTES = 5
CONTENT_TYPE = b"application/grpc"

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
# A message to people is sent percent-encoded but for these.
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Code(IntEnum):
    """How a call ended, of the codes of gRPC those that a host of ours gives."""

    OK = 0
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """A call that gets a status and no answer."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def framed(message: bytes) -> bytes:
    """`message` with the prefix that says how long it is and that it is not compressed."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def timeout_s(value: bytes) -> float:
    """Seconds that the header `grpc-timeout` grants.

    Raises CallError if it cannot be read: to take it for no limit would hold calls for ever.
    """
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise CallError(Code.INTERNAL, "grpc-timeout cannot be read")
    return int(found[1]) * _UNIT_S[found[2]]


def trailers(code: Code, message: str = "") -> list[tuple[bytes, bytes]]:
    """The headers that end a call."""
    status = [(b"grpc-status", b"%d" % code)]
    if message:
        status.append((b"grpc-message", quote(message, safe=_PRINTABLE).encode()))
    return status


class Frames:
    """Takes the messages out of a body that comes in pieces, whole ones only.

    Holds one message of at most `most_bytes` and a piece of the next at any time.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = bytearray()

    @property
    def empty(self) -> bool:
        """No part of a message is held."""
        return not self._held

    def feed(self, piece: bytes) -> None:
        """Take in the next piece of the body."""
        self._held += piece

    def take(self) -> bytes | None:
        """The next message, None until more is fed.

        Raises CallError for what must not be read on: a message that is too long, or compressed.
        """
        held = self._held
        if len(held) < PREFIX_BYTES:
            return None
        if held[0]:
            raise CallError(Code.UNIMPLEMENTED, "compressed messages are not read")
        ends = PREFIX_BYTES + int.from_bytes(held[1:PREFIX_BYTES], "big")
        if ends - PREFIX_BYTES > self._most_bytes:
            raise CallError(Code.RESOURCE_EXHAUSTED, f"a message may have {self._most_bytes} bytes")
        if len(held) < ends:
            return None
        message = bytes(held[PREFIX_BYTES:ends])
        del held[:ends]
        return message
