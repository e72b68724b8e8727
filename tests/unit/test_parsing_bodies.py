"""What bodies of the language APIs are measured as."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_authz.estimation.parsing import MAX_MODEL_CHARS, parse
from ext_authz.estimation.shapes.tally import MAX_CAP_TOKENS
from ext_authz.model import Api, HttpCall, InferenceRequest, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT = "/v1/chat/completions"
RULES = CostRules()


def call(body: bytes, path: str = CHAT, **headers: str) -> HttpCall:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpCall("POST", path, named, body, len(body), partial=False)


def measure(document: Any, path: str = CHAT) -> InferenceRequest:
    return parse(call(json.dumps(document).encode(), path))


def price(document: Any, path: str = CHAT) -> WorkEstimate:
    return estimate(measure(document, path), RULES)


def said(*content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m1", "messages": [{"role": "user", "content": c} for c in content], **more}


def test_a_plain_chat_is_measured_in_full() -> None:
    """Text, role, cap, model and streaming come from the body."""
    request = measure(said("hello", max_tokens=7, stream=True))
    assert request == InferenceRequest(
        api=Api.OPENAI,
        operation=Operation.CHAT,
        path=CHAT,
        model="m1",
        text_bytes=len("user") + len("hello"),
        output_cap_tokens=7,
        stream=True,
    )


def test_nulls_and_unknown_parts_cost_something_bounded() -> None:
    """O-08: null content, null calls and unknown parts are counted, not tripped over."""
    arguments = '{"q":"Oslo"}'
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "weather in Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "w", "arguments": arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": None},
        {"role": "assistant", "content": "", "tool_calls": None, "function_call": None},
        {
            "role": "user",
            "content": [{"type": "text", "text": None}, {"type": "mystery", "x": 1}, "bare", None],
        },
    ]
    request = measure({"model": "m1", "max_tokens": None, "tools": None, "messages": messages})
    texts = len("be brief") + len("weather in Oslo?") + len("bare") + len(arguments)
    assert not request.opaque
    assert texts < request.text_bytes < 3 * texts + 100
    assert request.output_cap_tokens is None
    messages[2]["tool_calls"] = None
    without = measure({"model": "m1", "messages": messages})
    assert request.text_bytes - without.text_bytes >= len(arguments)


@pytest.mark.parametrize(
    ("path", "fields", "output"),
    [
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 8000}, 8000),
        (CHAT, {"max_completion_tokens": 8000}, 8000),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 8000}, 8000),
        (CHAT, {"max_tokens": 100, "n": 4}, 400),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100, "n": 2, "best_of": 5}, 500),
        (CHAT, {"stream": True, "stream_options": {"include_usage": True}}, 256),
        (CHAT, {"max_tokens": 100, "n": 0}, 100),
        (CHAT, {"max_tokens": 100, "n": -3}, 100),
        (CHAT, {"max_tokens": 100, "n": True}, 100),
    ],
)
def test_the_largest_cap_wins_and_choices_multiply(
    path: str, fields: dict[str, Any], output: int
) -> None:
    """O-09: the output is reserved for the largest explicit cap, once per choice."""
    assert price({"model": "m1", **fields}, path).output_tokens == output


@pytest.mark.parametrize(
    ("cap", "believed"),
    [
        (-1, None),
        (0, None),
        (True, None),
        (None, None),
        ("many", None),
        ([5], None),
        ("500", 500),
        ("5e2", 500),
        (499.5, 500),
        (1e300, MAX_CAP_TOKENS),
        ("1e300", MAX_CAP_TOKENS),
        (10**30, MAX_CAP_TOKENS),
    ],
)
def test_nonsense_caps_are_ignored_and_huge_ones_clamped(cap: Any, believed: int | None) -> None:
    """What a lenient server could read as a number is one; the rest counts as absent."""
    assert measure(said("x", max_tokens=cap)).output_cap_tokens == believed


@pytest.mark.parametrize(
    ("prompt", "tokens", "prompts"),
    [
        ("hello world", 3, 1),
        (["a b", "c d e"], 2, 2),
        ([101, 102, 103], 3, 1),
        ([[1, 2, 3], [4, 5]], 5, 2),
        ([], 1, 1),
        ([[]], 1, 1),
        ([1, "a"], 2, 2),
        (None, 1, 1),
        ({"odd": 1}, 2, 1),
    ],
)
def test_all_prompt_shapes(prompt: Any, tokens: int, prompts: int) -> None:
    """O-10: ids cost exactly one each, batches reserve output per prompt, embeddings none."""
    completed = price({"model": "m1", "max_tokens": 10, "prompt": prompt}, "/v1/completions")
    assert completed == WorkEstimate(tokens, 10 * prompts)
    embedded = price({"model": "m1", "input": prompt}, "/v1/embeddings")
    assert embedded == WorkEstimate(tokens, 0)


def test_caps_and_text_of_duplicate_names_are_the_costliest() -> None:
    """Servers disagree about duplicates, so the largest cap and all the text count."""
    text = "x" * 4000
    for first, second in ((8000, 1), (1, 8000)):
        body = (
            f'{{"model":"a","model":"b","max_tokens":{first},"max_tokens":{second},'
            f'"messages":["{text}"],"messages":[]}}'
        ).encode()
        request = parse(call(body))
        assert (request.opaque, request.unread) == (True, Unread.ODD_JSON)
        assert (request.model, request.output_cap_tokens) == ("b", 8000)
        assert request.text_bytes >= 4000


DEEP = b'{"x":' + b"[" * 400 + b"]" * 400 + b',"model":"m","max_tokens":8000}'


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","max_tokens":8000,"x":"\\ud800"}',
        b'\xef\xbb\xbf{"model":"m","max_tokens":8000}',
        '{"model":"m","max_tokens":8000}'.encode("utf-16"),
        '{"model":"m","max_tokens":8000}'.encode("utf-16-be"),
        '{"model":"m","max_tokens":8000}'.encode("utf-32-le"),
        b'{"model":"m","max_tokens":8000} trailing',
        DEEP,
    ],
)
def test_what_only_lenient_servers_read_is_read_and_priced_conservatively(body: bytes) -> None:
    """A cap does not disappear because one JSON reader is stricter than another."""
    request = parse(call(body))
    assert request.opaque
    assert (request.model, request.output_cap_tokens) == ("m", 8000)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[1,2]",
        b'"text"',
        b"{",
        b'{"model":"m"',
        b'{"model":"\xff"}',
        b"\x00" * 50,
        b"[" * 60_000,
        b'{"x":' * 12_000,
    ],
)
def test_what_nobody_reads_is_opaque(body: bytes) -> None:
    """A broken body costs the conservative price and names no fault."""
    request = parse(call(body))
    assert request.opaque
    assert request.unread in {Unread.NOT_JSON, Unread.ODD_JSON}
    assert estimate(request, RULES).tokens >= RULES.opaque_tokens


def test_a_cap_in_an_unreadable_body_still_counts() -> None:
    """The bytes themselves are searched for caps when no reader accepts the document."""
    digits = b"9" * 5000
    request = parse(call(b'{"model":"m","max_tokens" : 8000,"n":2,"x":' + digits + b"}"))
    assert (request.opaque, request.output_cap_tokens, request.sequences) == (True, 8000, 2)


def test_half_a_character_in_the_text_is_counted() -> None:
    """Browsers cut strings inside an emoji; such a text is measured like any other."""
    request = parse(call(b'{"model":"m","messages":[{"content":"\\ud83d hello"}]}'))
    assert (request.model, request.unread) == ("m", Unread.ODD_JSON)


def test_nan_is_no_trouble() -> None:
    """NaN and infinities in a body are numbers some servers read."""
    request = parse(call(b'{"model":"m","temperature":NaN,"max_tokens":Infinity}'))
    assert not request.opaque
    assert request.output_cap_tokens == MAX_CAP_TOKENS


@pytest.mark.parametrize(
    "model", ["x" * (MAX_MODEL_CHARS + 1), "a\nb", "a\x00", "", 5, None, ["m"]]
)
def test_unusable_model_names_are_none(model: Any) -> None:
    """A name that is over-long or not printable names no model."""
    assert measure({"model": model, "messages": []}).model is None


def test_model_names_keep_colons_and_slashes() -> None:
    """Adapter and repository names are ordinary names."""
    assert measure({"model": "org/base:adapter"}).model == "org/base:adapter"
    assert measure({"model": "x" * MAX_MODEL_CHARS}).model == "x" * MAX_MODEL_CHARS


@pytest.mark.interpreted("a function that a module has imported is replaced")
def test_a_fault_in_a_shape_becomes_an_opaque_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is priced, never raised and never free."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("ext_authz.estimation.parsing.read", broken)
    request = parse(call(b'{"model":"m"}'))
    assert (request.opaque, request.unread) == (True, Unread.FAULT)
    assert estimate(request, RULES).tokens >= RULES.opaque_tokens
