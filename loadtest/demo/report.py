"""The demo's results for people: one table for the terminal, one page with plots."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

from matplotlib.figure import Figure

from loadtest.demo.measure import ALL, Figures, Point, figures
from loadtest.demo.plan import Plan

_COLUMNS = "offered/s  goodput/s     p50     p99  admitted  demoted   429/503  efficiency"


def table(runs: list[tuple[str, dict[str, Figures]]], plan: Plan) -> str:
    """A block for each tenant and for all, the runs side by side as its lines."""
    width = max(len(title) for title, _ in runs)
    lines = [
        f"goodput: answered 200 within {plan.slo_s:g} s; efficiency: goodput / let in; "
        f"first {plan.warmup_s} of {plan.seconds} s not counted"
    ]
    for name in (*plan.loads, ALL):
        lines += ["", f"{name:<{width + 2}}{_COLUMNS}"]
        lines += [f"  {title:<{width}}{_line(rows[name])}" for title, rows in runs]
    return "\n".join(lines)


def _line(row: Figures) -> str:
    efficiency = "-" if row.efficiency is None else f"{row.efficiency:.3f}"
    return (
        f"{row.offered_rps:>9.1f}{row.goodput_rps:>11.1f}{_seconds(row.p50_s)}{_seconds(row.p99_s)}"
        f"{row.admitted:>10}{row.demoted:>9}{row.rejected:>10}{efficiency:>12}"
    )


def _seconds(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.2f} s':>8}"


def write_html(path: Path, runs: list[tuple[str, list[Point]]], plan: Plan) -> None:
    """One self-contained page: goodput over time and latency of what was let in, per run."""
    text = table([(title, figures(points, plan)) for title, points in runs], plan)
    images = "".join(
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{_plot(title, points, plan)}">'
        for title, points in runs
    )
    path.write_text(
        "<!doctype html><meta charset=utf-8><title>gate off, gate on</title>"
        "<style>body{font:15px system-ui;margin:2em auto;max-width:1100px}img{max-width:100%}"
        "pre{overflow:auto}</style><h1>The same overload, gate off and on</h1>"
        f"<pre>{html.escape(text)}</pre>{images}"
    )


def _plot(title: str, points: list[Point], plan: Plan) -> str:
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    rates, latencies = figure.subplots(1, 2)
    seconds = range(plan.seconds)
    for name in plan.loads:
        good = [0] * plan.seconds
        for p in points:
            in_time = p.code == 200 and p.latency_s <= plan.slo_s
            if p.tenant == name and in_time and p.started_s < plan.seconds:
                good[int(p.started_s)] += 1
        rates.plot(seconds, good, label=name)
    rates.set(title=f"{title}: goodput by second of arrival", xlabel="s", ylabel="requests/s")
    rates.legend()
    for name in plan.loads:
        mine = [p for p in points if p.tenant == name and p.code == 200]
        latencies.plot([p.started_s for p in mine], [p.latency_s for p in mine], ".", ms=3)
    latencies.axhline(plan.slo_s, color="black", linewidth=0.8)
    latencies.set(title="latency of what was answered", xlabel="s", ylabel="s", ylim=(0, None))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()
