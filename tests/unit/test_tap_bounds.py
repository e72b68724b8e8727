"""Bounds of what is read of an answer, and what is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.serving.tap_read import (
    LONGEST_LINE_BYTES,
    MOST_BYTES,
    TAIL_BYTES,
    Answer,
    AnswerPart,
    Reading,
    counts,
    start_reading,
)


def read(part: bytes, streamed: bool = True) -> Reading | None:
    """What is learned of an answer in one part, which comes at 1 s."""
    answer = Answer(streamed)
    answer.take(part, 1.0)
    return answer.reading(whole=True)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, 0)),
        ({"prompt_tokens": -1, "completion_tokens": "3"}, (None, None)),
        ({"prompt_tokens": True, "completion_tokens": 1.5}, (None, None)),
        ({"prompt_tokens": 10**10, "completion_tokens": 10**9}, (None, 10**9)),
        ({}, (None, None)),
        ([], (None, None)),
        (None, (None, None)),
    ],
)
def test_counts(usage: object, expected: tuple[int | None, int | None]) -> None:
    """Nothing but a count is a count, and what is missing is unknown."""
    assert counts(usage) == expected


@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_no_bytes_break_it(data: bytes, streamed: bool, plain: bool) -> None:
    """Whatever comes, there is an answer."""
    answer = Answer(streamed, plain)
    for part in (b'data: {"usage":{', data, b'"usage": {' + data, b"\n"):
        answer.take(part, 1.0)
    answer.reading(whole=True)


def test_deep_nesting_is_unknown() -> None:
    """A usage that cannot be parsed is none."""
    deep = b'{"usage":' + b'{"a":' * 1500
    assert len(deep) > 7500
    assert read(deep, streamed=False) is None
    assert read(b"data: " + b"[" * 10_000 + b"\n") == Reading(None, None, 1.0)


def test_an_answer_that_was_not_seen_to_its_end_tells_no_output() -> None:
    """Engines that count at every token would make it look shorter than it was."""
    answer = Answer(streamed=True)
    so_far = b'data: {"choices":[{"text":"a"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n'
    answer.take(so_far, 5.0)
    assert answer.reading(whole=False) == Reading(7, None, 5.0)


def test_what_is_kept_is_bounded() -> None:
    """Kilobytes of the end, no line without an end, and no more than some megabytes at all."""
    answer = Answer(streamed=True)
    answer.take(b"data: " + b"x" * (LONGEST_LINE_BYTES + 1), 3.0)
    reading = answer.reading(whole=True)
    assert reading is not None
    assert reading.first_s == 3.0
    assert not answer.done
    for _ in range(MOST_BYTES // TAIL_BYTES + 1):
        answer.take(b"y" * TAIL_BYTES, 4.0)
        assert len(answer._tail) + len(answer._line) <= TAIL_BYTES
    assert answer.done


def test_a_compressed_stream_tells_of_its_first_bytes_only() -> None:
    """They are the best that is known of the first token, and nothing more can be read."""
    answer = Answer(streamed=True, plain=False)
    answer.take(b"", 1.0)
    assert not answer.done
    answer.take(b"\x1f\x8b", 2.0)
    assert answer.done
    assert answer.reading(whole=False) == Reading(None, None, 2.0)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"content-type": "Text/Event-Stream"}, True),
        ({"content-type": "text/event-stream", "content-encoding": "br"}, True),
        ({"content-encoding": "gzip"}, False),
        ({"content-encoding": "Identity"}, True),
        ({"content-type": "audio/mpeg"}, False),
        ({"content-type": "application/grpc"}, False),
        ({"content-type": "application/json; charset=utf-8"}, True),
        ({":status": "500"}, False),
        ({":status": "101"}, False),
    ],
)
def test_which_answers_are_read(changes: dict[str, str], wanted: bool) -> None:
    """Those that succeeded and can be read; of others the tap is let go at once."""
    headers = {":status": "200", "content-type": "application/json", **changes}
    assert (start_reading(AnswerPart("r", headers, b"", False)) is not None) is wanted
    assert start_reading(AnswerPart("r", headers, b"", True)) is None
