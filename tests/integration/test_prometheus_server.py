"""A real Prometheus that scrapes real pages, and the source that reads it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.pages.mappings import ENGINES
from ext_authz.telemetry.pages.rates import Dated, sample
from ext_authz.telemetry.pages.reading import read
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings, PrometheusTarget
from ext_authz.telemetry.sources.prometheus.source import PrometheusSource
from tests.support.debian import unpacked
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.prometheus import SCRAPE_INTERVAL_S, Pages, instance, server
from tests.unit.test_dcgm import PODS_PAGE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ext_authz/deploy/rules/inference_slo.rules.yaml"
METRICS = ROOT / "tests/data/metrics"
MIB = 1024 * 1024
CLOCK = SystemClock()


CAPTURED = {
    "vllm": "vllm-0.32.0-cpu-loaded.txt",
    "vllm-dp2": "vllm-0.32.0-cpu-dp2-loaded.txt",
    "triton": "triton-pytriton0.7.0-cpu-loaded.txt",
    "llamacpp": "llamacpp-b11434-loaded.txt",
    "ray": "ray-serve-2.60.0.txt",
}
# A name with all that means something in a query or in a regular expression.
ODD = 'od"d \\ (.+)|{x}$'
NUMBERS = "a NaN\nb +Inf\nc 7\n"


@dataclass(frozen=True, slots=True)
class World:
    """Pages, and a Prometheus on `port` that scrapes them."""

    shown: Pages
    port: int

    def source(self, page: str, engine: str | None = None, **changes: Any) -> PrometheusSource:
        """Reads the server of `page`."""
        target = PrometheusTarget(instance(page), engine, (instance(page),))
        values = {"targets": (target,), "timeout_s": 5.0, "devices": False, **changes}
        url = f"http://127.0.0.1:{self.port}"
        return PrometheusSource(PrometheusSettings(url=url, **values), CLOCK)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Pages() as shown:
        for name, file in CAPTURED.items():
            shown.texts[name] = (METRICS / file).read_text()
        shown.texts["numbers"] = NUMBERS
        shown.texts["dcgm"] = PODS_PAGE.replace(
            'pod="emb-0"', 'pod="emb-0",modelName="a \\"b\\", c\\\\"'
        )
        shown.texts["twice"] = 'vllm:num_requests_running{model_name="m"} 3\n'
        shown.texts["queue"] = (
            'nv_inference_pending_request_count{model="m",version="1"} 4\n'
            'nv_inference_pending_request_count{model="n",version="1"} 3\n'
        )
        jobs = {**{name: name for name in shown.texts}, ODD: "twice", "moving": "moving"}
        port = free_port()
        with server(tmp_path_factory.mktemp("prometheus"), shown, jobs, port, RULES):
            yield World(shown, port)


async def polled(
    source: PrometheusSource, enough: Callable[[Report], object], within_s: float = 15.0
) -> Report:
    """The first report that is `enough`."""
    found: list[Report] = []

    async def looks_right() -> bool:
        found[:] = [await source.poll(CLOCK.now())]
        return bool(enough(found[0]))

    await eventually(looks_right, within_s)
    return found[0]


async def test_cards_of_a_real_exporter_page(world: World) -> None:
    """Two cards out of six series, with their true age, and the endpoint whose pod one serves."""
    targets = (PrometheusTarget("llm-0.llm.svc:8000"), PrometheusTarget("other:8000"))
    queries = {"running": 'label_replace(vector(3),"instance","llm-0.llm.svc:8000","","")'}
    source = world.source("dcgm", devices=True, targets=targets, queries=queries)
    report = await polled(source, lambda report: len(report.devices) == 2)
    first, second = report.devices
    assert (first.device, first.utilization_ratio) == ("GPU-aa", 0.88)
    assert (second.device, second.utilization_ratio) == ("GPU-bb", 0.10)
    assert first.memory_used_bytes == 60000 * MIB
    assert second.model == 'a "b", c\\'
    assert 0 < CLOCK.now() - first.at_s < 10 * SCRAPE_INTERVAL_S
    assert [(s.endpoint, s.device, s.running) for s in report.endpoints] == [
        ("llm-0.llm.svc:8000", "GPU-aa", 3.0)
    ]


@pytest.mark.parametrize("page", CAPTURED)
async def test_an_engine_read_through_prometheus_is_the_engine(world: World, page: str) -> None:
    """What the source says of a captured page is what reading the page itself says."""
    engine = page.removesuffix("-dp2")
    text = (METRICS / CAPTURED[page]).read_text()
    mapping = ENGINES[engine]
    direct = read(mapping, parse_page(text.encode(), mapping.names))
    expected = sample("x", Dated(direct, 0.0), None, "")
    source = world.source(page, engine)
    report = await polled(source, lambda report: report.endpoints)
    (got,) = report.endpoints
    for signal in ("running", "waiting", "kv_usage_ratio", "kv_capacity_tokens", "slots"):
        assert getattr(got, signal) == getattr(expected, signal), signal
    assert got.by_model == expected.by_model
    assert report.missing == direct.missing
    assert 0 < CLOCK.now() - got.at_s < 20 * SCRAPE_INTERVAL_S


async def test_an_engine_that_two_jobs_scrape_is_not_counted_twice(world: World) -> None:
    """Two copies of one page are one engine."""
    queries = {"waiting": "sum by (instance) (up)"}
    source = world.source("twice", "vllm", queries=queries)
    report = await polled(source, lambda r: r.endpoints and r.endpoints[0].waiting == 2.0)
    assert report.endpoints[0].running == 3.0


async def test_names_are_taken_literally(world: World) -> None:
    """Quotes, backslashes and what a regular expression would read into a name do no harm."""
    target = PrometheusTarget("e:1", "vllm", (ODD, ".*"))
    changes = {"targets": (target,), "endpoint_label": "job", "matchers": {"job": ODD}}
    source = world.source("twice", **changes)
    report = await polled(source, lambda report: report.endpoints)
    assert [(s.endpoint, s.running) for s in report.endpoints] == [("e:1", 3.0)]
    other = world.source("twice", **{**changes, "matchers": {"job": ".*"}})
    assert (await other.poll(CLOCK.now())).endpoints == ()


async def test_means_and_dates_move_with_the_servers_scrapes(world: World) -> None:
    """The mean is over what finished between two scrapes; a dead endpoint's date stands still or
    its sample goes, and it comes back."""
    label = '{engine="0",model_name="m1"}'

    def show(count: int) -> None:
        world.shown.texts["moving"] = (
            f"vllm:num_requests_running{label} {count}\n"
            f"vllm:request_inference_time_seconds_sum{label} {count * 10}\n"
            f"vllm:request_inference_time_seconds_count{label} {count}\n"
        )

    show(1)
    source = world.source("moving", "vllm")
    before = (await polled(source, lambda r: r.endpoints)).endpoints[0]
    show(4)
    after = (await polled(source, lambda r: r.endpoints[0].running == 4.0)).endpoints[0]
    assert before.mean_execution_s is None
    assert after.mean_execution_s == 10.0
    assert after.at_s > before.at_s
    world.shown.texts["moving"] = None
    await polled(source, lambda r: not r.endpoints)
    show(5)
    again = (await polled(source, lambda r: r.endpoints)).endpoints[0]
    assert (again.running, again.at_s > after.at_s) == (5.0, True)


async def test_numbers_that_are_none_and_queries_of_every_kind(world: World) -> None:
    """NaN and infinities are unknown; a number, a string and a range name no endpoint; nonsense
    is refused; and what is well is not harmed by any of it."""
    queries = {
        "running": "c",
        "waiting": "a",
        "kv_capacity_tokens": "b",
        "kv_usage_ratio": "scalar(c)",
        "mean_execution_s": '"text"',
        "mean_wait_s": "c[5s]",
        "slots": "sum(",
        "requests_per_s": "nothing_of_this_name",
    }
    source = world.source("numbers", queries=queries, scrape_interval_s=60.0)
    report = await polled(source, lambda r: r.endpoints)
    (got,) = report.endpoints
    assert got.running == 7.0
    assert (got.waiting, got.kv_capacity_tokens, got.kv_usage_ratio) == (None, None, None)
    # A plain selector has a date of its own: not that of a computed value.
    assert CLOCK.now() - got.at_s < 20 * SCRAPE_INTERVAL_S
    assert report.missing == set(queries) - {"running"}
    assert report.dropped == {"nan": 1, "infinite": 1, "not_a_vector": 3}


async def test_a_computed_value_is_dated_a_scrape_interval_back(world: World) -> None:
    """Prometheus itself dates a sum with the time of asking."""
    queries = {"running": "sum by (instance) (c)"}
    source = world.source("numbers", queries=queries, scrape_interval_s=60.0)
    now = CLOCK.now()
    (got,) = (await polled(source, lambda r: r.endpoints)).endpoints
    assert now - 60.0 <= got.at_s <= CLOCK.now() - 60.0


async def test_prometheus_goes_and_comes_back(tmp_path: Path) -> None:
    """Gone is an error in bounded time, and needs nothing done to pass."""
    with Pages() as shown:
        world = World(shown, free_port())
        source = world.source("none", queries={"running": "vector(1)"})
        with server(tmp_path, shown, {}, world.port):
            report = await source.poll(CLOCK.now())
        started = time.monotonic()
        with pytest.raises(TelemetryError, match="request failed"):
            await source.poll(CLOCK.now())
        assert time.monotonic() - started < 2.0
        with server(tmp_path, shown, {}, world.port):
            assert (await source.poll(CLOCK.now())).dropped == report.dropped == {"no_endpoint": 1}


def promtool(*arguments: str) -> str:
    """What promtool prints; fails if it does not agree."""
    binary = unpacked("prometheus") / "usr/bin/promtool"
    done = subprocess.run(
        [str(binary), *arguments], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_rules() -> None:
    """Prometheus' own tool accepts every one of them."""
    assert "5 rules found" in promtool("check", "rules", str(RULES))


def test_the_rules_compute_what_they_say() -> None:
    """Prometheus' own tool runs them over series whose answers are known."""
    tests = ROOT / "tests/data/prometheus/inference_slo.test.yaml"
    assert "SUCCESS" in promtool("test", "rules", str(tests))


async def test_a_recorded_rule_feeds_the_gate(world: World) -> None:
    """The shipped rules, evaluated by a server, mapped to a signal."""
    source = world.source("queue", queries={"waiting": "inference:queue_depth:sum"})
    (got,) = (await polled(source, lambda r: r.endpoints)).endpoints
    assert got.waiting == 7.0
