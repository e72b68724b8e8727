from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ext_authz.snapshot import ModelSample
from ext_authz.telemetry.exposition import DropReason, parse_page
from ext_authz.telemetry.mappings import (
    ENGINES,
    VLLM,
    Combine,
    EngineMapping,
    Rule,
    Signal,
    Timing,
    Way,
)
from ext_authz.telemetry.reading import Reading, mean_execution_s, read

PAGES = sorted((Path(__file__).parents[1] / "data" / "metrics").glob("*.txt"))
VLLM_PAGES = [path for path in PAGES if path.stem.startswith("vllm")]
OTHER_PAGES = [path for path in PAGES if not path.stem.startswith("vllm")]


def reading(lines: Iterable[str], mapping: EngineMapping = VLLM) -> Reading:
    page = "".join(f"{line}\n" for line in (*lines, "unrelated 1"))
    return read(mapping, parse_page(page.encode(), mapping.names))


def captured(path: Path) -> Reading:
    return read(VLLM, parse_page(path.read_bytes(), VLLM.names))


@pytest.mark.parametrize("path", VLLM_PAGES, ids=lambda path: path.stem)
def test_captured_vllm_pages(path: Path) -> None:
    """Real pages give what a plain, slow reading of the file gives, with nothing missing."""
    samples = [
        sample
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    ]

    def all_of(name: str) -> list[float]:
        return [float(sample.value) for sample in samples if sample.name == f"vllm:{name}"]

    sizes = [
        float(sample.labels["kv_cache_size_tokens"])
        for sample in samples
        if sample.name == "vllm:cache_config_info"
    ]
    got = captured(path)
    assert got.totals == pytest.approx(
        {
            Signal.RUNNING: sum(all_of("num_requests_running")),
            Signal.WAITING: sum(all_of("num_requests_waiting")),
            Signal.KV_USAGE: max(all_of("kv_cache_usage_perc")),
            Signal.KV_CAPACITY: sum(sizes),
            Signal.PROMPT_TOKENS: sum(all_of("prompt_tokens_total")),
            Signal.GENERATION_TOKENS: sum(all_of("generation_tokens_total")),
        }
    )
    assert got.by_model == {
        "tiny-llama": ModelSample(
            got.totals[Signal.RUNNING],
            got.totals[Signal.WAITING],
            got.totals[Signal.KV_USAGE],
        )
    }
    assert sum(pair.count for pair in got.executions.values()) == sum(
        all_of("request_inference_time_seconds_count")
    )
    assert sum(pair.total_s for pair in got.executions.values()) == pytest.approx(
        sum(all_of("request_inference_time_seconds_sum"))
    )
    assert got.missing == frozenset()
    assert got.dropped == {}


def test_captured_pages_hold_load() -> None:
    """The captured pages are not all zeros: two engines at work add up."""
    path = next(path for path in VLLM_PAGES if "dp2" in path.stem)
    got = captured(path)
    assert got.totals[Signal.RUNNING] == 16
    assert got.totals[Signal.WAITING] == 14
    assert got.totals[Signal.KV_CAPACITY] == 2 * 524288


def test_mean_execution_between_captured_pages() -> None:
    """The mean over a real load is the difference of sums over the difference of counts."""
    idle, after = (
        captured(next(path for path in VLLM_PAGES if path.stem == f"vllm-0.32.0-cpu-{name}"))
        for name in ("idle", "after")
    )
    ((before,), (later,)) = (list(one.executions.values()) for one in (idle, after))
    assert later.count > before.count
    assert mean_execution_s(idle, after) == pytest.approx(
        (later.total_s - before.total_s) / (later.count - before.count)
    )
    assert mean_execution_s(after, after) is None
    assert mean_execution_s(after, idle) is None


@pytest.mark.parametrize("path", OTHER_PAGES, ids=lambda path: path.stem)
def test_pages_of_other_engines_are_unknown(path: Path) -> None:
    """Reading another engine's page finds nothing and says so; it invents no zeros."""
    got = captured(path)
    assert got.totals == {}
    assert got.by_model == {}
    assert got.executions == {}
    assert got.missing == frozenset(Signal)


