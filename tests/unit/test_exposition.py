from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.pages.exposition import (
    MAX_LABELS,
    MAX_SERIES,
    DropReason,
    Series,
    parse_page,
)
from ext_authz.telemetry.pages.mappings import VLLM

PAGES = sorted((Path(__file__).parents[1] / "data" / "metrics").glob("*.txt"))
OPENMETRICS = "Application/OpenMetrics-Text; version=1.0.0; charset=utf-8"


def values(page: bytes, name: str = "m", content_type: str = "") -> list[float | None]:
    parsed = parse_page(page, frozenset({name}), content_type)
    return [series.value for series in parsed.series.get(name, ())]


def oracle(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Every sample of a page, by another parser, which adds `_total` to counters without it."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, dict(sample.labels), float(sample.value)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_captured_page_reads_as_another_parser_reads_it(path: Path) -> None:
    """All finite samples that keep their name in the slow parser come out equal and complete."""
    expected = [
        (name, labels, value)
        for name, labels, value in oracle(path.read_text())
        if math.isfinite(value)
    ]
    raw_names = {line.split("{")[0].split(" ")[0] for line in path.read_text().splitlines()}
    expected = [sample for sample in expected if sample[0] in raw_names]
    parsed = parse_page(path.read_bytes(), frozenset(name for name, _, _ in expected))
    got = [
        (name, dict(series.labels), series.value)
        for name, group in parsed.series.items()
        for series in group
        if series.value is not None
    ]

    def order(
        sample: tuple[str, dict[str, str], float | None],
    ) -> tuple[str, list[tuple[str, str]]]:
        return sample[0], sorted(sample[1].items())

    assert len(expected) >= 4
    assert sorted(got, key=order) == sorted(expected, key=order)


def test_only_wanted_names_are_read() -> None:
    """A name that merely starts with a wanted one, or is its `_created` twin, is not taken."""
    page = b'm 1\nm_created 1.7e9\nm_total 2\nmm 3\nx_m 4\nm{a="b"} 5\n# HELP m 6\n# m 7\n'
    assert values(page) == [1.0, 5.0]


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (b"m 3", {}, 3.0),
        (b"  m\t 3  ", {}, 3.0),
        (b"m{} 3", {}, 3.0),
        (b'm {a="b"} 3', {"a": "b"}, 3.0),
        (b'm{a="b",} 3\r', {"a": "b"}, 3.0),
        (b'm{ a = "b" , c = "d" } -3e-2', {"a": "b", "c": "d"}, -0.03),
        (b'm{a="1,2}{",b=""} 3', {"a": "1,2}{", "b": ""}, 3.0),
        (rb'm{a="a \"b\", c\\"} 3', {"a": 'a "b", c\\'}, 3.0),
        (rb'm{a="x\ny\\n\q"} 3', {"a": "x\ny\\n\\q"}, 3.0),
        (b'm{a="b"} 3 1700000000000', {"a": "b"}, 3.0),
        (b'm{a="b"} 3 # {id="9"} 0.5 1.5', {"a": "b"}, 3.0),
        (b'm{a="b"} 3 1.5 # {id="9"} 0.5', {"a": "b"}, 3.0),
        ('m{a="\u00e4\u6f22"} 3'.encode(), {"a": "\u00e4\u6f22"}, 3.0),
        (b'm{a="\xff"} 3', {"a": "\ufffd"}, 3.0),
    ],
)
def test_line_forms(line: bytes, labels: dict[str, str], value: float) -> None:
    """Every way the format allows a sample to be written gives its labels and its number."""
    page = parse_page(line + b"\n", frozenset({"m"}))
    assert page.series == {"m": (Series(labels, value),)}
    assert page.dropped == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'm{e="0"} NaN', DropReason.NAN),
        (b'm{e="0"} Nan', DropReason.NAN),
        (b"m +Inf", DropReason.INFINITE),
        (b"m -Inf", DropReason.INFINITE),
        (b"m 1e999", DropReason.INFINITE),
        (b"m 1_000", DropReason.MALFORMED),
        ("m \u0663".encode(), DropReason.MALFORMED),
        (b"m ERROR - FAILED TO CONVERT TO STRING", DropReason.MALFORMED),
        (b"m ", DropReason.MALFORMED),
        (b"m 3 soon", DropReason.MALFORMED),
        (b"m 3 4 5", DropReason.MALFORMED),
        (b'm{a="b" 3', DropReason.MALFORMED),
        (b'm{a="b} 3', DropReason.MALFORMED),
        (b"m{a=b} 3", DropReason.MALFORMED),
        (b'm{a="b",,c="d"} 3', DropReason.MALFORMED),
        (b'm{a="b",a="c"} 3', DropReason.MALFORMED),
        (b'm{a="b"}', DropReason.MALFORMED),
        (b"m{" + b",".join(b'l%d="v"' % n for n in range(500)) + b"} 3", "too_many_labels"),
    ],
)
def test_unusable_values_are_unknown_and_counted(line: bytes, reason: str) -> None:
    """A sample without a usable number stays visible as unknown, and the rest of the page lives."""
    page = parse_page(b"other 1\n" + line + b"\ngood 5\n", frozenset({"m", "good"}))
    assert [series.value for series in page.series["m"]] == [None]
    assert [series.value for series in page.series["good"]] == [5.0]
    assert page.dropped == {reason: 1}


