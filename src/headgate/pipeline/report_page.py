"""The page of a report: one HTML file with everything in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any

from .report import REASONS, Failed, Figures, Hour, Timed
from .report_charts import COLORS, bars, legend, lines, short

ROWS = 500  # of the table by hour
STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5d6778; --paper: #fff; --card: #f5f7fa; --rule: #dde2ea;
  --c0: #2f6fde; --c1: #e0782f; --c2: #2a9d6f; --c3: #b04fc4; --c4: #c9a21a; --c5: #d3455b; --c6: #3aa6c4;
  --c7: #8a93a3 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf2; --dim: #9aa5b8; --paper: #12161d; --card: #1b212b;
  --rule: #2d3541; --c0: #6c9dff; --c1: #ff9d57; --c2: #4fd09b; --c3: #d585e6; --c4: #e6c34a; --c5: #ff7c8f;
  --c6: #63cbe8; --c7: #a4adbc } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--rule) }
h3 { margin: 1.5rem 0 .3rem; font-size: 1rem } p.dim, .dim { color: var(--dim) }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem } .tiles div { background: var(--card); border-radius: 8px;
  padding: .6rem 1rem; min-width: 7rem } .tiles b { display: block; font-size: 1.3rem }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: var(--dim) } .end { text-anchor: end }
.middle { text-anchor: middle } .grid { stroke: var(--rule) } polyline { fill: none; stroke-width: 2 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--rule) }
th { color: var(--dim); font-weight: 500 } th.t, td.t { text-align: left; overflow-wrap: anywhere }
.legend span { margin-right: 1rem; font-size: .85rem } .legend i { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin-right: .35em } details { margin: .6rem 0 } summary { cursor: pointer; color: var(--dim) }
aside { background: var(--card); border-left: 3px solid var(--c4); padding: .5rem 1rem; margin: 1rem 0 }
""" + "".join(
    f".c{n} {{ fill: var(--c{n}) }} .l{n} {{ stroke: var(--c{n}) }} .b{n} {{ background: var(--c{n}) }}\n"
    for n in range(COLORS)
)
MISSING = (
    "An ack leaves no record of its message, and no worker of these streams took samples (its option timing), so the "
    "latencies of acked messages are not in this report. Those shown are of dead letters (from sending to giving up) "
    "and of what was in flight at this moment."
)
SAMPLED = "Latencies of acked messages are those of the samples that workers took (their option timing)."


