"""The terminal view: consumers in a table, rates as a sparkline, one consumer in full."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Sparkline, Static

from ..errors import Error
from ..sync import Headgate
from ..trouble import SORTS
from .looking import Line, Look, look

EVERY = 2.0  # seconds
REMEMBERED = 120  # looks
COLUMNS = ("", "STREAM", "CONSUMER", "LAG", "OLDEST", "RATE/S", "FLIGHT", "PARKED", "DEAD")
COLOURS = {"lost": "red", "stuck": "red", "failing": "red", "behind": "yellow", "dead": "red", "paused": "yellow"}


class Observe(App[None]):
    """Looks every two seconds; keys sort, filter, drill down and act."""

    TITLE = "headgate observe"
    CSS = """
    #totals { height: 1; padding: 0 1; text-style: bold; } Sparkline { height: 2; margin: 0 1; }
    #note { height: 1; padding: 0 1; color: $text-muted; }
    #search { display: none; } #search.is-open { display: block; }
    Ask { align: center middle; } Ask > Vertical { width: 60; height: auto; padding: 1 2; border: round $primary; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        ("s", "sort", "Sort"), ("slash", "search", "Filter"), ("enter", "open", "Open"), ("p", "pause", "Pause/resume"),
        ("d", "redrive", "Redrive dead"), ("q", "quit", "Quit"),
    ]  # fmt: skip

    def __init__(self, hg: Headgate) -> None:
        super().__init__()
        self.hg = hg
        self.sort = SORTS[0]
        self.search = ""
        self.last: Look | None = None
        self._delivered: deque[float] = deque(maxlen=REMEMBERED)
        self._is_looking = False

    def compose(self) -> ComposeResult:
        yield Static(id="totals")
        yield Sparkline([], id="rates")
        yield Input(placeholder="part of a name", id="search")
        yield DataTable(id="consumers", cursor_type="row")
        yield Static(id="note")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*COLUMNS)
        self.query_one(DataTable).focus()
        self.set_interval(EVERY, self.look)
        self.call_after_refresh(self.look)

    async def look(self) -> None:
        """Looks, and shows it. What is wrong is said, and the last look stays."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            self.last = await asyncio.to_thread(look, self.hg, self.sort, self.search)
        except Error as error:
            self.say(f"{error.message}: this is how it was")
        else:
            self._delivered.append(self.last.totals["delivered"])
            self._show(self.last)
        finally:
            self._is_looking = False

    def _show(self, seen: Look) -> None:
        t = seen.totals
        self.screen_stack[0].query_one("#totals", Static).update(
            f"sent {t['sent']:,.1f}/s   delivered {t['delivered']:,.1f}/s   waiting {t['lag']:,}   "
            f"in flight {t['in_flight']:,}   parked {t['parked']:,}   dead {t['dead']:,}"
        )
        self.screen_stack[0].query_one(Sparkline).data = list(self._delivered)
        table = self.screen_stack[0].query_one(DataTable)
        at, chosen = table.cursor_row, self.chosen_key
        table.clear()
        for n, line in enumerate(seen.lines):
            table.add_row(*_cells(line), key="\n".join(line.name))
            if "\n".join(line.name) == chosen:
                at = n
        if seen.lines:
            table.move_cursor(row=min(at, len(seen.lines) - 1))

    @property
    def chosen_key(self) -> str | None:
        """The stream and consumer under the cursor."""
        table = self.screen_stack[0].query_one(DataTable)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    @property
    def chosen(self) -> Line | None:
        """The line under the cursor."""
        key = self.chosen_key
        return next((x for x in self.last.lines if "\n".join(x.name) == key), None) if self.last else None

    def say(self, text: str) -> None:
        """The line at the bottom."""
        self.screen_stack[0].query_one("#note", Static).update(Text(text))

    async def action_sort(self) -> None:
        """By the next column."""
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.say(f"sorted by {self.sort}")
        await self.look()

    def action_search(self) -> None:
        """Asks for a part of a name."""
        box = self.query_one("#search", Input)
        box.add_class("is-open")
        box.focus()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        self.search = event.value
        event.input.remove_class("is-open")
        self.query_one(DataTable).focus()
        await self.look()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "consumers":
            self.action_open()

    def action_open(self) -> None:
        """One consumer in full."""
        if (line := self.chosen) is not None:
            self.push_screen(Details(self.hg, line))

    def action_pause(self) -> None:
        """Pauses the consumer, or lets it go on."""
        if (line := self.chosen) is None:
            return
        what = "Resume" if line.info.paused else "Pause"

        def act() -> str:
            consumer = self.hg.stream(line.info.stream).consumer(line.info.name)
            (consumer.resume if line.info.paused else consumer.pause)()
            return f"{what}d {line.info.name}"

        self._ask(f"{what} {line.info.name} of {line.info.stream}?", act)

    def action_redrive(self) -> None:
        """Gives the dead letters of the consumer back to it."""
        line = self.chosen
        if line is None or not line.info.dead:
            self.say("it has no dead letters")
            return

        def act() -> str:
            consumer = self.hg.stream(line.info.stream).consumer(line.info.name)
            return f"{consumer.redrive(all=True):,} were redriven"

        self._ask(f"Redrive all {line.info.dead:,} dead letters of {line.info.name} of {line.info.stream}?", act)

    def _ask(self, question: str, act: Callable[[], str]) -> None:
        async def go(is_wanted: bool | None) -> None:
            if not is_wanted:
                return
            try:
                self.say(await asyncio.to_thread(act))
            except Error as error:
                self.say(error.message)
            await self.look()

        self.push_screen(Ask(question), go)


class Ask(ModalScreen[bool]):
    """A question before something is done."""

    BINDINGS: ClassVar[list[Any]] = [("y", "answer(True)", "Yes"), ("n,escape", "answer(False)", "No")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(f"{self._question}\n\ny  yes      n  no"))

    def action_answer(self, is_wanted: bool) -> None:
        """Answers it."""
        self.dismiss(is_wanted)


class Details(Screen[None]):
    """One consumer: what is parked, with reasons, and what is dead."""

    BINDINGS: ClassVar[list[Any]] = [("escape,q", "app.pop_screen", "Back")]

    def __init__(self, hg: Headgate, line: Line) -> None:
        super().__init__()
        self._hg = hg
        self._line = line

    def compose(self) -> ComposeResult:
        info = self._line.info
        yield Static(Text(f" {info.name} of {info.stream}   lag {info.lag:,}   {self._line.trouble.about}"))
        yield DataTable(cursor_type="row")
        yield Footer()

    async def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("STATE", "SEQ", "KEY", "ATTEMPTS", "ERROR")
        try:
            rows = await asyncio.to_thread(self._rows)
        except Error as error:
            rows = [(error.message, "", "", "", "")]
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))

    def _rows(self) -> list[tuple[str, ...]]:
        where = self._line.name
        held = self._hg.insights.peek(*where, 100, states=["parked", "delivered"])
        dead = self._hg.insights.dead_letters(*where, 100)
        return [
            *((m.reason or m.state, str(m.seq), m.key or "", str(m.attempt), m.last_error or "") for m in held),
            *(("dead", str(d.source_seq or d.seq), d.key or "", str(d.attempts), d.last_error or "") for d in dead),
        ]


def _cells(line: Line) -> list[Text]:
    info, word = line.info, line.trouble.word
    age = "" if line.age is None else f"{line.age:,.0f} s"
    figures = (f"{info.lag:,}", age, f"{info.rate:,.1f}", f"{info.in_flight:,}", f"{info.parked:,}", f"{info.dead:,}")
    return [
        Text(word, style=COLOURS.get(word, "green")), Text(info.stream), Text(info.name, style="bold"),
        *(Text(figure, justify="right") for figure in figures),
    ]  # fmt: skip
