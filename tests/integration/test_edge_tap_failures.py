"""Answers pass whole and in time, whatever becomes of the gate that is shown them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.edge import running_edge
from tests.support.engine import Engine
from tests.support.processes import eventually
from tests.support.settings import make_edge
from tests.support.stack import CHAT, KEYS, Stack, make_config, running_stack, send_signal
from tests.support.stub_gate import allow, deny
from tests.support.tapped import tapped_edge

pytestmark = pytest.mark.slow

FIRST = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
# 64 MiB: more than all windows and buffers between Envoy and a gate that reads nothing.
REST = [bytes([65 + number % 26]) * 65_536 for number in range(1024)]


class Streamer(Engine):
    """Answers with `FIRST`, and once its gate is open with `REST`. `streaming` counts answers that
    have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.streaming = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            return await super()._answer(request)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(FIRST)
        self.streaming += 1
        await self.gate.wait()
        for piece in REST:
            await answer.write(piece)
        await answer.write_eof()
        return answer


@asynccontextmanager
async def answering(tmp_path: Path) -> AsyncIterator[tuple[Stack, Streamer, aiohttp.StreamReader]]:
    """A stack, and an answer of which the client and the gate have seen the beginning."""
    async with Streamer() as engine:
        engine.gate.clear()
        config = make_config([engine.address], learning={"response_tap": True})
        async with running_stack(tmp_path, config) as stack:
            url = f"{stack.envoy.url}/v1/chat/completions"
            headers = {"authorization": f"Bearer {KEYS['acme']}"}
            async with stack.client.post(url, headers=headers, json=CHAT) as answer:
                assert await answer.content.readexactly(len(FIRST)) == FIRST

                async def shown() -> bool:
                    stats = await stack.envoy.stats("http.edge.ext_proc.tap")
                    return stats.get("http.edge.ext_proc.tap.stream_msgs_sent", 0) >= 2

                await eventually(shown)
                yield stack, engine, answer.content
            engine.gate.set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_an_answer_outlives_the_gate(tmp_path: Path, number: signal.Signals) -> None:
    """A gate that is gone, hangs or drains in the middle of an answer costs the client nothing."""
    async with answering(tmp_path) as (stack, engine, content):
        send_signal(stack.gate, number)
        if number is signal.SIGKILL:
            await asyncio.to_thread(stack.gate.wait, 5.0)
        try:
            engine.gate.set()
            # A gate that hangs is left after two seconds.
            rest = await asyncio.wait_for(content.read(), 8.0)
        finally:
            if number is signal.SIGSTOP:
                send_signal(stack.gate, signal.SIGCONT)
        assert rest == b"".join(REST)


async def test_answers_pass_a_gate_that_knows_no_tap(tmp_path: Path) -> None:
    """Every tap fails, and no request does."""
    async with running_edge(tmp_path, make_edge(tapped_ratio=1.0)) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta"}, decision_id="d-1")
        for _ in range(5):
            async with edge.client.get(edge.url) as answer:
                assert answer.status == 200
                assert (await answer.json())["name"] == "b1"
        stats = await edge.envoy.stats("http.edge.ext_proc.tap")
        assert stats["http.edge.ext_proc.tap.streams_started"] == 5


async def test_websockets_and_refusals_pass_the_tap(tmp_path: Path) -> None:
    """What switches protocols is not disturbed; what was not admitted is not shown."""
    async with running_edge(tmp_path, make_edge(tapped_ratio=1.0)) as edge:
        edge.gate.answer = lambda _: allow({"x-gpu-pool": "beta"}, decision_id="d-1")
        async with edge.client.ws_connect(f"{edge.envoy.url}/ws") as socket:
            for number in range(10):
                await socket.send_str(str(number))
                assert await socket.receive_str() == str(number)
        stats = await edge.envoy.stats("http.edge.ext_proc.tap")
        shown = stats["http.edge.ext_proc.tap.streams_started"]
        edge.gate.answer = lambda _: deny(429, {}, "")
        async with edge.client.get(edge.url) as answer:
            assert answer.status == 429
        stats = await edge.envoy.stats("http.edge.ext_proc.tap")
        assert stats["http.edge.ext_proc.tap.streams_started"] == shown


async def test_taps_beyond_the_breaker_cost_nobody_an_answer(tmp_path: Path) -> None:
    """With room for one tap, eight answers at once arrive all the same."""
    async with Streamer() as engine:
        engine.gate.clear()
        async with tapped_edge(
            tmp_path,
            engine.address,
            edit=lambda text: text.replace("max_requests: 256", "max_requests: 1"),
        ) as edge:
            answers = [asyncio.create_task(edge.chat(CHAT)) for _ in range(8)]
            await eventually(lambda: engine.streaming == 8)
            engine.gate.set()
            for answer in await asyncio.gather(*answers):
                assert answer.startswith(FIRST)
                assert len(answer) == len(FIRST) + sum(map(len, REST))
            stats = await edge.envoy.stats("cluster.ext_authz_tap")
            assert stats["cluster.ext_authz_tap.upstream_rq_active_overflow"] > 0
