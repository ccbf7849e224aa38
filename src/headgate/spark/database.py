"""Connections of Spark's processes: our own for control, ADBC's for rows, each kept for the life of the process."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from adbc_driver_postgresql import StatementOptions, dbapi

from ..database.columns import Array
from ..errors import Error
from ..lake.secrets import Secret, plain
from ..sync import Headgate

BATCH_BYTES = 8 * 1024 * 1024  # of rows in one Arrow batch: what a task holds at once does not grow with its range

# What is read comes from an index in its order: a sort would hold everything before the first row.
IN_ORDER = ("enable_sort", "enable_seqscan", "enable_bitmapscan")


@functools.lru_cache(maxsize=8)
def control(url: Secret) -> Headgate:
    """The database, for everything but rows."""
    return Headgate(plain(url), max_connections=2).open()


def ask(url: Secret, query: str, params: Sequence[Any]) -> Any:
    """The one value that a query gives. A database that was away is tried again once."""
    try:
        rows = control(url).run(query, params)
    except Error:
        control.cache_clear()
        raise
    return rows[0][0]


def names(values: Sequence[str] | None) -> Array | None:
    """A text[] parameter."""
    return Array(values) if values is not None else None


_connections: dict[str, dbapi.Connection] = {}


@contextlib.contextmanager
def rows(url: Secret) -> Iterator[dbapi.Cursor]:
    """A cursor for rows as Arrow. Connecting takes a while: once in a process, and again after an error."""
    connection = _connections.get(url)
    if connection is not None and not _works(connection):
        with contextlib.suppress(Exception):
            connection.close()
        connection = None
    if connection is None:
        connection = _connections[url] = dbapi.connect(plain(url), autocommit=True)
        with connection.cursor() as cursor:
            for setting in IN_ORDER:
                cursor.execute(f"set {setting} = off")
    cursor = connection.cursor()
    try:
        yield cursor
    except BaseException:
        _connections.pop(url, None)
        with contextlib.suppress(Exception):
            cursor.close()
            connection.close()
        raise
    cursor.close()


def batches(url: Secret, query: str) -> Iterator[pa.RecordBatch]:
    """The rows of a query."""
    with rows(url) as cursor:
        cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
        cursor.execute(query)
        yield from cursor.fetch_record_batch()


def _works(connection: dbapi.Connection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
            cursor.fetchall()
    except dbapi.Error:
        return False
    return True
