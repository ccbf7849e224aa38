"""Reads one source: from its slot into its stream, each change once.

Four tasks. One reads frames and makes batches of them; one sends the batches, and notes in the same transaction how far
that is; one says that this reader still is the one, and moves an idle source on; one reads rows for backfills. Between
the first two is a bounded buffer, and a transaction that is larger than a batch is sent as it comes, in a transaction
that stays open: so nothing grows with it here. The source is told that something is kept only once that is committed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection

from ..database import statements
from ..database.columns import array_literal
from ..errors import SourceBlocked, SourceTaken, from_database
from . import catalog, looking
from .assembling import HEARTBEAT, Assembler, Batch, Outdated, Part
from .backfill import Backfill
from .buffer import Buffer
from .changes import PLAIN, Route, Table
from .connections import APPLICATION, connect, connect_stream
from .feed import Feed
from .pgoutput import Relation
from .troubles import Failing, TargetFailed
from .values import Type
from .wire import Keepalive, lsn_number, lsn_text

LEASE = 6.0  # seconds for which a reader is the one, unless it says that it still is
KEEP_EVERY = 1.5  # seconds
TABLES_EVERY = 10.0  # seconds between looks at the tables
HEARTBEAT_EVERY = 30.0  # seconds
MISSING = 60.0  # seconds after which a heartbeat that did not come is worth a word


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
    timeline: int | None
    publication_oid: int | None
    made: list[str]
    tables: list[str]
    drop_bytes: int | None
    routes: dict[str, Route]  # of tables that have their own


async def take(conn: AsyncConnection[Any], name: str, reader: str) -> Reading | None:
    """Becomes the reader of a source; None while another is."""
    row = await (await conn.execute(statements.TAKE_SOURCE, (name, reader, f"{LEASE} s"))).fetchone()
    if row is None:
        return None
    version, stream, url, publication, slot, system, lsn, timeline, oid, made, tables, drop_bytes, routes = row
    own = {table: Route(r["stream"], tuple(r["key"] or ())) for table, r in json.loads(routes).items()}
    return Reading(
        name, reader, version, stream, url, publication, slot, system, lsn_number(lsn), timeline, oid, made, tables,
        drop_bytes, own,
    )  # fmt: skip


class Reader:
    """Reads a source until it is cancelled, or cannot: then it raises."""

    def __init__(self, reading: Reading, target_url: str, *, pooler: bool = False) -> None:
        self.reading = reading
        self._target_url = target_url
        self._pooler = pooler
        self._backfill = Backfill(reading.name, reading.publication, reading.routes)
        self._heartbeat = Heartbeat()
        self._assembler = Assembler(reading.lsn, self._backfill.changed, self._heartbeat.name)
        self._buffer = Buffer()
        self._written = reading.lsn  # everything up to here is in the stream, or was nothing
        self._count = 0  # messages of the open transaction
        self._is_dirty = False  # whether there is one, or was since the last end
        self._over: SourceBlocked | None = None  # why the slot has to go

    async def run(self) -> None:
        """Reads. Raises SourceTaken when another reader is the one now, SourceBlocked when it cannot go on."""
        async with (
            await self._connect() as target,
            await self._connect() as keeping,
            await connect(self.reading.url) as source,
        ):
            await self._begin(source)
            feed = await self._open()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._read(feed, source))
                    tasks.create_task(self._write(feed, target))
                    tasks.create_task(self._keep(feed, keeping))
                    tasks.create_task(self._fill())
            except ExceptionGroup as group:
                raise self._over or _cause(group) from None
            finally:
                await feed.close()
                if self._over is not None:
                    async with await connect(self.reading.url) as last:
                        await looking.drop_slot(last, self.reading.slot)

    async def _connect(self) -> AsyncConnection[Any]:
        try:
            return await connect_stream(self._target_url, pooler=self._pooler)
        except psycopg.Error as error:
            raise TargetFailed(error) from error

    async def _begin(self, source: AsyncConnection[Any]) -> None:
        """Sees that the slot is there and on the same server, and ends whoever of us still reads it."""
        r = self.reading
        seen = await looking.look(source, r.publication, r.slot)
        looking.refuse_other(seen, r.system_identifier, r.slot, r.lsn)
        looking.refuse_lost(seen, r.publication, r.slot, r.lsn, r.publication_oid)
        if seen.pid is None:
            return
        if seen.application == APPLICATION:  # one that does not know yet, or whose end was not noticed
            await source.execute("select pg_terminate_backend(%s)", (seen.pid,))
        else:
            raise Failing(
                f'the slot "{r.slot}" is read by somebody else (application "{seen.application}", process {seen.pid})',
                "end that reader: a slot has one",
            )

    async def _open(self) -> Feed:
        r = self.reading
        for left in range(50, -1, -1):
            try:
                return await Feed.open(r.url, r.slot, r.publication, r.lsn, r.timeline)
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
                elif isinstance(found, Outdated):
                    table = await self._table(source, found.relation)
                    assembler.learn(table.loose())
                    assembler.push(frame)
                    assembler.learn(table)
                elif isinstance(found, Keepalive):
                    feed.answer(found)
                self._backfill.offer(assembler)
                if assembler.is_full:
                    await self._buffer.put(assembler.take())
            if assembler.is_between and (assembler.is_filled or assembler.end > self._written):
                await self._buffer.put(assembler.take())
            await asyncio.sleep(0)  # others run in this process too

    async def _fill(self) -> None:
        async with await connect(self.reading.url) as source, await self._connect() as target:
            await self._backfill.run(source, target)

    async def _table(self, source: AsyncConnection[Any], relation: Relation) -> Table:
        types: dict[int, Type] = {}  # anew for each: they may have been altered
        await catalog.load_types(source, [c.type for c in relation.columns], types)
        key = await catalog.load_primary_key(source, relation) if relation.identity == "f" else None
        routes = self.reading.routes
        route = routes.get(await catalog.load_name(source, relation), PLAIN) if routes else PLAIN
        return Table.of(relation, types, key, route)

    async def _write(self, feed: Feed, target: AsyncConnection[Any]) -> None:
        while True:
            batch = await self._buffer.take()
            try:
                await self._put(target, batch)
            except psycopg.Error as error:
                raise TargetFailed(error) from error
            if batch.end is not None:
                feed.confirm(batch.end if self._is_dirty else 0)
                self._count, self._is_dirty = 0, False
                self._written = max(self._written, batch.end)

    async def _put(self, target: AsyncConnection[Any], batch: Batch) -> None:
        """Sends a batch. If its last transaction has ended, also says how far that is, and commits."""
        r = self.reading
        if batch.end is not None and not self._is_dirty:
            if not (batch.count or batch.notes):
                return
            if len(batch.parts) == 1 and not batch.notes:  # the usual one: a round trip, not four
                [(stream, part)] = batch.parts.items()
                progress = (lsn_text(batch.end), batch.committed_at)
                await target.execute(
                    statements.SEND_CHANGES_AND_NOTE, (*self._texts(stream, part), r.name, r.reader, *progress)
                )
                self._is_dirty = True
                return
        if not self._is_dirty:
            await target.execute("begin")
            self._is_dirty = True
        self._count += len(batch)
        for stream, part in batch.parts.items():
            await target.execute(statements.SEND_CHANGES, self._texts(stream, part))
        for note in batch.notes:
            await target.execute(statements.NOTE_BACKFILL, note)
        for finished in batch.finished:  # what is gone is known once all that was read is sent
            [(deleted,)] = await (await target.execute(statements.TELL_DELETED_ROWS, finished)).fetchall()
            self._count += deleted
        if batch.end is not None:
            await target.execute(
                statements.NOTE_SOURCE_PROGRESS,
                (r.name, r.reader, lsn_text(batch.end), batch.committed_at, self._count),
            )
            await target.execute("commit")

    def _texts(self, stream: str | None, part: Part) -> tuple[str, str, str]:
        keys, datas = part
        return stream or self.reading.stream, array_literal(list(datas)), array_literal(list(keys))

    async def _keep(self, feed: Feed, keeping: AsyncConnection[Any]) -> None:
        r = self.reading
        problems: list[str] = []
        looked = -TABLES_EVERY
        async with await connect(r.url) as source:
            while True:
                written = self._written
                idle = self._buffer.is_empty and self._assembler.end <= written
                seen = await looking.look(source, r.publication, r.slot)
                if monotonic() - looked >= TABLES_EVERY:
                    problems, looked = await looking.problems(source, r.publication, r.tables), monotonic()
                missing = await self._heartbeat.beat(source, self._assembler.heartbeat)
                try:
                    is_ours = await self._note(keeping, feed, written, seen, idle, [*problems, *missing])
                except psycopg.Error as error:
                    raise TargetFailed(error) from error
                if not is_ours:
                    raise SourceTaken(f'source "{r.name}" is read by another process now', hint="it goes on there")
                looking.refuse_lost(seen, r.publication, r.slot, written, r.publication_oid)
                if r.drop_bytes is not None and (seen.retained or 0) > r.drop_bytes:
                    self._over = looking.too_much(seen.retained or 0, r.drop_bytes)
                    raise self._over
                feed.confirm(written)
                await asyncio.sleep(KEEP_EVERY)

    async def _note(
        self, keeping: AsyncConnection[Any], feed: Feed, written: int, seen: looking.Seen, idle: bool, said: list[str]
    ) -> bool:
        """Says that this still is the reader, and how things stand; whether it is."""
        r = self.reading
        params = (
            r.name, r.reader, f"{LEASE} s", lsn_text(written), lsn_text(seen.wal_end), idle, seen.retained,
            seen.wal_status, said, feed.timeline,
        )  # fmt: skip
        [(is_ours,)] = await (await keeping.execute(statements.KEEP_SOURCE, params)).fetchall()
        return bool(is_ours)


class Heartbeat:
    """Now and then writes something into the source's WAL that has to come back, also where nothing else happens."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self._beats = 0
        self._token = ""
        self._at = -HEARTBEAT_EVERY

    async def beat(self, source: AsyncConnection[Any], came: str | None) -> list[str]:
        """Writes one if it is time; what there is to say of the last one. `came` is the newest that came back."""
        waited = monotonic() - self._at
        if came == self._token or not self._token:
            if waited >= HEARTBEAT_EVERY:
                self._beats += 1
                self._token, self._at = f"{self.name} {self._beats}", monotonic()
                with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
                    await source.execute("select pg_logical_emit_message(false, %s, %s)", (HEARTBEAT, self._token))
                    return []
                self._token = ""  # not here, then: it is no condition for reading
        elif waited > MISSING:
            return [
                f"what was written {waited:.0f} seconds ago did not come yet: there is much to read, or the server "
                "decodes a large transaction"
            ]
        return []


def _cause(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong, in the words of the SDK where it has some. That the source was taken is why all else failed."""
    errors = [e for e in group.exceptions if not isinstance(e, ExceptionGroup)] or [*group.exceptions]
    ours = [_ours(e) for e in errors]
    for kind in (SourceTaken, SourceBlocked):
        if found := next((e for e in ours if isinstance(e, kind)), None):
            return found
    return ours[0]


def _ours(error: Exception) -> Exception:
    cause = error.error if isinstance(error, TargetFailed) else None
    if cause is not None and (getattr(cause, "sqlstate", None) or "").startswith("HG"):
        return from_database(cause) or error
    return error
