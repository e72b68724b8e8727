"""What model servers say of their load in their answers, through the real Envoy."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ext_authz.telemetry.sources.orca.wire import OrcaWire
from tests.support.engine import Engine
from tests.support.processes import eventually
from tests.support.stack import Stack, make_config, running_stack

pytestmark = pytest.mark.slow

# The load is on the page, the memory is not.
PAGE = """\
vllm:num_requests_running{engine="0",model_name="demo"} 0
vllm:num_requests_waiting{engine="0",model_name="demo"} 0
"""
TEXT = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.42"


class Telling(Engine):
    """An engine that tells its load to who asks for it, as vLLM does."""

    def __init__(self) -> None:
        super().__init__("telling")
        self.page = PAGE
        self.headers = {"endpoint-load-metrics": TEXT}
        self.asked: list[str | None] = []

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer = await super()._answer(request)
        if request.path != "/metrics":
            wish = request.headers.get("endpoint-load-metrics-format")
            self.asked.append(wish)
            if wish == "text":
                answer.headers.update(self.headers)
        return answer


async def kv_of(stack: Stack, engine: Engine) -> Any:
    """What is known of the engine's memory, with its age and source."""
    page = json.loads((await stack.admin("/debug/telemetry"))[1])
    return page["pools"]["primary"][engine.address]["signals"].get("kv_usage_ratio")


def binary(ratio: float) -> str:
    """A report as a message, in base64 as headers have it."""
    report = OrcaWire().report()
    report.named_metrics["kv_cache_usage_perc"] = ratio
    return base64.b64encode(report.SerializeToString()).decode().rstrip("=")


async def test_answers_tell_the_load(tmp_path: Path) -> None:
    """A header of one answer is telemetry of the endpoint at once, plain or as a message; a
    caller's own wish does not get through, and what cannot be read is only counted. What the
    page lacks is named in one line, in the metrics and on the pages."""
    async with (
        Telling() as engine,
        running_stack(tmp_path, make_config([engine.address])) as stack,
    ):
        missing = f"scrape/{engine.address}: signals not found: "
        assert stack.gate.output().count(missing) == 1
        source = {"source": f"scrape/{engine.address}", "signal": "kv_usage_ratio"}
        assert await stack.metric("telemetry_missing_signals", **source) == 1
        assert await kv_of(stack, engine) is None
        reply = await stack.post(endpoint_load_metrics_format="JSON")
        assert (reply.status, engine.asked) == (200, ["text"])

        async def told(value: float) -> bool:
            kv = await kv_of(stack, engine)
            return bool(kv and kv["source"] == "orca" and kv["value"] == value)

        await eventually(lambda: told(0.42), within_s=1.0)
        engine.headers = {"endpoint-load-metrics-bin": binary(0.25)}

        # More than one answer, as those that follow at once are not read.
        async def told_as_message() -> bool:
            await stack.post()
            return await told(0.25)

        await eventually(told_as_message)
        engine.headers = {"endpoint-load-metrics": "no such thing"}

        async def counted() -> bool:
            await stack.post()
            return await stack.metric("telemetry_dropped_total", reason="unreadable_header") > 0

        await eventually(counted)
        assert (await kv_of(stack, engine))["value"] == 0.25
        page = json.loads((await stack.admin("/debug/telemetry"))[1])
        running = page["pools"]["primary"][engine.address]["signals"]["running"]
        assert running["source"] == "scrape"
        assert page["sources"]["orca/headers"]["reports"] >= 3
        await stack.idle()
