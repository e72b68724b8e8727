"""What KServe v2 bodies are measured as."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.model import Api, HttpCall, InferenceRequest, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

PATH = "/v2/models/resnet/versions/3/infer"
RULES = CostRules()
RAW = bytes([0x00, 0xFF] * 48)


def tensor(datatype: str, shape: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, **more}


def binary(datatype: str, shape: Any, size: Any, name: str = "x") -> dict[str, Any]:
    return tensor(datatype, shape, name, parameters={"binary_data_size": size})


def send(inputs: Any, raw: bytes = b"", length: str | None = "right") -> InferenceRequest:
    head = json.dumps({"inputs": inputs}).encode()
    headers = {"content-type": "application/octet-stream"}
    if length is not None:
        right = str(len(head))
        headers["inference-header-content-length"] = right if length == "right" else length
    body = head + raw
    return parse(HttpCall("POST", PATH, headers, body, len(body), partial=False))


def test_a_binary_tensor_is_priced_by_its_shape() -> None:
    """O-13: only the JSON before the raw bytes is read, and the model comes from the path."""
    request = send([binary("FP32", [8, 3], 96)], RAW)
    assert (request.api, request.operation) == (Api.KSERVE, Operation.INFER)
    assert (request.model, request.opaque, request.partial) == ("resnet", False, False)
    assert estimate(request, RULES) == WorkEstimate(1, 0)


def test_raw_bytes_beyond_the_buffer_are_no_cut() -> None:
    """When the JSON arrived whole, how much of the raw part did makes no difference."""
    head = json.dumps({"inputs": [binary("FP32", [3, 512, 512], 3_145_728)]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    whole = len(head) + 3_145_728
    request = parse(HttpCall("POST", PATH, headers, head + RAW, whole, partial=True))
    assert (request.opaque, request.partial) == (False, False)
    assert estimate(request, RULES) == WorkEstimate(1024, 0)


@pytest.mark.parametrize("length", [None, "99999", "-5", "12abc", "", "0", "7", "1" * 30, "\u0663"])
def test_a_wrong_header_length_gets_the_fallback_price(length: str | None) -> None:
    """O-13: every bad length is opaque with a reason, and the model is still known."""
    request = send([binary("FP32", [8, 3], 96)], RAW, length)
    assert (request.opaque, request.model) == (True, "resnet")
    assert request.unread in {Unread.BAD_TENSOR, Unread.NOT_JSON, Unread.ODD_JSON}
    assert estimate(request, RULES).tokens == RULES.opaque_tokens


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        [],
        [1],
        [binary("FP32", "-1", 96)],
        [binary("FP32", [-1], 96)],
        [binary("FP32", [True, 24], 96)],
        [binary("FP32", [2147483647, 2147483647], 96)],
        [binary("FP32", [1] * 100, 4)],
        [binary("FP32", [8, 4], 96)],
        [binary("FP32", [8, 4], 128)],
        [binary("FP32", [8, 3], "96")],
        [binary("FP32", [8, 3], -96)],
        [binary("FP33", [8, 3], 96)],
        [binary([], [8, 3], 96)],
        [binary("FP32", [8, 3], 96), binary("FP32", [8, 3], 96)],
        [tensor("FP32", [2, 2], data=[1.0, 2.0, 3.0])],
        [tensor("FP32", [2, 2])],
        [tensor("FP32", [2, 2], parameters=7)],
        [tensor("FP32", [4], parameters={"shared_memory_region": "r"})],
    ],
)
def test_a_tensor_that_contradicts_itself_gets_the_fallback_price(inputs: Any) -> None:
    """O-13: shape, size and data must agree; nothing is multiplied out or allocated."""
    request = send(inputs, RAW)
    assert (request.unread, request.model) == (Unread.BAD_TENSOR, "resnet")
    assert RULES.opaque_tokens <= estimate(request, RULES).tokens <= 2 * RULES.opaque_tokens


@pytest.mark.parametrize(
    ("inputs", "prompt", "output"),
    [
        ([tensor("INT64", [2, 3], data=[[1, 2, 3], [4, 5, 6]])], 6, 0),
        ([tensor("INT64", [2, 3], data=[1, 2, 3, 4, 5, 6])], 6, 0),
        ([tensor("FP32", [1000], data=[0.5] * 1000)], 2, 0),
        ([tensor("BYTES", [1], data=["x" * 400])], 100, 256),
        ([tensor("BYTES", [2, 1], data=[["x" * 400], ["y" * 400]])], 200, 512),
        (
            [
                tensor("BYTES", [2], data=["x" * 400, "y" * 400]),
                tensor("INT32", [2, 1], "max_tokens", data=[[20], [50]]),
            ],
            202,
            100,
        ),
        ([tensor("UINT32", [1], "request_output_len", data=[50])], 1, 50),
        (
            [
                tensor(
                    "INT32",
                    [5],
                    parameters={"shared_memory_region": "r", "shared_memory_byte_size": 20},
                )
            ],
            5,
            0,
        ),
    ],
)
def test_worked_tensor_prices(inputs: Any, prompt: int, output: int) -> None:
    """Ids are tokens, patches are tokens, strings are text that something answers."""
    request = send(inputs, length=None)
    assert not request.opaque
    assert estimate(request, RULES) == WorkEstimate(prompt, output)


def test_a_binary_cap_cannot_be_read_and_gets_the_default() -> None:
    """A cap among the raw bytes still says that something is generated."""
    request = send([binary("INT32", [1], 4, "max_tokens")], b"\x09\x00\x00\x00")
    assert estimate(request, RULES) == WorkEstimate(1, RULES.default_output_tokens)


def test_binary_strings_are_text_without_their_lengths() -> None:
    """Each string of a binary BYTES tensor is preceded by four bytes that are no text."""
    request = send([binary("BYTES", [2], 48)], RAW[:48])
    assert (request.text_bytes, request.sequences) == (40, 2)


def test_a_cut_tensor_is_priced_by_its_shape() -> None:
    """Numbers beyond the cut are explained by the shape and not counted as text again."""
    head = json.dumps({"inputs": [tensor("FP32", [76_800], data=[0.123456] * 76_800)]}).encode()
    request = parse(HttpCall("POST", PATH, {}, head, len(head), partial=False))
    assert (request.partial, request.opaque) == (True, False)
    assert (request.token_ids, request.text_bytes) == (100, 0)


def test_text_hidden_behind_a_small_tensor_is_paid_for() -> None:
    """What no declared shape explains beyond the cut is text."""
    inputs = [tensor("INT32", [2], data=[1, 2]), tensor("BYTES", [1], data=["x" * 200_000])]
    head = json.dumps({"inputs": inputs}).encode()
    request = parse(HttpCall("POST", PATH, {}, head, len(head), partial=False))
    assert request.text_bytes >= 199_000


def test_another_spelling_of_the_path_does_not_hide_the_elements() -> None:
    """Ids written in two bytes each cost a token each on a path nobody recognises, too."""
    document = {"inputs": [tensor("INT64", [30_000], data=[0] * 30_000)]}
    body = json.dumps(document, separators=(",", ":")).encode()
    for path in (PATH, "/v2/models/x/../resnet/infer", "/elsewhere"):
        request = parse(HttpCall("POST", path, {}, body, len(body), partial=False))
        assert request.token_ids == 30_000


def test_a_header_of_tensors_hides_nothing_on_other_paths() -> None:
    """Only inference has raw bytes behind its document; elsewhere all of a body is one."""
    body = json.dumps({"prompt": " " * 60, "max_tokens": 9000}).encode()
    headers = {"inference-header-content-length": "40"}
    for path in ("/v1/completions", "/v1/../v1/completions"):
        request = parse(HttpCall("POST", path, headers, body, len(body), partial=False))
        assert request.output_cap_tokens == 9000
