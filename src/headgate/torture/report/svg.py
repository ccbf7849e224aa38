"""An SVG as text: shapes and words with escaped contents, and a scale of time on which quiet stretches are short."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

STYLE = """
  svg { --ink: #1b2430; --soft: #5b6678; --line: #c9d1dd; --paper: #ffffff; --band: #f3f6fb; --wrong: #d0271d;
        --wait: #8a94a6; --parked: #b8620f; --done: #238551; --call: #2f6fde; --tx: #dfe6f2 }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6eaf1; --soft: #a3adbd; --line: #3b4454; --paper: #14181f; --band: #1c222c; --wrong: #ff6b5e;
          --wait: #7d889b; --parked: #e39a4c; --done: #58c08a; --call: #7aa5ff; --tx: #2b3444 } }
  text { font: 12px system-ui, sans-serif; fill: var(--ink) } .soft { fill: var(--soft); font-size: 11px }
  .head { font-size: 14px; font-weight: 600 } .wrong { fill: var(--wrong) } .on { fill: #fff; font-size: 11px }
  .end { text-anchor: end } .middle { text-anchor: middle } .paper { fill: var(--paper) } .band { fill: var(--band) }
  .grid { stroke: var(--line); stroke-width: 1 } .wait { stroke: var(--wait); stroke-width: 2 }
  .open { stroke: var(--wait); stroke-width: 2; stroke-dasharray: 2 3 } .sent { fill: var(--ink) }
  .parked { stroke: var(--parked); stroke-width: 3; stroke-dasharray: 5 3 } .tx { fill: var(--tx); stroke: var(--wait) }
  .undone { fill: none; stroke: var(--wait); stroke-dasharray: 4 3 } .call { fill: var(--call) }
  .own { fill: var(--wrong) } .mark { stroke: var(--wrong); stroke-width: 1.5; stroke-dasharray: 6 3 }
  .operator { stroke: var(--parked); stroke-width: 1.5; opacity: .7 } .operated { fill: var(--parked); font-size: 11px }
  .ack { fill: var(--done); font-weight: 700; font-size: 14px } .nack { fill: var(--parked); font-weight: 700 }
  .void { opacity: .45 } .red { stroke: var(--wrong); stroke-width: 2.5 }
"""
WORKERS = ("#2f6fde", "#7a4fc9", "#0f8a8a", "#a8327a", "#6b7a1f", "#8a5a2b")  # white words are readable on each of them
CHARACTER = 6.1  # about so wide


class Scale:
    """Where a time is drawn. The distance of two calls grows with the logarithm of the time between them."""

    def __init__(self, times: Iterable[float], left: float, narrowest: float, widest: float) -> None:
        self.times = sorted({t for t in times if math.isfinite(t)}) or [0.0]
        steps = [8 + 26 * math.log10(1 + 1000 * (b - a)) for a, b in zip(self.times, self.times[1:], strict=False)]
        whole = sum(steps) or 1.0
        factor = min(max(whole, narrowest - left), widest - left) / whole
        self.places = [left]
        for step in steps:
            self.places.append(self.places[-1] + step * factor)

    @property
    def end(self) -> float:
        return self.places[-1]

    def __call__(self, time: float) -> float:
        if time <= self.times[0]:
            return self.places[0]
        if time >= self.times[-1]:
            return self.end
        i = bisect_right(self.times, time) - 1
        part = (time - self.times[i]) / (self.times[i + 1] - self.times[i])
        return self.places[i] + part * (self.places[i + 1] - self.places[i])


class Drawing:
    """Shapes, in the order in which they are drawn. A tip is shown when the mouse rests on a shape."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def line(self, kind: str, x1: float, y1: float, x2: float, y2: float, tip: str = "") -> None:
        self._add("line", kind, tip, x1=x1, y1=y1, x2=x2, y2=y2)

    def box(self, kind: str, x: float, y: float, width: float, height: float, tip: str = "", **more: str) -> None:
        self._add("rect", kind, tip, more, x=x, y=y, width=max(width, 0.0), height=height)

    def dot(self, kind: str, x: float, y: float, tip: str = "") -> None:
        self._add("circle", kind, tip, cx=x, cy=y, r=4)

    def words(self, kind: str, x: float, y: float, text: str, tip: str = "") -> None:
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{title}{escape(text)}</text>')

    def _add(self, shape: str, kind: str, tip: str, more: dict[str, str] | None = None, **numbers: float) -> None:
        said = "".join(f' {name}="{value:.1f}"' for name, value in numbers.items())
        said += "".join(f" {name}={quoteattr(value)}" for name, value in (more or {}).items())
        end = f"><title>{escape(tip)}</title></{shape}>" if tip else "/>"
        self.parts.append(f'<{shape} class="{kind}"{said}{end}')

    def svg(self, width: float, height: float, title: str) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        return "\n".join([
            f'{head} role="img" aria-label={quoteattr(title)}>',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="8"/>',
            *self.parts,
            "</svg>\n",
        ])  # fmt: skip


def width_of(text: str) -> float:
    return CHARACTER * len(text)
