"""What a Prometheus server may answer, and what the source makes of it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.sources.prometheus.settings import PrometheusTarget
from tests.support.prometheus import PrometheusRig, answers, prometheus_rig, vector
from tests.support.scrape_rig import one

AT_S = 1.7e9
ADDRESS = "10.0.0.1:8000"
HERE = {"instance": ADDRESS}
QUERIES = {"running": "sum by (instance) (x)"}


@pytest.fixture
async def rig() -> AsyncIterator[PrometheusRig]:
    async with prometheus_rig() as made:
        yield made


def success(result: object, kind: str = "vector") -> bytes:
    body = {"status": "success", "data": {"resultType": kind, "result": result}}
    return json.dumps(body).encode()


def refusal(text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": "bad_data", "error": text}).encode()


async def mapped(rig: PrometheusRig, answer: bytes, **changes: Any) -> Report:
    """What one query says of an endpoint of no engine."""
    target = PrometheusTarget(ADDRESS)
    rig.configure(**{"targets": (target,), "queries": QUERIES, **changes})
    answers(rig, {"sum": answer})
    return await rig.source.poll(100.0)


async def test_a_computed_value_is_as_old_as_a_scrape_may_be(rig: PrometheusRig) -> None:
    """The server cannot date a sum, so that it counts as one scrape interval old."""
    sample = one(await mapped(rig, vector(AT_S, (HERE, "7")), scrape_interval_s=15.0))
    assert (sample.running, sample.at_s, sample.source) == (7.0, 85.0, rig.source.name)


async def test_a_selected_value_has_the_date_of_its_sample(rig: PrometheusRig) -> None:
    """Asked for the instant of the value itself, so that both speak of one sample."""
    rig.configure(targets=(PrometheusTarget(ADDRESS),), queries={"running": "x # mine"})
    dates = vector(AT_S, (HERE, f"{AT_S - 4.5:.3f}"))
    answers(rig, {"x": vector(AT_S, ({"__name__": "x", **HERE}, "7")), "timestamp(x": dates})
    sample = one(await rig.source.poll(100.0))
    assert (sample.running, sample.at_s) == (7.0, 95.5)
    assert rig.asked[-1]["query"] == "timestamp(x # mine\n)"
    assert float(rig.asked[-1]["time"]) == AT_S


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "-3", "ERROR - FAILED TO CONVERT", "1_0"])
async def test_unusable_numbers_are_unknown(rig: PrometheusRig, text: str) -> None:
    """An endpoint of which nothing is known gives no sample, and the loss is counted."""
    report = await mapped(rig, vector(AT_S, (HERE, text)))
    assert report.endpoints == ()
    assert report.missing == {"running"}
    assert sum(report.dropped.values()) == 1


async def test_one_unusable_series_makes_the_sum_unknown(rig: PrometheusRig) -> None:
    """Leaving an engine out would count it as zero."""
    other = {"instance": ADDRESS, "engine": "1"}
    report = await mapped(rig, vector(AT_S, (HERE, "5"), (other, "NaN")))
    assert report.endpoints == ()
    assert report.dropped == {"nan": 1}


@pytest.mark.parametrize(
    ("signal", "texts", "expected"),
    [
        ("running", ("5", "2"), 7.0),
        ("kv_usage_ratio", ("0.2", "1.005"), 1.0),
        ("kv_usage_ratio", ("0.2", "91"), None),
        ("mean_execution_s", ("0.5", "0.25"), 0.5),
    ],
)
async def test_several_series_of_one_endpoint(
    rig: PrometheusRig, signal: str, texts: tuple[str, str], expected: float | None
) -> None:
    """Requests add up, of ratios and times the worst counts; a percentage is no ratio."""
    items = ((dict(HERE, engine=str(number)), text) for number, text in enumerate(texts))
    report = await mapped(rig, vector(AT_S, *items), queries={signal: "sum"})
    got = getattr(report.endpoints[0], signal) if report.endpoints else None
    assert got == expected


@pytest.mark.parametrize(
    ("result", "dropped"),
    [
        (success([AT_S, "7"], "scalar"), {"not_a_vector": 1}),
        (success([AT_S, "seven"], "string"), {"not_a_vector": 1}),
        (success([{"metric": HERE, "values": [[AT_S, "7"]]}], "matrix"), {"not_a_vector": 1}),
        (success([{"metric": HERE, "histogram": [AT_S, {}]}]), {"not_a_vector": 1}),
        (success([{"metric": HERE, "value": [AT_S]}]), {"malformed": 1}),
        (success([{"metric": HERE, "value": [AT_S, 7]}]), {"malformed": 1}),
        (success([{"metric": HERE, "value": ["now", "7"]}]), {"malformed": 1}),
        (success([{"metric": {"instance": 7}, "value": [AT_S, "7"]}]), {"malformed": 1}),
        (success([{"metric": {}, "value": [AT_S, "7"]}]), {"no_endpoint": 1}),
        (success([{"metric": {"instance": "else:1"}, "value": [AT_S, "7"]}]), {}),
        (success([]), {}),
    ],
)
async def test_results_that_tell_nothing_of_an_endpoint(
    rig: PrometheusRig, result: bytes, dropped: dict[str, int]
) -> None:
    """Defined for every kind of result: no sample, the signal is missing, the reason counted."""
    report = await mapped(rig, result)
    assert report.endpoints == ()
    assert report.missing == {"running"}
    assert report.dropped == dropped


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"data":{}}',
        b'{"data":{"result":7}}',
        b'{"data":{"result":null}}',
        b'{"data":{"result":[7]}}',
        b'{"data":{"result":[{}]}}',
        b"[" * 5000,
        b"\xff\xfe{}",
    ],
)
async def test_answers_that_are_not_of_prometheus(rig: PrometheusRig, body: bytes) -> None:
    """A login page or a broken proxy that says 200 is an error with a plain text."""
    with pytest.raises(TelemetryError, match="not one of Prometheus"):
        await mapped(rig, body)


async def test_a_refused_question_costs_its_own_signal_only(
    rig: PrometheusRig, caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with it is said once, and again only when it changes."""
    rig.configure(targets=(PrometheusTarget(ADDRESS),), queries={"waiting": "foo{", "running": "y"})
    answers(
        rig,
        {"foo{": refusal('1:5: parse error: "://"\nunexpected'), "y": vector(AT_S, (HERE, "3"))},
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            report = await rig.source.poll(100.0)
    assert one(report).running == 3.0
    assert report.missing == {"waiting"}
    assert len(caplog.records) == 1
    assert "1:5: parse error" in caplog.text
    assert "\nunexpected" not in caplog.text


async def test_all_questions_refused_is_an_error(rig: PrometheusRig) -> None:
    """A source that learns nothing is not one that is well."""
    rig.configure(targets=(PrometheusTarget(ADDRESS),), queries={"waiting": "foo{"})
    answers(rig, {"foo{": refusal("parse error")})
    with pytest.raises(TelemetryError, match="query refused: parse error"):
        await rig.source.poll(100.0)


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429, 503])
async def test_other_statuses_are_errors_and_not_tried_again(
    rig: PrometheusRig, status: int
) -> None:
    """No redirect is followed and nothing is repeated: the next poll comes soon enough."""
    rig.configure(targets=(PrometheusTarget(ADDRESS),), queries=QUERIES)
    asked = answers(rig, {"sum": b"<p>secret</p>"}, status)
    with pytest.raises(TelemetryError, match=f"^HTTP status {status}$"):
        await rig.source.poll(100.0)
    assert len(asked) == 1


