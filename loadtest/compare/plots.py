"""Plots as SVG that takes its colours from the page's style: light and dark both suit it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 36
_BAR, _NAME = 20, 128

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve; `style` is a class of the page's style."""

    name: str
    style: str
    points: Points


@dataclass(frozen=True, slots=True)
class Frame:
    """Axes from zero, what they are of, and what is marked on the horizontal one, in words at the
    top or, with `words_low`, at the bottom."""

    right: float
    top: float
    across: str
    up: str
    marks: tuple[tuple[float, str], ...] = ()
    words_low: bool = False

    def x(self, value: float) -> float:
        """Where a value is, held within the frame."""
        part = min(1.0, max(0.0, value / self.right))
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Where a value is, held within the frame."""
        part = min(1.0, max(0.0, value / self.top))
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)


def curves(frame: Frame, lines: Iterable[Line], title: str) -> str:
    """Curves over each other, the last one on top."""
    drawn = [
        f'<polyline class="line {line.style}" points="{_path(frame, line.points)}">'
        f"<title>{escape(line.name)}</title></polyline>"
        for line in lines
        if line.points
    ]
    return _svg(title, [*_axes(frame), *drawn])


def dots(frame: Frame, sets: Iterable[Line], title: str) -> str:
    """Points, and the line on which both values are the same."""
    far = min(frame.right, frame.top)
    drawn = [f'<polyline class="guide" points="{_path(frame, [(0.0, 0.0), (far, far)])}"/>']
    for each in sets:
        drawn += [
            f'<circle class="dot {each.style}" r="2.2" '
            f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"/>'
            for x, y in each.points
        ]
    return _svg(title, [*_axes(frame), *drawn])


def stacks(rows: Mapping[str, Mapping[str, float]], names: Sequence[str], unit: str) -> str:
    """Bars that lie below each other, each made of the parts that `names` tells, with a legend."""
    most = max((sum(parts.values()) for parts in rows.values()), default=0.0) or 1.0
    drawn, top = [], 4.0
    for label, parts in rows.items():
        drawn.append(f'<text class="tick" x="{_NAME - 6}" y="{top + 14:.0f}" text-anchor="end">')
        drawn.append(f"{escape(label)}</text>")
        left = float(_NAME)
        for number, name in enumerate(names):
            width = parts.get(name, 0.0) / most * (WIDTH - _NAME - 60)
            if width <= 0.0:
                continue
            words = escape(f"{label}: {name} {_number(parts[name])} {unit}")
            drawn.append(
                f'<rect class="part p{number % 8}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{_BAR - 4}"><title>{words}</title></rect>'
            )
            left += width
        total = _number(sum(parts.values()))
        drawn.append(f'<text class="tick" x="{left + 5:.1f}" y="{top + 14:.0f}">{total}</text>')
        top += _BAR
    legend = "".join(
        f'<span class="key"><i class="p{number % 8}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    picture = _svg(unit, drawn, height=int(top) + 4)
    return f'{picture}<p class="keys">{legend}</p>'


def smooth(values: Sequence[float], beside: int = 1) -> list[float]:
    """Each with its neighbours' mean."""
    return [
        sum(part) / len(part)
        for n in range(len(values))
        if (part := values[max(0, n - beside) : n + beside + 1])
    ]


def ticks(top: float, most: int = 5) -> list[float]:
    """Round numbers from zero up to `top`."""
    if top <= 0.0:
        return [0.0]
    rough = top / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * 0.999)
    return [round(step * n, 10) for n in range(int(top / step + 1e-9) + 1)]


def _axes(frame: Frame) -> list[str]:
    low, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    drawn = []
    for value in ticks(frame.top, 4):
        y = frame.y(value)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(_LEFT - 6, y + 4, _number(value), "end"))
    drawn += [
        _text(frame.x(value), low + 15, _number(value), "middle") for value in ticks(frame.right)
    ]
    seen = [mark for mark in frame.marks if mark[0] <= frame.right]
    for number, (value, words) in enumerate(seen):
        x = frame.x(value)
        # Words of neighbours lie below each other.
        y = (low - 18 if frame.words_low else _TOP + 8) + 12 * (number % 2)
        drawn.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{low}"/>')
        near_end = x > 0.75 * WIDTH
        beside, anchor = (-4, "end") if near_end else (4, "start")
        drawn.append(_text(x + beside, y, words, anchor))
    drawn.append(_text((_LEFT + right) / 2, HEIGHT - 4, frame.across, "middle"))
    middle = (_TOP + low) / 2
    turned = f'transform="rotate(-90 12 {middle:.0f})"'
    drawn.append(_text(12, middle, frame.up, "middle", turned))
    return drawn


def _path(frame: Frame, points: Points) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return (
        f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>'
        f"{escape(words)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _svg(title: str, drawn: Sequence[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(drawn)}</svg>"
    )
