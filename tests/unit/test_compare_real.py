"""What the comparison before real servers does without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from ext_authz.config.compile import load
from loadtest.compare import rate, real_triton, real_vllm
from loadtest.compare.plans import plan_of
from loadtest.compare.rate import _best_rate
from loadtest.compare.real import BACKENDS, main
from loadtest.compare.real_server import Real
from loadtest.compare.real_variants import POOL, gated, limited, shadowed, tolerant, ungated
from loadtest.compare.stack import PORTS, gate_config
from tests.support.ports import free_port


class Somewhere:
    """A model server that is not asked."""

    url = "http://127.0.0.1:1"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, list[Any]]]:
    """Answers what it is asked for, and remembers it; 400 times quicker after the first 40."""
    monkeypatch.setattr(rate, "WARM_S", 0.05)
    monkeypatch.setattr(rate, "COUNTED_S", 0.2)
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        await asyncio.sleep(0.04 if len(asked) <= 40 else 0.0001)
        return web.Response(status=500 if "fail" in request.path else 200)

    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}", asked
    await runner.cleanup()


async def test_the_best_rate_is_that_of_a_server_that_has_warmed_up(
    server: tuple[str, list[Any]],
) -> None:
    """What was asked before is not counted: 4 at once, 40 ms each, are 100 a second at first."""
    url, asked = server
    best_rps = await _best_rate(f"{url}/x", {"a": 1}, 4)
    assert 200 < best_rps < 5 * len(asked)
    assert asked[0] == {"a": 1}


async def test_a_server_that_fails_is_no_server_to_compare(server: tuple[str, list[Any]]) -> None:
    """It would look slow, and the load would be light."""
    url, _ = server
    with pytest.raises(RuntimeError, match="/fail: 500"):
        await _best_rate(f"{url}/fail", {}, 2)


def test_an_unknown_backend_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With those there are."""
    with pytest.raises(SystemExit):
        main(["tgi"])
    assert "'triton', 'vllm'" in capsys.readouterr().err


def test_each_backend_has_a_plan_of_its_name() -> None:
    """That the load generator can read, with an overload to be measured."""
    for name, scenario in (("triton", real_triton.SCENARIO), ("vllm", real_vllm.SCENARIO)):
        plan = json.loads(json.dumps(plan_of(scenario)))
        assert plan["name"] == name
        assert name in BACKENDS
        assert scenario.rate_rps(scenario.tenants[0], 1.0) > scenario.capacity_rps


def _config() -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "pool_primary"}}
    manager = {
        "http_filters": [{"name": "x"}, {"name": "envoy.filters.http.router"}],
        "access_log": [1],
        "route_config": {"virtual_hosts": [{"routes": [route]}]},
    }
    chain = {"filters": [{"typed_config": manager}]}
    cluster = {"name": f"pool_{POOL}"}
    return {"static_resources": {"listeners": [{"filter_chains": [chain]}], "clusters": [cluster]}}


def test_a_limit_is_a_breaker_and_a_timeout() -> None:
    """So many in flight, as long as the promise lasts."""
    real = Real(real_triton.SCENARIO, Somewhere(), {}, {}, "/x", {}, 8)
    variant = limited(real, 6).variant
    changed = variant.change(_config())
    (cluster,) = changed["static_resources"]["clusters"]
    (threshold,) = cluster["circuit_breakers"]["thresholds"]
    assert threshold["max_requests"] == variant.limit == 6
    (listener,) = changed["static_resources"]["listeners"]
    made = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = made["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"]["timeout"] == "0.15s"


def test_without_the_gate_everything_goes_to_the_one_pool() -> None:
    """And nobody is asked."""
    changed = ungated().variant.change(_config())
    (listener,) = changed["static_resources"]["listeners"]
    made = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert [each["name"] for each in made["http_filters"]] == ["envoy.filters.http.router"]
    assert "access_log" not in made
    assert POOL in json.dumps(made["route_config"])
    assert not ungated().variant.gate


def test_a_gate_in_shadow_has_the_limit_and_is_asked() -> None:
    """So that it costs what it costs, and decides nothing."""
    real = Real(real_triton.SCENARIO, Somewhere(), {}, {}, "/x", {}, 8)
    told = shadowed(real, 6)
    changed = told.variant.change(_config())
    (cluster,) = changed["static_resources"]["clusters"]
    assert cluster["circuit_breakers"]["thresholds"][0]["max_requests"] == 6
    (listener,) = changed["static_resources"]["listeners"]
    made = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert made["http_filters"][0]["name"] == "x"
    assert made["access_log"] == [1]
    assert told.variant.gate


@pytest.mark.parametrize(
    ("broken_ratio", "allowed"), [(0.0, None), (0.01, None), (0.2106, 0.211), (0.9, 0.5)]
)
def test_as_late_as_the_limit(broken_ratio: float, allowed: float | None) -> None:
    """Where the limit breaks more promises than the gate may, the gate is allowed as many."""
    told = tolerant(broken_ratio)
    assert (told.gate if told else None) == (
        {"learning": {"target_violations": allowed}} if allowed else None
    )


def test_what_the_gate_is_told_is_what_it_does(tmp_path: Path) -> None:
    """By the names that its configuration has, and where it has them."""
    ports = dict.fromkeys(PORTS, 0)
    real = Real(real_triton.SCENARIO, Somewhere(), {}, {}, "/x", {}, 8)
    allowing = tolerant(0.2)
    assert allowing is not None
    read = []
    for told in (gated(), shadowed(real, 6), allowing):
        config = gate_config(real.scenario, {POOL: ["http://127.0.0.1:1"]}, ports)
        config["admission_control"] |= told.gate
        path = tmp_path / "gate.yaml"
        path.write_text(yaml.safe_dump(config))
        settings = load(path).settings.admission
        read.append((settings.enforcing.everywhere.value, settings.target_violation_ratio))
    assert read == [("enforce", 0.01), ("shadow", 0.01), ("enforce", 0.2)]
