"""KServe's `ModelInferRequest` as a message (https://github.com/kserve/open-inference-protocol).

PURE. Tensors cost what they do as JSON (`kserve`), wherever their data is: in the message, behind
it as raw bytes, in shared memory. What has not arrived is priced from the sizes announced.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ext_authz.estimation.shapes.document import Body
from ext_authz.estimation.shapes.kserve import (
    CAP_TENSORS,
    ELEMENT_BYTES,
    PARAMETER_TENSORS,
    TOKEN_ID_TYPES,
    add_elements,
    elements_of,
)
from ext_authz.estimation.shapes.tally import (
    CAP_FIELDS,
    CHOICE_FIELDS,
    MAX_CAP_TOKENS,
    MAX_COUNT,
    Tally,
    add_caps,
    add_parameters,
)
from ext_authz.estimation.shapes.wire import BYTES, FIXED64, VARINT, Field, Reader, signed

# Number and length of a field of raw bytes.
MOST_TAG_BYTES = 6
# Numbers or texts that are read one by one: shapes, caps, parameters. Others are only counted.
MAX_PACKED_BYTES = 512
# Texts that are looked into for caps, in one message.
MAX_TEXTS = 64
# Field numbers of the messages.
_MODEL, _PARAMETERS, _INPUTS, _RAW = 1, 4, 5, 7
_NAME, _DATATYPE, _SHAPE, _TENSOR_PARAMETERS, _CONTENTS = 1, 2, 3, 4, 5
# Of contents: texts, and numbers that all take the same bytes. Of parameters: what is no number.
_STRINGS, _FIXED, _BOOL = 8, {6: 4, 7: 8}, 1


@dataclass(slots=True)
class _Tensor:
    cut: bool
    name: str = ""
    datatype: str = ""
    shape: list[int] = field(default_factory=list)
    contents: list[Field] = field(default_factory=list)
    parameters: dict[str, object] = field(default_factory=dict)


def _entry(reader: Reader, entry: Field) -> tuple[str, object]:
    """Name and value of an entry of a map of parameters; a value that is no number or text is
    None."""
    name: str | None = ""
    found: object = None
    for item in reader.fields(entry.start, entry.stop):
        if item.name == 1:
            name = reader.text(item)
        elif item.name == 2 and item.kind == BYTES:
            for inner in reader.fields(item.start, item.stop):
                if inner.kind == BYTES:
                    found = reader.text(inner)
                elif inner.kind == VARINT and inner.name != _BOOL:
                    found = signed(inner.number)
                elif inner.kind == FIXED64:
                    found = struct.unpack("<d", inner.number.to_bytes(8, "little"))[0]
    return name or "", found


class InferenceMessage:
    """One request being read. `model` as it is named, `cut` where not all it holds is known."""

    def __init__(self, reader: Reader, body: Body, tally: Tally) -> None:
        self.reader = reader
        self.model: str | None = None
        self.cut = False
        self._body = body
        self._tally = tally
        self._tensors: list[_Tensor] = []
        self._raw: list[Field] = []
        self._texts = 0
        # Bytes up to here are accounted for, whether they arrived or not.
        self._far = len(body.window)

    def take(self, item: Field) -> None:
        """Keep what one field says. Raises `MalformedError`, as `price` does."""
        if item.name == _MODEL:
            self.model = self.reader.text(item)
        elif item.name == _PARAMETERS:
            name, found = _entry(self.reader, item)
            if name in CAP_FIELDS or name in CHOICE_FIELDS:
                add_caps({name: found}, self._tally)
        elif item.name == _INPUTS:
            self._tensors.append(self._tensor(item))
        elif item.name == _RAW:
            self._raw.append(item)

    def price(self) -> bool:
        """Count all tensors. False when one contradicts itself, or there is none."""
        raw = iter(self._raw)
        generates, owed = False, 0
        for tensor in self._tensors:
            if tensor.cut and not tensor.contents:
                # Its shape may have yet to come; what it holds counts as text.
                break
            elements = elements_of(tensor.shape)
            if tensor.datatype not in ELEMENT_BYTES or elements is None:
                return False
            generates = generates or tensor.datatype == "BYTES" or tensor.name in CAP_TENSORS
            piece = None
            if not tensor.contents and "shared_memory_region" not in tensor.parameters:
                piece = next(raw, None)
            if piece is None and not tensor.contents and tensor.datatype != "BYTES":
                owed += elements * ELEMENT_BYTES[tensor.datatype] + MOST_TAG_BYTES
            if not self._add(tensor, elements, piece):
                return False
        left = max(0, self._body.whole_bytes - self._far - owed) if self._body.cut else 0
        self.cut = left > 0
        self._tally.text_bytes += left
        if self._tally.cap_tokens is None and not generates and not left:
            self._tally.cap_tokens = 0
        return bool(self._tensors) and next(raw, None) is None

    def _tensor(self, item: Field) -> _Tensor:
        reader = self.reader
        tensor = _Tensor(cut=item.stop > len(reader.data))
        for part in reader.fields(item.start, item.stop):
            if part.name == _SHAPE and part.kind == VARINT:
                tensor.shape.append(signed(part.number))
            elif part.kind != BYTES:
                continue
            elif part.name == _SHAPE and part.stop - part.start <= MAX_PACKED_BYTES:
                tensor.shape.extend(map(signed, reader.varints(part)))
            elif part.name == _NAME:
                tensor.name = (reader.text(part) or "").lower()
            elif part.name == _DATATYPE:
                tensor.datatype = reader.text(part) or ""
            elif part.name == _TENSOR_PARAMETERS:
                name, found = _entry(reader, part)
                tensor.parameters[name] = found
            elif part.name == _CONTENTS:
                tensor.contents.append(part)
        return tensor

    def _add(self, tensor: _Tensor, elements: int, piece: Field | None) -> bool:
        """Count one tensor, whose data is in it, in `piece`, in shared memory, or yet to come."""
        smallest = elements * ELEMENT_BYTES[tensor.datatype]
        if tensor.contents:
            count, text_bytes = self._contents(tensor)
            if count != elements and not (self._body.cut and count < elements):
                return False
            size = text_bytes + 4 * elements
        elif piece is not None:
            size = piece.stop - piece.start
            self._far = max(self._far, piece.stop)
            if size < smallest or (size > smallest and tensor.datatype != "BYTES"):
                return False
            self._read_raw(tensor, self.reader.data[piece.start : piece.stop])
        elif "shared_memory_region" in tensor.parameters:
            told = tensor.parameters.get("shared_memory_byte_size")
            if not isinstance(told, int) or not smallest <= told <= MAX_COUNT:
                return False
            size = told
        elif self._body.cut:
            size = smallest
        else:
            return False
        add_elements(
            {"datatype": tensor.datatype, "shape": tensor.shape}, elements, size, self._tally
        )
        return True

    def _contents(self, tensor: _Tensor) -> tuple[int, int]:
        """How many elements a tensor has in the message, and the bytes of the texts among them."""
        count = text_bytes = 0
        for part in tensor.contents:
            for item in self.reader.fields(part.start, part.stop):
                self._far = max(self._far, item.stop)
                if item.name == _STRINGS and item.kind == BYTES:
                    count += 1
                    text_bytes += item.stop - item.start
                    if tensor.name in PARAMETER_TENSORS:
                        self._look_into(self.reader.text(item) or "")
                elif item.kind != BYTES:
                    count += 1
                    self._add_cap(tensor, [item.number])
                else:
                    fixed = _FIXED.get(item.name)
                    room = item.stop - item.start
                    count += room // fixed if fixed else self.reader.count(item)
                    if not fixed and room <= MAX_PACKED_BYTES:
                        self._add_cap(tensor, self.reader.varints(item))
        return count, text_bytes

    def _read_raw(self, tensor: _Tensor, data: bytes) -> None:
        """Look for caps among raw bytes, as far as these have arrived."""
        data = data[:MAX_PACKED_BYTES]
        if tensor.name in CAP_TENSORS and tensor.datatype in TOKEN_ID_TYPES:
            width = ELEMENT_BYTES[tensor.datatype]
            ends = range(width, len(data) + 1, width)
            self._add_cap(tensor, [int.from_bytes(data[e - width : e], "little") for e in ends])
        elif tensor.name in PARAMETER_TENSORS and tensor.datatype == "BYTES":
            at = 0
            while len(data) - at > 4:
                size = int.from_bytes(data[at : at + 4], "little")
                self._look_into(data[at + 4 : at + 4 + size])
                at += 4 + size

    def _look_into(self, text: str | bytes) -> None:
        self._texts += 1
        if self._texts <= MAX_TEXTS:
            add_parameters(text, self._tally)

    def _add_cap(self, tensor: _Tensor, numbers: list[int]) -> None:
        if tensor.name in CAP_TENSORS and numbers:
            # A negative one is a very large one here, and read as such by whoever reads it so.
            largest = min(max(numbers), MAX_CAP_TOKENS)
            if largest > 0:
                self._tally.cap_tokens = max(largest, self._tally.cap_tokens or 0)
