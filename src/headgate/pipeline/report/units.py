"""How a report cuts time, and how it writes amounts, sizes and durations: each with its unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

NONE = "\u2013"  # where there is no value
MOST = 120  # bars in a plot
FEWEST = 12  # of a plot of little data: a bar that is as wide as the plot says nothing
ORIGIN = datetime(1970, 1, 5, tzinfo=UTC)  # a Monday: weeks begin here, and so does everything shorter

STEPS: tuple[tuple[timedelta, str, str, str], ...] = (  # what it is called, its beginning in words, its mark on an axis
    (timedelta(seconds=1), "second", "%d %b %Y %H:%M:%S", "%H:%M:%S"),
    (timedelta(seconds=10), "10 seconds", "%d %b %Y %H:%M:%S", "%H:%M:%S"),
    (timedelta(minutes=1), "minute", "%d %b %Y %H:%M", "%H:%M"),
    (timedelta(minutes=5), "5 minutes", "%d %b %Y %H:%M", "%H:%M"),
    (timedelta(minutes=15), "15 minutes", "%d %b %Y %H:%M", "%d %b %H:%M"),
    (timedelta(hours=1), "hour", "%d %b %Y %H:%M", "%d %b %H:%M"),
    (timedelta(hours=6), "6 hours", "%d %b %Y %H:%M", "%d %b"),
    (timedelta(days=1), "day", "%d %b %Y", "%d %b"),
    (timedelta(days=7), "week", "week of %d %b %Y", "%b %Y"),
    (timedelta(days=28), "4 weeks", "4 weeks from %d %b %Y", "%b %Y"),
)


@dataclass(frozen=True)
class Buckets:
    """The parts into which the time of a report is cut: the same for all streams, so that they compare."""

    first: datetime
    count: int
    step: timedelta
    called: str
    words: str
    axis_format: str

    @property
    def starts(self) -> list[datetime]:
        """Where each begins."""
        return [self.first + n * self.step for n in range(self.count)]

    def start_of(self, at: datetime) -> datetime:
        """The beginning of the one that a time is in."""
        return ORIGIN + (at - ORIGIN) // self.step * self.step


def buckets(first: datetime, last: datetime) -> Buckets:
    """Buckets of a width that shows something: some dozens of them, whether the time is a minute or a year."""
    for step, called, words, axis_format in STEPS:
        chosen = Buckets(ORIGIN + (first - ORIGIN) // step * step, 0, step, called, words, axis_format)
        count = (last - chosen.first) // step + 1
        if count <= MOST:
            break
    return Buckets(
        chosen.first - max(FEWEST - count, 0) * step, max(count, FEWEST), step, called, words, axis_format
    )  # fmt: skip


def amount(value: float) -> str:
    """A number as people read it."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return _digits(value / size) + sign
    return _digits(value)


def size(value: float) -> str:
    """Bytes."""
    for large, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= large * 0.9995:
            return f"{_digits(value / large)} {unit}"
    return f"{_digits(value)} B"


def duration(seconds: float) -> str:
    """A time that something took."""
    for large, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= large * 0.9995:
            return f"{_digits(seconds / large)} {unit}"
    return f"{_digits(seconds * 1e6)} µs" if seconds else "0 s"


def rate(per_second: float) -> str:
    """Messages in a time in which there are some."""
    if not per_second:
        return NONE
    for times, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_second * times >= 1:
            return f"{amount(per_second * times)}/{unit}"
    return f"{amount(per_second * 86400)}/d"


def each(write: Callable[[float], str], values: Iterable[float] | None) -> str:
    """Several values in one cell."""
    return NONE if values is None else " / ".join(write(value) for value in values)


def _digits(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")
