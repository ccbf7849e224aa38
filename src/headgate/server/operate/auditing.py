"""What the audit log says of an administrative call: which token, its scopes, the stream, and what was asked for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from ...aio import AsyncHeadgate
from ...database import statements
from ...database.columns import Array
from ...service import TaskService
from .auth import Caller

log = logging.getLogger("headgate.server")

FORGET_EVERY = 600.0  # seconds between looks for calls that are too old

MOST_DETAIL = 2000  # characters of JSON
MOST_LISTED = 20  # of a list
KEPT_QUIET = ("secret", "push", "headers", "url")  # secrets, or what may hold some


def details(body: Any, path: dict[str, str], noted: dict[str, Any]) -> str | None:
    """What a call asked for, as JSON: what its path names, the fields it gave, and what its handler noted."""
    found = {name: value for name, value in path.items() if name != "stream"} | _fields(body) | noted
    if not found:
        return None
    text = msgspec.json.encode(found).decode("utf-8", "replace").replace("\\u0000", "?")
    if len(text) > MOST_DETAIL:
        text = msgspec.json.encode({"cut_off": text[:MOST_DETAIL]}).decode().replace("\\u0000", "?")
    return text


def stream_of(body: Any, path: dict[str, str], route: str) -> str | None:
    """The stream that a call was about."""
    if "stream" in path:
        return path["stream"]
    name = getattr(body, "name" if route == "/api/streams" else "stream", None)
    return name if isinstance(name, str) else None


def note(
    caller: Caller, address: str | None, action: str, status: int, stream: str | None, about: str | None
) -> tuple[Any, ...]:
    """The parameters of statements.NOTE_AUDIT."""
    who, scopes = f"{caller.id} {caller.name}", Array(sorted(caller.scopes))
    return who, address, _clean(action), status, caller.id, scopes, stream and _clean(stream), about


class Forgetting(TaskService):
    """Removes notes that are too old, a part at a time. Any number of replicas may do it."""

    task_name = "headgate-audit"

    def __init__(self, hg: AsyncHeadgate, days: int) -> None:
        super().__init__()
        self._hg = hg
        self._days = days

    async def _run(self) -> None:
        while True:
            removed = 0
            try:
                [(removed,)] = await self._hg.run(statements.FORGET_AUDIT, (f"{self._days} days",))
            except Exception as error:  # the next round does it
                log.debug("old administrative calls were not removed: %s", error)
            await asyncio.sleep(1 if removed else FORGET_EVERY)


def _fields(body: Any) -> dict[str, Any]:
    if not isinstance(body, msgspec.Struct):
        return {}
    given = {f.name: getattr(body, f.name) for f in msgspec.structs.fields(body) if f.name not in KEPT_QUIET}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value is False or value is msgspec.UNSET:
            continue
        if isinstance(value, (str, int, float)):
            found[name] = _clean(value[:200]) if isinstance(value, str) else value
        elif isinstance(value, (list, tuple, set, frozenset)):
            listed = [v if isinstance(v, (int, float)) else _clean(str(v)[:200]) for v in list(value)[:MOST_LISTED]]
            found[name] = listed if len(value) <= MOST_LISTED else [*listed, f"and {len(value) - MOST_LISTED} more"]
    return found


def _clean(text: str) -> str:
    return text.replace("\x00", "\\0").encode("utf-8", "replace").decode()
