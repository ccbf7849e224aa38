"""The lists of the first screen: consumers, streams, messages, tenants, sources."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text

from ..errors import NotAllowed
from ..readable import size
from ..sync import Headgate
from ..trouble import SORTS
from ..types import ChannelInfo, PostgresSourceInfo, StoredMessage, StreamInfo
from .cells import COLOURS, cell
from .details import Flow, OfSource, sources, tenants
from .figures import clock, count, estimated, payload, rate, seconds, since, sparkline
from .looking import Line, Look
from .tables import GridRow, Head

SPARK = 16  # looks of a sparkline in a row
SEPARATOR = "\x1f"  # between the parts of a row's key; no name has it


class View:
    """A list. `look` asks for more than the look at everything has, `rows` shows what was found."""

    title: ClassVar[str]
    columns: ClassVar[Sequence[Head]]
    sorts: ClassVar[Sequence[str]]
    none: ClassVar[str]

    def look(self, hg: Headgate, seen: Look) -> Any:
        """What it shows besides; in a thread."""

    def rows(self, seen: Look, found: Any, sort: str) -> list[GridRow]:
        """Its rows, in order."""
        raise NotImplementedError

    def about(self, seen: Look) -> str:
        """What is to be said below."""
        return ""


class RecentRates:
    """The last rates of streams and consumers, for sparklines."""

    def __init__(self) -> None:
        self._known: dict[str, deque[float]] = {}

    def note(self, key: str, value: float) -> str:
        """Takes one more, and draws them."""
        known = self._known.setdefault(key, deque(maxlen=SPARK))
        known.append(value)
        return sparkline(known, SPARK)

    def forget_others(self, keys: set[str]) -> None:
        """Those that are not seen any more."""
        for key in self._known.keys() - keys:
            del self._known[key]


class ConsumersView(View):
    """Every consumer, those in trouble first."""

    title = "Consumers"
    columns = (
        Head("TROUBLE", 7), Head("STREAM", 8, share=1), Head("CONSUMER", 8, share=1), Head("LAG", 7, True),
        Head("OLDEST", 6, True), Head("RATE/S", 7, True), Head("", SPARK, wide=110), Head("FLIGHT", 6, True),
        Head("PARKED", 6, True), Head("DEAD", 5, True), Head("WHAT", 16, share=3, wide=132),
    )  # fmt: skip
    sorts = SORTS
    none = "there are no consumers yet"

    def __init__(self) -> None:
        self._rates = RecentRates()

    def rows(self, seen: Look, found: Any, sort: str) -> list[GridRow]:
        made = [self._row(line) for line in seen.lines]
        self._rates.forget_others({row.key for row in made})
        return made

    def _row(self, line: Line) -> GridRow:
        info, key = line.info, SEPARATOR.join(line.name)
        return GridRow(key, (*consumer_cells(line, self._rates.note(key, info.rate)), cell(line.trouble.about)))

    def about(self, seen: Look) -> str:
        return more(seen.lines_found, len(seen.lines), "consumers")


def consumer_cells(line: Line, spark: str) -> tuple[Text, ...]:
    """What is said of a consumer in a row."""
    info, word = line.info, line.trouble.word
    return (
        Text(word, COLOURS[word]), cell(info.stream), cell(info.name, "bold"),
        Text(estimated(info.lag, info.exact)), Text(seconds(line.age)), Text(rate(info.rate)), Text(spark, "cyan"),
        Text(count(info.in_flight)), Text(count(info.parked)), Text(count(info.dead), "red" if info.dead else ""),
    )  # fmt: skip


class StreamsView(View):
    """Every stream, with what is in it."""

    title = "Streams"
    columns = (
        Head("STREAM", 12, share=2), Head("RATE/S", 8, True), Head("", SPARK, wide=100),
        Head("MESSAGES", 9, True), Head("SIZE", 9, True), Head("OLDEST", 6, True), Head("NEWEST", 6, True),
        Head("CONSUMERS", 9, True), Head("KEPT", 13, share=1, wide=100),
    )  # fmt: skip
    sorts = ("name", "rate", "messages", "size")
    none = "there are no streams yet: `headgate stream add` makes one, `headgate demo` a whole shop"

    def __init__(self) -> None:
        self._rates = RecentRates()

    def rows(self, seen: Look, found: Any, sort: str) -> list[GridRow]:
        by: dict[str, Callable[[StreamInfo], float]] = {
            "name": lambda s: 0.0, "rate": lambda s: -(s.rate or 0.0), "messages": lambda s: -s.messages,
            "size": lambda s: -s.bytes,
        }  # fmt: skip
        made = [self._row(s, seen) for s in sorted(seen.streams, key=lambda s: (by[sort](s), s.name))]
        self._rates.forget_others({row.key for row in made})
        return made

    def _row(self, s: StreamInfo, seen: Look) -> GridRow:
        spark = self._rates.note(s.name, s.rate or 0.0)
        return GridRow(s.name, (
            cell(s.name, "dim" if s.dead_of else "bold"), Text(rate(s.rate)), Text(spark, "cyan"),
            Text(estimated(s.messages, s.exact)), Text(size(s.bytes)), Text(since(s.oldest, seen.at)),
            Text(since(s.newest, seen.at)), Text(count(s.consumers)),
            Text("full", "red") if s.is_full else Text(kept(s)),
        ))  # fmt: skip

    def about(self, seen: Look) -> str:
        return more(seen.streams_found, len(seen.streams), "streams")


class MessagesView(View):
    """The newest messages of the streams that were written to last."""

    title = "Messages"
    columns = (
        Head("SENT", 8), Head("STREAM", 10, share=1), Head("SEQ", 9, True), Head("KEY", 14, share=2),
        Head("DATA", 18, share=4),
    )  # fmt: skip
    sorts = ("newest",)
    none = "no message was sent yet"

    def __init__(self) -> None:
        self._flow = Flow()

    def look(self, hg: Headgate, seen: Look) -> list[tuple[str, StoredMessage]]:
        return self._flow.look(hg, seen.streams)

    def rows(self, seen: Look, found: list[tuple[str, StoredMessage]], sort: str) -> list[GridRow]:
        wanted = {s.name for s in seen.streams}
        return [
            GridRow(SEPARATOR.join((stream, str(m.seq))), (
                clock(m.created_at), cell(stream), str(m.seq), cell(m.key or ""), payload(m.data),
            ))
            for stream, m in found if stream in wanted
        ]  # fmt: skip


class TenantsView(View):
    """Channels (or keys, where lanes are by key) with the most that waits."""

    title = "Tenants"
    columns = (
        Head("TENANT", 12, share=2), Head("STREAM", 8, share=1), Head("CONSUMER", 8, share=1),
        Head("STATE", 7), Head("WAITING", 8, True), Head("OLDEST", 6, True), Head("IN FLIGHT", 9, True),
        Head("PARKED", 6, True), Head("DELIVERED", 10, True, wide=96),
    )  # fmt: skip
    sorts = ("waiting", "oldest", "delivered", "name")
    none = "no stream has lanes by channel or key: a tenant is a channel"

    def look(self, hg: Headgate, seen: Look) -> list[ChannelInfo]:
        return tenants(hg, seen)

    def rows(self, seen: Look, found: list[ChannelInfo], sort: str) -> list[GridRow]:
        by: dict[str, Callable[[ChannelInfo], Any]] = {
            "waiting": lambda c: (-c.waiting, -c.in_flight), "name": lambda c: (c.channel or "").lower(),
            "oldest": lambda c: (c.oldest is None, c.oldest), "delivered": lambda c: -c.delivered,
        }  # fmt: skip
        return [tenant_row(c, seen) for c in sorted(found, key=by[sort])]


def tenant_row(c: ChannelInfo, seen: Look) -> GridRow:
    """One channel of one consumer."""
    limit = "" if c.max_concurrency is None else f" of {c.max_concurrency:,}"
    colour = {"full": "yellow", "waiting": "yellow", "ready": "green"}.get(c.state, "")
    return GridRow(SEPARATOR.join((c.stream, c.consumer, c.channel or "")), (
        cell(c.channel or "(none)", "bold"), cell(c.stream), cell(c.consumer), Text(c.state, colour),
        Text(estimated(c.waiting, c.exact)), Text(since(c.oldest, seen.at)), Text(f"{c.in_flight:,}{limit}"),
        Text(count(c.parked)), Text(count(c.delivered)),
    ))  # fmt: skip


class SourcesView(View):
    """Where messages come from: tables of PostgreSQL databases, and webhooks."""

    title = "Sources"
    columns = (
        Head("SOURCE", 8, share=1), Head("STATE", 8), Head("STREAM", 8, share=1), Head("LAG", 8, True),
        Head("RATE/S", 7, True), Head("SENT", 8, True), Head("BACKFILL", 14),
        Head("WHAT", 10, share=3),
    )  # fmt: skip
    sorts = ("name",)
    none = "there are no sources: `headgate source add` makes one"

    def look(self, hg: Headgate, seen: Look) -> list[OfSource] | str:
        try:
            return sources(hg)
        except NotAllowed as error:
            return error.message

    def rows(self, seen: Look, found: list[OfSource] | str, sort: str) -> list[GridRow]:
        if isinstance(found, str):
            return [GridRow("", (*[""] * 7, cell(found, "yellow")))]
        return [_source_row(s) for s in found]


def _source_row(source: OfSource) -> GridRow:
    info = source.info
    if not isinstance(info, PostgresSourceInfo):
        return GridRow(info.name, (
            cell(info.name, "bold"), Text(info.kind), cell(info.stream), "", "", "", "", f"signed: {info.scheme}",
        ))  # fmt: skip
    colour = {"reading": "green", "failing": "red", "lost": "red"}.get(info.state, "yellow")
    behind = "" if info.lag is None else seconds(info.lag)
    return GridRow(info.name, (
        cell(info.name, "bold"), Text(info.state, colour), cell(info.stream), Text(behind), Text(rate(info.rate)),
        Text(count(info.messages)), Text(backfill(source)),
        cell(info.error, "red") if info.error else cell(", ".join(info.tables)),
    ))  # fmt: skip


def backfill(source: OfSource) -> str:
    """How far the backfills of a source are, all together."""
    if not source.backfills:
        return ""
    states = {b.state for b in source.backfills}
    if states == {"done"}:
        return "done"
    if "failed" in states:
        return "failed"
    rows, of = sum(b.rows for b in source.backfills), sum(b.estimate or 0 for b in source.backfills)
    word = "paused" if "paused" in states else "running" if "running" in states else "waiting"
    return f"{word} {min(99, 100 * rows // of)}%" if of else word


def kept(s: StreamInfo) -> str:
    """For how long messages stay."""
    word = {"forever": "", "until_acked": "until acked", "until_archived": "until archived"}[s.retain]
    limits = [*([word] if word else []), *([seconds(s.retain_up_to)] if s.retain_up_to else [])]
    limits += [size(s.max_storage)] if s.max_storage else []
    return ", ".join(limits) or "for ever"


def more(found: int, shown: int, what: str) -> str:
    """That not all are shown, if so."""
    return f"{shown:,} of {found:,} {what}: / finds the others" if found > shown else ""
