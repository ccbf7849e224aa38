"""What opens: a stream, a consumer, a message, a source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

from ..readable import ago, size
from ..sync import Headgate
from ..types import PeekedMessage, PostgresSourceInfo
from . import actions
from .actions import Action
from .cells import COLOURS, cell, joined
from .details import OfConsumer, OfMessage, OfSource, OfStream, of_consumer, of_message, of_source, of_stream
from .figures import clean, clock, count, estimated, payload, pretty, rate, seconds, since
from .looking import line_of
from .screens import BACK, Live, consumer_actions, facts
from .tables import Grid, GridRow, Head
from .views import SEPARATOR, backfill, kept

HELD = (
    Head("STATE", 9), Head("SEQ", 9, True), Head("KEY", 10, share=2), Head("TRY", 3, True),
    Head("DUE", 8), Head("WORKER", 10, share=1, wide=104), Head("ERROR OR DATA", 16, share=3),
)  # fmt: skip
CHANNELS = (
    Head("TENANT", 12, share=2), Head("STATE", 7), Head("WAITING", 8, True), Head("OLDEST", 7, True),
    Head("IN FLIGHT", 9, True), Head("PARKED", 6, True), Head("DELIVERED", 10, True),
)  # fmt: skip
WORKERS = (
    Head("WORKER", 12, share=1), Head("LANES", 10, share=1), Head("IN FLIGHT", 9, True), Head("SEEN", 7, True),
    Head("JOINED", 9, True),
)  # fmt: skip
OF_STREAM = (
    Head("TROUBLE", 7), Head("CONSUMER", 10, share=1), Head("LAG", 8, True), Head("OLDEST", 6, True),
    Head("RATE/S", 8, True), Head("FLIGHT", 6, True), Head("PARKED", 6, True), Head("DEAD", 6, True),
)  # fmt: skip
NEWEST = (
    Head("SENT", 8),
    Head("SEQ", 9, True),
    Head("KEY", 12, share=1),
    Head("DATA", 16, share=3),
)
BACKFILLS = (
    Head("TABLE", 12, share=1), Head("STATE", 8), Head("ROWS", 9, True), Head("OF ABOUT", 9, True),
    Head("ASKED", 8), Head("DONE", 8), Head("ERROR", 8, share=2),
)  # fmt: skip
EVENTS = {
    "sent": "sent", "gone": "removed from the stream", "delivered": "handed to a worker", "failed": "failed",
    "expired": "its time was up", "dead": "became a dead letter", "redriven": "redriven", "replayed": "replayed",
    "discarded": "discarded", "parked": "waits for another attempt", "delayed": "is delayed",
    "blocked": "waits for an earlier one of its key", "released": "is due", "waiting": "is not read yet",
    "skipped": "is passed over by the filter", "done": "is done",
}  # fmt: skip


class StreamScreen(Live[OfStream]):
    """A stream: its consumers, and its newest messages."""

    BINDINGS: ClassVar[list[Any]] = [
        BACK,
        Binding("tab", "app.focus_next", "Other list"),
    ]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.stream, self.where = name, clean(name)
        self._seen: OfStream | None = None

    def body(self) -> ComposeResult:
        yield Static(id="facts")
        yield Grid(id="consumers", classes="half")
        yield Grid(id="newest", classes="half")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#consumers").focus()

    def look(self, hg: Headgate) -> OfStream:
        return of_stream(hg, self.stream)

    def show(self, seen: OfStream) -> None:
        self._seen = seen
        s, now = seen.info, datetime.now(UTC)
        self.query_one("#facts", Static).update(facts(
            ("messages", estimated(s.messages, s.exact)), ("size", size(s.bytes)), ("sent", f"{rate(s.rate)} a second"),
            ("oldest", since(s.oldest, now)), ("newest", since(s.newest, now)), ("kept", kept(s)),
            ("lanes", f"{s.lanes} by {s.lane_by}" if s.lane_by == "hash" else f"by {s.lane_by}"),
            ("", Text("full", "bold red") if s.is_full else ""),
        ))  # fmt: skip
        lines = [line_of(c, now) for c in seen.consumers]
        self.query_one("#consumers", Grid).show(OF_STREAM, [
            GridRow(x.info.name, (
                Text(x.trouble.word, COLOURS[x.trouble.word]), cell(x.info.name, "bold"),
                estimated(x.info.lag, x.info.exact), seconds(x.age), rate(x.info.rate), count(x.info.in_flight),
                count(x.info.parked), Text(count(x.info.dead), "red" if x.info.dead else ""),
            ))
            for x in sorted(lines, key=lambda x: (x.trouble.rank, -x.info.lag, x.info.name))
        ])  # fmt: skip
        self.query_one("#newest", Grid).show(NEWEST, [
            GridRow(str(m.seq), (clock(m.created_at), str(m.seq), m.key or "", payload(m.data))) for m in seen.newest
        ])  # fmt: skip

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_open()

    def action_open(self) -> None:
        """What is under the cursor."""
        chosen = self.focused.chosen if isinstance(self.focused, Grid) else None
        if chosen is not None and self.focused is not None:
            is_message = self.focused.id == "newest"
            self.app.push_screen(
                MessageScreen(self.stream, int(chosen)) if is_message else ConsumerScreen(self.stream, chosen)
            )

    def actions(self) -> dict[str, Action | str]:
        chosen = self.query_one("#consumers", Grid).chosen
        found = next((c for c in self._seen.consumers if c.name == chosen), None) if self._seen else None
        return {} if found is None else consumer_actions(found)


class ConsumerScreen(Live[OfConsumer]):
    """A consumer: what is in flight, parked and dead with reasons, what comes next; its tenants, its workers."""

    BINDINGS: ClassVar[list[Any]] = [
        BACK, Binding("tab", "next", "Other list", priority=True),
    ]  # fmt: skip

    def __init__(self, stream: str, name: str) -> None:
        super().__init__()
        self.name_of = (stream, name)
        self.where = clean(f"{stream} / {name}")
        self.list = "messages"
        self._seen: OfConsumer | None = None

    def body(self) -> ComposeResult:
        yield Static(id="facts")
        yield Static(id="views")
        yield Grid(id="list")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Grid).focus()

    def look(self, hg: Headgate) -> OfConsumer:
        return of_consumer(hg, *self.name_of)

    def show(self, seen: OfConsumer) -> None:
        self._seen = seen
        c, now = seen.info, datetime.now(UTC)
        line = line_of(c, now)
        word = line.trouble.word
        about = [(word, f"bold {COLOURS[word]}"), (f"  {line.trouble.about}" if line.trouble.about else "", "")]
        self.query_one("#facts", Static).update(Text("\n").join([joined(about), facts(
            ("lag", estimated(c.lag, c.exact)), ("oldest", seconds(line.age)), ("takes", f"{rate(c.rate)} a second"),
            ("in flight", count(c.in_flight)), ("parked", count(c.parked)),
            ("dead", count(c.dead)), ("ack wait", seconds(c.ack_wait)), ("attempts", c.max_deliver or "without end"),
            ("order", c.order if c.order != "none" else ""), ("filter", ", ".join(c.filter or ())),
            ("pushes to", (c.push or {}).get("url", "")), ("backlog", drain(seen)),
        )]))  # fmt: skip
        self._show_list(seen, now)

    def _show_list(self, seen: OfConsumer, now: datetime) -> None:
        pieces = []
        for name in self._lists():
            pieces += [(" ", ""), (f" {name.capitalize()} ", "bold reverse" if name == self.list else "")]
        self.query_one("#views", Static).update(joined(pieces))
        grid = self.query_one(Grid)
        if self.list == "tenants":
            grid.show(CHANNELS, [
                GridRow(ch.channel or "", (
                    cell(ch.channel or "(none)", "bold"), ch.state, estimated(ch.waiting, ch.exact),
                    since(ch.oldest, now), f"{ch.in_flight:,}"
                    + ("" if ch.max_concurrency is None else f" of {ch.max_concurrency:,}"),
                    count(ch.parked), count(ch.delivered),
                ))
                for ch in seen.channels
            ])  # fmt: skip
        elif self.list == "workers":
            grid.show(WORKERS, [
                GridRow(w.name, (
                    cell(w.name, "bold"), ", ".join(map(str, w.lanes)), count(w.in_flight), since(w.seen_at, now),
                    clock(w.joined_at),
                ))
                for w in seen.workers
            ])  # fmt: skip
        else:
            grid.show(HELD, _messages(seen, now))
            empty = not (seen.held or seen.dead or seen.next)
            self.observe.mention("nothing waits, and nothing is in flight, parked or dead" if empty else "")

    def _lists(self) -> list[str]:
        seen = self._seen
        more = [*(["tenants"] if seen and seen.channels else []), *(["workers"] if seen and seen.workers else [])]
        return ["messages", *more]

    def action_next(self) -> None:
        """Messages, tenants, workers."""
        lists = self._lists()
        self.list = lists[(lists.index(self.list) + 1) % len(lists)] if self.list in lists else lists[0]
        if self._seen is not None:
            self.show(self._seen)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_open()

    def action_open(self) -> None:
        """The message under the cursor."""
        chosen = self._chosen()
        if chosen is not None:
            self.app.push_screen(MessageScreen(self.name_of[0], chosen[1]))

    def _chosen(self) -> tuple[str, int, int] | None:
        """State, seq, and seq in the stream of dead letters."""
        key = self.query_one(Grid).chosen if self.list == "messages" else None
        if not key:
            return None
        state, seq, dead = key.split(SEPARATOR)
        return state, int(seq), int(dead)

    def actions(self) -> dict[str, Action | str]:
        if self._seen is None:
            return {}
        info, chosen = self._seen.info, self._chosen()
        found = consumer_actions(info)
        found["t"] = "only a parked message can be tried again now: choose one"
        if chosen is not None and chosen[0] == "dead":
            found["d"] = actions.redrive_one(info, chosen[1], chosen[2])
        if chosen is not None and chosen[0] == "parked":
            found["t"] = actions.retry(info, chosen[1])
        return found


def _messages(seen: OfConsumer, now: datetime) -> list[GridRow]:
    """Those in hand and parked, the dead ones, and those that come next."""
    return [
        *(_message_row(m, now) for m in seen.held),
        *(
            GridRow(SEPARATOR.join(("dead", str(d.source_seq or d.seq), str(d.seq))), (
                Text("dead", "red"), str(d.source_seq or d.seq), d.key or "", str(d.attempts), ago(d.failed_at, now),
                "", cell(d.last_error or "", "red"),
            ))
            for d in seen.dead
        ),
        *(_message_row(m, now) for m in seen.next),
    ]  # fmt: skip


def _message_row(m: PeekedMessage, now: datetime) -> GridRow:
    word = {"delivered": "in flight", "available": "waits"}.get(m.state, m.reason or m.state)
    colour = {"in flight": "green", "waits": "dim"}.get(word, "yellow")
    due = "" if m.visible_at is None else ago(m.visible_at, now)
    return GridRow(SEPARATOR.join((m.state, str(m.seq), "0")), (
        Text(clean(word), colour), str(m.seq), m.key or "", str(m.attempt) if m.attempt else "", due, m.worker or "",
        cell(m.last_error, "red") if m.last_error else payload(m.data),
    ))  # fmt: skip


def drain(seen: OfConsumer) -> str:
    """How long until the backlog is gone, at the present rates."""
    if not seen.info.unread:
        return ""
    gained = seen.info.rate - (seen.stream.rate or 0.0)
    return f"gone in {seconds(seen.info.unread / gained)}" if gained > 0.01 else "does not shrink"


class MessageScreen(Live[OfMessage]):
    """A message: why it waits, its life, its data."""

    BINDINGS: ClassVar[list[Any]] = [BACK]

    def __init__(self, stream: str, seq: int) -> None:
        super().__init__()
        self.stream, self.seq = stream, seq
        self.where = f"{clean(stream)} / {seq:,}"

    def body(self) -> ComposeResult:
        with VerticalScroll(id="message"):
            yield Static(id="told")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(VerticalScroll).focus()

    def look(self, hg: Headgate) -> OfMessage:
        return of_message(hg, self.stream, self.seq)

    def show(self, seen: OfMessage) -> None:
        now = datetime.now(UTC)
        made = Text()
        if (m := seen.message) is None:
            made.append("The message itself is not in the stream any more. This is what is still known of it.\n", "dim")
        else:
            made.append_text(facts(
                ("seq", f"{m.seq:,}"), ("key", m.key), ("sent", f"{clock(m.created_at)} ({ago(m.created_at, now)})"),
                ("not before", clock(m.deliver_at)),
            )).append("\n")  # fmt: skip
        _heading(made, "Where it stands")
        for state, why in seen.states:
            made.append(f"  {clean(state.consumer)}  ", "bold").append(state.state, _colour(state.state))
            made.append(f"  {why}" if why else "").append("\n")
            if state.last_error:
                made.append(f"      {clean(state.last_error)}\n", "red")
        _heading(made, "Its life")
        for e in seen.life:
            made.append(f"  {clock(e.at) or 'now':>8}  ", "dim").append(clean(e.consumer or ""), "bold")
            made.append(
                f"  {EVENTS.get(e.event, clean(e.event))}" if e.consumer else EVENTS.get(e.event, clean(e.event))
            )
            made.append(f", attempt {e.attempt}" if e.attempt else "", "dim")
            made.append(f", by {clean(e.worker)}" if e.worker else "", "dim")
            made.append(f", until {clock(e.until)}" if e.until else "", "dim").append("\n")
            if e.error:
                made.append(f"            {clean(e.error)}\n", "red")
        if m is not None:
            for title, value in (("Data", m.data), ("Headers", m.headers)):
                if value is not None:
                    _heading(made, title)
                    made.append("".join(f"  {each}\n" for each in pretty(value)))
        self.query_one("#told", Static).update(made)


def _heading(made: Text, title: str) -> None:
    made.append(f"\n{title}\n", "bold underline")


def _colour(state: str) -> str:
    return {"delivered": "green", "done": "green", "parked": "yellow", "dead": "red"}.get(state, "dim")


class SourceScreen(Live[OfSource]):
    """A source of tables: how far it is, what is wrong, and its backfills."""

    BINDINGS: ClassVar[list[Any]] = [BACK]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.source, self.where = name, f"source {clean(name)}"
        self._seen: OfSource | None = None

    def body(self) -> ComposeResult:
        yield Static(id="facts")
        yield Grid(id="list")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Grid).focus()

    def look(self, hg: Headgate) -> OfSource:
        return of_source(hg, self.source)

    def show(self, seen: OfSource) -> None:
        self._seen = seen
        s = seen.info
        assert isinstance(s, PostgresSourceInfo)
        colour = {"reading": "bold green", "failing": "bold red", "lost": "bold red"}.get(s.state, "bold yellow")
        lines = [facts(
            ("", Text(s.state, colour)), ("since", clock(s.since)), ("stream", s.stream), ("reads", s.place),
            ("sent", count(s.messages)), ("rate", f"{rate(s.rate)} a second"),
            ("lag", " ".join(x for x in (seconds(s.lag), size(s.lag_bytes) if s.lag_bytes is not None else "") if x)),
            ("its slot keeps", size(s.retained_bytes) if s.retained_bytes is not None else ""),
            ("backfill", backfill(seen)), ("tables", ", ".join(s.tables)),
        )]  # fmt: skip
        for text in (s.error, s.hint, *s.problems):
            if text:
                lines.append(Text(clean(text), "red" if text == s.error else ""))
        self.query_one("#facts", Static).update(Text("\n").join(lines))
        self.query_one(Grid).show(BACKFILLS, [
            GridRow(b.table, (
                cell(b.table, "bold"), b.state, count(b.rows), count(b.estimate), clock(b.asked_at),
                clock(b.finished_at), cell(b.error or "", "red"),
            ))
            for b in seen.backfills
        ])  # fmt: skip
        self.observe.mention("" if seen.backfills else "none of its tables has had a backfill")

    def actions(self) -> dict[str, Action | str]:
        info = self._seen.info if self._seen else None
        return {"p": actions.pause_source(info)} if isinstance(info, PostgresSourceInfo) else {}
