"""Reads the rows of tables beside their changes, in chunks.

A chunk is read in one snapshot. Its rows are sent once the stream has reached a place in the WAL that was written after
the snapshot: everything that the snapshot sees has come before them then. Rows that were changed by a transaction which
the snapshot does not see, and which the stream has already, are left out and read again: they would be older than what
is in the stream. How far it is is noted with the rows, so it goes on after a crash.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from ..database import statements
from . import catalog, changes
from .assembling import Assembler
from .changes import PLAIN, Message, Route, Table
from .pgoutput import Column, Relation
from .snapshots import RecentChanges, Snapshot
from .troubles import TargetFailed
from .values import Type, TypeChanged
from .wire import lsn_number

LOOK_EVERY = 1.0  # seconds between looks for tables to read
FEWEST, MOST = 100, 5000  # rows of a chunk
FIRST = 10  # rows that tell how large they are
MOST_BYTES = 4_000_000  # of a chunk, about
AIM = 0.3  # seconds for reading one
GONE = ("08", "57P")  # SQLSTATEs of a server that is gone. All others are about the table

_COLUMNS = """
select c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text,
       (select case when min(l.reltuples) >= 0 then sum(l.reltuples) end  -- (-1: it was never analyzed)
          from pg_class l where l.oid = c.oid and c.relkind = 'r'
            or l.oid in (select x.relid from pg_partition_tree(c.oid) x where x.isleaf))::int8,
       p.rowfilter, a.attname::text, a.atttypid::int8, a.atttypmod, format_type(a.atttypid, a.atttypmod),
       coalesce(array_position(i.indkey::int2[], a.attnum), -1)
  from pg_publication_tables p
  join pg_namespace n on n.nspname = p.schemaname
  join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
  join pg_attribute a on a.attrelid = c.oid and a.attname = any(p.attnames)
   and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000)  -- before, they are never sent
  left join pg_index i on i.indrelid = c.oid
   and case c.relreplident when 'i' then i.indisreplident else i.indisprimary end
   and (c.relreplident <> 'd' or i.indimmediate)
 where p.pubname = %s and c.oid = to_regclass(%s) order by a.attnum
