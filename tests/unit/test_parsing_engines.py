"""What bodies of the engines' own APIs are measured as: generate, rerank, score, tokenise, draw."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.model import HttpCall, InferenceRequest, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

RULES = CostRules()
TRITON = "/v2/models/m/generate"


def measure(document: Any, path: str, cut: int | None = None) -> InferenceRequest:
    body = json.dumps(document).encode()
    seen = body[:cut]
    return parse(HttpCall("POST", path, {}, seen, len(body), partial=len(seen) < len(body)))


def price(document: Any, path: str) -> WorkEstimate:
    return estimate(measure(document, path), RULES)


@pytest.mark.parametrize(
    ("path", "document", "prompt", "output"),
    [
        # SGLang
        ("/generate", {"text": "x" * 40}, 10, 256),
        ("/generate", {"text": "x" * 40, "sampling_params": {"max_new_tokens": 9}}, 10, 9),
        ("/generate", {"text": "x" * 40, "sampling_params": {"max_new_tokens": 9, "n": 3}}, 10, 27),
        ("/generate", {"text": ["abcd", "efgh"], "sampling_params": {"max_new_tokens": 9}}, 2, 18),
        ("/generate", {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 9}}, 3, 9),
        (
            "/generate",
            {"input_ids": [[5, 6], [7]], "sampling_params": {"max_new_tokens": 9}},
            3,
            18,
        ),
        (
            "/generate",
            {
                "text": ["abcd", "efgh"],
                "sampling_params": [{"max_new_tokens": 9}, {"max_new_tokens": 30, "n": 2}],
            },
            2,
            2 * 2 * 30,
        ),
        ("/generate", {"text": "abcd", "image_data": "QUJD", "sampling_params": {}}, 1001, 256),
        ("/generate", {"text": "abcd", "image_data": [["http://a/b"], ["QUJD"]]}, 2001, 256),
        ("/generate", {"text": "abcd", "sampling_params": None, "logprob_start_len": 9}, 1, 256),
        # TGI
        ("/generate", {"inputs": "x" * 40, "parameters": {"max_new_tokens": 9}}, 10, 9),
        ("/generate_stream", {"inputs": "x" * 40, "parameters": {"best_of": 2}}, 10, 512),
        # vLLM
        ("/generate", {"prompt": "x" * 40, "max_tokens": 9, "n": 2}, 10, 18),
        (
            "/inference/v1/generate",
            {"token_ids": [1, 2], "sampling_params": {"max_tokens": 9}},
            2,
            9,
        ),
        # Triton
        (TRITON, {"text_input": "x" * 40, "max_tokens": 9}, 10, 9),
        (
            TRITON,
            {"text_input": "x" * 40, "parameters": {"max_tokens": "9", "stream": False}},
            10,
            9,
        ),
        (TRITON, {"text_input": "x" * 40, "sampling_parameters": '{"max_tokens": 9}'}, 10, 9),
        (
            TRITON,
            {"text_input": "x" * 40, "max_tokens": 9, "parameters": {"max_tokens": 70}},
            10,
            70,
        ),
    ],
)
def test_worked_prices_of_generate(
    path: str, document: dict[str, Any], prompt: int, output: int
) -> None:
    """Every name of a prompt and every place of a cap is read; of several caps the largest counts
    for all prompts."""
    assert price(document, path) == WorkEstimate(prompt, output)


def test_a_generate_stream_streams() -> None:
    """By its path, or because it says so; the model is the one in the path."""
    request = measure({"text_input": "x"}, "/v2/models/llama/versions/2/generate_stream")
    assert (request.stream, request.model) == (True, "llama")
    assert measure({"text": "x", "stream": True}, "/generate").stream
    assert not measure({"text": "x"}, "/generate").stream


def test_ids_beyond_a_cut_are_ids() -> None:
    """A long prompt of short ids costs a token for each, seen or not; text behind a few ids is
    text."""
    request = measure({"input_ids": [7] * 100_000}, "/generate")
    assert request.partial
    assert request.token_ids == pytest.approx(100_000, rel=0.001)
    mixed = measure({"input_ids": [7] * 1000, "text": "x" * 200_000}, "/generate")
    assert (mixed.token_ids, mixed.text_bytes) == (1000, pytest.approx(200_000, rel=0.03))


@pytest.mark.parametrize(
    ("path", "document", "tokens"),
    [
        ("/v1/rerank", {"query": "q" * 40, "documents": ["d" * 8, "e" * 12]}, 10 + 10 + 2 + 3),
        ("/rerank", {"query": "q" * 40, "documents": [{"text": "d" * 8}]}, 10 + 2),
        ("/rerank", {"query": "q" * 40, "texts": ["d" * 8] * 3, "truncate": True}, 3 * 12),
        ("/v1/score", {"text_1": "q" * 40, "text_2": "d" * 8}, 12),
        ("/v1/score", {"text_1": "q" * 40, "text_2": ["d" * 8] * 5}, 5 * 12),
        ("/v1/score", {"text_1": ["q" * 40] * 3, "text_2": ["d" * 8] * 3}, 3 * 12),
        ("/v1/score", {"query": [1, 2, 3], "items": [[4], [5]]}, 2 * 3 + 2),
        ("/pooling", {"input": ["abcd", "efgh"]}, 2),
        ("/classify", {"text": "abcdefgh"}, 2),
        ("/encode", {"input_ids": [1, 2, 3], "image_data": ["QUJD"]}, 1003),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "x" * 36}]}, 10),
    ],
)
def test_worked_prices_of_what_only_reads(path: str, document: dict[str, Any], tokens: int) -> None:
    """A query is read again with each text it is compared to; nothing is written."""
    assert price(document, path) == WorkEstimate(tokens, 0)


def test_a_long_query_beyond_a_cut_is_still_read_each_time() -> None:
    """What was repeated before the cut is repeated behind it."""
    document = {"query": "q" * 4000, "documents": ["abcd"] * 20_000}
    request = measure(document, "/v1/rerank")
    assert request.partial
    assert request.text_bytes == pytest.approx(20_000 * 4004, rel=0.15)


@pytest.mark.parametrize(
    "path",
    ["/tokenize", "/v1/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"],
)
def test_counting_tokens_runs_no_model(path: str) -> None:
    """Whatever is counted costs next to nothing, once it can be read; the model is known."""
    document = {"model": "m", "messages": [{"role": "user", "content": "x" * 90_000}]}
    request = measure(document, path)
    assert (request.operation, request.model) == (Operation.TOKENIZE, "m")
    assert estimate(request, RULES) == WorkEstimate(1, 0)
    broken = parse(HttpCall("POST", path, {}, b"[" * 9000, 9000, partial=False))
    assert estimate(broken, RULES).tokens >= RULES.opaque_tokens


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [({}, 1000), ({"n": 4}, 4000), ({"n": "3", "size": "512x512"}, 3000), ({"n": None}, 1000)],
)
def test_each_picture_to_be_made_has_the_price_of_one(fields: dict[str, Any], prompt: int) -> None:
    """As many as are asked for, whatever their size, beside the text that says what."""
    drawn = price({"prompt": "x" * 40, **fields}, "/v1/images/generations")
    assert drawn == WorkEstimate(prompt + 10, 0)
    elsewhere = price({"prompt": "x" * 40, **fields}, "/elsewhere")
    assert elsewhere.prompt_tokens >= drawn.prompt_tokens


def test_pictures_to_be_made_are_as_many_behind_a_cut() -> None:
    """Their number is given, so a long text makes no more of them."""
    request = measure({"n": 3, "prompt": "x" * 200_000}, "/v1/images/generations")
    assert (request.partial, request.images) == (True, 3)


def test_nothing_is_drawn_without_a_prompt() -> None:
    """A document that no server would draw from is not understood."""
    assert measure({"n": 4}, "/v1/images/generations").unread is Unread.ODD_JSON
