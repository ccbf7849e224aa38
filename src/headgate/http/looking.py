"""For people who look: everything in one answer, how it was, and what the caller may do."""

from __future__ import annotations

from typing import Any

from ..database import statements
from . import responses
from .request import Made, Request, call, given, look, path
from .responses import Row


@call(statements.HISTORY)
def _history(stream: str | None, consumer: str | None, since: str) -> Made:
    where = [] if stream is None else ["streams", stream, *([] if consumer is None else ["consumers", consumer])]
    return look(path(*where, "history"), _past, query={"minutes": int(since.partition(" ")[0])})


@call(statements.MAY_ACT)
def _may_act() -> Made:
    return look(path("me"), lambda data, next: [("admin" in data["scopes"],)])


def _past(data: Any, next: Any) -> list[Row]:
    names = ("at", "sent", "bytes", "delivered", "lag", "in_flight", "parked", "dead")
    return [tuple(each[name] for name in names) for each in data]


def overview(search: str, sort: str, limit: int, after: int = 0) -> Request:
    """Totals, streams and consumers, as one row: (totals, rows of streams, streams found, consumers found, consumers as
    (row, trouble, about, age), when that was)."""
    query = given(search=search[:200] or None, sort=sort, limit=limit, after=after or None)
    return Request("GET", path("overview"), _overview, query=query, is_safe=True)


def _overview(data: Any, next: Any) -> list[Row]:
    infos = responses.consumers([each["consumer"] for each in data["consumers"]], None)
    about = [(each["trouble"], each["about"], each["age"]) for each in data["consumers"]]
    consumers = [(info, *words) for info, words in zip(infos, about, strict=True)]
    streams = responses.STREAMS(data["streams"], None)
    return [(data["totals"], streams, data["streams_found"], data["consumers_found"], consumers, data["at"])]