def page(found: Sequence[Figures], at: datetime, since: str | None, until: str | None) -> str:
    """The whole page."""
    span = f"from {since or 'the beginning'} to {until or 'now'}"
    body = [
        f"<h1>Headgate report</h1><p class=dim>{escape(span)}, made {at:%Y-%m-%d %H:%M} UTC; hours are UTC</p>",
        _tiles(
            ("streams", len(found)),
            ("messages", sum(f.messages for f in found)),
            ("bytes", sum(h.bytes for f in found for h in f.hours)),
            ("dead letters", sum(d.messages for f in found for d in f.failed)),
        ),
        f"<aside>{SAMPLED if any(f.timed for f in found) else MISSING}</aside>",
        *(_stream(figures) for figures in found),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headgate report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _stream(figures: Figures) -> str:
    lake = ", with what its archive has" if figures.history else ""
    parts = [f"<h2>{escape(figures.stream)}</h2><p class=dim>{figures.messages:,} messages{lake}</p>"]
    if figures.hours:
        parts += [_volumes(figures.hours), _sizes(figures.hours), _table(figures.hours)]
    else:
        parts.append("<p>There were no messages in this time.</p>")
    if figures.timed:
        parts.append(_latencies(figures.timed))
    parts.append(_consumers(figures))
    if figures.failed:
        parts.append(_dead(figures.failed))
    return "".join(parts)


def _volumes(hours: Sequence[Hour]) -> str:
    """Messages by hour, for the channels with the most of them; the others together."""
    totals: Counter[str] = Counter()
    for h in hours:
        totals[_channel(h.channel)] += h.messages
    named = [name for name, _ in totals.most_common(COLORS if len(totals) <= COLORS else COLORS - 1)]
    names = named if len(totals) <= COLORS else [*named, "others"]
    values: dict[str, dict[datetime, float]] = {name: {} for name in names}
    for h in hours:
        mine = values[_channel(h.channel) if _channel(h.channel) in named else "others"]
        mine[h.hour] = mine.get(h.hour, 0) + h.messages
    plot = bars(list(values.items()), hours[0].hour, hours[-1].hour, "messages")
    return f"<h3>Messages by hour{' and channel' if len(totals) > 1 else ''}</h3>{legend(names)}{plot}"


def _sizes(hours: Sequence[Hour]) -> str:
    """Sizes by hour; where there are channels, the largest of theirs: percentiles of several cannot be put together."""
    names = ("p50", "p95", "p99")
    series: list[tuple[str, dict[datetime, float]]] = []
    for n, name in enumerate(names):
        values: dict[datetime, float] = {}
        for h in hours:
            values[h.hour] = max(values.get(h.hour, 0), h.sizes[n])
        series.append((name, values))
    plot = lines(series, hours[0].hour, hours[-1].hour, "bytes")
    several = ", of the channel with the largest" if len({h.channel for h in hours}) > 1 else ""
    return f"<h3>Size of data{several}</h3>{legend(names)}{plot}"


def _table(hours: Sequence[Hour]) -> str:
    rows = [
        (f"{h.hour:%Y-%m-%d %H:00}", _channel(h.channel), f"{h.messages:,}", short(h.bytes),
         short(h.bytes / h.messages), *(short(s) for s in h.sizes), short(h.largest))
        for h in hours[-ROWS:]
    ]  # fmt: skip
    left = f"<p class=dim>The last {ROWS} of {len(hours)} rows.</p>" if len(hours) > ROWS else ""
    head = ("hour", "channel", "messages", "bytes", "average", "p50", "p95", "p99", "largest")
    return f"<details><summary>by hour and channel</summary>{_rows(head, rows, 2)}{left}</details>"


def _latencies(timed: Sequence[Timed]) -> str:
    """From sending to the end of the work by hour, of the consumer and channel that took longest; all in a table."""
    names = ("p50", "p95", "p99", "p99 of the work alone")
    series: list[tuple[str, dict[datetime, float]]] = [(name, {}) for name in names]
    for t in timed:
        for (_, values), value in zip(series, (*t.taken, t.handled[2]), strict=True):
            values[t.hour] = max(values.get(t.hour, 0), value * 1000)
    rows = [
        (f"{t.hour:%Y-%m-%d %H:00}", t.consumer, _channel(t.channel), f"{t.samples:,}",
         _seconds(t.taken), _seconds(t.handled), f"{t.retried:.1%}")
        for t in timed[-ROWS:]
    ]  # fmt: skip
    head = ("hour", "consumer", "channel", "samples", "end to end p50/95/99", "work p50/95/99", "retried")
    plot = lines(series, timed[0].hour, timed[-1].hour, "ms")
    table = f"<details><summary>by hour, consumer and channel</summary>{_rows(head, rows, 3)}</details>"
    return f"<h3>Latency from sending to the end of the work, ms</h3>{legend(names)}{plot}{table}"


def _consumers(figures: Figures) -> str:
    if not figures.consumers:
        return ""
    rows = [
        (c.consumer, f"{c.lag:,}", f"{c.in_flight:,}", _seconds(c.waited), _seconds(c.busy), f"{c.parked:,}",
         f"{c.retried:,}", c.most_attempts, f"{c.dead:,}", f"{c.lost:,}")
        for c in figures.consumers
    ]  # fmt: skip
    head = (
        "consumer", "lag", "in flight", "waited p50/95/99", "in work p50/95/99", "parked", "retrying", "attempts",
        "dead", "lost",
    )  # fmt: skip
    return f"<h3>Consumers at this moment</h3>{_rows(head, rows, 1)}"


def _dead(failed: Sequence[Failed]) -> str:
    hours = sorted({d.hour for d in failed})
    consumers = _sums(failed, lambda d: d.consumer)
    values: list[tuple[str, dict[datetime, float]]] = []
    for name in consumers:
        mine: dict[datetime, float] = {}
        for d in failed:
            if d.consumer == name:
                mine[d.hour] = mine.get(d.hour, 0) + d.messages
        values.append((name, mine))
    reasons = _sums(failed, lambda d: (d.reason, d.consumer, d.channel))
    rows = []
    for (reason, consumer, channel), count in list(reasons.items())[:REASONS]:
        mine_too = [d for d in failed if (d.reason, d.consumer, d.channel) == (reason, consumer, channel)]
        attempts = sum(d.attempts * d.messages for d in mine_too) / count
        ages = tuple(max(d.ages[n] for d in mine_too) for n in range(3)) if all(d.ages for d in mine_too) else None
        rows.append(
            (reason or "deadline passed", consumer, _channel(channel), f"{count:,}", short(attempts), _seconds(ages))
        )
    head = ("reason", "consumer", "channel", "dead letters", "attempts", "age p50/95/99, worst hour")
    plot = bars(values, hours[0], hours[-1], "dead letters")
    return f"<h3>Dead letters</h3>{legend(list(consumers))}{plot}{_rows(head, rows, 3)}"


def _sums(failed: Iterable[Failed], by: Callable[[Failed], Any]) -> dict[Any, int]:
    """Dead letters by something, the most first."""
    totals: Counter[Any] = Counter()
    for d in failed:
        totals[by(d)] += d.messages
    return dict(totals.most_common())


def _tiles(*facts: tuple[str, int]) -> str:
    return (
        '<div class="tiles">' + "".join(f"<div><b>{short(n)}</b>{escape(what)}</div>" for what, n in facts) + "</div>"
    )


def _rows(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int) -> str:
    def cells(values: Sequence[Any], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=t' if n < texts else ''}>{escape(str(value))}</{tag}>" for n, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _channel(name: str | None) -> str:
    return name if name is not None else "-"


def _seconds(values: Sequence[float] | None) -> str:
    if values is None:
        return "-"
    return " / ".join(f"{v:.3g} s" if v < 600 else f"{v / 60:.0f} min" for v in values)
