"""Values as they are written on the command line. The names of these functions are what the usage lines say."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import click

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def time(value: Any) -> timedelta:
    """A length of time: 30s, 500ms, 1.5h, 7d. With a unit: who writes 7 may mean days, and would lose a week."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(r"([0-9]{1,10}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|w)?", str(value).strip())
    if match and not match[2] and float(match[1]):
        raise click.BadParameter(f"{value!r} has no unit; write {match[1]}s, {match[1]}m, {match[1]}h or {match[1]}d")
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else -1
    if not 0 <= seconds <= 1e9:
        raise click.BadParameter(f"{value!r} is not a length of time; write 30s, 500ms, 5m, 2h or 7d")
    return timedelta(seconds=seconds)


def moment(value: Any) -> datetime:
    """A time: 2026-01-31 12:00, 2026-01-31T12:00:00+01:00; local, when no zone is given."""
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value).strip()).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a time; write for example 2026-01-31T12:00:00+00:00") from None


def position(value: Any) -> str:
    """A place in a stream: beginning, end, a seq, or a time; local, when no zone is given."""
    text = str(value).strip()
    if text in ("beginning", "end") or text.isdecimal():
        return text
    try:
        return moment(text).isoformat()
    except click.BadParameter:
        raise click.BadParameter(
            f"{value!r} is not a position in a stream; say beginning, end, a seq, or a time such as 2026-01-31T12:00Z"
        ) from None


def size(value: Any) -> int:
    """A number of bytes: 1000000, 512M, 10GB (powers of 1024)."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    if not match:
        raise click.BadParameter(f"{value!r} is not a number of bytes; write 1000000, 512MB or 10GB")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * 1024 ** _POWERS[match[2]])


def headers(value: Any) -> Any:
    """A message's headers."""
    return _json(value, (dict,), '\'{"trace": "abc"}\'')


def header(value: Any) -> tuple[str, str]:
    """A header to send along: NAME: VALUE."""
    name, colon, text = str(value).partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{value!r} is not a header; write for example 'X-Api-Key: abc'")
    return name.strip(), text.strip()


def backoff(value: Any) -> Any:
    """How long a failed message waits: 30s, 1s,10s,1m, seconds as JSON, a list of them, or an object."""
    if re.fullmatch(r"[0-9.]+\s*[a-z]+(,\s*[0-9.]+\s*[a-z]+)*", str(value)):
        waits = [time(part).total_seconds() for part in str(value).split(",")]
        return waits if len(waits) > 1 else waits[0]
    return _json(value, (int, float, list, dict), '10s, 1s,10s,1m, [1,10,60] or \'{"first":1,"factor":2,"max":300}\'')


def _json(value: Any, kinds: tuple[type, ...], example: str) -> Any:
    try:
        found = json.loads(str(value))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kinds) or isinstance(found, bool):
        raise click.BadParameter(f"{value!r} is not possible; write for example {example}")
    return found
