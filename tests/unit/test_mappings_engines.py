"""Each engine's page, captured or written after its source, read by its mapping."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from ext_authz.snapshot import EndpointSample, ModelSample
from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.pages.mappings import ENGINES, Signal
from ext_authz.telemetry.pages.rates import Dated, sample
from ext_authz.telemetry.pages.reading import Reading, read
from tests.support.engine_pages import BACKEND, DYNAMO, KSERVE, LMDEPLOY, TGI, TRTLLM

DATA = Path(__file__).parents[1] / "data" / "metrics"


def captured(engine: str, name: str) -> Reading:
    mapping = ENGINES[engine]
    return read(mapping, parse_page((DATA / f"{name}.txt").read_bytes(), mapping.names))


def between(before: Reading, after: Reading, elapsed_s: float) -> EndpointSample:
    return sample("a:1", Dated(after, 100.0 + elapsed_s), Dated(before, 100.0), "scrape")


def test_captured_triton_pages() -> None:
    """Microseconds become seconds, a batch is what one execution held, and what runs follows from
    how long things took: the numbers of a real server of one 50 ms kernel."""
    loaded = captured("triton", "triton-pytriton0.7.0-cpu-loaded")
    after = captured("triton", "triton-pytriton0.7.0-cpu-after")
    assert loaded.totals == {Signal.WAITING: 16, Signal.REQUESTS: 39}
    assert loaded.missing == frozenset()
    assert loaded.dropped == {}
    got = between(loaded, after, 2.0)
    execution_s = ((14298251 - 10336316) - (11155024 - 8714685)) * 1e-6
    assert got.mean_execution_s == pytest.approx(execution_s / 24)
    assert got.mean_execution_s == pytest.approx(0.0634, abs=1e-4)
    assert got.mean_wait_s == pytest.approx((10336316 - 8714685) * 1e-6 / 24)
    assert got.mean_batch == 8
    assert got.requests_per_s == 12
    assert got.running == pytest.approx(execution_s / 2.0)
    assert got.by_model == {"Double": ModelSample(running=got.running, waiting=0)}
    assert got.waiting == 0
    assert got.rejections_per_s is None


def test_triton_before_anything_finished() -> None:
    """Where nothing finished nobody knows whether something runs: that is not zero."""
    loaded = captured("triton", "triton-pytriton0.7.0-cpu-loaded")
    for got in (sample("a:1", Dated(loaded, 1.0), None, "scrape"), between(loaded, loaded, 1.0)):
        assert (got.running, got.waiting, got.mean_execution_s) == (None, 16, None)
        assert got.by_model == {"Double": ModelSample(waiting=16)}
        assert got.load == 16


def test_captured_llamacpp_pages() -> None:
    """A server without labels: the requests of the whole, and no time nor cache it does not
    tell."""
    idle = captured("llamacpp", "llamacpp-b11434-idle")
    loaded = captured("llamacpp", "llamacpp-b11434-loaded")
    assert (idle.totals[Signal.RUNNING], idle.totals[Signal.WAITING]) == (0, 0)
    assert loaded.totals == {
        Signal.RUNNING: 2,
        Signal.WAITING: 4,
        Signal.PROMPT_TOKENS: 26,
        Signal.GENERATION_TOKENS: 0,
    }
    assert loaded.by_model == {}
    assert loaded.missing == frozenset()
    got = between(idle, loaded, 2.0)
    assert (got.mean_execution_s, got.kv_usage_ratio) == (None, None)


def test_captured_ray_page() -> None:
    """Very wide labels add up by deployment, and no mean is made of a histogram's middles."""
    got = captured("ray", "ray-serve-2.60.0")
    assert got.totals == {
        Signal.RUNNING: 0,
        Signal.WAITING: 0,
        Signal.REQUESTS: 9,
        Signal.REJECTIONS: 23,
    }
    assert got.by_model == {"D": ModelSample(running=0, waiting=0)}
    assert got.missing == frozenset()
    assert between(got, got, 1.0).mean_execution_s is None


def test_the_whole_ray_page_says_the_same() -> None:
    """All 607 kB of it, as the node sent it."""
    whole = gzip.decompress((DATA / "ray-serve-2.60.0-whole.txt.gz").read_bytes())
    assert len(whole) > 600_000
    mapping = ENGINES["ray"]
    got = read(mapping, parse_page(whole, mapping.names))
    assert got.totals == captured("ray", "ray-serve-2.60.0").totals


@dataclass(frozen=True)
class Case:
    """A page now, the counters as they were 2 s earlier, and what the two say."""

    engine: str
    before: str
    after: str
    expected: dict[str, float | None]
    missing: frozenset[str] = field(default_factory=frozenset)


SGLANG_LABELS = 'engine_type="unified",model_name="m"'