@pytest.mark.parametrize(
    "lines",
    [
        ['vllm:gpu_cache_usage_perc{model_name="m1"} 0.91'],
        ['vllm:kv_cache_usage_perc{engine="0",model_name="m1"} 0.91'],
        [
            'vllm:gpu_cache_usage_perc{engine="0",model_name="m1"} 0.10',
            'vllm:kv_cache_usage_perc{engine="0",model_name="m1"} 0.91',
        ],
        [
            'vllm:kv_cache_usage_perc{engine="0",model_name="m1"} NaN',
            'vllm:gpu_cache_usage_perc{engine="0",model_name="m1"} 0.91',
        ],
    ],
)
def test_the_renamed_cache_gauge(lines: list[str]) -> None:
    """Old and new name both give the use of the cache; the new one wins where it is usable."""
    got = reading(lines)
    assert got.totals[Signal.KV_USAGE] == 0.91
    assert got.by_model["m1"].kv_usage_ratio == 0.91
    assert Signal.KV_USAGE not in got.missing


def test_an_absent_gauge_is_unknown_and_named() -> None:
    """Without either name the use of the cache is unknown; the other signals stay usable."""
    got = reading(['vllm:num_requests_running{engine="0",model_name="m1"} 3'])
    assert got.totals == {Signal.RUNNING: 3.0}
    assert got.missing == frozenset(Signal) - {Signal.RUNNING}
    assert got.by_model == {"m1": ModelSample(running=3.0)}
    sample = got.sample("a:1", 5.0, None)
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (3.0, None, None)


def test_engines_and_models_in_any_order() -> None:
    """Counts are summed over engines within their model, the fullest cache counts, and no order
    of lines changes that."""
    lines = [
        'vllm:num_requests_waiting{engine="0",model_name="m1"} 7',
        'vllm:num_requests_waiting{engine="1",model_name="m1"} 0',
        'vllm:num_requests_running{engine="0",model_name="m1"} 16',
        'vllm:num_requests_running{engine="1",model_name="m1"} 2',
        'vllm:kv_cache_usage_perc{engine="0",model_name="m1"} 0.98',
        'vllm:kv_cache_usage_perc{engine="1",model_name="m1"} 0.10',
        'vllm:num_requests_waiting{engine="0",model_name="m2"} 40',
    ]
    got = reading(lines)
    assert got.by_model == {
        "m1": ModelSample(running=18, waiting=7, kv_usage_ratio=0.98),
        "m2": ModelSample(waiting=40),
    }
    assert got.totals == {Signal.RUNNING: 18, Signal.WAITING: 47, Signal.KV_USAGE: 0.98}
    shuffler = random.Random(5)
    for _ in range(50):
        shuffler.shuffle(lines)
        assert reading(lines) == got


def test_non_finite_gauges_are_unknown() -> None:
    """NaN and infinity are dropped as unknown and counted; the finite gauge survives."""
    got = reading(
        [
            'vllm:kv_cache_usage_perc{engine="0",model_name="m1"} NaN',
            'vllm:num_requests_waiting{engine="0",model_name="m1"} +Inf',
            'vllm:num_requests_running{engine="0",model_name="m1"} 5',
            "up_probe -Inf",
        ]
    )
    assert got.totals == {Signal.RUNNING: 5}
    assert got.by_model == {"m1": ModelSample(running=5)}
    assert {Signal.KV_USAGE, Signal.WAITING} <= got.missing
    assert got.dropped == {DropReason.NAN: 1, DropReason.INFINITE: 1}


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-1", "what"])
def test_one_unknown_engine_makes_a_sum_unknown(bad: str) -> None:
    """Leaving an unusable engine out would count it as empty; other models are not touched."""
    got = reading(
        [
            'vllm:num_requests_running{engine="0",model_name="m1"} 5',
            f'vllm:num_requests_running{{engine="1",model_name="m1"}} {bad}',
            'vllm:num_requests_running{engine="0",model_name="m2"} 1',
        ]
    )
    assert got.totals == {}
    assert got.by_model == {"m2": ModelSample(running=1)}
    assert sum(got.dropped.values()) == 1


