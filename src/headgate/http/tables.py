"""Sources of tables: to make, look at, change and remove them."""

from __future__ import annotations

from typing import Any

from ..database import statements
from ..types import BackfillInfo, PostgresSourceInfo
from . import responses
from .request import Made, Request, call, given, look, path
from .responses import Row

_LISTED, _BACKFILLS = responses.listed(PostgresSourceInfo), responses.listed(BackfillInfo)


def _postgres(data: Any, next: Any) -> list[Row]:
    """As headgate.postgres_sources() has them; others are left out."""
    all_kinds = data if isinstance(data, list) else [data]
    own = ("name", "kind", "stream", "created_at")
    found = [{n: each[n] for n in own} | each["postgres"] for each in all_kinds if each["postgres"] is not None]
    return [row[:-1] for row in _LISTED(found, None)]  # (their kind is no column)


def _checks(data: Any, next: Any) -> list[Row]:
    return [(each["name"], each["is_ok"], each["found"], each["advice"]) for each in data]


@call(statements.POSTGRES_SOURCES)
def _sources(name: str | None, _: str | None) -> Made:
    there = path("sources") if name is None else path("sources", name)
    return look(there, _postgres, missing=None if name is None else "source_not_found")


@call(statements.SET_SOURCE_PAUSED)
def _pause(name: str, paused: bool) -> Made:
    return Request("POST", path("sources", name, "pause" if paused else "resume"), is_safe=True)


@call(statements.SOURCE_BACKFILLS)
def _backfills_of(name: str) -> Made:
    return look(path("sources", name, "backfill"), _BACKFILLS)


@call(statements.BACKFILL_SOURCE)
def _backfill(name: str, tables: Any, column: str | None, value: str | None, deletions: bool) -> Made:
    body = given(tables=tables, from_column=column, from_value=value, deletions=deletions)
    return Request("POST", path("sources", name, "backfill"), body=body, is_safe=True)


@call(statements.CANCEL_BACKFILL)
def _cancel(name: str, tables: Any) -> Made:
    return Request("DELETE", path("sources", name, "backfill"), body=given(tables=tables), is_safe=True)


@call(statements.ALTER_POSTGRES_SOURCE)
def _alter(name: str, *settings: Any) -> Made:
    """Of backfills alone: the rest is `alter`."""
    return Request("POST", path("sources", name, "backfill", "pause" if settings[-1] else "resume"), is_safe=True)


def check(**body: Any) -> Request:
    """Has the server look at a database."""
    return Request("POST", path("sources", "check"), _checks, body=given(**body), is_safe=True)


def add(**body: Any) -> Request:
    """Has the server make what it needs there."""
    return Request("POST", path("sources"), body={"kind": "postgres", **given(**body)})


def alter(name: str, **body: Any) -> Request:
    """Changes what is given."""
    return Request("PATCH", path("sources", name), body=given(**body), is_safe=True)


def restart(name: str, **body: Any) -> Request:
    """Reads it anew."""
    return Request("POST", path("sources", name, "restart"), body=given(**body))


def remove(name: str, *, forget: bool) -> Request:
    """Removes it."""
    return Request("DELETE", path("sources", name), query={"forget": "true"} if forget else None)
