"""Captures what the benchmark replays: Checks and an access-log entry as the real Envoy sends them.

`python -m tests.benchmarks.capture` writes `tests/benchmarks/data` anew.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from ext_authz.model import Api, Decision, Reason, Verdict, WorkEstimate
from ext_authz.serving.codec import Codec
from ext_authz.serving.wire import compile_messages
from tests.benchmarks.names import DATA, DECISION_ID, KEYS, MODEL
from tests.support.envoy import start_envoy
from tests.support.processes import eventually
from tests.support.settings import make_edge, make_pool, make_settings
from tests.support.stub_gate import StubGate, allow
from tests.support.upstream import Upstream

SYSTEM = (
    "You are a support assistant of a parcel service. Answer in two or three sentences, ask back "
    "when the parcel number is missing and never promise a delivery date."
)
TURN = (
    "My parcel was due on Tuesday, the tracking page has said 'in the delivery vehicle' for two "
    "days now, and nobody rang. Could you find out where it is, and can it be left with the "
    "neighbours on the second floor if I am not at home? "
)
HEADERS = {
    "authorization": f"Bearer {KEYS[0]}",
    "user-agent": "OpenAI/Python 1.109.1",
    "accept": "application/json",
    "content-type": "application/json",
    "x-stainless-lang": "python",
    "x-stainless-retry-count": "0",
}
_ALLOW = Decision(
    Verdict.ADMIT,
    Reason.HEADROOM,
    Verdict.ADMIT,
    tenant="tenant-000",
    pool="primary",
    endpoint="127.0.0.1:45678",
    reservation_id=DECISION_ID,
    estimate=WorkEstimate(290, 256),
)


class Recorder(StubGate):
    """A gate that also keeps every Check byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_checks: list[bytes] = []

    async def _check(self, request: bytes, context: object) -> bytes:
        self.raw_checks.append(request)
        return await super()._check(request, context)


def chat(body_bytes: int) -> bytes:
    """A streamed chat completion of about this size: a system prompt, then turns."""
    messages = [{"role": "system", "content": SYSTEM}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 256, "temperature": 0.2}
    body["stream"] = True
    while (missing := body_bytes - len(json.dumps(body))) > 60:
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": TURN[: missing - 35]})
    return json.dumps(body).encode()


async def capture(folder: Path) -> None:
    """Send a small and a large chat through Envoy and keep what reached the gate."""
    messages: Any = compile_messages()
    edge = make_edge(max_body_bytes=131_072)
    async with Recorder() as gate, Upstream() as upstream, aiohttp.ClientSession() as client:
        gate.answer = lambda _: allow(
            {"x-gpu-pool": "primary", "x-gpu-endpoint": upstream.address}, decision_id=DECISION_ID
        )
        pools = [make_pool("primary", upstream.address)]
        envoy = start_envoy(make_settings(pools, edge=edge, grpc_listen=gate.address), folder)
        with envoy.process:
            for size in (1_300, 64_000):
                url = f"{envoy.url}/v1/chat/completions"
                async with client.post(url, data=chat(size), headers=HEADERS) as reply:
                    assert reply.status == 200, await reply.text()
            await eventually(lambda: len(gate.entries) >= 2)
        # Joined messages are one message, protobuf says.
        logs = messages.access_logs.FromString(gate.log_bytes)
    (DATA / "check_chat_1k3.bin").write_bytes(gate.raw_checks[0])
    (DATA / "check_chat_64k.bin").write_bytes(gate.raw_checks[1])
    entry = logs.http_logs.log_entry[0]
    (DATA / "access_log_entry.bin").write_bytes(entry.SerializeToString())
    (DATA / "allow.bin").write_bytes(Codec(messages).encode(_ALLOW, None, Api.OPENAI))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(capture(Path(temporary)))
