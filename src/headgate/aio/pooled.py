"""A connection of the SDK's pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, AsyncCursor

from ..connections import Row

_KEPT = 64 * 1024  # characters: a kept cursor keeps its last parameters and result, which must not be large


class AsyncPooledConnection(AsyncConnection[Row]):
    """A connection that keeps a cursor between statements: making one costs as much as a small statement."""

    _kept: AsyncCursor[Row] | None = None

    async def rows(self, query: str, params: Sequence[Any], *, prepare: bool | None, binary: bool) -> list[Row]:
        """Runs a statement and returns its rows."""
        cursor = self._kept or self.cursor()
        self._kept = None
        await cursor.execute(query, params, prepare=prepare, binary=binary)
        rows = [] if cursor.description is None else await cursor.fetchall()  # None: a statement without a result
        if _are_short(params) and len(rows) <= 100 and (not rows or _are_short(rows[0])):
            self._kept = cursor
        return rows


def _are_short(values: Sequence[Any]) -> bool:
    return all(len(v) <= _KEPT for v in values if type(v) is str)
