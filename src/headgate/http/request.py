"""A request of the server, and the table in which each statement of the SDK finds its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from ..errors import InvalidArgument, InvalidName
from . import responses
from .responses import Row

MOST_LISTED = 1000  # rows of one list
USE_THE_DATABASE = "connect to the database itself for this: headgate.connect('postgresql://…')"


class Request(Struct, frozen=True):
    """A call of the server, and how its answer is read."""

    method: str
    path: str
    rows: Callable[[Any, Any], list[Row]] = responses.nothing  # of the answer's data, and its next
    answer: Any = Any  # the type of the data
    query: Mapping[str, Any] | None = None
    body: Any = None
    is_safe: bool = False  # to be repeated when it is not known whether it was done
    missing: tuple[str, tuple[Row, ...]] | None = None  # the code of an error that stands for these rows
    wait: float = 0.0  # seconds that the server may wait before it answers


Made = Request | list[Row]  # or the rows, if nothing needs to be asked for
Call = Callable[..., Made]
CALLS: dict[str, Call] = {}


def milliseconds(interval: str | None) -> int | None:
    """Of an interval as `encoding.interval` writes it."""
    return None if interval is None else round(float(interval.partition(" ")[0]) * 1000)


def path(*parts: str | int) -> str:
    """A path under /api."""
    if "" in parts:
        raise InvalidName("a name is empty", hint="give it a name")
    return "/".join(["/api", *(quote(str(part), safe="") for part in parts)])


def consumer_path(stream: str, consumer: str, *more: str | int) -> str:
    """A path of a consumer."""
    return path("streams", stream, "consumers", consumer, *more)


def call(query: str) -> Callable[[Call], Call]:
    """Makes the decorated function the one for a statement: it takes its parameters."""

    def add(function: Call) -> Call:
        CALLS[query] = function
        return function

    return add


def given(**values: Any) -> dict[str, Any]:
    """What is not None."""
    return {name: value for name, value in values.items() if value is not None}


def listing(limit: int | None, **more: Any) -> dict[str, Any]:
    """The query of a list of so many."""
    if limit is not None and limit > MOST_LISTED:
        raise InvalidArgument(
            f"a list of {limit} is not possible over HTTP",
            hint="ask for at most 1,000, and for the next ones after them",
        )
    return given(limit=limit, **more)


def look(
    path: str,
    rows: Callable[[Any, Any], list[Row]],
    answer: Any = Any,
    query: Mapping[str, Any] | None = None,
    missing: str | None = None,
) -> Request:
    """A call that only looks."""
    return Request("GET", path, rows, answer, query, is_safe=True, missing=(missing, ()) if missing else None)
