"""gRPC frames: KServe's inference calls, `ModelInfer` and its stream.

PURE. A frame is a flag, the size of its message in four bytes, and the message
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). One of which only the beginning
arrived is priced from the size it announces.
"""

from __future__ import annotations

from dataclasses import dataclass

from ext_authz.estimation.shapes.document import MAX_BODY_BYTES, Body
from ext_authz.estimation.shapes.encoded import codings, inflate
from ext_authz.estimation.shapes.inference import InferenceMessage
from ext_authz.estimation.shapes.tally import Tally
from ext_authz.estimation.shapes.wire import BYTES, MAX_FIELDS, MalformedError, Reader

PREFIX_BYTES = 5
MAX_FRAMES = 64
# Packed ones that are inflated, of a stream that is shown.
MAX_PACKED = 2


@dataclass(slots=True)
class Call:
    """What the frames of one call ask for.

    `whole_bytes` is what they announce. `understood`: all of them are inference requests that do
    not contradict themselves. `open`: all of them have arrived, so that more may follow. `cut`: not
    all they hold is known.
    """

    whole_bytes: int
    tally: Tally
    model: str | None = None
    understood: bool = True
    open: bool = False
    cut: bool = False
    # Bounds: packed frames seen, fields that may still be read.
    packed: int = 0
    fields_left: int = MAX_FIELDS


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
            call.packed += 1
            readable = flag == 1 and call.packed <= MAX_PACKED
            message = inflate(message, codings(coding)) if readable else None
        one = Tally()
        if message is None or not _read_message(message, bool(flag), one, call):
            call.understood = False
        prompts += one.prompts
        _add(call.tally, one)
    call.tally.prompts = max(1, prompts)
    # Further frames, or what is none.
    beyond = max(0, call.whole_bytes - at)
    call.tally.text_bytes += beyond
    call.cut = call.cut or beyond > 0
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
    message = InferenceMessage(Reader(body.window, call.fields_left), body, tally)
    try:
        for item in message.reader.fields(0, stop):
            if item.kind == BYTES:
                message.take(item)
        understood = message.price()
    except MalformedError:
        tally.text_bytes += body.whole_bytes
        understood = False
    call.fields_left = message.reader.left
    call.model, call.cut = message.model or call.model, call.cut or message.cut
    return understood