async def test_the_same_endpoint_scraped_by_two_jobs_counts_once(rig: PrometheusRig) -> None:
    """The newer of two copies counts, wherever it stands."""
    items: list[tuple[Mapping[str, str], object]] = []
    for job, age_s, value in (("a", 9.0, "4"), ("b", 1.0, "6"), ("c", 5.0, "5")):
        labels = {"instance": ADDRESS, "job": job, "model_name": "m1"}
        items.append(({"__name__": "vllm:num_requests_running", **labels}, value))
        dated = {"ext_authz_dated": "vllm:num_requests_running", **labels}
        items.append((dated, f"{AT_S - age_s:.3f}"))
    rig.answer(vector(AT_S, *items))
    sample = one(await rig.source.poll(100.0))
    assert (sample.running, sample.at_s) == (6.0, 99.0)
    assert sample.by_model["m1"].running == 6.0


async def test_until_it_is_scraped_again_a_sample_keeps_its_date(rig: PrometheusRig) -> None:
    """Nothing new is not a rate of zero: the sample of before is given again, and ages."""
    rig.healthy(1)
    await rig.source.poll(100.0)
    rig.healthy(3)
    first = one(await rig.source.poll(110.0))
    again = one(await rig.source.poll(112.0))
    assert first == again
    assert (again.at_s, again.mean_execution_s) == (110.0, 10.0)


async def test_a_mapped_query_comes_before_an_engines_own_series(rig: PrometheusRig) -> None:
    """And the sample is as old as the older of the two."""
    rig.healthy(3)
    engine = rig.handler
    rig.configure(queries={"waiting": "sum by (instance) (y)"}, scrape_interval_s=5.0)

    async def handle(request: web.Request) -> web.StreamResponse:
        if rig.asked[-1]["query"].startswith("sum"):
            return web.Response(body=vector(AT_S, (HERE, "40")))
        if rig.asked[-1]["query"].startswith("timestamp"):
            return web.Response(body=vector(AT_S, (HERE, f"{AT_S:.3f}")))
        return await engine(request)

    rig.handler = handle
    sample = one(await rig.source.poll(100.0))
    assert (sample.running, sample.waiting, sample.at_s) == (3.0, 40.0, 95.0)


@pytest.mark.parametrize(
    ("target", "labels"),
    [
        (PrometheusTarget("10.0.0.1:8000"), ("10.0.0.1:8000",)),
        (PrometheusTarget("10.0.0.1:8000", "vllm"), ("10.0.0.1:8000",)),
        (PrometheusTarget("10.0.0.1:8000", "no such engine"), ("10.0.0.1:8000",)),
        (PrometheusTarget("10.0.0.1:8000", "triton"), ("10.0.0.1:8002",)),
        (PrometheusTarget("[fd00::1]:80", "kserve"), ("[fd00::1]:9090", "[fd00::1]:9091")),
        (PrometheusTarget("10.0.0.1:8000", "triton", ("pod-1",)), ("pod-1",)),
    ],
)
def test_what_prometheus_calls_an_endpoint(target: PrometheusTarget, labels: object) -> None:
    """Its address, or where its engine shows metrics, unless it is told."""
    assert target.labels == labels
