"""The dynamic metadata of an answer, written by hand: a `google.protobuf.Struct` of few fields.

The generic way makes a dozen objects for it, and it is different for every request. Tested
against the generic way.
"""

from __future__ import annotations

from struct import Struct

from ext_authz.model import Decision

_DYNAMIC_METADATA = b"\x22"  # CheckResponse.dynamic_metadata, 4
_ENTRY, _KEY, _VALUE = b"\x0a", b"\x0a", b"\x12"  # Struct.fields, 1; key, 1; value, 2
_NUMBER, _STRING = b"\x11", b"\x1a"  # Value.number_value, 2; Value.string_value, 3
_DOUBLE = Struct("<d").pack
_MOST_REMEMBERED = 1024
_LONGEST_REMEMBERED = 128

_Whose = tuple[str | None, str | None]


class MetadataWriter:
    """Serialises what Envoy is to remember of a decision: its id, tenant, pool and estimate."""

    def __init__(self) -> None:
        self._before_id: dict[int, bytes] = {}
        self._known: dict[_Whose, tuple[bytes, bytes]] = {}

    def write(self, decision: Decision) -> bytes:
        """A CheckResponse with nothing but `dynamic_metadata`, to be joined to the rest; empty if
        there is nothing to remember."""
        whose = (decision.pool, decision.tenant)
        known = self._known.get(whose)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = (_text_entry("pool", decision.pool), _text_entry("tenant", decision.tenant))
            self._known[whose] = known
        pool, tenant = known
        decision_id = self._id_entry(decision.reservation_id)
        cost = decision.estimate
        # In the order of names, which protobuf calls deterministic.
        if cost is None:
            body = decision_id + pool + tenant
        else:
            output = _DOUBLE(cost.output_tokens)
            prompt = _DOUBLE(cost.prompt_tokens)
            body = b"".join((decision_id, _OUTPUT, output, pool, _PROMPT, prompt, tenant))
        return _sized(_DYNAMIC_METADATA, body) if body else b""

    def _id_entry(self, decision_id: str | None) -> bytes:
        """The entry that is never the same: what comes before an id depends on its length only."""
        if decision_id is None:
            return b""
        text = decision_id.encode()
        length = len(text)
        before = self._before_id.get(length)
        if before is None:
            entry = _text_entry("decision_id", decision_id)
            if length > _LONGEST_REMEMBERED:
                return entry
            before = self._before_id[length] = entry[: len(entry) - length]
        return before + text


def _varint(number: int) -> bytes:
    """As protobuf writes a length."""
    low = bytes((number & 0x7F,))
    if number < 0x80:
        return low
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


def _sized(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text_entry(name: str, text: str | None) -> bytes:
    """One entry of the map; nothing if there is nothing to say."""
    if text is None:
        return b""
    value = _sized(_STRING, text.encode())
    return _sized(_ENTRY, _sized(_KEY, name.encode()) + _sized(_VALUE, value))


def _number_entry(name: str) -> bytes:
    """One entry of the map up to its eight bytes of a double."""
    key = _sized(_KEY, name.encode())
    return _ENTRY + _varint(len(key) + 11) + key + _VALUE + b"\x09" + _NUMBER


_PROMPT, _OUTPUT = _number_entry("prompt_tokens"), _number_entry("output_tokens")
