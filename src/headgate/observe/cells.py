"""Cells of tables: text in colours, cut to their width."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from .figures import clean

COLOURS = {
    "lost": "red", "stuck": "red", "failing": "red", "behind": "yellow", "dead": "red", "paused": "yellow",
    "fine": "green",
}  # fmt: skip


def cell(text: object, style: str = "") -> Text:
    """A cell of a table, of whatever text."""
    return text if isinstance(text, Text) else Text(clean(text), style)


def fit(text: Text, width: int, is_right: bool = False) -> Text:
    """Just so wide: what is longer is cut, and says so."""
    if width <= 0:
        return Text()
    plain = text.plain
    if cell_len(plain) > width:
        plain = set_cell_size(plain, width - 1).rstrip() + "…"
    room = " " * (width - cell_len(plain))
    return Text(room + plain if is_right else plain + room, text.style)


def joined(parts: Iterable[tuple[str, str]]) -> Text:
    """Pieces with their styles, one after the other. Their text is ours or already clean."""
    return Text.assemble(*parts)
