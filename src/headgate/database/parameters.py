"""What callers pass, checked and in the form in which statements take it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import DataNotSerializable, InvalidArgument, InvalidFilter, InvalidPosition
from ..hints import ZONE
from ..settings import Setting, Settings
from . import statements
from .columns import Array
from .encoding import as_int, dump_json, interval


def as_filter(filter: Any) -> Array | None:
    """One key filter or several."""
    if filter is None:
        return None
    if not isinstance(filter, (str, list, tuple)) or not all(isinstance(f, str) for f in filter):
        raise InvalidFilter(f"{filter!r} is not a key filter", hint="pass a str such as 'orders.>', or a list of them")
    return Array([filter] if isinstance(filter, str) else filter)


def as_moment(moment: Any) -> str | None:
    """A time. One without a zone is another moment in another place, and so it is refused."""
    if moment is None:
        return None
    try:
        read = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
        if read.utcoffset() is not None:
            return read.astimezone(UTC).isoformat()
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(
            f"{moment!r} is not a time", hint="pass a datetime, or a str such as 2026-01-31 12:00:00+00"
        ) from None
    raise InvalidArgument(f"the time {str(moment)!r} has no time zone", hint=ZONE)


def as_seconds(length: Any, what: str) -> float:
    """A length of time, in seconds."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if type(seconds) not in (int, float) or seconds != seconds:
        raise InvalidArgument(f"{what} {length!r} is not a length of time", hint="give seconds, or a timedelta")
    return float(seconds)


def as_delay(delay: Any, deliver_at: Any) -> str | None:
    """When a message is to be delivered: after a time, or at one, which the database's clock tells."""
    if deliver_at is None:
        return interval(delay)
    if delay is not None:
        raise InvalidArgument("a message has both delay and deliver_at", hint="give one of them")
    return f"{statements.AT}{as_moment(deliver_at)}"


def as_position(position: Any) -> str | None:
    """Where a consumer is to begin: "beginning", "end", a seq, or a time with a zone."""
    if position is None or position in ("beginning", "end"):
        return position  # type: ignore[no-any-return]
    if isinstance(position, int) and not isinstance(position, bool):
        return str(position)
    if isinstance(position, str) and position.isascii() and position.isdecimal():
        return position
    try:
        return as_moment(position)
    except InvalidArgument as error:
        if error.hint == ZONE:
            raise InvalidPosition(error.message, hint=ZONE) from None
        raise InvalidPosition(
            f'"{position}" is not a position in a stream',
            hint="say beginning, end, a seq, or a time such as 2026-01-31 12:00:00+00",
        ) from None


def as_backoff(backoff: Any) -> str | None:
    """How long a message that failed waits, as JSON."""
    try:
        return None if backoff is None else dump_json(backoff)
    except DataNotSerializable:
        raise InvalidArgument(
            f"backoff {backoff!r} is not possible",
            hint='give seconds (10), a list of seconds ([1, 10, 60]), or {"first": 1, "factor": 2, "max": 300, '
            '"jitter": 0.2}',
        ) from None


def as_seqs(seqs: Any) -> Array | None:
    """Sequence numbers."""
    if seqs is None:
        return None
    if isinstance(seqs, str) or not isinstance(seqs, Iterable):
        raise InvalidArgument(f"seqs {seqs!r} are not a list", hint="pass a list of int")
    seqs = list(seqs)
    if not all(isinstance(s, int) for s in seqs):
        raise InvalidArgument("seqs are not whole numbers", hint="pass a list of int")
    return Array(str(s) for s in seqs)


def as_settings(settings: Settings, given: Mapping[str, Any]) -> list[Any]:
    """The settings that are given, checked, in the order of the table; None for the others."""
    if unknown := [name for name in given if name not in settings]:
        raise TypeError(f"there is no setting {unknown[0]!r}: there are {', '.join(settings)}")
    return [_as_setting(name, row, given.get(name)) for name, row in settings.items()]


def _as_setting(name: str, row: Setting, value: Any) -> Any:
    match row.kind:
        case "length":
            return interval(value)
        case "count" | "bytes":
            return as_int(value, name, row.bits)
        case "filter":
            return as_filter(value)
        case "position":
            return as_position(value)
        case "backoff":
            return as_backoff(value)
        case "push":
            return None if value is None else dump_json(value)
        case _:
            return value
