"""What inference calls over gRPC are measured as."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.shapes.document import Body
from ext_authz.estimation.shapes.frames import read_frames
from ext_authz.estimation.shapes.wire import MAX_FIELDS
from ext_authz.model import Api, HttpCall, InferenceRequest, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.inference_messages import frame, request
from tests.support.pricing import estimate

UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
RULES = CostRules()


def at(body: bytes, path: str = UNARY, partial: bool = False, **headers: str) -> InferenceRequest:
    named = {"content-type": "application/grpc"}
    named.update({name.replace("_", "-"): text for name, text in headers.items()})
    return parse(HttpCall("POST", path, named, body, -1 if partial else len(body), partial))


def tensor(datatype: str, shape: list[int], name: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def strings(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def shared(size: int) -> list[dict[str, Any]]:
    return [
        {"key": "shared_memory_region", "value": {"string_param": "r"}},
        {"key": "shared_memory_byte_size", "value": {"int64_param": size}},
    ]


def cap(name: str, **value: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": value}]


SAMPLING = json.dumps({"max_tokens": 70, "n": 2}).encode()


@pytest.mark.parametrize(
    ("fields", "prompt", "output"),
    [
        ({"inputs": [tensor("FP32", [8, 3])], "raw_input_contents": [b"\0" * 96]}, 1, 0),
        ({"inputs": [tensor("FP32", [768, 4], contents={"fp32_contents": [0.5] * 3072})]}, 4, 0),
        ({"inputs": [tensor("FP64", [2], contents={"fp64_contents": [0.5] * 2})]}, 1, 0),
        ({"inputs": [tensor("INT32", [2, 3], contents={"int_contents": [1, 9, 300] * 2})]}, 6, 0),
        ({"inputs": [tensor("INT64", [2], contents={"int64_contents": [-1, 1]})]}, 2, 0),
        ({"inputs": [tensor("INT64", [7])], "raw_input_contents": [b"\0" * 56]}, 7, 0),
        ({"inputs": [tensor("INT32", [5], parameters=shared(20))]}, 5, 0),
        ({"inputs": [tensor("BYTES", [1], contents={"bytes_contents": [b"x" * 400]})]}, 100, 256),
        (
            {
                "inputs": [tensor("BYTES", [2]), tensor("INT32", [2], "max_tokens")],
                "raw_input_contents": [strings(b"x" * 400, b"y" * 400), struct.pack("<ii", 20, 50)],
            },
            202,
            100,
        ),
        (
            {
                "inputs": [
                    tensor("BYTES", [1], "text_input", contents={"bytes_contents": [b"x" * 400]}),
                    tensor("BYTES", [1], "sampling_parameters", parameters=shared(4)),
                ],
                "parameters": cap("max_tokens", string_param="300"),
            },
            100,
            300,
        ),
        (
            {
                "inputs": [tensor("BYTES", [1]), tensor("BYTES", [1], "sampling_parameters")],
                "raw_input_contents": [strings(b"x" * 400), strings(SAMPLING)],
            },
            107,
            140,
        ),
        (
            {
                "inputs": [
                    tensor("UINT32", [1], "request_output_len", contents={"uint_contents": [9]})
                ],
                "parameters": cap("n", int64_param=3),
            },
            1,
            27,
        ),
        (
            {
                "inputs": [tensor("BYTES", [1], contents={"bytes_contents": [b"x" * 4]})],
                "parameters": cap("max_tokens", double_param=40.5),
            },
            1,
            41,
        ),
    ],
)
def test_worked_prices_of_tensors(fields: dict[str, Any], prompt: int, output: int) -> None:
    """Tensors cost over gRPC what they cost as JSON, wherever their data is."""
    measured = at(frame(request(model_name="m1", **fields)))
    assert (measured.api, measured.operation, measured.model) == (Api.GRPC, Operation.INFER, "m1")
    assert (measured.opaque, measured.partial, measured.stream) == (False, False, False)
    assert estimate(measured, RULES) == WorkEstimate(prompt, output)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"inputs": [tensor("FP33", [1])], "raw_input_contents": [b"\0" * 4]},
        {"inputs": [tensor("FP32", [-1])], "raw_input_contents": [b"\0" * 4]},
        {"inputs": [tensor("FP32", [1 << 40, 1 << 40])], "raw_input_contents": [b"\0" * 4]},
        {"inputs": [tensor("FP32", [1] * 60)], "raw_input_contents": [b"\0" * 4]},
        {"inputs": [tensor("FP32", [2])], "raw_input_contents": [b"\0" * 4]},
        {"inputs": [tensor("FP32", [1])], "raw_input_contents": [b"\0" * 8]},
        {"inputs": [tensor("FP32", [1])]},
        {"inputs": [tensor("FP32", [1])], "raw_input_contents": [b"\0" * 4, b"\0" * 4]},
        {"inputs": [tensor("INT32", [3], contents={"int_contents": [1, 2]})]},
        {"inputs": [tensor("BYTES", [3], contents={"bytes_contents": [b"a"]})]},
        {"inputs": [tensor("INT32", [9], parameters=shared(20))]},
        {"inputs": [tensor("INT32", [9], parameters=shared(20)[:1])]},
    ],
)
def test_a_call_that_contradicts_itself_has_the_price_of_a_call(fields: dict[str, Any]) -> None:
    """O-18: shape, size and data must agree, or it costs what a frame nobody reads does."""
    measured = at(frame(request(model_name="m1", **fields)))
    assert (measured.unread, measured.model) == (Unread.GRPC, "m1")
    assert estimate(measured, RULES).tokens == RULES.opaque_tokens


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 40,
        b"\x0b\x0c",
        b"\x00\x01",
        b"\x0a\x05ab",
        b"\x2a\x02\x1a\x7f",
        b"\x08" + b"\x80" * 12,
    ],
)
def test_what_is_no_message_has_the_price_of_a_call(message: bytes) -> None:
    """Groups, field 0, lengths beyond the end and endless numbers are refused."""
    assert at(frame(message)).unread is Unread.GRPC


def test_a_cut_message_is_priced_from_the_size_it_announces() -> None:
    """Raw bytes beyond the buffer are explained by their size, whatever part of them arrived."""
    inputs = [tensor("FP32", [3, 512, 512])]
    body = frame(request(model_name="m1", inputs=inputs, raw_input_contents=[bytes(3 << 20)]))
    for seen in (60, 200, 60_000):
        measured = at(body[:seen], partial=True)
        assert (measured.model, measured.partial, measured.opaque) == ("m1", False, False)
        assert (measured.token_ids, measured.text_bytes) == (1024, 0)
        assert estimate(measured, RULES) == WorkEstimate(1024, 0)
    assert at(body[:20], partial=True).partial
    texts = request(inputs=[tensor("BYTES", [1])], raw_input_contents=[strings(b"a" * 900_000)])
    for seen in (12, 20, 60, 60_000):
        assert at(frame(texts)[:seen], partial=True).text_bytes >= 900_000


def test_a_cut_before_anything_can_be_told_costs_what_is_announced() -> None:
    """A size of which nothing arrived is a size."""
    measured = at(b"\x00\x00\x20\x00\x00", partial=True)
    assert (measured.unread, measured.text_bytes) == (Unread.GRPC, (1 << 21) + 5)


def test_a_packed_message_is_inflated() -> None:
    """With the coding the call names; a packed one without it has the price of a call."""
    message = request(
        model_name="m1", inputs=[tensor("INT64", [4000])], raw_input_contents=[bytes(32_000)]
    )
    packed = frame(gzip.compress(message), flag=1)
    assert at(packed, grpc_encoding="gzip") == at(frame(message))
    assert at(packed).unread is Unread.GRPC
    assert at(b"\x02" + packed[1:], grpc_encoding="gzip").unread is Unread.GRPC
    cut = at(packed[:-12], partial=True, grpc_encoding="gzip")
    assert (cut.model, cut.token_ids, cut.opaque) == ("m1", 4000, False)


def test_the_messages_of_a_stream_add_up() -> None:
    """Each costs what it would alone; of a stream that goes on nobody knows the size."""
    ask = frame(
        request(
            model_name="m1", inputs=[tensor("BYTES", [1])], raw_input_contents=[strings(b"x" * 40)]
        )
    )
    measured = at(ask * 3, STREAM)
    assert (measured.stream, measured.text_bytes, measured.sequences) == (True, 120, 3)
    assert not measured.size_unknown
    assert at(ask * 2, STREAM, partial=True).size_unknown
    assert not at(ask, UNARY, partial=True).size_unknown
    assert at(ask * 100, STREAM).text_bytes >= 4000


def test_more_fields_than_are_read_cost_the_most_they_could() -> None:
    """A message of nothing but fields is given up, and costs at least its size as text."""
    body = frame(b"\x0a\x00" * (MAX_FIELDS + 1))
    measured = at(body)
    assert (measured.unread, measured.text_bytes >= len(body)) == (Unread.GRPC, True)


def test_the_bounds_hold_for_all_messages_of_a_call_together() -> None:
    """Many messages take no longer to look at than one: what is over is counted by its size."""
    ask = request(model_name="m1", inputs=[tensor("INT32", [1])], raw_input_contents=[bytes(4)])
    packed = frame(gzip.compress(ask), flag=1)
    assert at(packed * 2, STREAM, grpc_encoding="gzip").token_ids == 2
    third = at(packed * 3, STREAM, grpc_encoding="gzip")
    assert (third.unread, third.text_bytes) == (Unread.GRPC, 3 * len(packed))
    fields = frame(b"\x0a\x00" * (MAX_FIELDS // 2))
    assert at(fields * 3, STREAM).text_bytes >= 3 * len(fields)
    call = read_frames(Body(fields * 3, 3 * len(fields), False, False), "")
    assert call.fields_left <= 0


@pytest.mark.parametrize(
    "path",
    [
        "/inference.GRPCInferenceService/../inference.GRPCInferenceService/ModelInfer",
        "/inference.grpcinferenceservice/modelinfer",
        "/v1/chat/completions",
        "/elsewhere",
    ],
)
def test_no_other_path_makes_a_message_cheaper(path: str) -> None:
    """What may be an inference request is counted as one wherever it goes."""
    inputs = [tensor("INT32", [3000], contents={"int_contents": [1] * 3000})]
    body = frame(
        request(model_name="m1", inputs=inputs, parameters=cap("max_tokens", int64_param=9000))
    )
    measured = at(body, path)
    assert (measured.opaque, measured.token_ids, measured.output_cap_tokens) == (True, 3000, 9000)
