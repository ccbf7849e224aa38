"""Tables that stay calm: columns of fixed width, the cursor on its row, and only what has changed is drawn anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable

from .cells import cell, fit

GAP = 1  # cells between two columns


@dataclass(frozen=True)
class Head:
    """A column. `share`: of the room that is left; a screen narrower than `wide` leaves it out."""

    title: str
    width: int
    is_right: bool = False
    share: int = 0
    wide: int = 0


@dataclass(frozen=True)
class GridRow:
    """A row, with the key that it is known by, and a cell for each column."""

    key: str
    cells: Sequence[Text | str]


class Grid(DataTable[Text]):
    """A table of rows that come anew every few seconds."""

    BINDINGS: ClassVar[list[Any]] = [Binding("enter", "select_cursor", "Open")]

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=0, **options)
        self._wanted: Sequence[Head] = ()
        self._rows: Sequence[GridRow] = ()
        self._drawn: list[list[Text]] = []
        self._keys: list[str] = []
        self._widths: list[int] = []  # 0: the column is left out

    def show(self, columns: Sequence[Head], rows: Sequence[GridRow]) -> None:
        """Shows these."""
        is_new = columns != self._wanted
        self._wanted, self._rows = columns, rows
        if is_new or not self._widths:
            self._lay_out()
        self._fill()

    def on_resize(self, event: Resize) -> None:
        self._lay_out()
        self._fill()

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def keys(self) -> list[str]:
        """The keys of its rows, from above."""
        return list(self._keys)

    def _lay_out(self) -> None:
        """Columns as wide as the screen lets them be. What is read on the way down stays where it is."""
        room = self.size.width - 2  # the scroll bar, and a margin
        shown = [c for c in self._wanted if not c.wide or self.app.size.width >= c.wide]
        left = max(0, room - sum(c.width + GAP for c in shown))
        shares = sum(c.share for c in shown)
        self._widths = [
            0 if c not in shown else c.width + (left * c.share // shares if shares else 0) for c in self._wanted
        ]
        self.clear(columns=True)
        self._keys, self._drawn = [], []
        for column, width in zip(self._wanted, self._widths, strict=True):
            if width:
                self.add_column(fit(Text(column.title), width, column.is_right), width=width + GAP)

    def _fill(self) -> None:
        drawn = [self._draw(row) for row in self._rows]
        keys = [row.key for row in self._rows]
        if keys == self._keys:
            for y, (old, new) in enumerate(zip(self._drawn, drawn, strict=True)):
                for x, (before, now) in enumerate(zip(old, new, strict=True)):
                    if before != now or before.style != now.style:
                        self.update_cell_at(Coordinate(y, x), now)
        else:
            self._put(keys, drawn)
        self._drawn = drawn

    def _put(self, keys: list[str], drawn: list[list[Text]]) -> None:
        chosen, at, top = self.chosen, self.cursor_row, self.scroll_y
        self.clear()
        self.add_rows(drawn)
        self._keys = keys
        if not keys:
            return
        if self.id == "flow" and not self.has_focus:  # the newest come first, and nobody has chosen one
            self.scroll_home(animate=False)
            return
        row = keys.index(chosen) if chosen in keys else min(at, len(keys) - 1)
        self.scroll_to(y=top, animate=False)
        self.move_cursor(row=row, animate=False)

    def _draw(self, row: GridRow) -> list[Text]:
        return [
            fit(cell(text), width, column.is_right)
            for text, width, column in zip(row.cells, self._widths, self._wanted, strict=True)
            if width
        ]
