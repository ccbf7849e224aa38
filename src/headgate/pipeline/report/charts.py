"""Plots as SVG, written out by hand: a report is one file, needs no network, and is light or dark as its reader.

What is drawn is stretched to the width that there is; what is written stands beside it as HTML, so that it has its
size on a telephone as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from math import floor, log10

from .units import Buckets

HIGH = 100.0  # of a plot, in its own measure; its width is one for each bucket
LABELS = 8  # below a plot
COLORS = 8  # classes c0 … c7 of the page's style

Series = tuple[str, dict[datetime, float]]
Write = Callable[[float], str]


def bars(series: Sequence[Series], time: Buckets, what: str, write: Write) -> str:
    """Values of several series, one upon the other."""
    starts = time.starts
    top = _top(max((sum(values.get(at, 0) for _, values in series) for at in starts), default=0), whole=True)
    drawn = []
    for x, at in enumerate(starts):
        base = 0.0
        for n, (name, values) in enumerate(series):
            value = values.get(at, 0)
            if value:
                tall = max(value / top * HIGH, 0.6)  # little is not nothing
                tip = escape(f"{name}, {at.strftime(time.words)}: {write(value)}")
                drawn.append(
                    f'<rect class="c{n % COLORS}" x="{x + 0.1:.2f}" width="0.8" y="{HIGH - base - tall:.2f}" '
                    f'height="{tall:.2f}"><title>{tip}</title></rect>'
                )
                base += tall
    return _plot("".join(drawn), time, top, what, write)


def lines(series: Sequence[Series], time: Buckets, what: str, write: Write) -> str:
    """Values of several series, each a line."""
    starts = time.starts
    top = _top(max((v for _, values in series for v in values.values()), default=0))
    drawn = []
    for n, (_, values) in enumerate(series):
        points = [(x + 0.5, HIGH - values[at] / top * HIGH) for x, at in enumerate(starts) if at in values]
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        if len(points) == 1:
            path += f" {points[0][0] + 0.01:.2f},{points[0][1]:.2f}"  # with round ends it is a point
        drawn.append(f'<polyline class="l{n % COLORS}" points="{path}"/>')
    for x, at in enumerate(starts):
        said = ", ".join(f"{name} {write(values[at])}" for name, values in series if at in values)
        if said:
            tip = escape(f"{at.strftime(time.words)}: {said}")
            drawn.append(f'<rect class="tip" x="{x}" width="1" y="0" height="{HIGH:g}"><title>{tip}</title></rect>')
    return _plot("".join(drawn), time, top, what, write)


def spark(values: dict[datetime, float], time: Buckets) -> str:
    """One series, small enough for a cell of a table."""
    top = max(values.values(), default=0) or 1
    drawn = "".join(
        f'<rect x="{x + 0.1:.2f}" width="0.8" y="{HIGH - tall:.2f}" height="{tall:.2f}"/>'
        for x, at in enumerate(time.starts)
        if (tall := max(values.get(at, 0) / top * HIGH, 3 if at in values else 0))
    )
    return f'<svg class="spark" viewBox="0 0 {time.count} {HIGH:g}" preserveAspectRatio="none">{drawn}</svg>'


def legend(names: Sequence[str]) -> str:
    """Which color is which series."""
    parts = (f'<span><i class="b{n % COLORS}"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{"".join(parts)}</p>'


def _top(highest: float, *, whole: bool = False) -> float:
    """The end of the axis: a round number that has four round parts."""
    if highest <= 0:
        return 1
    unit = 10.0 ** floor(log10(highest))
    found = next(n * unit for n in (1, 2, 4, 6, 8, 10, 20) if n * unit >= highest * 0.9999)
    return max(found, 4) if whole else found


def _plot(drawn: str, time: Buckets, top: float, what: str, write: Write) -> str:
    levels = [top * n / 4 for n in range(5)]
    grid = "".join(f'<line x1="0" x2="{time.count}" y1="{n * HIGH / 4:g}" y2="{n * HIGH / 4:g}"/>' for n in range(5))
    at_left = "".join(f'<span style="bottom:{n * 25}%">{escape(write(level))}</span>' for n, level in enumerate(levels))
    return (
        f'<div class="plot"><div class="y">{at_left}</div>'
        f'<svg viewBox="0 0 {time.count} {HIGH:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(what)} by {time.called}"><g class="grid">{grid}</g>{drawn}</svg>'
        f'<div class="x">{_below(time)}</div></div>'
    )


def _below(time: Buckets) -> str:
    """Times below a plot; every other one is left out where it is narrow."""
    step = -(-time.count // LABELS)
    return "".join(
        f'<span style="left:{(x + 0.5) / time.count:.2%}"{" class=odd" if n % 2 else ""}>'
        f"{(time.first + x * time.step).strftime(time.axis_format)}</span>"
        for n, x in enumerate(range(0, time.count - step // 3, step))
    )
