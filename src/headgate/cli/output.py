"""What is printed: stdout is data, stderr is status."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import click

from ..readable import ago, length, printable, size

Row = Mapping[str, Any]

SIZES = {"max_storage"}  # numbers of bytes whose names do not say so


def print_data(data: Any) -> None:
    """Prints data: JSON, unless it is text or a number."""
    click.echo(data if isinstance(data, (str, int)) else json.dumps(as_json_value(data), indent=2, ensure_ascii=False))


def print_line(data: Any) -> None:
    """Prints data as one line of JSON."""
    click.echo(json.dumps(as_json_value(data), separators=(",", ":"), ensure_ascii=False))


def print_status(line: str) -> None:
    """Says something to whoever sits there."""
    click.echo(line, err=True)


def as_json_value(value: Any) -> Any:
    """What JSON can express: times as ISO 8601, lengths of time as seconds, bytes as base64."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: as_json_value(fact) for name, fact in as_record(value).items()}
    if isinstance(value, Mapping):
        return {k: as_json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_value(v) for v in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds == int(seconds) else seconds
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):  # a number of a message that no int or float holds
        return str(value)
    return value


def as_record(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass."""
    return {f.name: getattr(thing, f.name) for f in fields(thing)}


def print_table(rows: Iterable[Row], columns: Sequence[str], *, header: bool = True) -> None:
    """Prints rows in columns. On a terminal the last column is cut where the line ends."""
    cells = [[as_cell(row.get(c)) for c in columns] for row in rows]
    numbers = {i for i in range(len(columns)) if cells and all(_is_number(row.get(columns[i])) for row in rows)}
    lines = [[c.upper() for c in columns], *cells] if header else cells
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    limit = None
    if sys.stdout.isatty():
        import shutil

        limit = shutil.get_terminal_size().columns
    for line in lines:
        padded = [c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        click.echo("  ".join(padded).rstrip()[:limit])


def print_record(record: Row) -> None:
    """Prints one thing, a line for each of its facts."""
    width = max(map(len, record), default=0)
    for name, value in record.items():
        is_size = isinstance(value, int) and (name.endswith("bytes") or name in SIZES)
        click.echo(f"{name.ljust(width)}  {size(value) if is_size else as_cell(value)}")


def as_cell(value: Any) -> str:
    """A value as people read it, safe for a terminal: what a producer sent must not move the cursor or worse."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return f"{value.astimezone().isoformat(' ', 'seconds')} ({ago(value)})"
    if isinstance(value, timedelta):
        return length(value)
    text = value if isinstance(value, str) else json.dumps(as_json_value(value), ensure_ascii=False)
    if isinstance(value, bytes):
        text = as_json_value(value)
    return printable(text)


def about(count: int, exact: bool) -> str:
    """A count, and whether it is an estimate."""
    return str(count) if exact else f"~{count}"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