def sglang(mark: str) -> Case:
    def page(running: int, requests: int) -> str:
        gauges = "".join(
            f'sglang{mark}{name}{{{SGLANG_LABELS},tp_rank="{rank}"{extra}}} {value}\n'
            for name, value in (
                ("num_running_reqs", running),
                ("num_queue_reqs", 4),
                ("token_usage", 0.5),
                ("max_total_num_tokens", 1000),
            )
            for rank in "01"
            for extra in ("", ',priority="7"')
        )
        return (
            gauges
            + "".join(
                f'sglang{mark}{name}{{model_name="m"}} {value}\n'
                for name, value in (
                    ("prompt_tokens_total", 10 * requests),
                    ("generation_tokens_total", 20 * requests),
                    ("num_requests_total", requests),
                    ("e2e_request_latency_seconds_sum", 3 * requests),
                    ("e2e_request_latency_seconds_count", requests),
                )
            )
            + (
                f'sglang{mark}queue_time_seconds_sum{{{SGLANG_LABELS},tp_rank="0"}} {requests}\n'
                f'sglang{mark}queue_time_seconds_count{{{SGLANG_LABELS},tp_rank="0"}} {requests}\n'
            )
        )

    return Case(
        "sglang",
        page(9, 10),
        page(3, 20),
        {
            "running": 3,
            "waiting": 4,
            "kv_usage_ratio": 0.5,
            "kv_capacity_tokens": 1000,
            "mean_execution_s": 2,
            "mean_wait_s": 1,
            "prompt_tokens_per_s": 50,
            "generation_tokens_per_s": 100,
            "requests_per_s": 5,
        },
    )


def grown(engine: str, page: str, **expected: float | None) -> Case:
    """10 requests of 3 s each, 1 s of it queued, in the 2 s between the two pages."""
    return Case(engine, page.format(n=5, time=15), page.format(n=15, time=45), dict(expected))


CASES = [
    sglang(":"),
    sglang("_"),
    grown(
        "trtllm",
        TRTLLM,
        running=6,
        waiting=2,
        slots=64,
        kv_usage_ratio=0.25,
        kv_capacity_tokens=3200,
        mean_execution_s=2,
        mean_wait_s=1,
        requests_per_s=5,
    ),
    grown(
        "triton-trtllm",
        BACKEND,
        running=4,
        waiting=3,
        slots=512,
        kv_usage_ratio=0.4,
        kv_capacity_tokens=6400,
        mean_execution_s=2,
        mean_wait_s=1,
        mean_batch=1,
        requests_per_s=5,
    ),
    grown(
        "tgi",
        TGI,
        running=6,
        waiting=2,
        mean_execution_s=3,
        mean_wait_s=1,
        prompt_tokens_per_s=15,
        generation_tokens_per_s=15,
        requests_per_s=5,
        rejections_per_s=5,
    ),
    # What is in the queue-proxy counts once, and its times are milliseconds.
    grown("kserve", KSERVE, running=8, mean_execution_s=3, requests_per_s=5, rejections_per_s=5),
    grown(
        "lmdeploy",
        LMDEPLOY,
        running=7,
        waiting=2,
        kv_usage_ratio=0.75,
        mean_execution_s=3,
        mean_wait_s=1,
        prompt_tokens_per_s=15,
        generation_tokens_per_s=15,
        requests_per_s=5,
    ),
    # What is queued is in flight, too.
    grown(
        "dynamo",
        DYNAMO,
        running=6,
        waiting=2,
        slots=64,
        kv_capacity_tokens=3200,
        prompt_tokens_per_s=15,
        generation_tokens_per_s=15,
        requests_per_s=5,
    ),
]
NUMBERS = [f.name for f in fields(EndpointSample) if "float | None" in str(f.type)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.engine)
def test_pages_of_an_engine(case: Case) -> None:
    """Two pages give every number the engine tells and none that it does not, in our units."""
    mapping = ENGINES[case.engine]
    readings = [
        read(mapping, parse_page(page.encode(), mapping.names))
        for page in (case.before, case.after)
    ]
    got = between(readings[0], readings[1], 2.0)
    assert {name: getattr(got, name) for name in NUMBERS} == pytest.approx(
        {name: case.expected.get(name) for name in NUMBERS}
    )
    assert readings[1].missing == case.missing


def test_kserve_without_a_limit_has_no_depth() -> None:
    """Where concurrency is unlimited only the autoscaler's average is there."""
    mapping = ENGINES["kserve"]
    page = 'queue_average_concurrent_requests{destination_pod="p"} 2.0\n'
    got = read(mapping, parse_page(page.encode(), mapping.names))
    assert got.totals == {Signal.RUNNING: 2}


def test_an_older_backend_tells_only_what_is_active() -> None:
    """Before there was a count of what waits, what is active stands for all."""
    mapping = ENGINES["triton-trtllm"]
    page = 'nv_trt_llm_request_metrics{model="a",request_type="active",version="1"} 7\n'
    got = read(mapping, parse_page(page.encode(), mapping.names))
    assert got.totals == {Signal.RUNNING: 7}
