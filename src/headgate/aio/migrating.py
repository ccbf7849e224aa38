"""Installing and upgrading the schema: in short attempts, so that nobody is held up by one that has to wait."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import AsyncConnection

from ..database import schema
from ..errors import Conflict, NotAllowed, SchemaMissing, from_database

log = logging.getLogger("headgate.migrate")

WAIT = 60.0  # seconds for which a migration waits for those in its way

# Isolation: whatever the database's default, what another migration has just committed is to be seen.
_BEGIN = (
    "set transaction isolation level read committed; "
    "select set_config('headgate.migrate_wait', '0s', true), set_config('statement_timeout', '0', true)"
)


async def migrate(
    conn: AsyncConnection[tuple[Any, ...]], wait: float = WAIT, tell: Callable[[str], None] | None = None
) -> int:
    """Brings the database of `conn` (autocommit) to this code's schema; answers the migration that it is at.

    Each attempt is one transaction. One that finds somebody in its way ends at once and is made again, up to `wait`
    seconds; `tell` is told who it is. What a newer release has installed stays as it is.
    """
    tell = tell or log.warning
    until = time.monotonic() + wait
    said: set[str] = set()
    while True:
        try:
            there = await installed(conn)
            if not schema.is_older(there) and not (there.migration and await _lacks_rights(conn)):
                break
            if schema.is_newer(there):
                break
            async with conn.transaction():
                await conn.execute(_BEGIN)
                await conn.execute(schema.install_sql(there.migration).encode())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            reason = error.diag.message_primary or str(error)
            if error.diag.source_function != "exec_stmt_raise":  # some table was not to be had in time
                who = "; ".join((await in_the_way(conn))[:5]) or "calls that are under way"
                reason = f"the schema cannot be upgraded now: in the way is {who}"
            if time.monotonic() >= until:
                raise Conflict(
                    reason, hint="commit, roll back or end that transaction, or wait longer: `headgate migrate --wait`"
                ) from error
            if (kind := reason.partition(" (session")[0]) not in said:  # which session migrates is no news
                tell(f"{reason}; waiting up to {max(0, round(until - time.monotonic()))} s")
                said.add(kind)
            await asyncio.sleep(0.1 + random.random() * 0.2)
        except psycopg.Error as error:
            ours = from_database(error)
            if isinstance(ours, NotAllowed):
                ours.hint = (
                    "migrate as the owner of the schema headgate, "
                    "or, the first time, as a role with CREATE on the database"
                )
            raise ours or error from error
        else:
            break
    if schema.is_newer(there):
        tell(
            f"the database has a newer schema (migration {there.migration}, functions {there.functions}) than this "
            f"code (migration {schema.newest_migration()}, functions {schema.functions_version()}): it stays as it is"
        )
    return max(there.migration, schema.newest_migration())


async def installed(conn: AsyncConnection[tuple[Any, ...]]) -> schema.Installed:
    """What the database has."""
    try:
        async with conn.transaction():
            row = await (await conn.execute(schema.INSTALLED)).fetchone()
    except psycopg.Error as error:
        ours = from_database(error)
        if isinstance(ours, SchemaMissing):
            return schema.Installed(0, None, 0)
        if isinstance(ours, NotAllowed):
            raise NotAllowed(
                "this database role may not use Headgate",
                hint="grant it headgate_owner, headgate_producer, headgate_consumer or headgate_monitor",
            ) from error
        raise ours or error from error
    return schema.Installed(*row) if row else schema.Installed(0, None, 0)


async def _lacks_rights(conn: AsyncConnection[tuple[Any, ...]]) -> bool:
    row = await (await conn.execute(schema.UNGRANTED)).fetchone()
    return bool(row and row[0])


async def in_the_way(conn: AsyncConnection[tuple[Any, ...]], between: float = 0.05) -> list[str]:
    """Those who have a transaction open in which they have used Headgate's tables or views, seen twice."""
    looks = []
    for pause in (between, 0.0):
        rows = await (await conn.execute(schema.in_the_way().encode())).fetchall()
        looks.append({tid: str(who) for tid, _, who in rows})
        await asyncio.sleep(pause)
    first, then = looks
    return sorted({who for tid, who in then.items() if tid in first})
