"""The probe sees when the first text of a stream is there, wherever chunks end."""

from __future__ import annotations

import pytest

from loadtest.backend.profiles import PROFILES
from loadtest.probe import Target, first_told, probe
from tests.support.gpu_backend import running_backend

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n'
LAST = b'data: {"choices":[],"timing":{"first_token_unix_ms": 10500.0}}\n\ndata: [DONE]\n\n'


def test_the_first_text_counts_not_the_first_event() -> None:
    """A role alone is no token."""
    chunks = [(10.0, ROLE), (10.6, TEXT), (11.0, TEXT), (12.0, LAST)]
    stream = first_told(chunks, 9.0)
    assert stream is not None
    assert stream.ttft_s == pytest.approx(1.6)
    assert stream.off_s == pytest.approx(0.1)


def test_chunks_may_end_anywhere() -> None:
    """The text is there with the byte that makes it one."""
    body = ROLE + TEXT + LAST
    stream = first_told(((float(n), body[n : n + 1]) for n in range(len(body))), 0.0)
    assert stream is not None
    assert stream.first_unix_s == body.index(b'"word') + 1
    assert stream.told_unix_s == 10.5


def test_a_stream_that_tells_nothing() -> None:
    """A real engine's stream has no timing; one without text was none."""
    stream = first_told([(10.0, TEXT)], 9.0)
    assert stream is not None
    assert stream.off_s is None
    assert first_told([(10.0, ROLE), (11.0, LAST)], 9.0) is None


async def test_a_backend_tells_the_truth_of_its_first_tokens() -> None:
    """What its last event says and what a client saw differ by less than a busy machine's whims."""
    async with running_backend(PROFILES["demo-primary"]) as (session, _):
        url = str(session._base_url).rstrip("/")
        streams = await probe(Target(url, "", model="m"), 40.0, 0.5, seed=1)
    assert len(streams) >= 5
    assert all(stream.off_s is not None and -0.01 < stream.off_s < 0.5 for stream in streams)
    assert min(stream.off_s or 0.0 for stream in streams) < 0.05


async def test_refusals_and_failures_are_no_streams() -> None:
    """A model that is not there; nobody who listens."""
    async with running_backend(PROFILES["demo-primary"]) as (session, _):
        url = str(session._base_url).rstrip("/")
        assert await probe(Target(url, "", model="none"), 40.0, 0.2, seed=1) == []
    assert await probe(Target("http://127.0.0.1:9", ""), 40.0, 0.2, seed=1) == []
