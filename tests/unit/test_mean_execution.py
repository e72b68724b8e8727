from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.pages.mappings import VLLM, Signal
from ext_authz.telemetry.pages.rates import mean_execution_s
from ext_authz.telemetry.pages.reading import Reading, read

DATA = Path(__file__).parents[1] / "data" / "metrics"


def reading(lines: Iterable[str]) -> Reading:
    page = "".join(f"{line}\n" for line in (*lines, "unrelated 1"))
    return read(VLLM, parse_page(page.encode(), VLLM.names))


def test_mean_execution_between_captured_pages() -> None:
    """The mean over a real load is the difference of sums over the difference of counts."""
    idle, after = (
        read(VLLM, parse_page((DATA / f"vllm-0.32.0-cpu-{name}.txt").read_bytes(), VLLM.names))
        for name in ("idle", "after")
    )
    ((before,), (later,)) = (list(one.means[Signal.EXECUTION].values()) for one in (idle, after))
    assert later.count > before.count
    assert mean_execution_s(idle, after) == pytest.approx(
        (later.total - before.total) / (later.count - before.count)
    )
    assert mean_execution_s(after, after) is None
    assert mean_execution_s(after, idle) is None


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
        (timed(0, -5, 5), timed(0, 16, 8), None),
        (
            timed(0, 0, 0) + timed(1, 0, 0),
            timed(0, "1.5e308", 1) + timed(1, "1.5e308", 1),
            None,
        ),
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
    assert reading(timed(0, 10, 5, "e2e_request_latency")).means[Signal.EXECUTION] == {}


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