def test_as_many_labels_as_allowed() -> None:
    """The bound on labels is inclusive."""
    labels = ",".join(f'l{n}="v"' for n in range(MAX_LABELS))
    assert values(f"m{{{labels}}} 3\n".encode()) == [3.0]
    assert values(f'm{{{labels},x="y"}} 3\nx 1\n'.encode()) == [None]


def test_a_series_given_twice_counts_once() -> None:
    """Repeated equal samples are one; contradicting ones are unknown; both are counted."""
    page = parse_page(
        b'm{a="1",b="2"} 3\nm{b="2",a="1"} 3\nm{a="9"} 4\nm{a="9"} 5\n', frozenset({"m"})
    )
    by_label = {series.labels["a"]: series.value for series in page.series["m"]}
    assert by_label == {"1": 3.0, "9": None}
    assert page.dropped == {DropReason.DUPLICATE: 2}


@pytest.mark.parametrize("ending", ["# EOF", "# EOF\n", "# EOF\r\n"])
def test_openmetrics_is_read_whatever_the_case_of_its_media_type(ending: str) -> None:
    """Counters keep their `_total` sample and their `_created` date is not a value."""
    body = (
        "# TYPE vllm:prompt_tokens counter\n"
        'vllm:prompt_tokens_total{model_name="m1"} 17.0\n'
        'vllm:prompt_tokens_created{model_name="m1"} 1.7e+09\n'
        "# TYPE vllm:num_requests_waiting gauge\n"
        'vllm:num_requests_waiting{model_name="m1"} 3\n'
    )
    wanted = frozenset({"vllm:prompt_tokens_total", "vllm:num_requests_waiting"})
    page = parse_page((body + ending).encode(), wanted, OPENMETRICS)
    assert {name: [s.value for s in group] for name, group in page.series.items()} == {
        "vllm:prompt_tokens_total": [17.0],
        "vllm:num_requests_waiting": [3.0],
    }


@pytest.mark.parametrize("body", [b"m 3\n", b"m 3\n# EO", b"m 3\n# EOF\nm 4\n", b'm{a="# EOF'])
def test_openmetrics_without_its_end_is_refused(body: bytes) -> None:
    """Half a page would pass for a smaller load."""
    with pytest.raises(TelemetryError, match="EOF"):
        parse_page(body, frozenset({"m"}), OPENMETRICS)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n\n\n",
        b"# HELP m what\n# TYPE m gauge\n",
        b"<html><body>\nGateway Timeout\n</body></html>\n",
        b'{"error": "no"}',
        b"\x00\x01\x02\n\xff\xfe m",
        b"m\n",
        b"m{\n",
        b'm{a="b"} what\n',
    ],
)
def test_a_page_that_is_no_metrics_page_is_refused(page: bytes) -> None:
    """Garbage is a fault of the source, not an endpoint without load."""
    with pytest.raises(TelemetryError, match="no readable sample"):
        parse_page(page, frozenset({"m"}))


