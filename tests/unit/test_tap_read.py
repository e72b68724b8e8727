"""What an answer tells of itself, in the shapes of each API and however it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.serving.tap_read import Answer, Reading


def read(parts: list[bytes], streamed: bool = True) -> Reading | None:
    """What is learned of an answer whose parts come at 0, 1, 2... seconds."""
    answer = Answer(streamed)
    for now, part in enumerate(parts):
        answer.take(part, float(now))
    return answer.reading(whole=True)


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(**said: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": said, "finish_reason": None}]})


OPENAI = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
DONE = b"data: [DONE]\n\n"
STARTED = event(
    {"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 1}}}
)
STREAMS = {
    "chat": ([delta(role="assistant", content=""), delta(content="a"), OPENAI, DONE], (7, 9, 1)),
    "chat without usage": ([delta(role="assistant"), delta(content="a"), DONE], (None, None, 1)),
    "usage null until the end": (
        [event({"choices": [{"delta": {"content": "a"}}], "usage": None}), OPENAI, DONE],
        (7, 9, 0),
    ),
    "usage at every token": (
        [
            event(
                {
                    "choices": [{"text": str(n)}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": n},
                }
            )
            for n in (1, 2, 3)
        ],
        (7, 3, 0),
    ),
    "reasoning": ([delta(reasoning_content="hm"), OPENAI], (7, 9, 0)),
    "tools": ([delta(role="assistant", content=None), delta(tool_calls=[{}])], (None, None, 1)),
    "nothing said": (
        [event({"choices": [{"delta": {}, "finish_reason": "stop"}]})],
        (None, None, 0),
    ),
    "filter results first": (
        [event({"choices": [], "prompt_filter_results": []}), delta(content="a")],
        (None, None, 1),
    ),
    "completions": (
        [event({"choices": [{"text": ""}]}), event({"choices": [{"text": "a"}]})],
        (None, None, 1),
    ),
    "keep-alive": ([b": ping\n\n", b"event: x\n", b"\n", delta(content="a")], (None, None, 3)),
    "carriage returns": (
        [b": ping\r\n\r\n", b'data:{"choices":[{"text":"a"}]}\r\n\r\n'],
        (None, None, 1),
    ),
    "anthropic": (
        [
            b"event: message_start\n" + STARTED,
            b"event: ping\n" + event({"type": "ping"}),
            event({"type": "content_block_start", "content_block": {"text": ""}}),
            event({"type": "content_block_delta", "delta": {"text": "a"}}),
            event({"type": "message_delta", "usage": {"output_tokens": 30}}),
            event({"type": "message_stop"}),
        ],
        (20, 30, 3),
    ),
    "responses": (
        [
            event({"type": "response.created", "response": {"usage": None}}),
            event({"type": "response.in_progress", "response": {}}),
            event({"type": "response.output_item.added", "item": {}}),
            event({"type": "response.output_text.delta", "delta": "a"}),
            event(
                {
                    "type": "response.completed",
                    "response": {
                        "output": ["a" * 5000],
                        "usage": {
                            "input_tokens": 11,
                            "input_tokens_details": {"cached_tokens": 4},
                            "output_tokens": 12,
                        },
                        "metadata": {},
                    },
                }
            ),
        ],
        (11, 12, 3),
    ),
    "sglang": (
        [event({"text": "a", "meta_info": {"prompt_tokens": 3, "completion_tokens": 4}})],
        (3, 4, 0),
    ),
    "of no known shape": ([b"data: a\n\n", OPENAI], (7, 9, 0)),
    "no event stream at all": ([b"hello\n"], None),
    "empty": ([], None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str) -> None:
    """The first token is the first that a caller can see; usage is the last that was told."""
    parts, expected = STREAMS[name]
    assert read(parts) == (None if expected is None else Reading(*expected))


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_usage_does_not_depend_on_where_a_stream_is_cut(name: str, data: st.DataObject) -> None:
    """Network parts end anywhere; the first token is told by the part that completes its line."""
    parts, expected = STREAMS[name]
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    told = read(pieces)
    if expected is None:
        assert told is None
        return
    assert told is not None
    assert (told.prompt_tokens, told.output_tokens) == expected[:2]
    line_end = sum(map(len, parts[: expected[2]]))
    line_end = whole.index(b"\n", whole.index(b"data", line_end))
    ends = [*cuts, len(whole)]
    assert told.first_s == next(n for n, end in enumerate(ends) if end > line_end)


WHOLES = {
    "chat": (
        {
            "choices": [{"message": {"content": "a"}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 9},
            "timing": {"ms": 1},
        },
        (7, 9),
    ),
    "embeddings": (
        {"data": [[0.5] * 4000], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
        (8, None),
    ),
    "anthropic": (
        {
            "content": [{"text": "a"}],
            "usage": {
                "input_tokens": 5,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 20,
                "output_tokens": 6,
            },
        },
        (125, 6),
    ),
    "nested": (
        {
            "usage": {
                "prompt_tokens_details": {"audio": {"x": 1}},
                "prompt_tokens": 7,
                "completion_tokens": 9,
            }
        },
        (7, 9),
    ),
    "text that looks like it": (
        {"choices": [{"text": '"usage": {"prompt_tokens": 1, "completion_tokens": 2}'}]},
        None,
    ),
    "text that looks like it, after it": (
        {
            "usage": {"prompt_tokens": 7, "completion_tokens": 9},
            "text": '\\"usage": {"prompt_tokens": 1}',
        },
        (7, 9),
    ),
    "a word of that name": (
        {"logprobs": [{"token": "usage"}], "usage": {"prompt_tokens": 7, "completion_tokens": 9}},
        (7, 9),
    ),
    "error": ({"error": {"message": "no"}}, None),
    "usage null": ({"usage": None}, None),
}


@pytest.mark.parametrize("name", WHOLES)
@pytest.mark.parametrize("indent", [None, 2])
def test_whole_answers(name: str, indent: int | None) -> None:
    """Usage is read from the end; a model's text is never taken for it; there is no TTFT."""
    document, expected = WHOLES[name]
    text = json.dumps(document, indent=indent).encode()
    told = read([text[:100], text[100:]], streamed=False)
    assert told == (None if expected is None else Reading(*expected, None))


@given(st.text(max_size=200))
def test_no_text_of_a_model_is_taken_for_usage(text: str) -> None:
    """What is quoted inside JSON cannot forge a count."""
    forged = text + '"usage":{"prompt_tokens":1,"completion_tokens":1}' + text
    for ascii_ in (True, False):
        document = json.dumps({"choices": [{"text": forged}]}, ensure_ascii=ascii_)
        assert read([document.encode("utf-8", "surrogatepass")], streamed=False) is None
