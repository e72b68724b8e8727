"""The k6 script by itself, as somebody with an Envoy of their own would run it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadtest.backend.profiles import PROFILES
from loadtest.compare.plans import plan_of
from loadtest.compare.scenario import Kind, Retries, Scenario, Server, Shape, Tenant, steady
from tests.support.gpu_backend import running_backend

pytestmark = pytest.mark.slow

K6 = Path(sys.executable).parent / "k6"
SCRIPT = Path(__file__).parents[2] / "loadtest" / "k6" / "load.js"
TOLD_S = 0.4


@dataclass
class Seen:
    """What a server was sent: by tenant and arrival the times of its tries; bodies and headers."""

    times: dict[str, list[float]] = field(default_factory=dict)
    bodies: list[Any] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)


@asynccontextmanager
async def answering(
    answer: Callable[[], web.Response], after_s: float = 0.0
) -> AsyncIterator[tuple[str, Seen]]:
    """A server that answers every request alike, after a while; its URL, and what it saw."""
    seen = Seen()

    async def handle(request: web.Request) -> web.Response:
        name, _, _ = request.headers["x-loadtest-id"].rpartition("/")
        seen.times.setdefault(name, []).append(time.monotonic())
        seen.bodies.append(await request.json())
        seen.headers.append({name.lower(): value for name, value in request.headers.items()})
        seen.paths.add(request.path)
        await asyncio.sleep(after_s)
        return answer()

    app = web.Application()
    app.router.add_post("/{rest:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


def plan(tmp_path: Path, *tenants: Tenant, seconds: int = 2, **changes: Any) -> Path:
    """A short plan, all of which counts."""
    scenario = Scenario("own", "", (Server(),), tenants, capacity_rps=10.0, patience_s=2.0)
    scenario = replace(scenario, measured_s=seconds, **changes)
    path = tmp_path / "own.json"
    content = plan_of(scenario) | {"until_s": seconds, "warmup_s": 0}
    path.write_text(json.dumps(content))
    return path


async def run(url: str, path: Path, **variables: object) -> tuple[int, str]:
    """The script's exit status, and what it printed."""
    command = ["run", "--no-usage-report", "--address", "", "-e", f"PLAN={path}"]
    for name, value in {"TARGET": url, **variables}.items():
        command += ["-e", f"{name}={value}"]
    process = await asyncio.create_subprocess_exec(
        K6, *command, str(SCRIPT), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, printed.decode()


def refusal() -> web.Response:
    """Too many requests; come back in a while."""
    return web.Response(status=429, headers={"retry-after-ms": str(int(1000 * TOLD_S))})


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def test_clients_come_back_as_their_kind_does(tmp_path: Path) -> None:
    """When they were told to; twice as late each time; again and again; not at all. None after it
    gave up."""
    tenants = [
        Tenant(kind.value, steady(0.5), retries=kind, gives_up_s=2.5, hammer_s=0.25)
        for kind in Retries
    ]
    async with answering(refusal) as (url, seen):
        status, printed = await run(url, plan(tmp_path, *tenants), RATE=4)
    assert status == 0, printed
    waits: dict[str, list[list[float]]] = {}
    for name, times in seen.times.items():
        waits.setdefault(name.partition("/")[0], []).append(gaps(times))
        assert times[-1] - times[0] < 2.6
    assert set(waits) == {kind.value for kind in Retries}
    assert not any(waits["never"])
    for obeyed in waits["obey"]:
        assert len(obeyed) in (5, 6)
        assert all(TOLD_S - 0.01 < gap < TOLD_S + 0.3 for gap in obeyed)
    for backed_off in waits["backoff"]:
        assert len(backed_off) == 2
        assert all(
            0.75 * first - 0.01 < gap < first + 0.3
            for gap, first in zip(backed_off, (0.5, 1.0), strict=True)
        )
    for hammered in waits["hammer"]:
        assert len(hammered) >= 7
        assert all(0.24 < gap < 0.55 for gap in hammered)


async def test_what_is_sent_is_what_the_variables_say(tmp_path: Path) -> None:
    """Keys, model, a tensor of another shape; and who sent it, for the server's own record."""
    tenant = Tenant("solo", steady(1.0), type="analytics", shape=Shape(Kind.INFER, rows=2))
    async with answering(web.Response) as (url, seen):
        variables = {"RATE": 10, "KEYS": "solo=sk-a=b", "MODEL": "fraud", "INPUT": "x:FP64:3"}
        status, printed = await run(url, plan(tmp_path, tenant), **variables)
    assert status == 0, printed
    assert 8 <= len(seen.bodies) <= 34
    assert seen.paths == {"/v2/models/fraud/infer"}
    assert seen.bodies[0] == {
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [2, 3], "data": [0] * 6}]
    }
    assert {h["x-api-key"] for h in seen.headers} == {"sk-a=b"}
    assert {h["x-request-type"] for h in seen.headers} == {"analytics"}


async def test_thresholds_of_the_script_are_missed_or_held(tmp_path: Path) -> None:
    """By the promise that is given: a chat takes a third of a second."""
    async with running_backend(PROFILES["demo-primary"]) as (session, _):
        url = str(session._base_url).rstrip("/")
        path = plan(tmp_path, Tenant("solo", steady(0.5)), innocent="solo")
        held, printed = await run(url, path, MODEL="m")
        missed, _ = await run(url, path, MODEL="m", SLO_MS=20)
    assert held == 0, printed
    assert "good{tenant:solo}" in printed.replace("{ ", "{").replace(" }", "}")
    assert missed == 99


async def test_a_client_has_the_patience_that_a_longer_promise_needs(tmp_path: Path) -> None:
    """The plan's clients leave after 2 s; one that is promised 3 s does not."""
    async with answering(web.Response, after_s=2.3) as (url, _):
        path = plan(tmp_path, Tenant("solo", steady(0.2)), seconds=1)
        held, printed = await run(url, path, SLO_MS=3000)
        missed, _ = await run(url, path)
    assert held == 0, printed
    assert missed == 99


async def test_a_key_for_nobody_is_a_mistake_that_is_told(tmp_path: Path) -> None:
    """Better than a run with the wrong keys."""
    path = plan(tmp_path, Tenant("solo", steady(0.5)))
    status, printed = await run("http://127.0.0.1:9", path, KEYS="sole=x")
    assert status not in (0, 99)
    assert "KEYS: the plan has no tenant sole" in printed


async def test_nobody_there_is_no_crash(tmp_path: Path) -> None:
    """Every try is counted as one that was let in and not served."""
    path = plan(tmp_path, Tenant("solo", steady(0.5)), seconds=1)
    status, printed = await run("http://127.0.0.1:9", path, LINES=1)
    assert status == 99
    assert '"code":0' in printed or '\\"code\\":0' in printed


async def test_a_stream_that_does_not_tell_its_first_token_is_judged_by_its_end(
    tmp_path: Path,
) -> None:
    """As a real engine's do not; one that tells it came late is late."""
    tenant = Tenant("solo", steady(0.5), shape=Shape(Kind.STREAM))
    path = plan(tmp_path, tenant, ttft_s=0.2)

    async def status(text: str) -> int:
        async with answering(lambda: web.Response(text=text)) as (url, _):
            ended, _ = await run(url, path)
        return ended

    assert await status("data: [DONE]\n\n") == 0
    late_ms = 1000.0 * (time.time() + 60.0)
    assert await status(f'data: {{"first_token_unix_ms": {late_ms:.1f}}}\n\n') == 99
