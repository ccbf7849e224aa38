"""Reads one source: from its slot into its stream, each change once.

Four tasks. One reads frames and makes batches of them; one sends the batches, and notes in the same transaction how far
that is; one says that this reader still is the one, and moves an idle source on; one reads rows for backfills. Between
the first two is a bounded buffer, and a transaction that is larger than a batch is sent as it comes, in a transaction
that stays open: so nothing grows with it here. The source is told that something is kept only once that is committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection

from ..database import statements
from ..database.encoding import array_literal
from ..errors import SourceBlocked, SourceTaken, from_database
from . import catalog
from .assembling import Assembler, Batch
from .backfill import Backfill
from .buffer import Buffer
from .changes import Table
from .feed import Feed, connect
from .pgoutput import Relation
from .values import Type
from .wire import Keepalive, lsn_number, lsn_text

LEASE = 6.0  # seconds for which a reader is the one, unless it says that it still is
KEEP_EVERY = 1.5  # seconds

_LOOK = """
select pg_current_wal_lsn()::text, s.wal_status, s.active_pid, s.confirmed_flush_lsn::text, c.system_identifier::text
  from (select system_identifier from pg_control_system()) c
  left join pg_catalog.pg_replication_slots s on s.slot_name = %s
"""


@dataclass(frozen=True)
class Reading:
    """What a reader needs to know of its source."""

    name: str
    reader: str
    version: int
    stream: str
    url: str = field(repr=False)
    publication: str
    slot: str
    system_identifier: str
    lsn: int


async def take(conn: AsyncConnection[Any], name: str, reader: str) -> Reading | None:
    """Becomes the reader of a source; None while another is."""
    row = await (await conn.execute(statements.TAKE_SOURCE, (name, reader, f"{LEASE} s"))).fetchone()
    if row is None:
        return None
    version, stream, url, publication, slot, system_identifier, lsn = row
    return Reading(name, reader, version, stream, url, publication, slot, system_identifier, lsn_number(lsn))


class Reader:
    """Reads a source until it is cancelled, or cannot: then it raises."""

    def __init__(self, reading: Reading, target_url: str, *, pooler: bool = False) -> None:
        self.reading = reading
        self._target_url = target_url
        self._pooler = pooler
        self._backfill = Backfill(reading.name, reading.publication)
        self._assembler = Assembler(reading.lsn, self._changed)
        self._buffer = Buffer()
        self._written = reading.lsn  # everything up to here is in the stream, or was nothing
        self._wal_end: int | None = None
        self.sent = 0

    async def run(self) -> None:
        """Reads. Raises SourceTaken when another reader is the one now, SourceBlocked when it cannot go on."""
        async with (
            await self._connect(autocommit=False) as target,
            await self._connect(autocommit=True) as keeping,
            await connect(self.reading.url) as source,
        ):
            await self._look(source, may_end=True)
            feed = await self._open()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._read(feed, source))
                    tasks.create_task(self._write(feed, target))
                    tasks.create_task(self._keep(feed, keeping))
                    tasks.create_task(self._fill())
            except ExceptionGroup as group:
                raise _cause(group) from None
            finally:
                await feed.close()

    async def _connect(self, *, autocommit: bool) -> AsyncConnection[Any]:
        return await AsyncConnection.connect(
            self._target_url, autocommit=autocommit, application_name="headgate source", connect_timeout=10,
            prepare_threshold=None if self._pooler else 5,
        )  # fmt: skip

    async def _look(self, source: AsyncConnection[Any], *, may_end: bool = False) -> None:
        """Sees that the slot is there and on the same server, and how far its WAL is."""
        row = await (await source.execute(_LOOK, (self.reading.slot,))).fetchone()
        assert row is not None
        wal_end, status, pid, confirmed, system = row
        self._wal_end = lsn_number(wal_end)
        r = self.reading
        if system != r.system_identifier:
            raise SourceBlocked(
                "the source's URL leads to another server than the one that was read",
                hint="put the right one back, or remove the source and add it anew with a backfill",
            )
        if status is None or status == "lost":
            gone = "is gone" if status is None else "was cut off by the server (max_slot_wal_keep_size)"
            raise SourceBlocked(
                f'the replication slot "{r.slot}" {gone}: changes since {lsn_text(r.lsn)} may be missing',
                hint="remove the source and add it anew with a backfill",
            )
        if self._wal_end < r.lsn:
            raise SourceBlocked(
                f"the server's WAL ends at {wal_end}, before what was read already ({lsn_text(r.lsn)})",
                hint="a standby that was behind may have been promoted: remove the source and add it anew",
            )
        if lsn_number(confirmed) > r.lsn:
            raise SourceBlocked(
                f'the slot "{r.slot}" is at {confirmed}, ahead of what is in the stream ({lsn_text(r.lsn)})',
                hint="the stream's database may have been restored, or somebody else read the slot: remove the source "
                "and add it anew with a backfill",
            )
        if pid is not None and may_end:  # a reader before us that does not know yet, or whose end was not noticed
            await source.execute("select pg_terminate_backend(%s)", (pid,))

    async def _open(self) -> Feed:
        r = self.reading
        for left in range(50, -1, -1):
            try:
                return await Feed.open(r.url, r.slot, r.publication, r.lsn)
            except psycopg.errors.ObjectInUse:  # the one that was ended is not quite gone
                if not left:
                    raise
                await asyncio.sleep(0.1)
        raise AssertionError

    async def _read(self, feed: Feed, source: AsyncConnection[Any]) -> None:
        assembler = self._assembler
        while True:
            for frame in await feed.read():
                found = assembler.push(frame)
                if isinstance(found, Relation):
                    assembler.learn(await self._table(source, found))
                elif isinstance(found, Keepalive):
                    feed.answer(found)
                self._backfill.offer(assembler)
                if assembler.is_full:
                    await self._buffer.put(assembler.take())
            if assembler.is_between and (assembler.is_filled or assembler.end > self._written):
                await self._buffer.put(assembler.take())
            await asyncio.sleep(0)  # others run in this process too

    def _changed(self, xid: int, key: str, table: str, is_whole: bool) -> None:
        if self._backfill.is_tracking:
            self._backfill.recent.note(xid, key, table, is_whole=is_whole)

    async def _fill(self) -> None:
        async with await connect(self.reading.url) as source, await self._connect(autocommit=True) as target:
            await self._backfill.run(source, target)

    async def _table(self, source: AsyncConnection[Any], relation: Relation) -> Table:
        types: dict[int, Type] = {}  # anew for each: they may have been altered
        await catalog.load_types(source, [c.type for c in relation.columns], types)
        key = await catalog.load_primary_key(source, relation) if relation.identity == "f" else None
        return Table.of(relation, types, key)

    async def _write(self, feed: Feed, target: AsyncConnection[Any]) -> None:
        r, count, is_dirty = self.reading, 0, False
        while True:
            batch = await self._buffer.take()
            if batch:
                await self._send(target, batch)
                count += len(batch)
            for note in batch.notes:
                await target.execute(statements.NOTE_BACKFILL, note)
            is_dirty = is_dirty or bool(batch or batch.notes)
            if batch.end is None:  # more of its transaction is to come
                continue
            if is_dirty:
                progress = (r.name, r.reader, lsn_text(batch.end), batch.committed_at, count)
                await target.execute(statements.NOTE_SOURCE_PROGRESS, progress)
                await target.commit()
                feed.confirm(batch.end)
            self.sent, count, is_dirty = self.sent + count, 0, False
            self._written = max(self._written, batch.end)

    async def _send(self, target: AsyncConnection[Any], batch: Batch) -> None:
        keys, datas = array_literal(list(batch.keys)), array_literal(list(batch.datas))
        await target.execute(statements.SEND_CHANGES, (self.reading.stream, datas, keys))

    async def _keep(self, feed: Feed, keeping: AsyncConnection[Any]) -> None:
        r = self.reading
        async with await connect(r.url) as source:
            while True:
                written = self._written
                idle = self._buffer.is_empty and self._assembler.end <= written
                await self._look_again(source)
                end = None if self._wal_end is None else lsn_text(self._wal_end)
                params = (r.name, r.reader, f"{LEASE} s", lsn_text(written), end, idle)
                [(is_ours,)] = await (await keeping.execute(statements.KEEP_SOURCE, params)).fetchall()
                if not is_ours:
                    raise SourceTaken(f'source "{r.name}" is read by another process now', hint="it goes on there")
                feed.confirm(written)
                await asyncio.sleep(KEEP_EVERY)

    async def _look_again(self, source: AsyncConnection[Any]) -> None:
        row = await (await source.execute("select pg_current_wal_lsn()::text")).fetchone()
        assert row is not None
        self._wal_end = lsn_number(row[0])


def _cause(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong, in the words of the SDK where it has some. That the source was taken is why all else failed."""
    errors = [e for e in group.exceptions if not isinstance(e, ExceptionGroup)]
    ours = [from_database(e) or e for e in errors]
    return next((e for e in ours if isinstance(e, SourceTaken)), ours[0])
