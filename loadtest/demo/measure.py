"""From k6's points to the figures of the table: what clients saw, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.demo.plan import Plan

ALL = "all"


@dataclass(frozen=True, slots=True)
class Point:
    """One request as its client saw it. `started_s` counts from the run's first request; `code`
    0 is a client that gave up waiting."""

    tenant: str
    started_s: float
    latency_s: float
    code: int
    admission: str
    reason: str
    retry_after: str


@dataclass(frozen=True, slots=True)
class Figures:
    """One row. Goodput counts answers of 200 within the SLO, demoted ones included; efficiency
    is that over all that were let in; quantiles are of the answers of 200."""

    offered_rps: float
    goodput_rps: float
    p50_s: float | None
    p99_s: float | None
    admitted: int
    demoted: int
    rejected: int
    efficiency: float | None
    retry_after_missing: int

    def as_json(self) -> dict[str, float | int | None]:
        """As written to `build/demo.json`."""
        return asdict(self)


def read_points(path: Path) -> tuple[list[Point], float]:
    """The custom metric's points of a k6 JSON output, oldest first, and when the first began
    (seconds of the wall clock)."""
    raw: list[tuple[float, dict[str, str], float]] = []
    with path.open() as lines:
        for line in lines:
            if '"metric":"request"' not in line or '"type":"Point"' not in line:
                continue
            data = json.loads(line)["data"]
            raw.append((float(data["tags"]["started"]) / 1000.0, data["tags"], data["value"]))
    first_s = min((started_s for started_s, _, _ in raw), default=0.0)
    points = [
        Point(
            tenant=tags["tenant"],
            started_s=started_s - first_s,
            latency_s=latency_ms / 1000.0,
            code=int(tags["code"]),
            admission=tags["admission"],
            reason=tags["reason"],
            retry_after=tags["retry"],
        )
        for started_s, tags, latency_ms in raw
    ]
    return sorted(points, key=lambda point: point.started_s), first_s


def figures(
    points: Iterable[Point], plan: Plan, span: tuple[float, float] | None = None
) -> dict[str, Figures]:
    """A row for each tenant and one for all, over the requests that began within `span`
    (seconds after the first one), by default all after the warm-up."""
    begin_s, end_s = span or (plan.warmup_s, plan.seconds)
    counted = [p for p in points if begin_s <= p.started_s < end_s]
    span_s = end_s - begin_s
    rows = {
        name: _row([p for p in counted if p.tenant == name], plan.slo_s, span_s)
        for name in plan.loads
    }
    rows[ALL] = _row(counted, plan.slo_s, span_s)
    return rows


def _row(points: list[Point], slo_s: float, span_s: float) -> Figures:
    answered = sorted(p.latency_s for p in points if p.code == 200)
    good = sum(1 for latency_s in answered if latency_s <= slo_s)
    refused = [p for p in points if p.code in (429, 503)]
    let_in = len(points) - len(refused)
    demoted = sum(1 for p in points if p.admission == "demote")
    return Figures(
        offered_rps=round(len(points) / span_s, 2),
        goodput_rps=round(good / span_s, 2),
        p50_s=_quantile(answered, 0.50),
        p99_s=_quantile(answered, 0.99),
        admitted=let_in - demoted,
        demoted=demoted,
        rejected=len(refused),
        efficiency=round(good / let_in, 4) if let_in else None,
        retry_after_missing=sum(1 for p in refused if not p.retry_after),
    )


def _quantile(ordered: list[float], q: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 4)
