"""Frames of a feed become batches of messages. No I/O: what has to be looked up is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from . import changes, pgoutput
from .changes import Message, Table, Transaction
from .connections import OWN_SCHEMA
from .values import TypeChanged, quoted
from .wire import Data, Keepalive, ProtocolError, read_frame

MOST_MESSAGES = 1000  # of a batch
MOST_CHARACTERS = 1_000_000

HEARTBEAT = "headgate.heartbeat"  # the prefix of notes that show that what is written there comes here
ANNOTATE = "headgate.annotate"  # the prefix of notes about the transaction that they are in


Part = tuple[list[str], list[str]]  # keys and data of messages
Finished = tuple[Any, ...]  # a backfill that is done: the parameters of statements.TELL_DELETED_ROWS


@dataclass(frozen=True, slots=True)
class Outdated:
    """A row is not of the types that its table was learned with: one of them was altered."""

    relation: pgoutput.Relation


@dataclass(slots=True)
class Batch:
    """Messages to send, and when all transactions they are of have ended, where that was in the WAL."""

    parts: dict[str | None, Part] = field(default_factory=dict)  # by stream; None is the source's
    count: int = 0
    end: int | None = None
    committed_at: datetime | None = None  # of the last transaction
    characters: int = 0  # of the data
    notes: list[tuple[Any, ...]] = field(default_factory=list)  # how far backfills are: statements.NOTE_BACKFILL

    finished: list[Finished] = field(default_factory=list)  # backfills that end with it

    def __len__(self) -> int:
        return self.count

    def add(self, stream: str | None, key: str, data: str) -> None:
        """Adds a message."""
        part = self.parts.get(stream)
        if part is None:
            part = self.parts[stream] = ([], [])
        part[0].append(key)
        part[1].append(data)
        self.count += 1
        self.characters += len(data)

    def join(self, other: Batch) -> None:
        """Adds a batch that follows, of transactions that have ended."""
        for stream, (keys, datas) in other.parts.items():
            part = self.parts.setdefault(stream, ([], []))
            part[0].extend(keys)
            part[1].extend(datas)
        self.count += other.count
        self.characters += other.characters
        self.notes += other.notes
        self.finished += other.finished
        self.end, self.committed_at = other.end, other.committed_at


class Assembler:
    """What was read, in batches of bounded size. Transactions that ended up to `start` are passed over."""

    def __init__(
        self, start: int, changed: Callable[[int, str, str, bool], None] | None = None, heart: str = ""
    ) -> None:
        self._start = start
        self._heart = heart  # what its own heartbeats begin with: other sources of the database write some, too
        self._changed = changed  # is told of each change: transaction, key, table, whether it is of all its rows
        self._tables: dict[int, Table] = {}
        self._own: set[int] = set()  # tables of Headgate itself
        self._transaction: Transaction | None = None
        self._about = ""  # the metadata of the transaction
        self._is_old = False
        self._batch = Batch()
        self._end = start
        self._committed_at: datetime | None = None
        self.heartbeat: str | None = None  # the newest that came back

    def learn(self, table: Table) -> None:
        """What a table is from now on."""
        self._tables[table.relation.oid] = table

    def push(self, frame: bytes) -> pgoutput.Relation | Outdated | Keepalive | None:
        """Takes a frame. A table that it returns has to be learned before the next one; one that is Outdated, as
        `loose` as it is then, before this one is pushed again."""
        read = read_frame(frame)
        if isinstance(read, Keepalive):
            if self._transaction is None:  # else something that ended before is still on its way
                self._end = max(self._end, read.end)
            return read
        message = pgoutput.read_message(read.payload)
        if isinstance(message, (pgoutput.Insert, pgoutput.Update, pgoutput.Delete)):
            if not self._is_old:
                return self._row(message, read)
        elif isinstance(message, pgoutput.Relation):
            if message.schema != OWN_SCHEMA:
                return message
            self._own.add(message.oid)
        elif isinstance(message, pgoutput.Begin):
            self._transaction = Transaction(message.xid, message.commit_lsn, message.committed_at)
            self._about = self._transaction.metadata()
            self._is_old = message.commit_lsn < self._start
        elif isinstance(message, pgoutput.Commit):
            self._transaction = None
            self._end = max(self._end, message.end_lsn)
            self._committed_at = message.committed_at
        elif isinstance(message, pgoutput.Truncate):
            if not self._is_old:
                for table in [self._tables[oid] for oid in message.relations if oid in self._tables]:
                    self._add([changes.of_truncate(table, read.lsn, self._about)], table, is_whole=True)
        elif isinstance(message, pgoutput.Note):
            self._note(message)
        return None

    @property
    def is_full(self) -> bool:
        """Whether the batch should be taken before more is read."""
        return len(self._batch) >= MOST_MESSAGES or self._batch.characters >= MOST_CHARACTERS

    @property
    def is_filled(self) -> bool:
        """Whether there are messages to take."""
        return bool(self._batch.count or self._batch.notes)

    @property
    def is_between(self) -> bool:
        """Whether no transaction is open."""
        return self._transaction is None

    @property
    def end(self) -> int:
        """Everything that ended up to here was read."""
        return self._end

    def take(self) -> Batch:
        """The messages since the last call."""
        batch, self._batch = self._batch, Batch()
        if self._transaction is None:
            batch.end, batch.committed_at = self._end, self._committed_at
        return batch

    def _row(self, message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete, read: Data) -> Outdated | None:
        table = self._tables.get(message.relation)
        if table is None:
            if message.relation in self._own:
                return None
            raise ProtocolError(f"a row of a table that was not told before: {message.relation}")
        try:
            if isinstance(message, pgoutput.Insert):
                made = changes.of_insert(table, message, read.lsn, self._about)
            elif isinstance(message, pgoutput.Update):
                made = changes.of_update(table, message, read.lsn, self._about)
            else:
                made = changes.of_delete(table, message, read.lsn, self._about)
        except TypeChanged:
            return Outdated(table.relation)
        self._add(made, table)
        return None

    def _add(self, made: list[Message], table: Table, *, is_whole: bool = False) -> None:
        for message in made:
            self.add(message, table.stream)
            if self._changed is not None and self._transaction is not None:
                self._changed(self._transaction.xid, message.row, table.prefix, is_whole)

    def add(self, message: Message, stream: str | None = None) -> None:
        """Adds a message to the batch."""
        self._batch.add(stream, message.key, message.data)

    def note(self, params: tuple[Any, ...], finished: Finished | None = None) -> None:
        """Adds a note of how far a backfill is, to be kept together with the messages; and that it is done."""
        self._batch.notes.append(params)
        if finished is not None:
            self._batch.finished.append(finished)

    def _note(self, note: pgoutput.Note) -> None:
        """An annotation holds for what follows it in its transaction. A heartbeat is ours."""
        if note.prefix == HEARTBEAT:
            text = note.content.decode(errors="replace")
            self.heartbeat = text if text.startswith(self._heart) else self.heartbeat
        elif note.prefix == ANNOTATE and note.is_transactional and self._transaction is not None:
            self._transaction.annotations = _as_json(note.content)
            self._about = self._transaction.metadata()


def _as_json(content: bytes) -> str:
    """What an application has written, as it stands if it is JSON; else a string of it."""
    text = content.decode(errors="replace").replace("\x00", "")
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):  # (nested so deeply that readers would fail, too)
        return quoted(text)
    return text


def _refuse(constant: str) -> None:
    """NaN and infinity are not JSON, though Python reads them."""
    raise ValueError(constant)