def test_a_line_without_readable_labels_spoils_its_signal() -> None:
    """A broken line may belong to any model, so that none is known for that signal."""
    got = reading(
        [
            'vllm:num_requests_running{engine="0",model_name="m1"} 5',
            'vllm:num_requests_running{engine="1",model_na',
            'vllm:num_requests_waiting{engine="0",model_name="m1"} 2',
        ]
    )
    assert got.totals == {Signal.WAITING: 2}
    assert got.by_model == {"m1": ModelSample(waiting=2)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", 0.0), ("1", 1.0), ("1.0000001", 1.0), ("91", None), ("1.2", None), ("-0.1", None)],
)
def test_a_ratio_outside_its_range_is_unknown(value: str, expected: float | None) -> None:
    """A percentage taken for a fraction would read as full for ever; rounding is forgiven."""
    got = reading([f"vllm:kv_cache_usage_perc {value}"])
    assert got.totals.get(Signal.KV_USAGE) == expected
    assert got.dropped == ({} if expected is not None else {DropReason.OUT_OF_RANGE: 1})


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([("524288", "4096", "128")], 524288.0),
        ([("524288", "8192", "128"), ("524288", "8192", "128")], 1048576.0),
        ([("None", "24", "128")], 3072.0),
        ([(None, "24", "128"), (None, "8", "16")], 3200.0),
        ([("None", "None", "128")], None),
        ([("None", "0", "128")], None),
        ([("0", "None", "128")], None),
        ([("524288", "24", "128"), ("None", "None", "128")], None),
        ([("inf", "nan", "128")], None),
    ],
)
def test_capacity(
    engines: list[tuple[str | None, str | None, str | None]], expected: float | None
) -> None:
    """Tokens of all engines; blocks x size where the size in tokens is not told; else unknown."""
    labels = ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    lines = []
    for number, engine in enumerate(engines):
        pairs = [f'{name}="{v}"' for name, v in zip(labels, engine, strict=True) if v is not None]
        lines.append(f'vllm:cache_config_info{{engine="{number}",{",".join(pairs)}}} 1.0')
    got = reading(lines)
    assert got.totals.get(Signal.KV_CAPACITY) == expected
    assert (Signal.KV_CAPACITY in got.missing) is (expected is None)


def timed(
    engine: int, total: float | str, count: float, name: str = "request_inference_time"
) -> list[str]:
    label = f'{{engine="{engine}",model_name="m1"}}'
    return [
        f"vllm:{name}_seconds_sum{label} {total}",
        f"vllm:{name}_seconds_count{label} {count}",
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (timed(0, 10, 5), timed(0, 16, 8), 2.0),
        (timed(0, 10, 5), timed(0, 10, 5), None),
        ([], timed(0, 16, 8), None),
        (timed(0, 10, 5), [], None),
        (timed(0, 10, 5), timed(0, 1, 1), None),
        (timed(0, 10, 5), timed(0, 9, 6), None),
        (timed(0, 10, 5), timed(0, "NaN", 8), None),
        (timed(0, 10, 5) + timed(1, 0, 0), timed(0, 12, 6) + timed(1, 4, 1), 3.0),
        # One engine restarted while another worked on: the sums over both still rise.
        (timed(0, 10, 5) + timed(1, 9, 9), timed(0, 30, 15) + timed(1, 1, 1), None),
        # A new engine has no earlier reading to subtract.
        (timed(0, 10, 5), timed(0, 12, 6) + timed(1, 100, 2), 2.0),
    ],
)
def test_mean_execution(before: list[str], after: list[str], expected: float | None) -> None:
    """Only what finished between two readings counts, and a restart is never a negative mean."""
    assert mean_execution_s(reading(before), reading(after)) == expected


