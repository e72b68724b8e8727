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


def write_page(folder: Path, runs: list[tuple[str, list[Point]]], plan: Plan) -> None:
    """`demo.png`, the plots, and `demo.html`, one self-contained page with table and plots."""
    image = _plots(runs, plan)
    (folder / "demo.png").write_bytes(image)
    text = table([(title, figures(points, plan)) for title, points in runs], plan)
    encoded = base64.b64encode(image).decode()
    (folder / "demo.html").write_text(
        "<!doctype html><meta charset=utf-8><title>gate off, gate on</title>"
        "<style>body{font:15px system-ui;margin:2em auto;max-width:1100px}img{max-width:100%}"
        "pre{overflow:auto}</style><h1>The same overload on the same GPUs</h1>"
        f'<pre>{html.escape(text)}</pre><img alt="plots" src="data:image/png;base64,{encoded}">'
    )


def _plots(runs: list[tuple[str, list[Point]]], plan: Plan) -> bytes:
    """A row for each run: goodput over time, and the latency of what was answered."""
    figure = Figure(figsize=(11, 2.9 * len(runs)), layout="constrained")
    grid = figure.subplots(len(runs), 2, squeeze=False, sharex=True, sharey="col")
    for (title, points), (rates, latencies) in zip(runs, grid, strict=True):
        for name in plan.loads:
            mine = [p for p in points if p.tenant == name and p.started_s < plan.seconds]
            answered = [p for p in mine if p.code == 200]
            good = [0] * plan.seconds
            for p in answered:
                good[int(p.started_s)] += p.latency_s <= plan.slo_s
            rates.plot(range(plan.seconds), good, label=name)
            latencies.plot(
                [p.started_s for p in answered], [p.latency_s for p in answered], ".", ms=3
            )
        rates.set_title(f"{title}: answered in time, by second of arrival", fontsize=9)
        rates.set_ylabel("requests/s")
        rates.legend(loc="upper right")
        latencies.axhline(plan.slo_s, color="black", linewidth=0.8)
        latencies.set_title(f"{title}: latency, and the promise", fontsize=9)
        latencies.set(ylabel="s", ylim=(0, None))
    for axes in grid[-1]:
        axes.set_xlabel("s")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
