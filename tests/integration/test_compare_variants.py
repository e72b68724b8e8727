"""The rivals of the comparison: the real Envoy takes their configuration, and does what it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import yaml

from ext_authz.deploy.envoy import render_envoy
from ext_authz.settings import Settings
from loadtest import edge
from loadtest.compare.settings import tried
from loadtest.compare.site import Site, site_of
from loadtest.compare.table import SCENARIOS
from loadtest.compare.variants import NAMES, PRODUCT, STATIC, Swept, Variant, variants
from tests.support.envoy import start_envoy, validate
from tests.support.settings import make_pool, make_settings
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

SITE = Site(
    knees={"primary": (2.0, 2.0), "economy": (2.0,)},
    speeds={"primary": (3.0, 3.0), "economy": (2.0,)},
    keys={"heavy": 3.0, "light": 1.0},
    promises_s={"/": 1.0, "/v1/completions": 9.0},
    idle_s=0.1,
)
SWEPT = Swept({"primary": 4, "economy": 2}, 0.4, {})


def _settings(addresses: tuple[str, ...]) -> Settings:
    *primary, economy = addresses
    first = replace(make_pool("primary", *primary), demote_to="economy")
    return make_settings([first, make_pool("economy", economy)])


def _variant(name: str) -> Variant:
    return variants(SITE, SWEPT)[name]


@pytest.mark.parametrize("name", NAMES)
def test_envoy_takes_every_variant(name: str, tmp_path: Path) -> None:
    """Several pools and keys."""
    settings = _settings(("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
    config = yaml.safe_load(render_envoy(settings, 1))
    changed = yaml.safe_dump(_variant(name).change(config))
    assert validate(changed, tmp_path).returncode == 0
    assert ("filters.http.ext_authz" in changed) == (name == PRODUCT)


def test_servers_can_have_clusters_of_their_own(tmp_path: Path) -> None:
    """Where they differ: a part of the traffic and a limit for each."""
    scenario = SCENARIOS["mixed"].apart
    limits = {"primary-0": 16, "primary-1": 12, "economy-0": 9}
    settings = _settings(("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
    config = yaml.safe_load(render_envoy(settings, 1))
    known = variants(SITE, Swept(limits, 50.0, limits), site_of(scenario))
    found = known[STATIC].change(config)
    assert validate(yaml.safe_dump(found), tmp_path).returncode == 0
    assert edge.pools(found) == set(limits)
    clusters = {c["name"]: c for c in found["static_resources"]["clusters"]}
    for number, port in enumerate((1, 2)):
        (place,) = clusters[f"pool_primary-{number}"]["load_assignment"]["endpoints"]
        (endpoint,) = place["lb_endpoints"]
        assert endpoint["endpoint"]["address"]["socket_address"]["port_value"] == port
    (threshold,) = clusters["pool_primary-1"]["circuit_breakers"]["thresholds"]
    assert threshold["max_requests"] == 12


def test_every_scenario_has_its_variants() -> None:
    """By name, the product as it is rendered and alone with a gate."""
    for scenario in SCENARIOS.values():
        site = site_of(scenario)
        found = variants(site, Swept(dict.fromkeys(site.pools, 8), 10.0, {}))
        assert tuple(found) == NAMES
        assert [name for name, each in found.items() if each.gate] == [PRODUCT]
    config = {"anything": [1, 2]}
    assert _variant(PRODUCT).change(config) is config


@asynccontextmanager
async def _running(
    name: str, tmp_path: Path
) -> AsyncIterator[tuple[list[Upstream], aiohttp.ClientSession]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Upstream(n)) for n in ("p1", "p2", "e")]
        settings = _settings(tuple(server.address for server in servers))

        def edit(text: str) -> str:
            return yaml.safe_dump(_variant(name).change(yaml.safe_load(text)))

        envoy = await asyncio.to_thread(start_envoy, settings, tmp_path, edit)
        stack.enter_context(envoy.process)
        session = aiohttp.ClientSession(envoy.url, connector=aiohttp.TCPConnector(limit=0))
        yield servers, await stack.enter_async_context(session)


async def _ask(
    client: aiohttp.ClientSession, key: str = "heavy", path: str = "/v1/completions"
) -> tuple[int, str]:
    headers = {"x-api-key": key}
    async with client.post(path, data=b"{}", headers=headers) as reply:
        return reply.status, reply.headers.get("retry-after", "")


def _held(servers: list[Upstream]) -> list[int]:
    """Requests inside, health checks aside: those of a held server hang, too."""
    return [server.active for server in servers]


async def test_a_static_limit_holds_for_each_pool(tmp_path: Path) -> None:
    """Four and two in flight, the four evenly; the rest is refused with a time to come back."""
    async with _running("static_limit", tmp_path) as (servers, client):
        for server in servers:
            server.gate.clear()
        asked = [asyncio.create_task(_ask(client)) for _ in range(60)]
        refused = 0
        while refused < 54:
            done, _ = await asyncio.wait(asked, timeout=0.05)
            refused = len(done)
        assert {task.result() for task in asked if task.done()} == {(503, "1")}
        for server in servers:
            server.gate.set()
        answers = Counter(status for status, _ in await asyncio.gather(*asked))
        assert answers == {200: 6, 503: 54}


async def test_traffic_goes_to_all_pools_by_their_capacity(tmp_path: Path) -> None:
    """Six parts to two, and the servers of a pool alike."""
    async with _running("nothing", tmp_path) as (servers, client):
        before = [server.served for server in servers]
        for _ in range(200):
            assert (await _ask(client))[0] == 200
        sent = [server.served - was for server, was in zip(servers, before, strict=True)]
    assert sum(sent[:2]) == pytest.approx(150, abs=30)
    assert sent[2] == pytest.approx(50, abs=30)


async def test_a_static_rate_is_by_key_and_weight(tmp_path: Path) -> None:
    """At so low a rate each key has its burst and nothing more; one has no part in another's."""
    async with _running("static_rate", tmp_path) as (_, client):
        answers = {
            key: Counter([(await _ask(client, key)) for _ in range(20)])
            for key in ("heavy", "light", "unknown")
        }
    # What asked whether Envoy is there had no key either.
    for key, least, most in (("heavy", 4, 5), ("light", 4, 5), ("unknown", 0, 11)):
        assert least <= answers[key][200, ""] <= most
        refused = {wait for status, wait in answers[key] if status == 429}
        assert refused
        assert all(int(wait) >= 1 for wait in refused)


