"""What a change of a row becomes: a message with a key and data. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from .pgoutput import UNCHANGED, Column, Delete, Insert, Relation, Row, Update
from .values import Encoder, Type, encoder, quoted
from .wire import lsn_text

LONGEST_KEY = 1000  # characters of the values in a key; longer ones are hashed


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. `row` tells the row that it is of from all others of the source."""

    key: str
    data: str
    row: str


@dataclass(frozen=True, slots=True)
class Route:
    """Where the messages of a table go: to which stream (None: the source's), with which columns as their key."""

    stream: str | None = None
    key: tuple[str, ...] = ()


PLAIN = Route()


@dataclass(slots=True)
class Transaction:
    """The transaction that changes are of, and what was said of it so far."""

    xid: int
    commit_lsn: int
    committed_at: datetime
    annotations: str | None = None  # JSON

    def metadata(self) -> str:
        """What all its changes say, as the inside of a JSON object."""
        said = f',"annotations":{self.annotations}' if self.annotations is not None else ""
        return (
            f'"commit_lsn":"{lsn_text(self.commit_lsn)}","commit_time":"{self.committed_at.isoformat()}",'
            f'"transaction_id":{self.xid}{said}'
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready to write messages of its rows."""

    relation: Relation
    key: tuple[int, ...]  # places of the key's columns; none: the table has no key
    prefix: str
    about: str  # its part of the metadata
    columns: tuple[tuple[str, Encoder], ...] = field(repr=False)
    stream: str | None = None
    own_key: tuple[int, ...] = ()  # places of the columns that messages are keyed by, where those are chosen
    types: dict[int, Type] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        relation: Relation,
        types: dict[int, Type],
        primary_key: Sequence[str] | None = None,
        route: Route = PLAIN,
    ) -> Table:
        """A table. `primary_key` is for one whose replica identity is the whole row: the WAL does not tell its key."""
        columns = relation.columns
        if relation.identity == "f":
            names = set(primary_key or ())
            key = tuple(i for i, c in enumerate(columns) if c.name in names)
            key = key if len(key) == len(names) else ()
        else:
            key = tuple(i for i, c in enumerate(columns) if c.is_key)
        places = {c.name: i for i, c in enumerate(columns)}
        own_key = tuple(places[n] for n in route.key) if all(n in places for n in route.key) else ()
        return cls(
            relation,
            key,
            f"{_word(relation.schema)}.{_word(relation.name)}",
            f'"schema":{quoted(relation.schema)},"table":{quoted(relation.name)},'
            f'"schema_version":"{schema_version(columns, key)}"',
            tuple((quoted(c.name), encoder(c.type, types)) for c in columns),
            route.stream,
            own_key,
            types,
        )

    def loose(self) -> Table:
        """The same, which takes values of types that were altered since: as strings."""
        columns = self.relation.columns
        encoders = tuple((quoted(c.name), encoder(c.type, self.types, is_strict=False)) for c in columns)
        return replace(self, columns=encoders)

    def identity(self, is_whole: bool) -> Sequence[int]:
        """Places of what is known of an old row."""
        columns = self.relation.columns
        return [i for i, c in enumerate(columns) if is_whole or c.is_key]

    def names_of(self, row: Row) -> tuple[str, str]:
        """The key of a row's messages, and what tells the row from others."""
        name = self._joined(row, self.key)
        return (self._joined(row, self.own_key) if self.own_key else name), name

    def _joined(self, row: Row, places: Sequence[int]) -> str:
        if not places:
            return self.prefix
        return row_key(self.prefix, [v if isinstance(v := row[i], str) else "" for i in places])

    def record(self, row: Row, only: Iterable[int] | None = None) -> str:
        """A row as a JSON object, without what is not known of it."""
        places = range(len(row)) if only is None else only
        columns = self.columns
        pairs = []
        for i in places:
            value = row[i]
            if value is None:
                pairs.append(f"{columns[i][0]}:null")
            elif value is not UNCHANGED:
                name, encode = columns[i]
                pairs.append(f"{name}:{encode(value)}")
        return "{" + ",".join(pairs) + "}"


def row_key(prefix: str, values: Sequence[str]) -> str:
    """The key of a row. Different rows have different keys, whatever is in their values."""
    words = ".".join([_word(v) for v in values])
    if len(words) > LONGEST_KEY:
        words = "sha256-" + hashlib.sha256(words.encode()).hexdigest()
    return f"{prefix}.{words}"


def _word(text: str) -> str:
    """A part of a key, which dots separate; not an empty one, which no filter's * would match."""
    if not text:
        return "%"
    return text.replace("%", "%25").replace(".", "%2E") if "." in text or "%" in text else text


def schema_version(columns: Sequence[Column], key: Sequence[int]) -> str:
    """Another one when a column was added, dropped, renamed or retyped, or the key is another."""
    facts = repr([(c.name, c.type, c.modifier) for c in columns] + list(key))
    return hashlib.sha256(facts.encode()).hexdigest()[:8]


def of_insert(table: Table, change: Insert, lsn: int, transaction: str) -> list[Message]:
    """The message of a new row."""
    names = table.names_of(change.new)
    return [_message(table, names, "insert", table.record(change.new), None, lsn, transaction)]


def of_update(table: Table, change: Update, lsn: int, transaction: str) -> list[Message]:
    """The message of a changed row. A changed key is a delete of the old one and an insert of the new one."""
    old, new = change.old, change.new
    if old is None:
        return [_message(table, table.names_of(new), "update", table.record(new), None, lsn, transaction, new)]
    known = table.identity(change.is_whole)
    if UNCHANGED in new:  # what was not sent of the new row is in the old one, as far as that was sent
        new = new.copy()
        for i in known:
            new[i] = old[i] if new[i] is UNCHANGED else new[i]
    names, old_names = table.names_of(new), table.names_of(old)
    if names != old_names:
        gone = _message(table, old_names, "delete", table.record(old, known), None, lsn, transaction)
        return [
            gone, _message(table, names, "insert", table.record(new), None, lsn, transaction, new, old_names[0])
        ]  # fmt: skip
    changed = table.record(old, [i for i in known if new[i] != old[i]]) if change.is_whole else None
    return [_message(table, names, "update", table.record(new), changed, lsn, transaction, new)]


def of_delete(table: Table, change: Delete, lsn: int, transaction: str) -> list[Message]:
    """The message of a removed row: all that is known of it."""
    record = table.record(change.old, table.identity(change.is_whole))
    return [_message(table, table.names_of(change.old), "delete", record, None, lsn, transaction)]


def of_truncate(table: Table, lsn: int, transaction: str) -> Message:
    """The message of a table that was emptied. Its key is the table's."""
    return _message(table, (table.prefix, table.prefix), "truncate", "null", None, lsn, transaction)


def of_read(table: Table, row: Row, transaction: str) -> Message:
    """The message of a row that a backfill has read."""
    key, name = table.names_of(row)
    metadata = f"{transaction},{table.about},"
    return Message(
        key,
        f'{{"action":"read","record":{table.record(row)},"changes":null,"metadata":{{{metadata}"unchanged":[]}}}}',
        name,
    )


def _message(
    table: Table,
    names: tuple[str, str],
    action: str,
    record: str,
    changes: str | None,
    lsn: int,
    transaction: str,
    row: Row | None = None,
    old_key: str | None = None,
) -> Message:
    unchanged = ""
    if row is not None and UNCHANGED in row:
        unchanged = ",".join([table.columns[i][0] for i, v in enumerate(row) if v is UNCHANGED])
    moved = f',"old_key":{quoted(old_key)}' if old_key is not None else ""
    return Message(
        names[0],
        f'{{"action":"{action}","record":{record},"changes":{changes or "null"},"metadata":{{"lsn":"{lsn_text(lsn)}",'
        f'{transaction},{table.about},"unchanged":[{unchanged}]{moved}}}}}',
        names[1],
    )
