from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from ext_authz.snapshot import ModelSample
from ext_authz.telemetry.pages.exposition import DropReason, merged, parse_page
from ext_authz.telemetry.pages.mappings import (
    ENGINES,
    Combine,
    EngineMapping,
    Mean,
    Rule,
    Signal,
    Way,
)
from ext_authz.telemetry.pages.rates import mean_execution_s
from ext_authz.telemetry.pages.reading import Reading, read


def reading(lines: Iterable[str], mapping: EngineMapping) -> Reading:
    page = "".join(f"{line}\n" for line in (*lines, "unrelated 1"))
    return read(mapping, parse_page(page.encode(), mapping.names))


def total(rule: Rule, *lines: str) -> float | None:
    """What one rule makes of some lines."""
    mapping = EngineMapping("x", "model", {Signal.RUNNING: rule})
    return reading(lines, mapping).totals.get(Signal.RUNNING)


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
        means={Signal.EXECUTION: (Mean("busy_us", "done", scale=1e-6),)},
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
    without = reading(["kv_percent 5"], replace(mapping, means={}, rules={}))
    assert without.missing == frozenset()


def test_no_alternative_is_added_to_another() -> None:
    """Two spellings of one signal on one page are one signal, in any order of lines."""
    lines = ['old{engine="0"} 4', 'new{engine="0"} 4', 'new{engine="1"} 1']
    mapping = EngineMapping("x", "model", {Signal.RUNNING: Rule((Way("new"), Way("old")))})
    for order in permutations(lines):
        assert reading(order, mapping).totals == {Signal.RUNNING: 5}


PRODUCT = Rule((Way("blocks", where={"kind": "max"}, times=Way("blocks", where={"kind": "size"})),))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['blocks{kind="max",m="a"} 10', 'blocks{kind="size",m="a"} 64'], 640),
        (
            [
                'blocks{kind="max",m="a"} 10',
                'blocks{kind="size",m="a"} 64',
                'blocks{kind="max",m="b"} 5',
                'blocks{kind="size",m="b"} 32',
            ],
            800,
        ),
        (['blocks{kind="max",m="a"} 10', 'blocks{kind="size",m="b"} 64'], None),
        (['blocks{kind="max",m="a"} 10'], None),
        (['blocks{kind="max",m="a"} 10', 'blocks{kind="size",m="a"} NaN'], None),
        (['blocks{kind="max",m="a"} 10', 'blocks{kind="size",m="a"} -1'], None),
        (['blocks{kind="size",m="a"} 64'], None),
        (['blocks{kind="max"} 1e300', 'blocks{kind="size"} 1e300'], None),
    ],
)
def test_a_product_of_two_series(lines: list[str], expected: float | None) -> None:
    """Only series of the same labels are multiplied, and half a product is unknown."""
    assert total(PRODUCT, *lines) == expected
    assert total(PRODUCT, *reversed(lines)) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["held 8", "queued 3"], 5),
        (["held 3", "queued 4"], 0),
        (["held 8"], None),
        (["held 8", "queued +Inf"], None),
        (['held{m="a"} 8', 'held{m="b"} 2', 'queued{m="a"} 3', 'queued{m="b"} 0'], 7),
    ],
)
def test_a_part_taken_from_a_whole(lines: list[str], expected: float | None) -> None:
    """A whole whose part is not known is not known; a part is never more than all of it."""
    assert total(Rule((Way("held", less=Way("queued")),)), *lines) == expected


def test_copies_count_once() -> None:
    """Ranks that show one scheduler's numbers are one series, the largest; others are summed."""
    rule = Rule((Way("q"),), copies=frozenset({"tp_rank"}))
    lines = ['q{dp="0",tp_rank="0"} 5', 'q{dp="0",tp_rank="1"} 4', 'q{dp="1",tp_rank="0"} 2']
    assert total(rule, *lines) == 7
    assert total(replace(rule, copies=frozenset()), *lines) == 11
    assert total(rule, *lines, 'q{dp="1",tp_rank="1"} NaN') is None


def test_an_optional_signal_is_never_missing() -> None:
    """What only some releases show is unknown where it is not shown, and no fault."""
    rules = {Signal.RUNNING: Rule((Way("r"),)), Signal.SLOTS: Rule((Way("s"),), optional=True)}
    got = reading(["r 1"], EngineMapping("x", "model", rules))
    assert got.totals == {Signal.RUNNING: 1}
    assert got.missing == frozenset()


def test_pages_of_one_server_are_one_page() -> None:
    """Series of two ports add up by name; one that both show counts once, and if they disagree
    it is unknown."""
    names = frozenset({"a", "b", "c"})
    page = merged(parse_page(text, names) for text in (b"a 1\nb 2\nc 3\n", b"a 1\nb 5\n"))
    values = {name: [one.value for one in series] for name, series in page.series.items()}
    assert values == {"a": [1.0], "b": [None], "c": [3.0]}
    assert page.dropped == {DropReason.DUPLICATE: 2}


@pytest.mark.parametrize(
    ("engine", "url", "pages"),
    [
        ("vllm", "http://h:8000/", ["http://h:8000/metrics"]),
        ("trtllm", "https://h:8000", ["https://h:8000/prometheus/metrics"]),
        ("triton", "http://h:8000", ["http://h:8002/metrics"]),
        ("triton-trtllm", "http://[::1]:8001", ["http://[::1]:8002/metrics"]),
        ("kserve", "http://h:8012", ["http://h:9090/metrics", "http://h:9091/metrics"]),
    ],
)
def test_where_pages_are(engine: str, url: str, pages: list[str]) -> None:
    """Pages are beside the model's own API, or on the ports the engine has for them."""
    assert list(ENGINES[engine].pages(url)) == pages


def test_no_page_without_a_host() -> None:
    """What is no URL of an endpoint is refused when the source is made, not when it is polled."""
    with pytest.raises(ValueError, match="URL"):
        ENGINES["triton"].pages("nowhere")


# Each name below is real, and would be read wrongly by its look.
TRAPS = (
    "vllm:iteration_tokens_total",  # a histogram
    "lmdeploy:iteration_tokens_total",
    "llamacpp:prompt_tokens_seconds",  # tokens a second
    "llamacpp:predicted_tokens_seconds",
    "tgi_request_count",  # counts refused requests, too
    "ray_serve_deployment_processing_latency_ms_sum",  # made of the middles of buckets
    "ray_serve_http_request_latency_ms_sum",
    "nv_inference_request_failure",  # a full queue's refusals are not in it
    "sglang:cache_config_info",  # does not exist
)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_mapping_reads_what_only_looks_right(engine: str) -> None:
    """Traps, dates of counters, buckets and quantiles are read by no mapping."""
    names = ENGINES[engine].names
    assert not names & set(TRAPS)
    assert not [name for name in names if name.endswith(("_created", "_bucket", "_summary_us"))]


def test_a_wide_page_is_read_in_time_that_grows_with_it() -> None:
    """Thousands of series with thousands of partners take no longer each than a few do."""
    lines = (
        f'trtllm_kv_cache_max_blocks{{pid="{n}"}} 5\n'
        f'trtllm_kv_cache_tokens_per_block{{pid="{n}"}} 5\n'
        for n in range(4_900)
    )
    mapping = ENGINES["trtllm"]
    page = parse_page("".join(lines).encode(), mapping.names)
    started_s = time.perf_counter()
    reading = read(mapping, page)
    assert time.perf_counter() - started_s < 1.0
    assert reading.totals[Signal.KV_CAPACITY] == 25.0
