"""The gate in the test's own loop, the real Envoy that shows it answers, model servers behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import yaml

from ext_authz.admission.ledger import Reservation
from ext_authz.app import decision_ids
from ext_authz.clock import SystemClock
from ext_authz.config.compile import load
from ext_authz.metrics import Metrics
from ext_authz.model import Outcome
from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.server import GrpcHost
from ext_authz.serving.tap import TapResult, TapService
from ext_authz.serving.wire import compile_messages
from ext_authz.settings import Settings
from ext_authz.snapshot import EndpointSample
from tests.support.envoy import Envoy, start_envoy
from tests.support.stack import KEYS, make_config


class TappedGate:
    """A gate without telemetry loops, which keeps what it learns from."""

    def __init__(self, settings: Settings) -> None:
        clock = SystemClock()
        self.metrics = Metrics()
        self.lessons: list[Outcome] = []
        self.gate = Gate(settings, decision_ids(), Random(1), self.metrics, clock.now())
        self.gate.on_lesson = self._learn
        for pool in settings.admission.pools.values():
            for endpoint in pool.endpoints:
                now = clock.now()
                self.gate.observe(EndpointSample(endpoint.address, now, running=0, waiting=0))
        wire = compile_messages()
        codec = Codec(wire)
        sink = AccessLogSink(self.gate, codec, clock)
        taps = TapService(self.gate, codec, clock)
        checks = CheckService(self.gate, codec, clock)
        self.host = GrpcHost(settings.server, wire, checks, sink, taps)

    def tapped(self, result: TapResult) -> int:
        """Tapped answers of which that became."""
        return self.metrics.value("tapped_answers", result)

    def _learn(self, charged: Reservation, outcome: Outcome, _: float) -> None:
        assert charged.id == outcome.reservation_id
        self.lessons.append(outcome)


@dataclass(frozen=True, slots=True)
class Tapped:
    """What is running."""

    gate: TappedGate
    envoy: Envoy
    client: aiohttp.ClientSession

    async def chat(self, body: Mapping[str, Any]) -> bytes:
        """The body of the answer to a chat, which must succeed."""
        url = f"{self.envoy.url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {KEYS['acme']}"}
        async with self.client.post(url, headers=headers, json=body) as answer:
            content = await answer.read()
            assert answer.status == 200, content
            return content


@asynccontextmanager
async def tapped_edge(
    tmp_path: Path,
    address: str,
    share: float = 1.0,
    edit: Callable[[str], str] | None = None,
) -> AsyncIterator[Tapped]:
    """A gate and Envoy before the model server at `address`. `edit` may change Envoy's text."""
    config = make_config([address], learning={"response_tap": True, "response_tap_share": share})
    config["admission_control"]["pools"][0]["max_concurrency"] = 64
    path = tmp_path / "gate.yaml"
    path.write_text(yaml.safe_dump(config))
    settings = load(path).settings
    gate = TappedGate(settings)
    await gate.host.start()
    try:
        envoy = await asyncio.to_thread(start_envoy, settings, tmp_path, edit)
        try:
            timeout = aiohttp.ClientTimeout(total=30)
            async with aiohttp.ClientSession(timeout=timeout) as client:
                yield Tapped(gate, envoy, client)
        finally:
            await asyncio.to_thread(envoy.process.stop)
    finally:
        await gate.host.drain()
