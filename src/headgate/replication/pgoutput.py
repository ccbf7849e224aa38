"""The messages of pgoutput, protocol version 1: bytes to plain data. No I/O.

A column of a row is its text, None for null, or UNCHANGED: a large value that an update did not touch is not sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from .wire import ProtocolError, moment


class Unchanged(Enum):
    """The type of UNCHANGED."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value = str | None | Unchanged
Row = list[Value]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins, which committed at `commit_lsn`."""

    commit_lsn: int
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction ends; what follows it in the WAL starts at `end_lsn` or later."""

    commit_lsn: int
    end_lsn: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as it was when the rows that follow were written."""

    name: str
    type: int  # oid
    modifier: int
    is_key: bool  # part of the replica identity


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, told before its first row and after each change of it."""

    oid: int
    schema: str
    name: str
    identity: str  # d: the primary key, i: an index, f: the whole row, n: nothing
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old` has the old row (`is_whole`), or only its key and only when that changed."""

    relation: int
    old: Row | None
    is_whole: bool
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A removed row: all of it (`is_whole`) or its key."""

    relation: int
    old: Row
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables that were emptied in one statement."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Note:
    """What pg_logical_emit_message wrote."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Other:
    """What says nothing of rows: the name of a type, the origin of a transaction."""

    kind: str


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Note | Other

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_COLUMN = struct.Struct(">Ii")
_NOTE = struct.Struct(">BQ")
_NEW, _KEY, _OLD = b"NKO"
_TEXT, _NULL, _SAME = b"tnu"


def read_message(data: bytes) -> Message:
    """One message. ProtocolError if it is not one of protocol version 1 in text form."""
    try:
        message, end = _read(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"a message of kind {data[:1]!r} cannot be read: {error}") from None
    if end != len(data):
        raise ProtocolError(f"a message of kind {data[:1]!r} has {len(data) - end} bytes too many")
    return message


def _read(data: bytes) -> tuple[Message, int]:
    kind = data[:1]
    if kind == b"I":
        (relation,) = _LONG.unpack_from(data, 1)
        new, at = _row(data, _tag(data, 5, _NEW))
        return Insert(relation, new), at
    if kind == b"U":
        (relation,) = _LONG.unpack_from(data, 1)
        old, is_whole, at = None, data[5] == _OLD, 5
        if data[5] != _NEW:
            old, at = _row(data, _tag(data, 5, _KEY, _OLD))
        new, at = _row(data, _tag(data, at, _NEW))
        return Update(relation, old, is_whole, new), at
    if kind == b"D":
        (relation,) = _LONG.unpack_from(data, 1)
        gone, at = _row(data, _tag(data, 5, _KEY, _OLD))
        return Delete(relation, gone, data[5] == _OLD), at
    if kind == b"B":
        lsn, time, xid = _BEGIN.unpack_from(data, 1)
        return Begin(lsn, moment(time), xid), 1 + _BEGIN.size
    if kind == b"C":
        _, lsn, end, time = _COMMIT.unpack_from(data, 1)
        return Commit(lsn, end, moment(time)), 1 + _COMMIT.size
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        (count,) = _LONG.unpack_from(data, 1)
        options, end = data[5], 6 + 4 * count
        oids = struct.unpack_from(f">{count}I", data, 6)
        return Truncate(oids, bool(options & 1), bool(options & 2)), end
    if kind == b"M":
        flags, lsn = _NOTE.unpack_from(data, 1)
        prefix, at = _string(data, 1 + _NOTE.size)
        content, at = _counted(data, at)
        return Note(bool(flags & 1), lsn, prefix, content), at
    if kind in (b"Y", b"O"):
        return Other(kind.decode()), len(data)
    raise ProtocolError(f"a message of an unknown kind: {kind!r}")


def _relation(data: bytes) -> tuple[Relation, int]:
    (oid,) = _LONG.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity = chr(data[at])
    (count,) = _SHORT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _string(data, at + 1)
        type, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column, type, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _row(data: bytes, at: int) -> tuple[Row, int]:
    (count,) = _SHORT.unpack_from(data, at)
    at += 2
    row: Row = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                raise ProtocolError("a value is cut short")
            row.append(data[at + 4 : end].decode())
            at = end
        elif kind == _NULL:
            row.append(None)
        elif kind == _SAME:
            row.append(UNCHANGED)
        else:
            raise ProtocolError(f"a value of an unknown kind: {chr(kind)!r}")
    return row, at


def _tag(data: bytes, at: int, *wanted: int) -> int:
    if data[at] not in wanted:
        raise ProtocolError(f"a row of an unknown kind: {chr(data[at])!r}")
    return at + 1


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\x00", at)
    return data[at:end].decode(), end + 1


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + _LONG.unpack_from(data, at)[0]
    if end > len(data):
        raise ProtocolError("a value is cut short")
    return data[at + 4 : end], end
