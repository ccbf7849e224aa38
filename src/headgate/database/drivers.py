"""Running a statement on a connection that the caller brings, whatever library it is of.

Every write of the SDK takes `conn=` and then joins the caller's transaction: psycopg, SQLAlchemy, Django and asyncpg
connections. Libraries are told apart by the names of classes, so that none but our own driver is imported here.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..errors import InvalidArgument
from .columns import Array, literals

Row = tuple[Any, ...]


class AutocommitWarning(UserWarning):
    """`conn=` got a connection without a transaction that a call could join."""


def database_name(url: str) -> str:
    """What a URL leads to, for people to read: of all that can be in it, nothing that could be a secret."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "a URL that cannot be read"
    user, host, port, name = (parts.get(part) for part in ("user", "host", "port", "dbname"))
    if "@" in str(host or "")[1:]:  # an @ of the password that was not written %40 (a leading one: an abstract socket)
        return "a URL that cannot be read"
    place = ",".join(f"[{h}]" if ":" in h else h for h in str(host or "").split(","))
    return f"postgresql://{f'{user}@' if user else ''}{place}{f':{port}' if port else ''}/{name or ''}"


def run_sync(conn: Any, query: str, params: Sequence[Any]) -> list[Row]:
    """Runs a statement on a psycopg, SQLAlchemy or Django connection and returns its rows."""
    library = _library(conn, _SYNC)
    _warn_of_autocommit(conn, library)
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
    _warn_of_autocommit(conn, library)
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


def _warn_of_autocommit(conn: Any, library: str | None) -> None:
    """A connection that is not in a transaction gives no transaction to join: the call commits by itself."""
    if library is not None and _is_autocommit(conn, library):
        warnings.warn(
            "conn= is in autocommit mode and in no transaction: this call commits by itself, whatever becomes of the "
            "rest. Begin a transaction, or leave conn= out.",
            AutocommitWarning,
            stacklevel=_caller(),
        )


def _is_autocommit(conn: Any, library: str) -> bool:
    if library == "psycopg":
        return bool(conn.autocommit) and conn.info.transaction_status == TransactionStatus.IDLE
    if library == "asyncpg":
        return not conn.is_closed() and not conn.is_in_transaction()
    if library == "django":
        return bool(conn.get_autocommit()) and not conn.in_atomic_block
    plain = getattr(conn, "sync_connection", None) or getattr(conn, "sync_session", conn)
    bound = plain.get_bind() if hasattr(plain, "get_bind") else plain
    level = bound.get_execution_options().get("isolation_level")
    return (level or getattr(bound.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _caller() -> int:
    """How far up the code is that called us, so that the warning points there."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "headgate":
        frame, level = frame.f_back, level + 1
    return level


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
