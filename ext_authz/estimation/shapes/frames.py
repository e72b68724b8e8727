"""KServe v2 over gRPC: `ModelInfer` and its stream, from their frames.

PURE. A frame is a flag, the size of its message in four bytes, and the message
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md); the message is KServe's
`ModelInferRequest` (https://github.com/kserve/open-inference-protocol). Tensors cost what they do
as JSON. A message of which only the beginning arrived is priced from the size it announces.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ext_authz.estimation.shapes.document import MAX_BODY_BYTES, Body
from ext_authz.estimation.shapes.encoded import codings, inflate
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
from ext_authz.estimation.shapes.wire import (
    BYTES,
    FIXED64,
    VARINT,
    Field,
    MalformedError,
    Reader,
    signed,
)

PREFIX_BYTES = 5
MAX_FRAMES = 64
# Numbers or texts that are read one by one: shapes, caps, parameters. Others are only counted.
MAX_PACKED_BYTES = 2048
# Field numbers of the messages.
_MODEL, _PARAMETERS, _INPUTS, _RAW = 1, 4, 5, 7
_NAME, _DATATYPE, _SHAPE, _TENSOR_PARAMETERS, _CONTENTS = 1, 2, 3, 4, 5
# Of contents: texts, and numbers that all take the same bytes. Of parameters: what is no number.
_STRINGS, _FIXED, _BOOL = 8, {6: 4, 7: 8}, 1


@dataclass(slots=True)
class Call:
    """What the frames of one call ask for.

    `whole_bytes` is what they announce. `understood`: all of them are inference requests that do
    not contradict themselves. `open`: all of them have arrived, so that more may follow.
    """

    whole_bytes: int
    tally: Tally
    model: str | None = None
    understood: bool = True
    open: bool = False


@dataclass(slots=True)
class _Tensor:
    name: str = ""
    datatype: str = ""
    shape: list[int] = field(default_factory=list)
    contents: list[Field] = field(default_factory=list)
    parameters: dict[str, object] = field(default_factory=dict)


def is_framed(window: bytes) -> bool:
    """Whether a frame may start here: its flag says packed or not, and nothing else."""
    return window[:1] in {b"\0", b"\1"}


def read_frames(body: Body, coding: str) -> Call:
    """The frames in `body`; `coding` is what packed ones are packed in. Never raises."""
    call = Call(body.whole_bytes, Tally())
    window, at, prompts = body.window, 0, 0
    for _ in range(MAX_FRAMES):
        if len(window) - at < PREFIX_BYTES:
            break
        flag, size = window[at], int.from_bytes(window[at + 1 : at + PREFIX_BYTES], "big")
        start, at = at + PREFIX_BYTES, at + PREFIX_BYTES + size
        seen = window[start:at]
        call.whole_bytes = max(call.whole_bytes, at)
        message: Body | None = Body(seen, size, cut=len(seen) < size, size_unknown=False)
        if flag and message is not None:
            message = inflate(message, codings(coding)) if flag == 1 else None
        one = Tally()
        if message is None or not _read_message(message, bool(flag), one, call):
            call.understood = False
        prompts += one.prompts
        _add(call.tally, one)
    call.tally.prompts = max(1, prompts)
    # Further frames, or what is none.
    call.tally.text_bytes += max(0, call.whole_bytes - at)
    call.open = at <= len(window)
    call.understood = call.understood and prompts > 0 and len(window) - at < PREFIX_BYTES
    return call


def _add(total: Tally, one: Tally) -> None:
    total.text_bytes += one.text_bytes
    total.token_ids += one.token_ids
    total.choices = max(total.choices, one.choices)
    if one.cap_tokens is not None:
        total.cap_tokens = max(one.cap_tokens, total.cap_tokens or 0)


def _read_message(body: Body, packed: bool, tally: Tally, call: Call) -> bool:
    """Price one request. False when it is none, or contradicts itself; what was counted stays."""
    # Of a packed one that is cut nobody knows the size.
    stop = MAX_BODY_BYTES if packed and body.cut else body.whole_bytes
    message = _Message(Reader(body.window), body, tally)
    try:
        for item in message.reader.fields(0, stop):
            if item.kind == BYTES:
                message.take(item, call)
        return message.price()
    except MalformedError:
        tally.text_bytes += body.whole_bytes
        return False


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


class _Message:
    """One request being read."""

    def __init__(self, reader: Reader, body: Body, tally: Tally) -> None:
        self.reader = reader
        self._body = body
        self._tally = tally
        self._tensors: list[_Tensor] = []
        self._raw: list[Field] = []
        # Bytes up to here are accounted for, whether they arrived or not.
        self._far = len(body.window)

    def take(self, item: Field, call: Call) -> None:
        """Keep what one field says."""
        if item.name == _MODEL:
            call.model = self.reader.text(item)
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
            elements = elements_of(tensor.shape)
            if tensor.datatype not in ELEMENT_BYTES or elements is None:
                if self._body.cut and tensor is self._tensors[-1]:
                    # The end of it has yet to come; what it holds counts as text.
                    break
                return False
            generates = generates or tensor.datatype == "BYTES" or tensor.name in CAP_TENSORS
            piece = None
            if not tensor.contents and "shared_memory_region" not in tensor.parameters:
                piece = next(raw, None)
            if piece is None and not tensor.contents and tensor.datatype != "BYTES":
                owed += elements * ELEMENT_BYTES[tensor.datatype]
            if not self._add(tensor, elements, piece):
                return False
        tally = self._tally
        if tally.cap_tokens is None and not generates and not self._body.cut:
            tally.cap_tokens = 0
        if self._body.cut:
            tally.text_bytes += max(0, self._body.whole_bytes - self._far - owed)
        return bool(self._tensors) and next(raw, None) is None

    def _tensor(self, item: Field) -> _Tensor:
        tensor, reader = _Tensor(), self.reader
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
                        add_parameters(self.reader.text(item) or "", self._tally)
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
                add_parameters(data[at + 4 : at + 4 + size], self._tally)
                at += 4 + size

    def _add_cap(self, tensor: _Tensor, numbers: list[int]) -> None:
        if tensor.name in CAP_TENSORS and numbers:
            # A negative one is a very large one here, and read as such by whoever reads it so.
            largest = min(max(numbers), MAX_CAP_TOKENS)
            if largest > 0:
                self._tally.cap_tokens = max(largest, self._tally.cap_tokens or 0)
