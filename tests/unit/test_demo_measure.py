"""From k6's points to the demo's figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.demo.measure import ALL, Point, figures, read_points
from loadtest.demo.plan import DEMO

PLAN = replace(DEMO, warmup_s=2, seconds=6, slo_s=1.0)


def point(started_s: float, latency_s: float = 0.5, code: int = 200, **more: str) -> Point:
    fields = {"tenant": "chat", "admission": "admit", "reason": "", "retry_after": "", **more}
    return Point(started_s=started_s, latency_s=latency_s, code=code, **fields)


def test_a_row_counts_what_clients_saw() -> None:
    """Late answers and timeouts are let in and not good; refusals are neither; warm-up is out."""
    points = [
        point(1.9),
        point(2.0),
        point(3.0, latency_s=1.5),
        point(3.5, code=0),
        point(4.0, code=429, retry_after="2"),
        point(4.5, code=503),
        point(5.0, admission="demote"),
        point(6.0),
    ]
    row = figures(points, PLAN)["chat"]
    assert (row.offered_rps, row.goodput_rps) == (1.5, 0.5)
    assert (row.admitted, row.demoted, row.rejected) == (3, 1, 2)
    assert (row.efficiency, row.retry_after_missing) == (0.5, 1)
    assert (row.p50_s, row.p99_s) == (0.5, 1.5)


def test_the_parts_of_a_run_make_the_whole() -> None:
    """Whatever the moment a run is split at, no request is lost or counted twice, and a rate is
    over its own part."""
    points = [point(0.05 * number) for number in range(120)]
    whole = figures(points, PLAN)[ALL]
    for split_s in (2.0, 2.53, 4.0, 5.99):
        first = figures(points, PLAN, (PLAN.warmup_s, split_s))[ALL] if split_s > 2 else None
        second = figures(points, PLAN, (split_s, PLAN.seconds))[ALL]
        assert second.admitted + (first.admitted if first else 0) == whole.admitted
    assert figures(points, PLAN, (2.0, 4.0))[ALL].offered_rps == pytest.approx(20.0)


def test_points_are_read_with_the_time_of_the_first(tmp_path: Path) -> None:
    """Points come ordered by their start, counted from the first; other metrics are not looked
    at; the first one's time of the wall clock comes along."""
    tags = {"tenant": "chat", "code": "200", "admission": "admit", "reason": "", "retry": ""}
    lines = [{"metric": "request", "type": "Metric", "data": {}}]
    for started_ms, latency_ms in ((1_700_000_002_500, 40.0), (1_700_000_001_000, 250.0)):
        data = {"value": latency_ms, "tags": {**tags, "started": str(started_ms)}}
        lines.append({"metric": "request", "type": "Point", "data": data})
        lines.append({"metric": "http_reqs", "type": "Point", "data": data})
    file = tmp_path / "points.json"
    file.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines))
    points, first_unix_s = read_points(file)
    assert first_unix_s == 1_700_000_001.0
    assert [(p.started_s, p.latency_s, p.code) for p in points] == [
        (0.0, 0.25, 200),
        (1.5, 0.04, 200),
    ]
