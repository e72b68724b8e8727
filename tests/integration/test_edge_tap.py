"""What the real Envoy shows of answers, against the backend's own record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ext_authz.serving.tap import TapResult
from tests.support.ports import free_port
from tests.support.processes import Process, answers_200, eventually
from tests.support.stack import python
from tests.support.tapped import tapped_edge
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

AT_ONCE, ROUNDS = 4, 8


def _chat(number: int, stream: bool) -> dict[str, Any]:
    """A chat that the backend thinks about for some tenths of a second; `number` names it, as
    that many tokens come back."""
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": "word " * 3000}],
        "max_tokens": number,
        "ignore_eos": True,
        "stream": stream,
    }


def _closing(content: bytes, stream: bool) -> dict[str, Any]:
    """The part of an answer that has the backend's usage and timing."""
    if stream:
        content = content.split(b"data: ")[-2]
    closing: dict[str, Any] = json.loads(content)
    return closing


@pytest.mark.parametrize("stream", [True, False])
async def test_first_token_and_usage_are_the_backends_own(tmp_path: Path, stream: bool) -> None:
    """Of streams the time to the first token, not to the headers; of every answer what the engine
    counted."""
    port = free_port()
    command = python("-m", "loadtest.backend", "--profile", "demo-primary", "--port", str(port))
    backend = Process([*command, "--model", "demo"], tmp_path / "backend.log")
    try:
        url = f"http://127.0.0.1:{port}/health"
        await asyncio.to_thread(backend.wait_ready, lambda: answers_200(url))
        async with tapped_edge(tmp_path, f"127.0.0.1:{port}") as edge:
            told: dict[int, dict[str, Any]] = {}
            for round_ in range(ROUNDS):
                numbers = [20 + AT_ONCE * round_ + place for place in range(AT_ONCE)]
                answers = await asyncio.gather(*(edge.chat(_chat(n, stream)) for n in numbers))
                told |= {
                    n: _closing(answer, stream) for n, answer in zip(numbers, answers, strict=True)
                }
            await eventually(lambda: len(edge.gate.lessons) == len(told))
            outcomes = edge.gate.lessons
            assert edge.gate.tapped(TapResult.READ) == len(told)
    finally:
        await asyncio.to_thread(backend.stop)
    errors_s = []
    for outcome in outcomes:
        usage = outcome.usage
        assert usage is not None
        assert usage.output_tokens is not None
        closing = told.pop(usage.output_tokens)
        assert usage.prompt_tokens == closing["usage"]["prompt_tokens"]
        if stream:
            assert usage.ttft_s is not None
            # Headers are sent at once: this is not their time.
            assert closing["timing"]["ttft_ms"] > 50
            errors_s.append(usage.ttft_s - closing["timing"]["ttft_ms"] / 1000)
        else:
            assert usage.ttft_s is None
    assert not told
    if stream:
        assert abs(median(errors_s)) < 0.02


async def test_a_share_of_the_answers_is_shown(tmp_path: Path) -> None:
    """Of 60 at a share of a half, neither none nor all; the others are learned from without."""
    async with Upstream() as upstream, tapped_edge(tmp_path, upstream.address, 0.5) as edge:
        for _ in range(60):
            await edge.chat(_chat(1, stream=False))
        await eventually(lambda: len(edge.gate.lessons) == 60)
        shown = edge.gate.tapped(TapResult.NOTHING)
    # Ten chances in a billion to fall outside.
    assert 8 <= shown <= 52
