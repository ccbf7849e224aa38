"""The page of a report: one HTML file with everything in it. First all streams side by side, then each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from ..kinds.report import REASONS, FailedMessages, ReportFigures, Timed
from .charts import COLORS, Series, bars, legend, lines, spark
from .style import STYLE
from .units import NONE, Buckets, amount, duration, each, rate, size

ROWS = 500  # of the table by time
MISSING = (
    "An ack leaves no record of its message, and no worker of these streams took samples (its option timing), so the "
    "latencies of acked messages are not in this report. Those shown are of dead letters (from sending to giving up) "
    "and of what was in flight at this moment."
)
SAMPLED = "Latencies of acked messages are those of the samples that workers took (their option timing)."
UNITS = (
    "Times are UTC. Sizes are those of data: 1 KB is 1,000 bytes. Numbers of keys are estimates, some percent off. "
    "Rates are averages over the whole time that is shown; peaks are those of the busiest {bucket}."
)


class Html(str):
    """Text that is HTML already."""


def page(found: Sequence[ReportFigures], time: Buckets, at: datetime, since: str | None, until: str | None) -> str:
    """The whole page."""
    span = f"from {since or 'the beginning'} to {until or 'now'}, made {at:%d %b %Y %H:%M} UTC, by {time.called}"
    body = [
        f"<h1>Headgate report</h1><p class=dim>{escape(span)}</p>",
        _tiles(
            ("streams", amount(len(found))),
            ("messages", amount(sum(f.total.messages for f in found))),
            ("on average", rate(_average(sum(f.total.messages for f in found), found, time))),
            ("of data", size(sum(f.total.bytes for f in found))),
            ("largest lag", amount(max((f.lag or 0 for f in found), default=0))),
            ("dead letters", amount(sum(f.dead for f in found))),
        ),
        *([_compared(found, time)] if found else []),
        *(_stream(figures, time, found) for figures in found),
        f"<footer><p>{SAMPLED if any(f.timed for f in found) else MISSING}</p>"
        f"<p>{UNITS.format(bucket=time.called)}</p></footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headgate report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _compared(found: Sequence[ReportFigures], time: Buckets) -> str:
    """All streams in one plot and one table, those with the most messages first."""
    ranked = sorted(found, key=lambda f: -f.total.messages)
    everything = sum(f.total.messages for f in found) or 1
    values = {f.stream: {at: float(v.messages) for at, v in f.buckets.items()} for f in ranked if f.total.messages}
    series = _largest(values)
    plot = ""
    if series:
        plot = (
            f'<div class="card wide"><h3>Messages by {time.called} and stream</h3>{legend([n for n, _ in series])}'
            f"{bars(series, time, 'messages', amount)}</div>"
        )
    rows = []
    for f in ranked:
        share = f.total.messages / everything
        latency = max((t.taken[2] for t in f.timed), default=None)
        lag = NONE if f.lag is None else amount(f.lag)
        rows.append(
            (Html(f'<a href="#{_anchor(found, f)}">{escape(f.stream)}</a>'),
             Html(spark(values.get(f.stream, {}), time)),
             Html(f'{amount(f.total.messages)}<span class=share><i style="width:{share:.1%}"></i></span>'),
             rate(_average(f.total.messages, found, time)), rate(_peak(f, time)), size(f.total.bytes),
             _size(f, 0), _size(f, 2), amount(f.total.keys), lag,
             NONE if latency is None else duration(latency),
             Html(f"<span class=bad>{amount(f.dead)}</span>") if f.dead else "0")
        )  # fmt: skip
    head = (
        "stream", f"by {time.called}", "messages", "rate", "peak", "data", "size p50", "size p99", "keys", "lag",
        "latency p99", "dead",
    )  # fmt: skip
    return f'<h2>Streams compared</h2>{plot}<div class="card wide">{_rows(head, rows, 2)}</div>'


def _stream(figures: ReportFigures, time: Buckets, found: Sequence[ReportFigures]) -> str:
    lake = ", with what its archive has" if figures.history else ""
    total = figures.total
    head = (
        f'<h2 id="{_anchor(found, figures)}">{escape(figures.stream)}'
        f"<small>{total.messages:,} messages{lake}</small></h2>"
    )
    cards = []
    if total.messages:
        head += _tiles(
            ("on average", rate(_average(total.messages, found, time))),
            ("peak", rate(_peak(figures, time))),
            ("of data", size(total.bytes)),
            ("size p50", size(total.sizes[0])),
            ("size p99", size(total.sizes[2])),
            ("keys", amount(total.keys)),
        )
        cards = [_volumes(figures, time), _sizes(figures, time)]
    else:
        head += "<p>There were no messages in this time.</p>"
    if figures.timed:
        cards.append(_latencies(figures.timed, time))
    if figures.failed:
        cards.append(_dead_plot(figures.failed, time))
    below = [_consumers(figures), _reasons(figures.failed) if figures.failed else ""]
    tables = _table(figures, time) + (_latency_table(figures.timed, time) if figures.timed else "")
    return f'{head}<div class="cards">{"".join(cards)}</div>{"".join(below)}{tables}'


def _volumes(figures: ReportFigures, time: Buckets) -> str:
    values: dict[str, dict[datetime, float]] = {}
    for (at, channel), volume in figures.channels.items():
        values.setdefault(_channel(channel), {})[at] = volume.messages
    series = _largest(dict(sorted(values.items(), key=lambda v: -sum(v[1].values()))))
    several = len(series) > 1
    return (
        f'<div class="card"><h3>Messages by {time.called}{" and channel" if several else ""}</h3>'
        f"{legend([name for name, _ in series]) if several else ''}{bars(series, time, 'messages', amount)}</div>"
    )


def _sizes(figures: ReportFigures, time: Buckets) -> str:
    names = ("p50", "p95", "p99")
    series = [(name, {at: v.sizes[n] for at, v in figures.buckets.items()}) for n, name in enumerate(names)]
    plot = lines(series, time, "size of data", size)
    return f'<div class="card"><h3>Size of data by {time.called}</h3>{legend(names)}{plot}</div>'


def _table(figures: ReportFigures, time: Buckets) -> str:
    if not figures.channels:
        return ""
    known = sorted(figures.channels.items(), key=lambda v: (v[0][0], v[0][1] or ""))
    rows = [
        (f"{at:%Y-%m-%d %H:%M:%S}".removesuffix(":00"), _channel(channel), f"{v.messages:,}", size(v.bytes),
         size(v.bytes / v.messages), *(size(s) for s in v.sizes), size(v.largest), amount(v.keys))
        for (at, channel), v in known[-ROWS:]
    ]  # fmt: skip
    left = f"<p class=dim>The last {ROWS} of {len(known):,} rows.</p>" if len(known) > ROWS else ""
    head = ("from", "channel", "messages", "data", "average", "p50", "p95", "p99", "largest", "keys")
    return (
        f"<details><summary>All numbers by {time.called} and channel</summary>"
        f'<div class="card">{_rows(head, rows, 2)}{left}</div></details>'
    )


def _latencies(timed: Sequence[Timed], time: Buckets) -> str:
    """From sending to the end of the work, of the consumer and channel that took longest."""
    names = ("p50", "p95", "p99", "p99 of the work alone")
    series: list[Series] = [(name, {}) for name in names]
    for t in timed:
        for (_, values), value in zip(series, (*t.taken, t.handled[2]), strict=True):
            values[t.at] = max(values.get(t.at, 0), value)
    plot = lines(series, time, "latency", duration)
    return f'<div class="card"><h3>Latency from sending to the end of the work</h3>{legend(names)}{plot}</div>'


def _latency_table(timed: Sequence[Timed], time: Buckets) -> str:
    rows = [
        (f"{t.at:%Y-%m-%d %H:%M:%S}".removesuffix(":00"), t.consumer, _channel(t.channel), f"{t.samples:,}",
         each(duration, t.taken), each(duration, t.handled), f"{t.retried:.1%}")
        for t in timed[-ROWS:]
    ]  # fmt: skip
    head = ("from", "consumer", "channel", "samples", "end to end p50/95/99", "work p50/95/99", "retried")
    return (
        f"<details><summary>Latencies by {time.called}, consumer and channel</summary>"
        f'<div class="card">{_rows(head, rows, 3)}</div></details>'
    )


def _consumers(figures: ReportFigures) -> str:
    if not figures.consumers:
        return ""
    rows = [
        (c.consumer, f"{c.lag:,}", f"{c.in_flight:,}", each(duration, c.waited), each(duration, c.busy),
         f"{c.parked:,}", f"{c.retried:,}", c.most_attempts, f"{c.dead:,}", f"{c.lost:,}")
        for c in figures.consumers
    ]  # fmt: skip
    head = (
        "consumer", "lag", "in flight", "waited p50/95/99", "in work p50/95/99", "parked", "retrying", "attempts",
        "dead", "lost",
    )  # fmt: skip
    return f'<div class="card"><h3>Consumers at this moment</h3>{_rows(head, rows, 1)}</div>'


def _dead_plot(failed: Sequence[FailedMessages], time: Buckets) -> str:
    values: dict[str, dict[datetime, float]] = {name: {} for name in _sums(failed, lambda d: d.consumer)}
    for d in failed:
        mine = values[d.consumer]
        mine[d.at] = mine.get(d.at, 0) + d.messages
    series = _largest(values)
    plot = bars(series, time, "dead letters", amount)
    return f'<div class="card"><h3>Dead letters by {time.called}</h3>{legend([n for n, _ in series])}{plot}</div>'


def _reasons(failed: Sequence[FailedMessages]) -> str:
    rows: list[Sequence[Any]] = []
    for (reason, consumer, channel), count in list(_sums(failed, _why).items())[:REASONS]:
        mine = [d for d in failed if _why(d) == (reason, consumer, channel)]
        attempts = sum(d.attempts * d.messages for d in mine) / count
        ages = tuple(max(d.ages[n] for d in mine) for n in range(3)) if all(d.ages for d in mine) else None
        rows.append(
            (reason or "deadline passed", consumer, _channel(channel), f"{count:,}", amount(attempts),
             each(duration, ages))
        )  # fmt: skip
    head = ("reason", "consumer", "channel", "dead letters", "attempts", "age p50/95/99, worst time")
    return f'<div class="card"><h3>Why messages died</h3>{_rows(head, rows, 3, long=True)}</div>'


def _why(d: FailedMessages) -> tuple[str, str, str | None]:
    return d.reason, d.consumer, d.channel


def _sums(failed: Iterable[FailedMessages], by: Callable[[FailedMessages], Any]) -> dict[Any, int]:
    """Dead letters by something, the most first."""
    totals: Counter[Any] = Counter()
    for d in failed:
        totals[by(d)] += d.messages
    return dict(totals.most_common())


def _largest(values: Mapping[str, dict[datetime, float]]) -> list[Series]:
    """As many series as there are colors, the first ones; what is left together."""
    if len(values) <= COLORS:
        return list(values.items())
    names = list(values)
    others: dict[datetime, float] = {}
    for name in names[COLORS - 1 :]:
        for at, value in values[name].items():
            others[at] = others.get(at, 0) + value
    kept: list[Series] = [(name, values[name]) for name in names[: COLORS - 1]]
    return [*kept, (f"{len(names) - COLORS + 1} others", others)]


def _average(messages: int, found: Sequence[ReportFigures], time: Buckets) -> float:
    """Messages a second, over the time in which any stream had some."""
    known = {at for f in found for at in f.buckets}
    return messages / (max(known) - min(known) + time.step).total_seconds() if known else 0


def _size(figures: ReportFigures, percentile: int) -> str:
    return size(figures.total.sizes[percentile]) if figures.total.messages else NONE


def _peak(figures: ReportFigures, time: Buckets) -> float:
    return max((v.messages for v in figures.buckets.values()), default=0) / time.step.total_seconds()


def _tiles(*facts: tuple[str, str]) -> str:
    return '<div class="tiles">' + "".join(f"<div><b>{n}</b>{escape(what)}</div>" for what, n in facts) + "</div>"


def _rows(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int, *, long: bool = False) -> str:
    def cells(values: Sequence[Any], tag: str) -> str:
        return "".join(
            f"<{tag}{_kind(n)}>{value if isinstance(value, Html) else escape(str(value))}</{tag}>"
            for n, value in enumerate(values)
        )

    def _kind(n: int) -> str:
        return f' class="t{" long" if long and n == 0 else ""}"' if n < texts else ""

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells(head, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def _anchor(found: Sequence[ReportFigures], figures: ReportFigures) -> str:
    return f"stream-{found.index(figures) + 1}"


def _channel(name: str | None) -> str:
    return name if name is not None else "no channel"