def test_execution_without_inference_time() -> None:
    """Where the engine does not tell its time in execution, it is the whole less the queue."""

    def page(whole: float, queue: float, count: float) -> Reading:
        return reading(
            timed(0, whole, count, "e2e_request_latency")
            + timed(0, queue, count, "request_queue_time")
        )

    assert mean_execution_s(page(10, 4, 2), page(20, 8, 4)) == 3.0
    assert Signal.EXECUTION not in page(10, 4, 2).missing
    assert reading(timed(0, 10, 5, "e2e_request_latency")).executions == {}


def test_a_change_of_metric_is_no_restart() -> None:
    """After an upgrade that changes the metric, one mean is unknown instead of wrong."""
    old = reading(timed(0, 10, 2, "e2e_request_latency") + timed(0, 4, 2, "request_queue_time"))
    assert mean_execution_s(old, reading(timed(0, 100, 50))) is None


COUNTERS = st.dictionaries(
    st.integers(0, 3), st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=4
)


@given(COUNTERS, COUNTERS)
def test_mean_execution_is_never_negative(
    before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]
) -> None:
    """For any two readings the mean is unknown or what the surviving engines really added."""
    pages = [
        reading([line for e, (total, n) in one.items() for line in timed(e, total, n)])
        for one in (before, after)
    ]
    got = mean_execution_s(*pages)
    both = before.keys() & after.keys()
    fell = any(after[e][i] < before[e][i] for e in both for i in (0, 1))
    finished = sum(after[e][1] - before[e][1] for e in both)
    if fell or finished == 0:
        assert got is None
    else:
        assert got == pytest.approx(
            sum(after[e][0] - before[e][0] for e in both) / finished, abs=1e-12
        )
        assert got is not None
        assert got >= 0


def test_another_engine_is_one_entry() -> None:
    """Label filters, units, renamed prefixes and unlabelled series need data only."""
    mapping = EngineMapping(
        engine="other",
        model_label="model",
        rules={
            Signal.RUNNING: Rule((Way("rq", where={"type": "scheduled", "priority": ""}),)),
            Signal.WAITING: Rule((Way("sglang:num_queue_reqs"), Way("sglang_num_queue_reqs"))),
            Signal.KV_USAGE: Rule((Way("kv_percent", scale=0.01),), Combine.MAX, upper=1.0),
        },
        timings=(Timing("busy_us", "done", scale=1e-6),),
    )
    lines = [
        'rq{type="scheduled",model="a"} 2',
        'rq{type="scheduled",model="b",priority=""} 3',
        'rq{type="scheduled",model="b",priority="9"} 50',
        'rq{type="max",model="a"} 100',
        'sglang_num_queue_reqs{model="a"} 4',
        "kv_percent 91",
    ]
    got = reading([*lines, "busy_us 2000000", "done 1"], mapping)
    later = reading([*lines, "busy_us 5000000", "done 3"], mapping)
    assert got.totals == {Signal.RUNNING: 5, Signal.WAITING: 4, Signal.KV_USAGE: 0.91}
    assert got.by_model["a"] == ModelSample(running=2, waiting=4)
    assert got.by_model["b"] == ModelSample(running=3)
    assert got.missing == frozenset()
    assert mean_execution_s(got, later) == 1.5
    without = reading(["kv_percent 5"], replace(mapping, timings=(), rules={}))
    assert without.missing == frozenset()


def test_no_alternative_is_added_to_another() -> None:
    """Two spellings of one signal on one page are one signal, in any order of lines."""
    lines = ['old{engine="0"} 4', 'new{engine="0"} 4', 'new{engine="1"} 1']
    mapping = EngineMapping(
        "x", "model", {Signal.RUNNING: Rule((Way("new"), Way("old")))}, timings=()
    )
    for order in permutations(lines):
        assert reading(order, mapping).totals == {Signal.RUNNING: 5}


def test_engines_are_found_by_their_own_name() -> None:
    """The table's keys are the names its entries carry."""
    assert ENGINES["vllm"] is VLLM
    assert all(name == mapping.engine for name, mapping in ENGINES.items())
