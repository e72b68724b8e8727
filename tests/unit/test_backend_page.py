"""The backend's pages carry the names, types, labels and buckets of real engines."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import EndReason, Finished, FirstToken, Gauges, Work
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.page import triton_page, vllm_page
from loadtest.backend.profiles import PROFILES, FixedProfile, LlmProfile
from loadtest.backend.totals import FixedTotals, Histogram, LlmTotals

CAPTURED = Path(__file__).parents[1] / "data" / "metrics"
GAUGES = Gauges(3, 5, 0.25, 10, 1, 400, 70, 1.0)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class Page:
    """A page taken apart by regular expressions."""

    types: dict[str, str] = field(default_factory=dict)
    names: dict[str, set[frozenset[str]]] = field(default_factory=lambda: defaultdict(set))
    bounds: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, str] = field(default_factory=dict)


def _take_apart(text: str) -> Page:
    page = Page()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            page.types[name] = kind
        elif not line.startswith("#"):
            matched = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            assert matched is not None
            name, labels, value = matched.groups()
            found = dict(_LABEL.findall(labels or ""))
            page.names[name].add(frozenset(found))
            if "le" in found:
                page.bounds[name].append(found["le"])
            page.values[f"{name}{{{labels or ''}}}"] = value
    return page


def _llm_page(totals: LlmTotals, model: str = "tiny-llama") -> str:
    profile = PROFILES["demo-primary"]
    assert isinstance(profile, LlmProfile)
    return vllm_page(model, profile, totals, 1.7e9, GAUGES)


def test_every_vllm_series_exists_on_a_real_page() -> None:
    """Names, types, label names and bucket bounds are those of the captured page."""
    ours = _take_apart(_llm_page(LlmTotals()))
    real = _take_apart((CAPTURED / "vllm-0.32.0-cpu-loaded.txt").read_text())
    assert ours.types.items() <= real.types.items()
    for name, bounds in ours.bounds.items():
        assert bounds == real.bounds[name], name
    for name, labels in ours.names.items():
        if name == "vllm:cache_config_info":
            (own,), (captured,) = labels, real.names[name]
            assert own <= captured
        else:
            assert labels == real.names[name], name


def test_every_triton_series_exists_on_a_real_page() -> None:
    """Names, types and label names are those of the captured page."""
    ours = _take_apart(triton_page("Double", FixedTotals(), GAUGES))
    real = _take_apart((CAPTURED / "triton-pytriton0.7.0-cpu-loaded.txt").read_text())
    assert ours.types.items() <= real.types.items()
    for name, labels in ours.names.items():
        assert labels == real.names[name], name


def test_the_gauges_that_admission_reads() -> None:
    """Running, waiting, cache use and cache size appear with their values."""
    values = _take_apart(_llm_page(LlmTotals(), "m")).values
    labels = 'engine="0",model_name="m"'
    assert values[f"vllm:num_requests_running{{{labels}}}"] == "3.0"
    assert values[f"vllm:num_requests_waiting{{{labels}}}"] == "5.0"
    assert values[f"vllm:kv_cache_usage_perc{{{labels}}}"] == "0.25"
    (info,) = [series for series in values if series.startswith("vllm:cache_config_info")]
    for label in ('block_size="16"', 'num_gpu_blocks="1024"', 'kv_cache_size_tokens="16384"'):
        assert label in info


def test_a_name_that_needs_escaping_stays_one_line() -> None:
    """Quotes, backslashes and line ends in a model's name cannot forge series."""
    page = _llm_page(LlmTotals(), 'a"b\\c\nvllm:num_requests_running 99')
    assert "\nvllm:num_requests_running 99" not in page
    assert 'model_name="a\\"b\\\\c\\nvllm' in page


def test_histograms_count_inclusively_and_cumulatively() -> None:
    """A value on a bound belongs to it; +Inf counts everything."""
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.1, 5.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("5.0", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(16.6)


def test_durations_of_a_request_add_up() -> None:
    """Queue plus inference is the whole, prefill plus decode is inference, all kept apart."""
    totals = LlmTotals()
    totals.submitted(1, 10.0)
    totals.first_token(FirstToken(1, 10.4))
    totals.finished(
        Finished(1, EndReason.STOP, 10.0, 10.1, 10.4, 11.4, prompt_tokens=200, output_tokens=11)
    )
    totals.submitted(2, 10.0)
    totals.cancelled(2)
    sums = [totals.ttft.sum, totals.queue.sum, totals.prefill.sum, totals.decode.sum]
    assert sums == pytest.approx([0.4, 0.1, 0.3, 1.0])
    assert totals.inference.sum == pytest.approx(1.3)
    assert totals.e2e.sum == pytest.approx(1.4)
    assert totals.tpot.sum == pytest.approx(0.1)
    values = _take_apart(_llm_page(totals, "m")).values
    label = 'vllm:request_success_total{engine="0",finished_reason="%s",model_name="m"}'
    assert (values[label % "stop"], values[label % "abort"]) == ("1.0", "1.0")


def test_triton_charges_each_request_its_whole_batch() -> None:
    """Four requests in one batch of 40 ms: 160 ms of compute, one execution, four rows."""
    profile = PROFILES["fraud"]
    assert isinstance(profile, FixedProfile)
    engine, totals = FixedShapeEngine(profile), FixedTotals()
    for _ in range(8):
        engine.submit(0.0, Work())
    for event in engine.advance(1.0):
        assert isinstance(event, Finished)
        totals.finished(event)
    values = _take_apart(triton_page("m", totals, engine.gauges())).values
    label = 'model="m",version="1"'
    assert values[f"nv_inference_request_success{{{label}}}"] == "8"
    assert values[f"nv_inference_exec_count{{{label}}}"] == "1"
    assert values[f"nv_inference_compute_infer_duration_us{{{label}}}"] == str(8 * 40_000)
    assert values[f"nv_inference_queue_duration_us{{{label}}}"] == "0"


def test_counters_of_tokens_move_before_a_request_ends() -> None:
    """Generation is counted step by step: that is the live signal the histograms are not."""
    profile = PROFILES["demo-primary"]
    assert isinstance(profile, LlmProfile)
    engine = ContinuousEngine(profile, seed=1)
    engine.submit(0.0, Work(100, cap_tokens=50, exact=True))
    engine.advance(0.1)
    gauges = engine.gauges()
    assert gauges.prompt_tokens == 100
    assert 0 < gauges.generated_tokens < 50
