from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.pages.mappings import ENGINES, Signal
from ext_authz.telemetry.pages.rates import mean_execution_s, rate
from ext_authz.telemetry.pages.reading import Reading, read

VLLM = ENGINES["vllm"]
COUNTS = st.dictionaries(st.integers(0, 4), st.integers(0, 50) | st.just("NaN"), max_size=4)


def reading(counts: dict[int, int | str]) -> Reading:
    lines = "".join(
        f'vllm:prompt_tokens_total{{engine="{engine}",model_name="m"}} {count}\n'
        f'vllm:prompt_tokens_created{{engine="{engine}",model_name="m"}} 1.7e9\n'
        for engine, count in counts.items()
    )
    return read(VLLM, parse_page((lines + "other 1\n").encode(), VLLM.names))


@pytest.mark.parametrize(
    ("before", "after", "elapsed_s", "expected"),
    [
        ({0: 10}, {0: 30}, 4.0, 5.0),
        ({0: 10}, {0: 10}, 4.0, 0.0),
        # A restart, of all or of one of two while the sum still rises.
        ({0: 30}, {0: 10}, 4.0, None),
        ({0: 10, 1: 30}, {0: 90, 1: 5}, 4.0, None),
        # A new engine's past is not what it did since.
        ({0: 10}, {0: 30, 1: 1000}, 4.0, 5.0),
        ({}, {0: 30}, 4.0, None),
        ({0: 10}, {}, 4.0, None),
        ({0: "NaN"}, {0: 30}, 4.0, None),
        ({0: 10, 1: 10}, {0: 30, 1: "NaN"}, 4.0, None),
        # No time has passed, or it ran backwards.
        ({0: 10}, {0: 30}, 0.0, None),
        ({0: 10}, {0: 30}, -1.0, None),
        ({0: 0}, {0: 10**300}, 1e-20, None),
    ],
)
def test_rate(
    before: dict[int, int | str],
    after: dict[int, int | str],
    elapsed_s: float,
    expected: float | None,
) -> None:
    """A counter's growth over time; unknown where part of the growth is."""
    assert rate(reading(before), reading(after), Signal.PROMPT_TOKENS, elapsed_s) == expected


@given(COUNTS, COUNTS, st.floats(0.001, 1000))
def test_rates_against_plain_arithmetic(
    before: dict[int, int | str], after: dict[int, int | str], elapsed_s: float
) -> None:
    """For any two readings the rate is what a person would work out, and never negative."""
    got = rate(reading(before), reading(after), Signal.PROMPT_TOKENS, elapsed_s)
    both = [(before[e], after[e]) for e in before.keys() & after.keys()]
    known = "NaN" not in {*before.values(), *after.values()}
    if not known or not both or any(int(now) < int(then) for then, now in both):
        assert got is None
    else:
        assert got == pytest.approx(sum(int(now) - int(then) for then, now in both) / elapsed_s)
        assert got is not None
        assert got >= 0


def whole(time_s: float, requests: int, queued_s: float, queued: int) -> Reading:
    """A page of an engine that tells the whole time of requests, and apart from it the queue's."""
    mapping = ENGINES["sglang"]
    page = (
        f'sglang:e2e_request_latency_seconds_sum{{model_name="m"}} {time_s}\n'
        f'sglang:e2e_request_latency_seconds_count{{model_name="m"}} {requests}\n'
        f'sglang:queue_time_seconds_sum{{model_name="m",tp_rank="0"}} {queued_s}\n'
        f'sglang:queue_time_seconds_count{{model_name="m",tp_rank="0"}} {queued}\n'
    )
    return read(mapping, parse_page(page.encode(), mapping.names))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (whole(30, 10, 20, 20), 2.0),
        # Those that leave the queue now waited longer than those that end now took.
        (whole(30, 10, 80, 20), None),
        (whole(30, 10, 0, 0), None),
        (whole(0, 0, 20, 20), None),
    ],
)
def test_a_mean_less_a_mean(after: Reading, expected: float | None) -> None:
    """Execution is the whole less the queue, never negative, and unknown with either of them."""
    assert mean_execution_s(whole(0, 0, 0, 0), after) == expected
