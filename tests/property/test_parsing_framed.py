"""What holds for packed bodies, forms and frames, whatever is in them and however much arrived."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.shapes.document import Body
from ext_authz.estimation.shapes.encoded import MAX_INFLATED_BYTES, inflate
from ext_authz.estimation.shapes.frames import read_frames
from ext_authz.estimation.shapes.kserve import ELEMENT_BYTES, PATCH_ELEMENTS, TOKEN_ID_TYPES
from ext_authz.estimation.shapes.wire import MAX_FIELDS, MalformedError, Reader
from ext_authz.model import HttpCall, InferenceRequest, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.inference_messages import classes, frame, request
from tests.support.pricing import estimate

RULES = CostRules()
CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/transcriptions"
UNARY = "/inference.GRPCInferenceService/ModelInfer"
GRPC = {"content-type": "application/grpc", "grpc-encoding": "gzip"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
patient = settings(deadline=None)


def at(path: str, headers: dict[str, str], body: bytes, cut: int | None = None) -> InferenceRequest:
    seen = body[:cut]
    whole = len(body)
    call = HttpCall("POST", path, headers, seen, whole, partial=len(seen) < whole)
    measured = parse(call)
    assert measured.unread is not Unread.FAULT
    return measured


def price(path: str, headers: dict[str, str], body: bytes, cut: int | None = None) -> WorkEstimate:
    return estimate(at(path, headers, body, cut), RULES)


shapes = st.lists(st.integers(0, 40), max_size=3)
kinds = st.sampled_from(sorted(set(ELEMENT_BYTES) - {"BYTES"}))


@st.composite
def numeric(draw: st.DrawFn) -> tuple[str, list[int], int]:
    """A tensor of numbers: its type, shape and elements."""
    shape, elements = draw(shapes), 1
    for size in shape:
        elements *= size
    return draw(kinds), shape, min(elements, 64_000)


def of_numbers(tensors: list[tuple[str, list[int], int]], model: str) -> bytes:
    inputs = [{"name": "x", "datatype": kind, "shape": shape} for kind, shape, _ in tensors]
    raw = [bytes(ELEMENT_BYTES[kind] * count) for kind, _, count in tensors]
    return request(model_name=model, inputs=inputs, raw_input_contents=raw)


@patient
@given(st.lists(numeric(), min_size=1, max_size=4), st.text("abc/", min_size=1, max_size=9))
def test_tensors_in_frames_cost_what_a_slow_count_says(
    tensors: list[tuple[str, list[int], int]], model: str
) -> None:
    """A token for each id and each patch, packed or not, and nothing put out."""
    tokens = sum(
        count if kind in TOKEN_ID_TYPES else -(-count // PATCH_ELEMENTS)
        for kind, _, count in tensors
    )
    message = of_numbers(tensors, model)
    for body in (frame(message), frame(gzip.compress(message), 1)):
        measured = at(UNARY, GRPC, body)
        assert (measured.model, measured.opaque) == (model, False)
        if not measured.partial:
            assert estimate(measured, RULES) == WorkEstimate(max(1, tokens), 0)


@patient
@given(st.lists(numeric(), min_size=1, max_size=3), st.lists(st.binary(max_size=90)), st.data())
def test_a_cut_frame_is_never_cheaper_than_the_whole(
    tensors: list[tuple[str, list[int], int]], texts: list[bytes], data: st.DataObject
) -> None:
    """However little of a message arrived, nothing of its prompt is lost but tokens of numbers
    whose shape has not been seen, and these count at least a quarter of their bytes."""
    said = {
        "name": "t",
        "datatype": "BYTES",
        "shape": [len(texts)],
        "contents": {"bytes_contents": texts},
    }
    body = frame(request(model_name="m", inputs=[said]))
    cut = data.draw(st.integers(5, len(body)))
    whole, part = price(UNARY, GRPC, body), price(UNARY, GRPC, body, cut)
    assert part.prompt_tokens >= whole.prompt_tokens
    numbers = frame(of_numbers(tensors, "m"))
    cut = data.draw(st.integers(5, len(numbers)))
    seen = at(UNARY, GRPC, numbers, cut)
    least = min(at(UNARY, GRPC, numbers).token_ids, len(numbers) // 4)
    assert 4 * seen.token_ids + seen.text_bytes + 3 >= least


calls = st.fixed_dictionaries(
    {},
    optional={
        "model_name": st.text(max_size=5),
        "inputs": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "name": st.sampled_from(["x", "max_tokens", "sampling_parameters"]),
                    "datatype": st.sampled_from(["INT32", "BYTES", "FP32", "odd"]),
                    "shape": st.lists(st.integers(-1, 9), max_size=2),
                    "contents": st.fixed_dictionaries(
                        {},
                        optional={
                            "int_contents": st.lists(st.integers(-9, 9000), max_size=9),
                            "fp32_contents": st.lists(st.floats(width=32), max_size=9),
                            "bytes_contents": st.lists(st.binary(max_size=9), max_size=4),
                        },
                    ),
                },
            ),
            max_size=3,
        ),
        "raw_input_contents": st.lists(st.binary(max_size=40), max_size=3),
    },
)


@patient
@given(calls, st.sampled_from(["/v1/chat/completions", "/a.B/C", UNARY.lower(), UNARY + "/../x"]))
def test_no_path_makes_a_frame_cheaper(fields: dict[str, Any], path: str) -> None:
    """What is read as an inference request costs no less where it is not taken for one."""
    body = frame(request(**fields))
    plain, other = price(UNARY, GRPC, body), price(path, GRPC, body)
    assert other.prompt_tokens >= plain.prompt_tokens
    assert other.output_tokens >= plain.output_tokens


@patient
@given(calls)
def test_the_wire_reader_sees_what_protobuf_sees(fields: dict[str, Any]) -> None:
    """The fields of a message, one by one, are those of the real decoder."""
    message = request(**fields)
    decoded = classes()["Request"].FromString(message)
    seen = list(Reader(message).fields(0, len(message)))
    names = [field.name for field in seen]
    assert names.count(5) == len(decoded.inputs)
    raw = [message[field.start : field.stop] for field in seen if field.name == 7]
    assert raw == list(decoded.raw_input_contents)
    for field, tensor in zip((f for f in seen if f.name == 5), decoded.inputs, strict=True):
        inner = list(Reader(message).fields(field.start, field.stop))
        packed = [part for part in inner if part.name == 3]
        counted = sum(Reader(message).count(part) for part in packed)
        assert counted == len(tensor.shape)


@patient
@given(st.binary(max_size=400), st.integers(0, 1 << 40))
def test_the_wire_reader_ends(data: bytes, stop: int) -> None:
    """Any bytes are fields in a row, or refused; never more fields than there are bytes."""
    try:
        found = list(Reader(data).fields(0, stop))
    except MalformedError:
        return
    assert len(found) <= min(len(data), MAX_FIELDS)
    assert all(a.stop <= b.start for a, b in pairwise(found))


@settings(patient, max_examples=300)
@given(
    st.sampled_from(
        [UNARY, UNARY.replace("Model", "ModelStream"), SPEECH, "/v1/images/edits", CHAT]
    ),
    st.sampled_from([GRPC, FORM, {"content-encoding": "gzip"}, {"content-encoding": "deflate"}]),
    st.one_of(
        st.binary(max_size=300),
        st.builds(frame, st.binary(max_size=200), st.integers(0, 3)),
        st.builds(lambda data: frame(gzip.compress(data), 1), st.binary(max_size=200)),
        st.builds(gzip.compress, st.binary(max_size=200)),
        st.builds(lambda data: b"--b\r\n" + data + b"\r\n--b--", st.binary(max_size=200)),
        st.lists(
            st.sampled_from(
                [b"--b", b"\r\n", b"name=", b'"file"', b"; ", b"--", b"filename=", b"x"]
            ),
            max_size=40,
        ).map(b"".join),
    ),
    st.integers(-1, 10**6),
)
def test_anything_framed_is_measured_and_costs_its_size_where_it_is_not_read(
    path: str, headers: dict[str, str], body: bytes, size: int
) -> None:
    """No bytes raise or reach the guard, and what is opaque is priced by its size at least."""
    measured = parse(HttpCall("POST", path, headers, body, size, partial=size > len(body)))
    assert measured.unread is not Unread.FAULT
    assert min(measured.text_bytes, measured.token_ids, measured.images) >= 0
    if measured.opaque:
        # A packing of nothing is larger than nothing.
        assert measured.text_bytes >= len(body) or "content-encoding" in headers
        assert estimate(measured, RULES).tokens >= RULES.opaque_tokens


@patient
@given(st.integers(0, 3_000_000), st.integers(1, 100_000), st.data())
def test_a_longer_recording_never_costs_less(size: int, more: int, data: st.DataObject) -> None:
    """The price of speech grows with the file, and does not depend on how much of it arrived."""

    def recording(length: int) -> bytes:
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        return head + bytes(length) + b"\r\n--b--\r\n"

    shorter, longer = (
        price(SPEECH, FORM, recording(size)),
        price(SPEECH, FORM, recording(size + more)),
    )
    assert longer.prompt_tokens >= shorter.prompt_tokens
    assert longer.output_tokens >= shorter.output_tokens
    cut = data.draw(st.integers(75, len(recording(size))))
    part = price(SPEECH, FORM, recording(size), cut)
    assert shorter.prompt_tokens <= part.prompt_tokens <= shorter.prompt_tokens + 1500


@patient
@given(st.lists(st.text(max_size=200), max_size=5), st.sampled_from(["gzip", "deflate"]), st.data())
def test_packing_changes_no_price(said: list[str], coding: str, data: st.DataObject) -> None:
    """A packed document costs what it does unpacked; of one that is cut nothing raises."""
    body = json.dumps({"messages": [{"content": text} for text in said]}).encode()
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    headers = {"content-encoding": coding}
    assert price(CHAT, headers, packed) == price(CHAT, {}, body)
    cut = at(CHAT, headers, packed, data.draw(st.integers(0, len(packed) - 1)))
    assert cut.partial


@patient
@given(st.binary(max_size=3000), st.integers(1, 400), st.integers(0, 50), st.integers(0, 10**7))
def test_inflating_is_bounded_and_never_below_what_came_out(
    data: bytes, times: int, cut: int, beyond: int
) -> None:
    """The window is what was packed, the size at least all of it as far as it is counted."""
    plain = data * times
    packed = gzip.compress(plain)
    seen = packed[: max(1, len(packed) - cut)]
    whole = len(packed) + beyond
    body = inflate(Body(seen, whole, len(seen) < whole, size_unknown=False), ["gzip"])
    if body is None:
        return
    assert plain.startswith(body.window)
    assert body.whole_bytes >= len(body.window)
    if not cut and not beyond and len(plain) < MAX_INFLATED_BYTES:
        assert body.whole_bytes == len(plain)
    if not body.cut:
        assert body.window == plain


@patient
@given(st.binary(max_size=200), st.integers(0, 1 << 32))
def test_what_frames_announce_is_what_they_cost(data: bytes, size: int) -> None:
    """A call is never smaller than its frames say or than what arrived."""
    size = min(size, (1 << 32) - 1)
    body = b"\0" + size.to_bytes(4, "big") + data
    call = read_frames(Body(body, len(body), cut=True, size_unknown=True), "")
    assert call.whole_bytes >= max(5 + size, len(body))
