"""Which card an endpoint runs on, as far as a Prometheus server's DCGM series tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from ext_authz.snapshot import EndpointSample, Origin
from ext_authz.telemetry.merge import Merger
from ext_authz.telemetry.sources.prometheus.settings import PrometheusTarget
from tests.support.prometheus import PrometheusRig, answers, prometheus_rig, vector
from tests.support.scrape_rig import one

AT_S = 1.7e9
QUERIES = {"running": "sum by (instance) (x)"}


@pytest.fixture
async def rig() -> AsyncIterator[PrometheusRig]:
    async with prometheus_rig() as made:
        yield made


def cards(pods: Mapping[str, str]) -> bytes:
    """DCGM's series of a hot card for each UUID, 20 s old, each with its pod."""
    items: list[tuple[Mapping[str, str], object]] = []
    readings = {
        "DCGM_FI_DEV_GPU_TEMP": "50",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "64",
        "DCGM_FI_DEV_SM_CLOCK": "1000",
        "DCGM_FI_DEV_MAX_SM_CLOCK": "1250",
    }
    for uuid, pod in pods.items():
        labels = {"UUID": uuid, "Hostname": "n1", "exported_pod": pod}
        for name, value in readings.items():
            items.append(({"__name__": name, **labels}, value))
            items.append(({"ext_authz_dated": name, **labels}, f"{AT_S - 20:.3f}"))
    return vector(AT_S, *items)


@pytest.mark.parametrize(
    ("address", "configured", "pods", "device"),
    [
        ("llm-0.llm.svc:80", None, {"GPU-a": "llm-0"}, "GPU-a"),
        ("llm-0:80", None, {"GPU-a": "llm-0", "GPU-b": "emb-0"}, "GPU-a"),
        ("llm-0:80", None, {"GPU-a": "llm-0", "GPU-b": "llm-0"}, None),
        ("llm-0:80", "GPU-c", {"GPU-a": "llm-0"}, "GPU-c"),
        ("llm-00:80", None, {"GPU-a": "llm-0"}, None),
        ("10.0.0.1:80", None, {"GPU-a": "10"}, None),
        ("10.0.0.1:80", None, {"GPU-a": ""}, None),
    ],
)
async def test_the_card_an_endpoint_runs_on(
    rig: PrometheusRig,
    address: str,
    configured: str | None,
    pods: dict[str, str],
    device: str | None,
) -> None:
    """The configured one, else the only one with a workload of its name: never a guess."""
    target = PrometheusTarget(address, device=configured)
    rig.configure(targets=(target,), queries=QUERIES, devices=True)
    load = vector(AT_S, ({"instance": address}, "1"))
    answers(rig, {"sum": load, "{__name__": cards(pods)})
    report = await rig.source.poll(100.0)
    assert one(report).device == device
    assert [(d.device, d.at_s, d.temperature_c) for d in report.devices] == [
        (uuid, 80.0, 50.0) for uuid in pods
    ]
    assert "devices" not in report.missing


async def test_no_cards_where_there_should_be_some(rig: PrometheusRig) -> None:
    """A server without an exporter is told apart from one whose cards are idle."""
    rig.configure(devices=True)
    answers(rig, {})
    report = await rig.source.poll(100.0)
    assert report.devices == ()
    assert "devices" in report.missing


async def test_cards_of_endpoints_that_the_server_does_not_scrape(rig: PrometheusRig) -> None:
    """A gate that reads its engines itself learns from the server where they run, and their
    clocks; what it does not know of their load stays unknown."""
    targets = (PrometheusTarget("llm-0.llm.svc:80", "vllm"), PrometheusTarget("emb-0:80", "vllm"))
    rig.configure(targets=targets, devices=True)
    answers(rig, {'{__name__=~"DCGM': cards({"GPU-a": "llm-0"})})
    report = await rig.source.poll(100.0)
    (found,) = report.endpoints
    assert found == EndpointSample("llm-0.llm.svc:80", 80.0, source=rig.source.name, device="GPU-a")
    merger = Merger(dict.fromkeys(target.address for target in targets))
    scraped = EndpointSample("llm-0.llm.svc:80", 99.0, running=2.0, source="scrape")
    for one_report in (replace(report, endpoints=(scraped,), devices=()), report):
        merger.take(one_report)
    got = merger.snapshot.samples["llm-0.llm.svc:80"]
    assert (got.at_s, got.running, got.device, got.thermal_factor) == (99.0, 2.0, "GPU-a", 1.25)


async def test_two_servers_do_not_overwrite_each_other(rig: PrometheusRig) -> None:
    """What one says of an endpoint stays while the other says something else of it."""
    async with prometheus_rig() as other:
        merger = Merger({"a:80": None})
        for server, signal, value in ((rig, "running", "3"), (other, "kv_usage_ratio", "0.5")):
            server.configure(targets=(PrometheusTarget("a:80"),), queries={signal: "sum(x)"})
            answers(server, {"sum": vector(AT_S, ({"instance": "a:80"}, value))})
            merger.take(await server.source.poll(100.0))
    got = merger.snapshot.samples["a:80"]
    assert (got.running, got.kv_usage_ratio) == (3.0, 0.5)
    assert got.origins == {
        "running": Origin(rig.source.name, 85.0),
        "kv_usage_ratio": Origin(other.source.name, 85.0),
    }
