"""Values as people read them, safe for a terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def printable(text: str) -> str:
    """Text that moves no cursor and changes no direction: what a producer sent must not do that, or worse."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def ago(value: datetime, now: datetime | None = None) -> str:
    """A time as people say it: 12s ago, in 3h."""
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if abs(seconds) >= 2 * size or unit == "s":
            break
    count = int(abs(seconds) / size)
    if not count:
        return "now"
    return f"{count}{unit} ago" if seconds > 0 else f"in {count}{unit}"


def length(value: timedelta) -> str:
    """A length of time as the options take it: 30s, 1.5h, 7d."""
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds * 10 % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def size(value: int | None) -> str:
    """Bytes as people read them."""
    if value is None:
        return "-"
    amount, unit = float(value), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, bigger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
