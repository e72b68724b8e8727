from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ext_authz.snapshot import ModelSample
from ext_authz.telemetry.pages.exposition import DropReason, parse_page
from ext_authz.telemetry.pages.mappings import ENGINES, VLLM, EngineMapping, Signal
from ext_authz.telemetry.pages.rates import Dated
from ext_authz.telemetry.pages.rates import sample as sample_between
from ext_authz.telemetry.pages.reading import Reading, read

PAGES = sorted((Path(__file__).parents[1] / "data" / "metrics").glob("*.txt"))
VLLM_PAGES = [path for path in PAGES if path.stem.startswith("vllm")]
EXPECTED = frozenset({*VLLM.rules, *VLLM.means}) - {Signal.REJECTIONS, Signal.FIRST_TOKEN}
"""What every vLLM server must show: refusals are counted only by those that can refuse."""
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
            Signal.REQUESTS: sum(all_of("request_success_total")),
            Signal.REJECTIONS: sum(all_of("admission_rejections_total")),
        }
    )
    assert got.by_model == {
        "tiny-llama": ModelSample(
            got.totals[Signal.RUNNING],
            got.totals[Signal.WAITING],
            got.totals[Signal.KV_USAGE],
        )
    }
    for signal, name in (
        (Signal.EXECUTION, "request_inference_time_seconds"),
        (Signal.QUEUEING, "request_queue_time_seconds"),
        (Signal.FIRST_TOKEN, "time_to_first_token_seconds"),
    ):
        pairs = got.means[signal].values()
        assert sum(pair.count for pair in pairs) == sum(all_of(f"{name}_count"))
        assert sum(pair.total for pair in pairs) == pytest.approx(sum(all_of(f"{name}_sum")))
    assert got.missing == frozenset()
    assert got.dropped == {}


def test_captured_pages_hold_load() -> None:
    """The captured pages are not all zeros: two engines at work add up."""
    path = next(path for path in VLLM_PAGES if "dp2" in path.stem)
    got = captured(path)
    assert got.totals[Signal.RUNNING] == 16
    assert got.totals[Signal.WAITING] == 14
    assert got.totals[Signal.KV_CAPACITY] == 2 * 524288


@pytest.mark.parametrize("path", OTHER_PAGES, ids=lambda path: path.stem)
def test_pages_of_other_engines_are_unknown(path: Path) -> None:
    """Reading another engine's page finds nothing and says so; it invents no zeros."""
    got = captured(path)
    assert got.totals == {}
    assert got.by_model == {}
    assert not any(got.means.values())
    assert got.missing == EXPECTED


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
    assert got.missing == EXPECTED - {Signal.RUNNING}
    assert got.by_model == {"m1": ModelSample(running=3.0)}
    sample = sample_between("a:1", Dated(got, 5.0), None, "scrape")
    assert (sample.endpoint, sample.at_s, sample.source) == ("a:1", 5.0, "scrape")
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


def test_a_sum_beyond_all_numbers_is_unknown() -> None:
    """Finite numbers can add up to infinity, which is no load to act on."""
    got = reading(
        [f'vllm:num_requests_running{{engine="{n}",model_name="m1"}} 1e308' for n in "01"]
    )
    assert got.totals == {}
    assert got.by_model == {}


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


def test_engines_are_found_by_their_own_name() -> None:
    """The table's keys are the names its entries carry."""
    assert ENGINES["vllm"] is VLLM
    assert all(name == mapping.engine for name, mapping in ENGINES.items())


def test_an_engine_that_sleeps_is_not_idle() -> None:
    """With its weights put away nothing runs and nothing waits; its load is unknown, not 0."""
    page = next(path for path in VLLM_PAGES if "dp2" in path.stem).read_bytes()
    said = b'{engine="1",model_name="tiny-llama",sleep_state="awake"} '
    assert page.count(said + b"1.0") == 1
    asleep = read(VLLM, parse_page(page.replace(said + b"1.0", said + b"0.0"), VLLM.names))
    assert Signal.RUNNING not in asleep.totals
    assert Signal.WAITING not in asleep.totals
    assert {Signal.RUNNING, Signal.WAITING} <= asleep.missing
    assert all(m.running is None for m in asleep.by_model.values())
    assert Signal.KV_CAPACITY in asleep.totals
