"""Plots as SVG, written out by hand: a report is one file, needs no network, and is light or dark as its reader."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape

WIDTH, HEIGHT = 920, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 28
COLORS = 8  # classes c0 … c7 of the page's style

Series = tuple[str, dict[datetime, float]]


def bars(series: Sequence[Series], first: datetime, last: datetime, unit: str) -> str:
    """Values of several series by hour, one upon the other."""
    hours = _hours(first, last)
    highest = max((sum(values.get(h, 0) for _, values in series) for h in hours), default=0) or 1
    width = (WIDTH - LEFT - RIGHT) / len(hours)
    drawn = []
    for i, hour in enumerate(hours):
        base = 0.0
        for n, (name, values) in enumerate(series):
            value = values.get(hour, 0)
            if value:
                y, tall = _y(base + value, highest), _y(base, highest) - _y(base + value, highest)
                tip = escape(f"{name}, {hour:%d %b %H:00}: {short(value)} {unit}")
                drawn.append(
                    f'<rect class="c{n % COLORS}" x="{LEFT + i * width:.1f}" y="{y:.1f}" '
                    f'width="{max(width - 1, 0.5):.1f}" height="{tall:.1f}"><title>{tip}</title></rect>'
                )
            base += value
    return _svg(_axes(hours, highest, unit) + "".join(drawn), unit)


def lines(series: Sequence[Series], first: datetime, last: datetime, unit: str) -> str:
    """Values of several series by hour, each a line with points."""
    hours = _hours(first, last)
    highest = max((v for _, values in series for v in values.values()), default=0) or 1
    width = (WIDTH - LEFT - RIGHT) / len(hours)
    drawn = []
    for n, (name, values) in enumerate(series):
        points = [(LEFT + (i + 0.5) * width, _y(values[h], highest), h) for i, h in enumerate(hours) if h in values]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        drawn.append(f'<polyline class="l{n % COLORS}" points="{path}"/>')
        for x, y, hour in points:
            tip = escape(f"{name}, {hour:%d %b %H:00}: {short(values[hour])} {unit}")
            drawn.append(
                f'<circle class="c{n % COLORS}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{tip}</title></circle>'
            )
    return _svg(_axes(hours, highest, unit) + "".join(drawn), unit)


def legend(names: Sequence[str]) -> str:
    """Which color is which series."""
    parts = (f'<span><i class="b{n % COLORS}"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{"".join(parts)}</p>'


def short(value: float) -> str:
    """A number as people read it."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}".removesuffix(".0") + sign
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _hours(first: datetime, last: datetime) -> list[datetime]:
    count = int((last - first) / timedelta(hours=1)) + 1
    return [first + timedelta(hours=n) for n in range(count)]


def _y(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - value / highest * (HEIGHT - TOP - BOTTOM)


def _axes(hours: Sequence[datetime], highest: float, unit: str) -> str:
    drawn = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        y = _y(highest * part, highest)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{short(highest * part)}</text>')
    width = (WIDTH - LEFT - RIGHT) / len(hours)
    step = -(-len(hours) // 10)
    form = "%H:00" if len(hours) <= 24 else "%d %b %H:00"
    for i in range(0, len(hours), step):
        x = LEFT + (i + 0.5) * width
        drawn.append(f'<text class="middle" x="{x:.1f}" y="{HEIGHT - 8}">{hours[i].strftime(form)}</text>')
    return "".join(drawn)


def _svg(inside: str, unit: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(unit)} by hour">{inside}</svg>'
