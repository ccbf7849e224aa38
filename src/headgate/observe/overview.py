"""The first screen: what is sent and delivered, and five lists."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.widgets import DataTable, Input, Sparkline, Static

from ..sync import Headgate
from ..trouble import WORDS
from ..types import PostgresSourceInfo
from . import actions, figures
from .actions import Action
from .cells import COLOURS, joined
from .looking import Look, look, past
from .opened import ConsumerScreen, MessageScreen, SourceScreen, StreamScreen
from .screens import Live, consumer_actions
from .tables import Grid
from .views import SEPARATOR, ConsumersView, MessagesView, SourcesView, StreamsView, TenantsView, View

REMEMBERED = 300  # looks

TALL = 34  # lines of a screen that has room for the newest messages below any list

Seen = tuple[int, Look, Any, Any]  # which list, everything, what the list has besides, the newest messages


class OverviewScreen(Live[Seen]):
    """Everything at a glance."""

    BINDINGS: ClassVar[list[Any]] = [ Binding("s", "sort", "Sort"), Binding("slash", "search", "Filter"),
        Binding("escape", "clear", "Clear", show=False),
        *(Binding(str(n), f"view({n - 1})", show=False) for n in range(1, 6)),
        Binding("tab", "next(1)", "Next list", show=False, priority=True),
        Binding("shift+tab", "next(-1)", show=False, priority=True),
    ]  # fmt: skip

    def __init__(self, sort: str, search: str) -> None:
        super().__init__()
        self.views: list[View] = [ConsumersView(), StreamsView(), MessagesView(), TenantsView(), SourcesView()]
        self.at = 0
        self.flow_at = next(n for n, view in enumerate(self.views) if isinstance(view, MessagesView))
        self.shows_flow = False
        self.sorts = [view.sorts[0] for view in self.views]
        self.sorts[0] = sort
        self.search = search
        self.last: Seen | None = None
        self._sent: deque[float] | None = None
        self._delivered: deque[float] = deque(maxlen=REMEMBERED)

    def body(self) -> ComposeResult:
        with Horizontal(id="figures"):
            for name in ("sent", "delivered"):
                with Vertical():
                    yield Static(id=f"{name}-rate")
                    yield Sparkline([], id=name)
        yield Static(id="totals")
        yield Static(id="views")
        yield Input(placeholder="part of a name, then Enter; Esc shows all", id="search")
        yield Grid(id="list")
        yield Grid(id="flow")

    def on_mount(self) -> None:
        super().on_mount()
        self._name_views()
        self._make_room(self.app.size.height)
        self.query_one("#list", Grid).focus()

    def on_resize(self, event: Resize) -> None:
        self._make_room(event.size.height)

    def _make_room(self, height: int) -> None:
        self.shows_flow = height >= TALL and self.at != self.flow_at
        self.query_one("#flow", Grid).display = self.shows_flow

    # looking

    def look(self, hg: Headgate) -> Seen:
        at, view = self.at, self.views[self.at]
        if self._sent is None:
            known = past(hg)
            self._sent = deque((sent for sent, _ in known), maxlen=REMEMBERED)
            self._delivered.extend(delivered for _, delivered in known)
        seen = look(hg, self.sorts[0], self.search)
        flow = self.views[self.flow_at].look(hg, seen) if self.shows_flow else None
        return at, seen, view.look(hg, seen), flow

    def show(self, seen: Seen) -> None:
        at, everything, found, flow = seen
        if self._sent is not None and (self.last is None or self.last[1].at != everything.at):
            self._sent.append(everything.totals["sent"])
            self._delivered.append(everything.totals["delivered"])
        self.last = seen
        self._show_totals(everything)
        if at != self.at:  # another list was asked for meanwhile
            return
        view = self.views[at]
        rows = view.rows(everything, found, self.sorts[at])
        self.query_one("#list", Grid).show(view.columns, rows)
        if flow is not None:
            messages = self.views[self.flow_at]
            self.query_one("#flow", Grid).show(messages.columns, messages.rows(everything, flow, ""))
        said = (
            view.about(everything)
            if rows
            else (f'nothing has "{self.search}" in its name' if self.search else view.none)
        )
        self.observe.mention(said)

    def _show_totals(self, seen: Look) -> None:
        t = seen.totals
        for name, values in (("sent", self._sent or ()), ("delivered", self._delivered)):
            label = joined([(f"{name} ", "dim"), (figures.rate(t[name]), "bold"), (" a second", "dim")])
            self.query_one(f"#{name}-rate", Static).update(label)
            spark = self.query_one(f"#{name}", Sparkline)
            spark.data = list(values)[-max(10, spark.size.width) :]
        words = [line.trouble.word for line in seen.lines]
        pieces: list[tuple[str, str]] = []
        for name, figure in (("waiting", "lag"), ("in flight", "in_flight"), ("parked", "parked"), ("dead", "dead")):
            style = "bold red" if figure == "dead" and t[figure] else "bold"
            pieces += [(f"{name} ", "dim"), (f"{figures.count(t[figure])}  ", style)]
        for word in WORDS[:-1]:
            if n := words.count(word):
                pieces += [(f" {n} {word}", COLOURS[word])]
        self.query_one("#totals", Static).update(joined(pieces))

    def _name_views(self) -> None:
        pieces = []
        for n, view in enumerate(self.views):
            pieces += [(f" {n + 1} ", "dim"), (f"{view.title} ", "bold reverse" if n == self.at else "")]
        sort = self.sorts[self.at]
        pieces += [(f" by {sort}", "dim")] if len(self.views[self.at].sorts) > 1 else []
        # (what was typed is shown as it was taken)
        pieces += [(f" with {figures.clean(self.search)}", "yellow")] if self.search else []
        self.query_one("#views", Static).update(joined(pieces))

    # keys

    def action_view(self, at: int) -> None:
        """Another list."""
        if at == self.at:
            return
        self.at = at
        self._make_room(self.app.size.height)
        self.query_one("#list", Grid).show(self.views[at].columns, [])
        self._name_views()
        self.observe.look_now()

    def action_next(self, step: int) -> None:
        """The next list."""
        self.action_view((self.at + step) % len(self.views))

    def action_sort(self) -> None:
        """By the next figure."""
        sorts = self.views[self.at].sorts
        self.sorts[self.at] = sorts[(sorts.index(self.sorts[self.at]) + 1) % len(sorts)]
        self._name_views()
        if self.last is not None and self.at:  # what was seen is sorted here; consumers where they are looked for
            self.show(self.last)
        self.observe.look_now()

    def action_search(self) -> None:
        """Asks for a part of a name."""
        box = self.query_one("#search", Input)
        box.value = self.search
        box.add_class("is-open")
        box.focus()

    def action_clear(self) -> None:
        """Shows all again."""
        self._search_for("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._search_for(event.value.strip())

    def _search_for(self, text: str) -> None:
        self.query_one("#search", Input).remove_class("is-open")
        self.query_one("#list", Grid).focus()
        if text != self.search:
            self.search = text
            self._name_views()
            self.observe.look_now()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_open()

    def action_open(self) -> None:
        """What is under the cursor."""
        is_flow = self.focused is not None and self.focused.id == "flow"
        key, view = self._chosen(), self.views[self.flow_at if is_flow else self.at]
        if not key:
            return
        parts = key.split(SEPARATOR)
        if isinstance(view, (ConsumersView, TenantsView)):
            self.app.push_screen(ConsumerScreen(parts[0], parts[1]))
        elif isinstance(view, StreamsView):
            self.app.push_screen(StreamScreen(key))
        elif isinstance(view, MessagesView):
            self.app.push_screen(MessageScreen(parts[0], int(parts[1])))
        elif any(s.info.name == key and isinstance(s.info, PostgresSourceInfo) for s in self._found()):
            self.app.push_screen(SourceScreen(key))

    def _chosen(self) -> str | None:
        return self.focused.chosen if isinstance(self.focused, Grid) else self.query_one("#list", Grid).chosen

    def _found(self) -> list[Any]:
        return self.last[2] if self.last and isinstance(self.last[2], list) else []

    def actions(self) -> dict[str, Action | str]:
        key, view = self.query_one("#list", Grid).chosen, self.views[self.at]
        if key is None or self.last is None:
            return {}
        if isinstance(view, SourcesView):
            chosen = next((s.info for s in self._found() if s.info.name == key), None)
            if not isinstance(chosen, PostgresSourceInfo):
                return {"p": "only sources of tables can be paused"}
            return {"p": actions.pause_source(chosen)}
        if not isinstance(view, (ConsumersView, TenantsView)):
            return {}
        name = tuple(key.split(SEPARATOR)[:2])
        line = next((each for each in self.last[1].lines if each.name == name), None)
        return {} if line is None else consumer_actions(line.info)