async def test_what_is_late_is_cut_off_by_the_promise_of_its_path(tmp_path: Path) -> None:
    """A second for all, nine for one path."""
    async with _running("admission_control", tmp_path) as (servers, client):
        for server in servers:
            server.gate.clear()
        patient = asyncio.create_task(_ask(client))
        assert (await _ask(client, path="/v1/chat/completions"))[0] == 504
        assert not patient.done()
        for server in servers:
            server.gate.set()
        assert (await patient)[0] == 200


async def test_the_gradient_refuses_when_latency_grows(tmp_path: Path) -> None:
    """It begins with three in flight, which is also the least it goes down to."""
    async with _running("adaptive_concurrency", tmp_path) as (servers, client):
        for server in servers:
            server.gate.clear()
        asked = [asyncio.create_task(_ask(client)) for _ in range(20)]
        done, waiting = await asyncio.wait(asked, timeout=0.5)
        assert len(waiting) == 3
        assert {task.result()[0] for task in done} == {429}
        for server in servers:
            server.gate.set()
        assert {(await task)[0] for task in waiting} == {200}


async def test_a_dead_endpoint_is_noticed(tmp_path: Path) -> None:
    """Or it would be the least loaded one, and get everything."""
    async with _running("static_limit", tmp_path) as (servers, client):
        await servers[1].stop()
        for _ in range(20):
            answers = [(await _ask(client))[0] for _ in range(10)]
            if set(answers) == {200}:
                break
            await asyncio.sleep(0.1)
        assert set(answers) == {200}


def test_envoy_takes_all_settings_that_are_tried(tmp_path: Path) -> None:
    """Those of the comparison among them."""
    config = render_envoy(_settings(("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")), 1)
    named = dict(tried(SITE))
    assert len(named) == 12
    for variant in named.values():
        changed = yaml.safe_dump(variant.change(yaml.safe_load(config)))
        assert validate(changed, tmp_path).returncode == 0
