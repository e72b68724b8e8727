"""Bodies become work, or a clear 400."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.backend.asks import (
    Ask,
    BadAskError,
    chat_ask,
    completion_ask,
    embedding_ask,
    infer_ask,
    parse_object,
)
from loadtest.backend.control import Faults, MetricsMode, parse_command
from loadtest.backend.engine import Work


def _chat(**fields: object) -> Ask:
    return chat_ask({"messages": [{"role": "user", "content": "x" * 40}], **fields})


def test_a_chat_costs_a_token_per_four_bytes_of_its_texts() -> None:
    """Bytes, not characters, of every message; pictures cost a thousand."""
    messages = [
        {"role": "system", "content": "abcd"},
        {"role": "user", "content": [{"type": "text", "text": "ééé"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": None},
    ]
    ask = chat_ask({"messages": messages, "model": "m", "stream": True})
    assert ask.works == (Work(1003, None),)  # 1 + 1.5 + 1000, rounded up
    assert (ask.model, ask.stream) == ("m", True)


@pytest.mark.parametrize(
    ("fields", "works"),
    [
        ({}, [Work(10, None)]),
        ({"max_tokens": 7}, [Work(10, 7)]),
        ({"max_tokens": 7, "max_completion_tokens": 5}, [Work(10, 5)]),
        ({"max_tokens": None, "n": 3}, [Work(10, None)] * 3),
        ({"max_tokens": 9, "ignore_eos": True}, [Work(10, 9, exact=True)]),
    ],
)
def test_caps_and_choices(fields: dict[str, object], works: list[Work]) -> None:
    """The newer cap wins, null means absent, n multiplies."""
    assert list(_chat(**fields).works) == works


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("a" * 9, [3]), (["aaaa", "aaaaaaaa"], [1, 2]), ([5, 6, 7], [3]), ([[1, 2], [3]], [2, 1])],
)
def test_the_four_shapes_of_a_prompt(prompt: object, tokens: list[int]) -> None:
    """Text, texts, token ids and arrays of them, for completions and for embeddings."""
    completion = completion_ask({"prompt": prompt})
    assert [(work.prompt_tokens, work.cap_tokens) for work in completion.works] == [
        (count, 16) for count in tokens
    ]
    embedding = embedding_ask({"input": prompt})
    assert list(embedding.works) == [Work(count, 0) for count in tokens]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hello"},
        {"messages": ["hello"]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [7]}]},
        {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
        {"messages": [{"role": "user"}], "max_tokens": 0},
        {"messages": [{"role": "user"}], "max_tokens": -1},
        {"messages": [{"role": "user"}], "max_tokens": True},
        {"messages": [{"role": "user"}], "max_tokens": 1.5},
        {"messages": [{"role": "user"}], "max_tokens": 10**40},
        {"messages": [{"role": "user"}], "n": 65},
        {"messages": [{"role": "user"}], "stream": "yes"},
        {"messages": [{"role": "user"}], "model": 7},
    ],
    ids=str,
)
def test_a_bad_chat_is_refused_with_a_reason(body: dict[str, object]) -> None:
    """Every shape that is not a chat gives a 400 with a sentence, never another error."""
    with pytest.raises(BadAskError) as caught:
        chat_ask(body)
    assert caught.value.status == 400
    assert caught.value.message


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 10_000 + b"}"]
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """Broken, deep, huge or merely different JSON is one and the same clear refusal."""
    with pytest.raises(BadAskError):
        parse_object(body)


def test_rows_are_the_first_dimension() -> None:
    """An infer call of shape [3, 29] is three rows and its id comes back."""
    body = {"id": "a", "inputs": [{"name": "x", "shape": [3, 29], "datatype": "FP32", "data": []}]}
    assert infer_ask(json.dumps(body).encode(), None) == Ask((Work(rows=3),), id="a")


def test_the_binary_extension_leaves_the_tensors_alone() -> None:
    """Only the declared part of the body is JSON; the rest is never looked at."""
    head = json.dumps({"inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32"}]}).encode()
    assert infer_ask(head + b"\x00\xff" * 8, str(len(head))).works[0].rows == 2


@pytest.mark.parametrize("header", ["", "-1", "1e3", "99999", "٣", "9" * 5000])
def test_a_wrong_length_header_is_refused(header: str) -> None:
    """A length that is no number or points beyond the body is a 400."""
    with pytest.raises(BadAskError):
        infer_ask(b'{"inputs": [{"name": "x", "shape": [1]}]}', header)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["messages", "prompt", "input", "inputs", "n", "max_tokens", "stream", "model", "id"]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_no_body_breaks_the_reader(body: dict[str, object]) -> None:
    """Any JSON either becomes bounded work or a BadAskError; nothing else escapes."""
    for read in (chat_ask, completion_ask, embedding_ask):
        try:
            works = read(body).works
        except BadAskError:
            continue
        assert 1 <= len(works) <= 256
        assert all(work.prompt_tokens >= 1 for work in works)
    with contextlib.suppress(BadAskError):
        assert infer_ask(json.dumps(body).encode(), None).works[0].rows >= 1


def test_a_command_changes_only_what_it_names() -> None:
    """Faults not mentioned stay; heat is separate."""
    before = Faults(error_ratio=0.5, metrics=MetricsMode.FROZEN)
    command = parse_command({"thermal_factor": 1.4, "after_s": 2}, before)
    assert (command.faults, command.thermal_factor, command.after_s) == (before, 1.4, 2.0)
    assert parse_command({"error_ratio": 0}, before).faults == Faults(0.0, MetricsMode.FROZEN)


@pytest.mark.parametrize(
    "body",
    [
        {"thermal": 1.4},
        {"thermal_factor": "hot"},
        {"thermal_factor": True},
        {"thermal_factor": float("nan")},
        {"error_ratio": 1.1},
        {"error_ratio": -0.1},
        {"metrics": "gone"},
        {"metrics": ["live"]},
        {"after_s": 1e9},
    ],
    ids=str,
)
def test_a_bad_command_is_refused(body: dict[str, object]) -> None:
    """Unknown fields and values out of bounds change nothing."""
    with pytest.raises(BadAskError):
        parse_command(body, Faults())
