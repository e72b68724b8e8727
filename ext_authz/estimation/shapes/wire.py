"""The wire format of protocol buffers, read without their definitions.

PURE. Field by field, with a bound on how many; groups are refused. What a message announces may
reach beyond the bytes that have arrived: then the fields end where the bytes do.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

from ext_authz.model import value

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 1024
# A varint of more bytes holds no 64-bit number.
_LONGEST_VARINT = 10
_HIGH = bytes(range(128, 256))


class MalformedError(ValueError):
    """These bytes are no message, or one of more fields than are read."""


@value
class Field:
    """One field. Of `BYTES` the value lies from `start` to `stop`, which may be beyond what has
    arrived; of the others `number` is the value, of fixed ones as it would be without a sign."""

    name: int
    kind: int
    number: int
    start: int
    stop: int


class Reader:
    """The bytes of one message, and how many fields may still be read of them."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes, left: int = MAX_FIELDS) -> None:
        self.data = data
        self.left = left

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        """The fields of the message from `start` to `stop`. Raises `MalformedError`."""
        data, end = self.data, min(stop, len(self.data))
        at = start
        while at < end:
            self.left -= 1
            if self.left < 0:
                raise MalformedError
            tag, at = self._varint(at, end, stop)
            if tag < 0:
                return
            name, kind = tag >> 3, tag & 7
            if not 0 < name < 1 << 29:
                raise MalformedError
            if kind in (VARINT, BYTES):
                number, at = self._varint(at, end, stop)
                if number < 0:
                    return
                size = number if kind == BYTES else 0
            elif kind in (FIXED32, FIXED64):
                size = 4 if kind == FIXED32 else 8
                if at + size > end < stop:
                    return
                number = int.from_bytes(data[at : at + size], "little")
            else:
                raise MalformedError
            if at + size > stop:
                raise MalformedError
            yield Field(name, kind, number, at, at + size)
            at += size

    def text(self, field: Field) -> str | None:
        """The text a field holds, None if it is cut or none."""
        if field.kind != BYTES or field.stop > len(self.data):
            return None
        try:
            return self.data[field.start : field.stop].decode()
        except UnicodeDecodeError:
            return None

    def varints(self, field: Field) -> list[int]:
        """The numbers packed in a field, as far as they have arrived. Bounded by the caller."""
        numbers, at, end = [], field.start, min(field.stop, len(self.data))
        while at < end:
            number, at = self._varint(at, end, field.stop)
            if number < 0:
                break
            numbers.append(number)
        return numbers

    def count(self, field: Field) -> int:
        """How many numbers are packed in a field, as far as they have arrived: every one ends
        with a byte below 128."""
        return len(self.data[field.start : field.stop].translate(None, _HIGH))

    def _varint(self, at: int, end: int, stop: int) -> tuple[int, int]:
        """The number at `at` and where it ends; -1 where the bytes end before it does."""
        number = shift = 0
        while at < end:
            byte = self.data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 128:
                return number & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
            if shift >= 7 * _LONGEST_VARINT:
                raise MalformedError
        if end < stop:
            return -1, at
        raise MalformedError


def signed(number: int) -> int:
    """A 64-bit number as the signed one it stands for."""
    return number - (1 << 64) if number >> 63 else number
