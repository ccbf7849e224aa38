"""What there is to see of a source at its server: its slot, its publication, its tables. And what that means."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection

from ..errors import SourceBlocked
from .troubles import READ_ANEW, Failing
from .wire import lsn_number, lsn_text

_LOOK = """
select pg_is_in_recovery(),
       case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end::text,
       s.wal_status::text, s.active_pid, a.application_name, s.confirmed_flush_lsn::text,
       (select c.system_identifier::text from pg_control_system() c),
       (case when pg_is_in_recovery() then null else pg_current_wal_lsn() - s.restart_lsn end)::int8,
       (select p.oid::int8 from pg_catalog.pg_publication p where p.pubname = %s)
  from (select) one
  left join pg_catalog.pg_replication_slots s on s.slot_name = %s and s.database = current_database()
  left join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
"""

# Tables that are read no more, and tables whose updates and deletes PostgreSQL refuses because they are.
_TABLES = """
with published as (
  select format('%%I.%%I', p.schemaname, p.tablename) as name from pg_publication_tables p where p.pubname = %s)
select t, case when to_regclass(t) is null then 'is gone, or has another name now'
               else 'is not in the publication any more' end
  from unnest(%s::text[]) t where t not in (select name from published)
union all
select format('%%I.%%I', n.nspname, c.relname),
       'has no replica identity any more, so PostgreSQL refuses the application''s updates and deletes of it'
  from published p, lateral (
    select relid from pg_partition_tree(p.name::regclass) where isleaf
    union select p.name::regclass where not exists (select from pg_partition_tree(p.name::regclass))) t
  join pg_catalog.pg_class c on c.oid = t.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relreplident <> 'f' and not exists (
   select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indimmediate
      and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end)
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server says of a source."""

    is_standby: bool
    wal_end: int
    wal_status: str | None  # None: there is no slot
    pid: int | None  # of who reads it
    application: str | None
    confirmed: int
    system_identifier: str
    retained: int | None  # bytes of WAL that the slot keeps
    publication_oid: int | None


async def look(source: AsyncConnection[Any], publication: str, slot: str) -> Seen:
    """Looks at the slot and the publication of a source."""
    row = await (await source.execute(_LOOK, (publication, slot))).fetchone()
    assert row is not None
    is_standby, end, status, pid, application, confirmed, system, retained, oid = row
    return Seen(
        is_standby, lsn_number(end or "0/0"), status, pid, application, lsn_number(confirmed or "0/0"), system,
        retained, oid,
    )  # fmt: skip


async def problems(source: AsyncConnection[Any], publication: str, tables: Sequence[str]) -> list[str]:
    """What is wrong with tables of a source, while the others are read."""
    found = await (await source.execute(_TABLES, (publication, list(tables)))).fetchall()
    return [f"{table} {what}" for table, what in found]


def refuse_lost(seen: Seen, publication: str, slot: str, read: int, known_publication: int | None) -> None:
    """SourceBlocked when what follows `read` in the WAL is not all there, or will not all be sent."""
    if seen.wal_status is None or seen.wal_status == "lost":
        gone = "is gone" if seen.wal_status is None else "was cut off by the server (max_slot_wal_keep_size)"
        raise SourceBlocked(
            f'the replication slot "{slot}" {gone}: changes since {lsn_text(read)} may be missing', hint=READ_ANEW
        )
    if seen.publication_oid is None or known_publication not in (None, seen.publication_oid):
        what = "is gone" if seen.publication_oid is None else "was dropped and made anew"
        # (One that is made anew does not help: what was written before it is decoded by the catalogs of that time.)
        raise SourceBlocked(
            f'the publication "{publication}" {what}: changes since {lsn_text(read)} may be missing', hint=READ_ANEW
        )


def refuse_other(seen: Seen, system_identifier: str, slot: str, read: int) -> None:
    """SourceBlocked when a server is not the one that was read up to `read`."""
    if seen.system_identifier != system_identifier:
        raise SourceBlocked(
            "the source's URL leads to another server than the one that was read",
            hint="put the right one back (headgate source edit NAME --url …), or " + READ_ANEW,
        )
    if seen.is_standby:
        raise Failing(
            "the source's URL leads to a standby, and only a primary is read",
            "give the primary's: headgate source edit NAME --url …",
        )
    if seen.wal_end < read:
        raise SourceBlocked(
            f"the server's WAL ends at {lsn_text(seen.wal_end)}, before what was read already ({lsn_text(read)})",
            hint="a standby that was behind may have been promoted: " + READ_ANEW,
        )
    if seen.confirmed > read:
        raise SourceBlocked(
            f'the slot "{slot}" is at {lsn_text(seen.confirmed)}, ahead of what is in the stream ({lsn_text(read)})',
            hint="the stream's database may have been restored, or somebody else read the slot: " + READ_ANEW,
        )


def too_much(seen_bytes: int, limit: int) -> SourceBlocked:
    """That a slot is dropped for what it keeps."""
    return SourceBlocked(
        f"the replication slot kept {seen_bytes:,} bytes of WAL, more than the limit of {limit:,}, and was dropped, so "
        "that the disk of its database does not fill: changes are missing",
        hint=READ_ANEW,
    )


async def drop_slot(source: AsyncConnection[Any], slot: str) -> None:
    """Drops a slot, whoever reads it."""
    for _ in range(100):
        query = "select active_pid from pg_replication_slots where slot_name = %s and database = current_database()"
        row = await (await source.execute(query, (slot,))).fetchone()
        if row is None:
            return
        with suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            if row[0] is not None:
                await source.execute("select pg_terminate_backend(%s)", (row[0],))
                await asyncio.sleep(0.05)
            await source.execute("select pg_drop_replication_slot(%s)", (slot,))