"""


@dataclass(slots=True)
class Rows:
    """A table whose rows are read: how to read them and how to write them."""

    source: str
    name: str
    asked_at: datetime
    table: Table
    columns: list[str]
    paging: list[tuple[str, str]]  # columns of the key in the order of its index, with their types
    places: list[int]  # where those columns are
    row_filter: str | None
    estimate: int | None  # of its rows
    last_key: list[str] | None
    again: list[str]
    is_partitioned: bool = False
    since: tuple[str, str, str] | None = None  # column, its type, value
    finds_deleted: bool = False
    rate: int | None = None  # rows a second

    def query(self, limit: int) -> tuple[sql.Composed, list[Any]]:
        """The statement for the next chunk: rows to be read again come first."""
        names = sql.SQL(", ").join(_name(c) for c in self.columns)
        key = sql.SQL("({})").format(sql.SQL(", ").join(_name(c) for c, _ in self.paging))
        given = sql.SQL("({})").format(sql.SQL(", ").join(sql.SQL("%s::text::" + t) for _, t in self.paging))
        conditions: list[sql.Composable] = [sql.SQL(_plain(f"({self.row_filter})"))] if self.row_filter else []
        params: list[Any] = []
        if self.since is not None:
            column, type, value = self.since
            conditions.append(sql.SQL("{} >= %s::text::" + _plain(type)).format(_name(column)))
            params.append(value)
        if self.again:
            wanted = [json.loads(k) for k in self.again[:limit]]
            conditions.append(sql.SQL("{} in ({})").format(key, sql.SQL(", ").join([given] * len(wanted))))
            params += [v for k in wanted for v in k]
        elif self.last_key is not None:
            conditions.append(sql.SQL("{} > {}").format(key, given))
            params += self.last_key
        where = sql.SQL("where {}").format(sql.SQL(" and ").join(conditions)) if conditions else sql.SQL("")
        order = sql.SQL(", ").join(_name(c) for c, _ in self.paging)
        return (
            sql.SQL("select {} from {} {} order by {} limit {}").format(
                # Tables that inherit from this one are tables of their own.
                names,
                sql.SQL(("" if self.is_partitioned else "only ") + _plain(self.name)),
                where,
                order,
                sql.Literal(limit),
            ),
            params,
        )


def _name(column: str) -> sql.SQL:
    return sql.SQL(_plain(sql.Identifier(column).as_string()))


def _plain(text: str) -> str:
    """SQL in which no % is a parameter."""
    return text.replace("%", "%%")


@dataclass(slots=True)
class Note:
    """How far the rows of a table are read, to be noted with them."""

    source: str
    table: str
    asked_at: datetime
    state: str
    last_key: list[str] | None
    again: list[str]
    rows: int
    estimate: int | None
    error: str | None = None

    @property
    def params(self) -> tuple[Any, ...]:
        """The parameters of statements.NOTE_BACKFILL."""
        return (
            self.source, self.table, self.asked_at, self.state, self.last_key, self.again, self.rows, self.estimate,
            self.error,
        )  # fmt: skip


@dataclass(slots=True)
class Chunk:
    """Rows of one snapshot, which wait for the stream to reach `lsn`."""

    rows: Rows
    snapshot: Snapshot
    lsn: int
    found: list[tuple[list[str], Message]]  # with the values of the key
    asked: list[str]  # keys of rows that were read again
    is_last: bool
    sent: asyncio.Future[Note] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def send(self, assembler: Assembler, recent: RecentChanges) -> None:
        """Adds the rows to the stream, but those that something newer in it has changed."""
        rows = self.rows
        keys, tables = recent.hidden_from(self.snapshot)
        is_stale = rows.table.prefix in tables
        sent = 0
        if not is_stale:
            # Of those that were to be read again, the ones that were not found are gone.
            again = [k for k in rows.again if k not in self.asked]
            for values, message in self.found:
                if message.row in keys:
                    again.append(json.dumps(values))
                else:
                    assembler.add(message, rows.table.stream)
                    sent += 1
            if not self.asked and self.found:
                rows.last_key = self.found[-1][0]
            rows.again = again
        is_done = self.is_last and not is_stale and not rows.again
        note = Note(
            rows.source, rows.name, rows.asked_at, "done" if is_done else "running", rows.last_key, rows.again, sent,
            rows.estimate,
        )  # fmt: skip
        relation = rows.table.relation
        finished = (rows.source, rows.name, rows.asked_at, relation.schema, relation.name)
        assembler.note(note.params, finished if is_done and rows.finds_deleted else None)
        if not self.sent.done():
            self.sent.set_result(note)


async def load(
    source: AsyncConnection[Any], name_of_source: str, publication: str, row: Any, routes: dict[str, Route]
) -> Rows | str:
    """What reading a table needs; or why it cannot be read."""
    name, asked_at, last_key, again, from_column, from_value, finds_deleted, rate = row
    found = await (await source.execute(_COLUMNS, (publication, name))).fetchall()
    if not found:
        return f"{name} is not in the publication {publication} any more"
    oid, schema, table, kind, estimate, row_filter = found[0][:6]
    found = [f[6:] for f in found]
    paging = sorted((place, i) for i, (*_, place) in enumerate(found) if place >= 0)
    if not paging:
        return f"{name} has no primary key to read it in parts by"
    columns = tuple(Column(name, type, modifier, place >= 0) for name, type, modifier, _, place in found)
    by_name = {f[0]: f for f in found}
    since = None
    if from_column is not None:
        if from_column not in by_name:
            return f"{name} has no column {from_column} to begin at"
        since = (from_column, str(by_name[from_column][3]), from_value)
    types: dict[int, Type] = {}
    await catalog.load_types(source, [c.type for c in columns], types)
    made = Table.of(Relation(oid, schema, table, "d", columns), types, route=routes.get(name, PLAIN))
    return Rows(
        name_of_source, name, asked_at, made, [c.name for c in columns],
        [(found[i][0], found[i][3]) for _, i in paging], [i for _, i in paging], row_filter, estimate,
        last_key, list(again), kind == "p", since, finds_deleted, rate,
    )  # fmt: skip


async def read_chunk(source: AsyncConnection[Any], rows: Rows, limit: int) -> Chunk:
    """The next rows, and the snapshot that they are of."""
    asked = rows.again[: min(limit, FEWEST)]
    query, params = rows.query(len(asked) or limit)
    async with source.transaction():
        await source.execute("set transaction isolation level repeatable read, read only")
        await source.execute("set local row_security = off")  # rather fail than leave rows out
        await source.execute("set local statement_timeout = 0")
        [(snapshot,)] = await (await source.execute("select pg_current_snapshot()::text")).fetchall()
        # (A plan that is kept fails once a column is retyped.)
        await source.execute(
            sql.SQL("declare headgate_rows no scroll cursor for {}").format(query), params, prepare=False
        )
        texts, is_whole = await _fetch(source, None if asked else limit)
    # Written after the snapshot, and on disk; it waits for no standby.
    async with source.transaction():
        await source.execute("set local synchronous_commit = local")
        [(lsn,)] = await (
            await source.execute("select pg_logical_emit_message(true, 'headgate.chunk', '')::text")
        ).fetchall()
    about = f'"lsn":"{lsn}","commit_lsn":null,"commit_time":null,"transaction_id":null'
    found = [([str(t[i]) for i in rows.places], changes.of_read(rows.table, list(t), about)) for t in texts]
    return Chunk(rows, Snapshot.read(snapshot), lsn_number(lsn), found, asked, not asked and is_whole)


async def _fetch(source: AsyncConnection[Any], limit: int | None) -> tuple[list[list[str | None]], bool]:
    """Rows of the cursor, until they are many or large; and whether that was all there is in the table."""
    texts: list[list[str | None]] = []
    size, step = 0, FIRST
    while True:
        cursor = await source.execute(f"fetch forward {step} from headgate_rows", prepare=False)
        result = cursor.pgresult
        assert result is not None
        for r in range(result.ntuples):
            values = [result.get_value(r, c) for c in range(result.nfields)]
            size += sum(len(v) for v in values if v is not None)
            texts.append([None if v is None else bytes(v).decode() for v in values])
        if result.ntuples < step:
            return texts, limit is not None and len(texts) < limit
        if limit is not None and size >= MOST_BYTES:
            return texts, False
        step = max(1, min(MOST, (MOST_BYTES - size) * len(texts) // max(size, 1)))


class Backfill:
    """Reads the tables that are to be read, one after the other. The reader sends its `chunk`."""

    def __init__(self, name: str, publication: str, routes: dict[str, Route] | None = None) -> None:
        self._name = name
        self._publication = publication
        self._routes = routes or {}
        self._limit = FEWEST
        self.recent = RecentChanges()
        self.is_tracking = False  # whether changes are to be noted in `recent`
        self.chunk: Chunk | None = None

    def changed(self, xid: int, row: str, table: str, is_whole: bool) -> None:
        """A row was changed, or all of a table, and the stream has it."""
        if self.is_tracking and (self.chunk is None or not self.chunk.snapshot.sees(xid)):
            self.recent.note(xid, row, table, is_whole=is_whole)

    def offer(self, assembler: Assembler) -> bool:
        """Sends the chunk if the stream has come so far; True if it did."""
        chunk = self.chunk
        if chunk is None or not assembler.is_between or assembler.end < chunk.lsn:
            return False
        self.chunk = None
        chunk.send(assembler, self.recent)
        return True

    async def run(self, source: AsyncConnection[Any], target: AsyncConnection[Any]) -> None:
        """Reads for as long as it is left to."""
        finished: Any = None
        while True:
            row = await self._wanted(target)
            if row is None or row[:2] == finished:  # its end is assembled and not committed yet
                await asyncio.sleep(LOOK_EVERY if row is None else 0.02)
                continue
            try:
                await target.execute(statements.BEGIN_BACKFILL, (self._name, *row[:2]))
            except psycopg.Error as error:
                raise TargetFailed(error) from error
            self.is_tracking = True
            try:
                await self._settle(source, target, row)
                is_over, problem = await self._read(source, target, row)
            except (psycopg.errors.UndefinedColumn, TypeChanged):  # altered since it was looked up: look again
                continue
            except psycopg.Error as error:
                if error.sqlstate is None or error.sqlstate.startswith(GONE):
                    raise
                is_over, problem = (
                    True,
                    error.diag.message_primary or str(error).strip(),
                )  # its changes are read all the same
            finally:
                self.is_tracking = False
                self.recent.clear()
            if problem is not None:
                await self._say(target, row, "failed", problem)
            finished = row[:2] if is_over else None

    async def _wanted(self, target: AsyncConnection[Any]) -> Any:
        try:
            return await (await target.execute(statements.NEXT_BACKFILL, (self._name,))).fetchone()
        except psycopg.Error as error:
            raise TargetFailed(error) from error

    async def _say(self, target: AsyncConnection[Any], row: Any, state: str, problem: str) -> None:
        note = Note(self._name, row[0], row[1], state, None, list(row[3]), 0, None, problem)
        try:
            await target.execute(statements.NOTE_BACKFILL, note.params)
        except psycopg.Error as error:
            raise TargetFailed(error) from error

    async def _read(
        self, source: AsyncConnection[Any], target: AsyncConnection[Any], row: Any
    ) -> tuple[bool, str | None]:
        """Reads a table: whether to its end, or something else is wanted meanwhile; and why it cannot be read."""
        rows = await load(source, self._name, self._publication, row, self._routes)
        if isinstance(rows, str):
            return True, rows
        while True:
            began = monotonic()
            note = await self._next(source, rows)
            if note.state == "done":
                return True, None
            wanted = await self._wanted(target)
            if wanted is None or wanted[:2] != row[:2]:  # paused, cancelled, asked for anew
                return False, None
            rows.rate = wanted[7]
            while rows.rate and (due := began + note.rows / rows.rate) > monotonic():
                await asyncio.sleep(min(LOOK_EVERY, due - monotonic()))
                wanted = await self._wanted(target)
                if wanted is None or wanted[:2] != row[:2]:
                    return False, None
                rows.rate = wanted[7]

    async def _settle(self, source: AsyncConnection[Any], target: AsyncConnection[Any], row: Any) -> None:
        """Waits until all transactions that may have been read before changes were noted are visible.

        They are older than one that begins now. (A snapshot does not list those in progress that are newer than every
        one that has ended.)
        """
        async with source.transaction():
            await source.execute("set local synchronous_commit = local")  # waits for no standby
            [(newest,)] = await (await source.execute("select pg_current_xact_id()::text")).fetchall()
        began, is_said = monotonic(), False
        while True:
            [(text,)] = await (await source.execute("select pg_current_snapshot()::text")).fetchall()
            snapshot = Snapshot.read(text)
            if snapshot.xmin > int(newest):
                return
            self.recent.forget(snapshot)  # or it would grow for as long as that takes
            if not is_said and monotonic() - began > LOOK_EVERY:
                is_said = True
                await self._say(
                    target, row, "running",
                    f"it waits for a transaction of that database to end, which is open since before it (id "
                    f"{snapshot.xmin}; pg_stat_activity.backend_xid or pg_prepared_xacts says whose)",
                )  # fmt: skip
            await asyncio.sleep(0.1)

    async def _next(self, source: AsyncConnection[Any], rows: Rows) -> Note:
        began = monotonic()
        chunk = await read_chunk(source, rows, min(self._limit, rows.rate or MOST))
        took = monotonic() - began
        self._limit = min(self._limit * 2, MOST) if took < AIM else max(self._limit // 2, FEWEST)
        self.recent.forget(chunk.snapshot)
        self.chunk = chunk
        note = await chunk.sent
        if note.again or not note.rows:  # what hid them is not visible yet: a moment later it is
            await asyncio.sleep(0.05)
        return note