def test_a_page_of_something_else_reads_as_nothing() -> None:
    """A proper page without any wanted name is no fault: its signals are unknown."""
    page = parse_page(b'# HELP x y\nother{a="b"} 1\n', frozenset({"m"}))
    assert page.series == {}
    assert parse_page(b"other 1\n", frozenset()).series == {}


def test_a_page_of_only_nan_is_a_page() -> None:
    """A server whose wanted gauges are all NaN answered properly."""
    assert values(b"m NaN\n") == [None]


def test_too_many_series_are_refused() -> None:
    """A page that would take long to read is refused as a whole, not read in part."""
    lines = [b'm{a="%d"} 1' % number for number in range(MAX_SERIES + 1)]
    assert len(values(b"\n".join(lines[:-1]))) == MAX_SERIES
    with pytest.raises(TelemetryError, match="more than"):
        values(b"\n".join(lines))


def test_hostile_pages_take_bounded_time() -> None:
    """Long runs of quotes, escapes, blanks and names cost no more than their size."""
    size = 1_000_000
    pages = [
        b'm{a="' + b"\\" * size,
        b'm{a="' + b'\\"' * (size // 2),
        b"m{" + b" " * size,
        b"m " + b"\t" * size,
        b"m{" + b'a="b",' * (size // 6),
        b"\n" * size,
        b"m" * size,
        b"a 1\n".join([b"\n   "] * (size // 8)),
        b"x y\n" * (size // 4),
        b"m{a=" * (size // 4),
    ]
    for page in pages:
        started = time.process_time()
        with contextlib.suppress(TelemetryError):
            parse_page(page, frozenset({"m"}))
        assert time.process_time() - started < 1.0, page[:20]


NAMES = st.sampled_from(["m", "m_total", "a:b", "other"])
LABEL_VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SAMPLES = st.tuples(
    NAMES,
    st.dictionaries(st.sampled_from(["a", "b", "model_name"]), LABEL_VALUES, max_size=3),
    st.floats(allow_nan=False, allow_infinity=False),
)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@given(st.lists(SAMPLES, min_size=1, unique_by=lambda s: (s[0], frozenset(s[1].items()))))
def test_what_is_written_is_read_back(samples: list[tuple[str, dict[str, str], float]]) -> None:
    """Any names, label texts and numbers survive being written in the format."""
    lines = []
    for name, labels, value in samples:
        inner = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value!r}\n" if inner else f"{name} {value!r}\n")
    page = parse_page("".join(lines).encode(), frozenset({"m", "a:b", "m_total"}))
    got = {
        (name, frozenset(series.labels.items()), series.value)
        for name, group in page.series.items()
        for series in group
    }
    assert got == {
        (name, frozenset(labels.items()), value)
        for name, labels, value in samples
        if name != "other"
    }


@given(st.binary(max_size=200), st.sampled_from(["", OPENMETRICS]))
def test_any_bytes_are_read_or_refused(page: bytes, content_type: str) -> None:
    """Nothing but a TelemetryError comes out, and no value that is not finite."""
    try:
        parsed = parse_page(b"m" + page, frozenset({"m"}), content_type)
    except TelemetryError:
        return
    numbers = [series.value for group in parsed.series.values() for series in group]
    assert all(value is None or math.isfinite(value) for value in numbers)


def test_a_full_page_costs_a_tenth_of_a_full_parse() -> None:
    """Reading a page must not stall the loop: compared with a full parse on the same machine."""
    path = next(path for path in PAGES if path.stem == "vllm-0.32.0-cpu-loaded")
    page, text = path.read_bytes(), path.read_text()

    def best(runs: int, full: bool) -> float:
        times = []
        for _ in range(runs):
            started = time.perf_counter()
            if full:
                list(text_string_to_metric_families(text))
            else:
                parse_page(page, VLLM.names)
            times.append(time.perf_counter() - started)
        return min(times)

    assert best(30, full=False) < best(5, full=True) / 10
