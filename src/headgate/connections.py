"""Running a statement on a connection that the caller brings, whatever library it is of.

Every write of the SDK takes `conn=` and then joins the caller's transaction: psycopg, SQLAlchemy, Django and asyncpg
connections. Libraries are told apart by the names of classes, so that none but our own driver is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from psycopg.rows import tuple_row

from .encoding import array_literal
from .errors import InvalidArgument

Row = tuple[Any, ...]


class Array(list[Any]):
    """A parameter that stands for a text[]."""


def literals(params: Sequence[Any]) -> list[Any]:
    """Parameters for drivers that take an array as text and leave its type to the server."""
    return [array_literal(p) if isinstance(p, Array) else p for p in params]


def run_sync(conn: Any, query: str, params: Sequence[Any]) -> list[Row]:
    """Runs a statement on a psycopg, SQLAlchemy or Django connection and returns its rows."""
    library = _library(conn, _SYNC)
    if library == "psycopg":
        with conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(query, literals(params))
            return [] if _is_bare(cursor) else cursor.fetchall()
    if library == "sqlalchemy":
        text, named = _for_sqlalchemy(conn, query, params)
        result = conn.execute(text, named)
        return list(result.fetchall()) if result.returns_rows else []
    if library == "django":
        with conn.cursor() as cursor:
            cursor.execute(query, literals(params))
            return [] if cursor.description is None else cursor.fetchall()
    raise _unknown(conn, "a psycopg.Connection, a SQLAlchemy Connection or Session, or a Django connection")


async def run_async(conn: Any, query: str, params: Sequence[Any]) -> list[Row]:
    """Runs a statement on a psycopg, SQLAlchemy or asyncpg async connection and returns its rows."""
    library = _library(conn, _ASYNC)
    if library == "psycopg":
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query, literals(params))
            return [] if _is_bare(cursor) else await cursor.fetchall()
    if library == "sqlalchemy":
        text, named = _for_sqlalchemy(conn, query, params)
        result = await conn.execute(text, named)
        return list(result.fetchall()) if result.returns_rows else []
    if library == "asyncpg":
        numbers = iter(range(1, len(params) + 1))
        numbered = re.sub("%s", lambda _: f"${next(numbers)}", query)
        return [
            tuple(row) for row in await conn.fetch(numbered, *(list(p) if isinstance(p, Array) else p for p in params))
        ]
    raise _unknown(
        conn, "a psycopg.AsyncConnection, a SQLAlchemy AsyncConnection or AsyncSession, or an asyncpg Connection"
    )


def _is_bare(cursor: Any) -> bool:
    """Whether a statement had no result, of which rows could be fetched. In pipeline mode that is not known yet."""
    return cursor.pgresult is not None and cursor.description is None


# Telling sync from async before anything runs: a statement on the wrong kind would have run already when `await` fails.
_SYNC = {
    "psycopg": {"Connection"},
    "sqlalchemy": {"Connection", "Session", "scoped_session"},
    "django": {"BaseDatabaseWrapper", "ConnectionProxy"},
}
_ASYNC = {
    "psycopg": {"AsyncConnection"},
    "sqlalchemy": {"AsyncConnection", "AsyncSession", "async_scoped_session"},
    "asyncpg": {"Connection", "PoolConnectionProxy"},
}


def _library(conn: Any, known: dict[str, set[str]]) -> str | None:
    for cls in type(conn).__mro__:
        library = cls.__module__.partition(".")[0]
        if cls.__name__ in known.get(library, ()):
            return library
    return None


def _for_sqlalchemy(conn: Any, query: str, params: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    dialect = conn.get_bind().dialect if hasattr(conn, "get_bind") else conn.dialect
    values = list(params) if dialect.driver == "asyncpg" else literals(params)
    names = iter(range(len(values)))
    # `::` would be read as a parameter: write the casts out
    written = re.sub(r"%s((?:::[a-z]+(?:\[\])?)+)", lambda m: _cast("%s", m.group(1)), query)
    written = re.sub("%s", lambda _: f":p{next(names)}", written)
    return text(written), {f"p{i}": list(v) if isinstance(v, Array) else v for i, v in enumerate(values)}


def _cast(value: str, casts: str) -> str:
    for kind in casts.strip(":").split("::"):
        value = f"cast({value} as {kind})"
    return value


def _unknown(conn: Any, wanted: str) -> InvalidArgument:
    return InvalidArgument(
        f"cannot join the transaction of a {type(conn).__module__}.{type(conn).__qualname__}", hint=f"pass {wanted}"
    )
