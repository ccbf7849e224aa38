"""Figures, times, sparklines and data as people read them. All text that others wrote goes through here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from ..readable import printable

BARS = "▁▂▃▄▅▆▇█"
LONGEST = 2_000  # characters of a value in a line that are looked at
LONGEST_DATA = 20_000  # of one message's data


def clean(text: object, longest: int = LONGEST) -> str:
    """Text of others, safe for the terminal and not endless."""
    whole = text if isinstance(text, str) else str(text)
    return printable(whole[:longest])


def count(number: float | None) -> str:
    """1,234; of millions 12.3M."""
    if number is None:
        return "-"
    if abs(number) >= 10_000_000:
        return f"{number / 1e6:,.1f}M"
    return f"{number:,.0f}"


def rate(number: float | None) -> str:
    """A second."""
    if not number:
        return "0"
    return f"{number:,.1f}" if number < 1000 else f"{number:,.0f}"


def seconds(number: float | timedelta | None) -> str:
    """A length of time in two or three figures: 12s, 3m, 2h, 5d."""
    if number is None:
        return ""
    left = number.total_seconds() if isinstance(number, timedelta) else number
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= 2 * size:
            return f"{left / size:,.0f}{unit}"
    return f"{max(0.0, left):.0f}s"


def since(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago."""
    return "" if moment is None else seconds(((now or datetime.now(UTC)) - moment).total_seconds())


def clock(moment: datetime | None) -> str:
    """The time of day here; with the date when it is not of today."""
    if moment is None:
        return ""
    here = moment.astimezone()
    return f"{here:%H:%M:%S}" if here.date() == datetime.now().astimezone().date() else f"{here:%Y-%m-%d %H:%M:%S}"


def sparkline(values: Sequence[float], width: int) -> str:
    """A sparkline of the last values."""
    shown = list(values)[-width:]
    highest = max(shown, default=0.0)
    if highest <= 0:
        return ("▁" * len(shown)).rjust(width)
    steps = len(BARS) - 1
    return "".join(BARS[round(max(0.0, v) / highest * steps)] for v in shown).rjust(width)


def payload(data: Any) -> str:
    """Data in a line."""
    if isinstance(data, (bytes, bytearray)):
        return f"{len(data):,} bytes: {bytes(data[:64]).hex(' ', 2)}"
    if isinstance(data, str):
        return data[:LONGEST]
    return json.dumps(data, ensure_ascii=False, default=_other, separators=(",", ":"))[:LONGEST]


def pretty(data: Any) -> list[str]:
    """Data in lines, each safe."""
    if isinstance(data, (bytes, bytearray)):
        head = bytes(data[:512])
        lines = [f"{len(data):,} bytes"]
        lines += [f"{n:04x}  {head[n : n + 16].hex(' ')}" for n in range(0, len(head), 16)]
        return [*lines, *(["…"] if len(data) > len(head) else [])]
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=_other, indent=2)
    lines = [printable(each) for each in text[:LONGEST_DATA].splitlines()]
    return [*lines, f"… {len(text):,} characters in all"] if len(text) > LONGEST_DATA else lines


def _other(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


def estimated(number: int, is_exact: bool) -> str:
    """A count, and whether it is one."""
    return count(number) if is_exact else f"~{count(number)}"
