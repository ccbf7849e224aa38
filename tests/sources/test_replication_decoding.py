"""Logical replication decoded: the wire, values as exact JSON, and the messages that rows become."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.postgres.cluster import Cluster
from headgate.replication import catalog, changes, pgoutput, values, wire
from headgate.replication.assembling import HEARTBEAT, Assembler
from headgate.replication.pgoutput import UNCHANGED, Column, Relation, Value
from support.source_databases import source_database

Db = psycopg.Connection[Any]

NAMES = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)
VALUES = st.one_of(st.none(), st.just(UNCHANGED), TEXTS)
LSNS = st.integers(0, 2**64 - 1)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


# --- the wire


def microseconds(at: datetime) -> int:
    return (at - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def a_string(text: str) -> bytes:
    return text.encode() + b"\x00"


def a_row(row: list[Value]) -> bytes:
    parts = [struct.pack(">H", len(row))]
    for v in row:
        if v is None:
            parts.append(b"n")
        elif isinstance(v, str):
            parts.append(b"t" + struct.pack(">I", len(v.encode())) + v.encode())
        else:
            parts.append(b"u")
    return b"".join(parts)


def written(m: pgoutput.Message) -> bytes:
    """What the server sends."""
    match m:
        case pgoutput.Begin(lsn, at, xid):
            return b"B" + struct.pack(">QqI", lsn, microseconds(at), xid)
        case pgoutput.Commit(lsn, end, at):
            return b"C" + struct.pack(">BQQq", 0, lsn, end, microseconds(at))
        case pgoutput.Relation(oid, schema, name, identity, columns):
            head = b"R" + struct.pack(">I", oid) + a_string(schema) + a_string(name) + identity.encode()
            body = [struct.pack(">B", c.is_key) + a_string(c.name) + struct.pack(">Ii", c.type, c.modifier)
                    for c in columns]  # fmt: skip
            return head + struct.pack(">H", len(columns)) + b"".join(body)
        case pgoutput.Insert(relation, new):
            return b"I" + struct.pack(">I", relation) + b"N" + a_row(new)
        case pgoutput.Update(relation, old, is_whole, new):
            before = b"" if old is None else (b"O" if is_whole else b"K") + a_row(old)
            return b"U" + struct.pack(">I", relation) + before + b"N" + a_row(new)
        case pgoutput.Delete(relation, old, is_whole):
            return b"D" + struct.pack(">I", relation) + (b"O" if is_whole else b"K") + a_row(old)
        case pgoutput.Truncate(relations, cascade, restart):
            return b"T" + struct.pack(f">IB{len(relations)}I", len(relations), cascade + 2 * restart, *relations)
        case pgoutput.Note(transactional, lsn, prefix, content):
            head = b"M" + struct.pack(">BQ", transactional, lsn) + a_string(prefix)
            return head + struct.pack(">I", len(content)) + content
    raise AssertionError(m)


OIDS = st.integers(0, 2**32 - 1)
ROWS = st.lists(VALUES, max_size=6)
MESSAGES: st.SearchStrategy[pgoutput.Message] = st.one_of(
    st.builds(pgoutput.Begin, LSNS, MOMENTS, OIDS),
    st.builds(pgoutput.Commit, LSNS, LSNS, MOMENTS),
    st.builds(
        Relation, OIDS, NAMES, NAMES, st.sampled_from("dfin"),
        st.lists(st.builds(Column, NAMES, OIDS, st.integers(-1, 2**31 - 1), st.booleans()), max_size=5).map(tuple),
    ),
    st.builds(pgoutput.Insert, OIDS, ROWS),
    st.builds(pgoutput.Update, OIDS, st.none(), st.just(False), ROWS),
    st.builds(pgoutput.Update, OIDS, ROWS, st.booleans(), ROWS),
    st.builds(pgoutput.Delete, OIDS, ROWS, st.booleans()),
    st.builds(pgoutput.Truncate, st.lists(OIDS, max_size=4).map(tuple), st.booleans(), st.booleans()),
    st.builds(pgoutput.Note, st.booleans(), LSNS, NAMES, st.binary(max_size=20)),
)  # fmt: skip


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: pgoutput.Message) -> None:
    assert pgoutput.read_message(written(message)) == message


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_short_is_refused(message: pgoutput.Message, data: st.DataObject) -> None:
    whole = written(message)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(wire.ProtocolError):
        pgoutput.read_message(cut)


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    for read in (pgoutput.read_message, wire.read_frame):
        with suppress(wire.ProtocolError):
            read(data)


@given(LSNS, LSNS, st.binary(max_size=40), st.booleans())
def test_frames(lsn: int, end: int, payload: bytes, asks: bool) -> None:
    assert wire.read_frame(b"w" + struct.pack(">QQq", lsn, end, 0) + payload) == wire.Data(lsn, payload)
    assert wire.read_frame(b"k" + struct.pack(">Qq?", end, 0, asks)) == wire.Keepalive(end, asks)
    assert wire.lsn_number(wire.lsn_text(lsn)) == lsn
    status = wire.write_status(lsn, datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert struct.unpack(">cQQQq?", status) == (b"r", lsn, lsn, lsn, 1_000_000, False)


def test_heartbeats_of_other_sources_are_not_ours() -> None:
    """Two sources of one database see each other's; one that came last hid the one that was waited for, for ever."""
    ours = Assembler(0, heart="ours")
    for lsn, text in enumerate(("ours 1", "theirs 1", "theirs 2")):
        note = pgoutput.Note(False, lsn, HEARTBEAT, text.encode())
        ours.push(b"w" + struct.pack(">QQq", lsn, lsn, 0) + written(note))
    assert ours.heartbeat == "ours 1"


# --- values


LISTS: st.SearchStrategy[list[Any]] = st.lists(st.none() | TEXTS, min_size=1, max_size=3)
ARRAYS = st.recursive(
    LISTS, lambda inner: st.tuples(inner, st.integers(1, 3)).map(lambda t: [t[0]] * t[1]), max_leaves=3
)


@given(ARRAYS)
def test_arrays_are_arrays(array: list[Any]) -> None:
    types = {1009: values.Type(1009, element=values.TEXT)}
    assert json.loads(values.encoder(1009, types)(as_array(array))) == array


def as_array(value: Any) -> str:
    """As PostgreSQL writes an array of text."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(as_array, value)) + "}"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(st.none() | TEXTS, min_size=1, max_size=4).filter(lambda f: f != [None]))
def test_composites_are_read(fields: list[str | None]) -> None:
    text = ",".join("" if f is None else '"' + f.replace("\\", "\\\\").replace('"', '""') + '"' for f in fields)
    assert values.read_record(f"({text})") == fields


@given(st.lists(TEXTS, min_size=1, max_size=3), st.lists(TEXTS, min_size=1, max_size=3))
def test_different_rows_have_different_keys(one: list[str], other: list[str]) -> None:
    if len(one) == len(other):  # of one table
        assert (changes.row_key("public.t", one) == changes.row_key("public.t", other)) == (one == other)


def test_a_long_key_is_hashed() -> None:
    long, longer = "x" * 5000, "x" * 5001
    assert len(changes.row_key("s.t", [long])) < 100
    assert changes.row_key("s.t", [long]) != changes.row_key("s.t", [longer])


# --- a real server


class Changes:
    """The changes of a database, decoded from a slot."""

    def __init__(self, url: str, db: Db) -> None:
        self.url, self.db = url, db
        db.execute("set datestyle = 'ISO'")
        self._types: dict[int, values.Type] = {}
        self._tables: dict[int, changes.Table] = {}

    def publish(self, *tables: str, options: str = "") -> None:
        self.db.execute(f"create publication p for table {', '.join(tables)} {options}")
        self.db.execute("select pg_create_logical_replication_slot('s', 'pgoutput', true)")

    def take(self) -> list[dict[str, Any]]:
        """The messages since the last call: data, and `key`."""
        rows = self.db.execute(
            "select lsn::text, data from pg_logical_slot_get_binary_changes('s', null, null, "
            "'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
        ).fetchall()
        return asyncio.run(self._decode(rows))

    async def _decode(self, rows: list[Any]) -> list[dict[str, Any]]:
        found: list[changes.Message] = []
        transaction = ""
        async with await psycopg.AsyncConnection.connect(self.url) as conn:
            for text, data in rows:
                m, lsn = pgoutput.read_message(bytes(data)), wire.lsn_number(text)
                match m:
                    case pgoutput.Begin():
                        transaction = changes.Transaction(m.xid, m.commit_lsn, m.committed_at).metadata()
                    case Relation():
                        await catalog.load_types(conn, [c.type for c in m.columns], self._types)
                        key = await catalog.load_primary_key(conn, m)
                        self._tables[m.oid] = changes.Table.of(m, self._types, key)
                    case pgoutput.Insert():
                        found += changes.of_insert(self._tables[m.relation], m, lsn, transaction)
                    case pgoutput.Update():
                        found += changes.of_update(self._tables[m.relation], m, lsn, transaction)
                    case pgoutput.Delete():
                        found += changes.of_delete(self._tables[m.relation], m, lsn, transaction)
                    case pgoutput.Truncate():
                        found += [changes.of_truncate(self._tables[r], lsn, transaction) for r in m.relations]
        return [{"key": m.key, **json.loads(m.data)} for m in found]


@pytest.fixture
def source(source_cluster: Cluster) -> Iterator[Changes]:
    with source_database(source_cluster) as url, psycopg.connect(url, autocommit=True) as db:
        yield Changes(url, db)


def test_insert_update_delete(source: Changes) -> None:
    db = source.db
    db.execute("create table t (id int primary key, name text)")
    source.publish("t")
    db.execute("insert into t values (1, 'é \" \\ \n 😀')")
    db.execute("update t set name = null")
    db.execute("delete from t")
    insert, update, delete = source.take()
    assert (insert["key"], insert["action"]) == ("public.t.1", "insert")
    assert insert["record"] == {"id": 1, "name": 'é " \\ \n 😀'}
    assert (update["action"], update["record"], update["changes"]) == ("update", {"id": 1, "name": None}, None)
    assert (delete["key"], delete["action"], delete["record"]) == ("public.t.1", "delete", {"id": 1})
    about = insert["metadata"]
    assert (about["schema"], about["table"], about["unchanged"]) == ("public", "t", [])
    [(xmin,)] = db.execute("select txid_current() - 3")
    assert about["transaction_id"] == xmin
    assert wire.lsn_number(about["lsn"]) < wire.lsn_number(about["commit_lsn"])
    assert abs(datetime.now(UTC) - datetime.fromisoformat(about["commit_time"])) < timedelta(minutes=5)


TYPES: dict[str, tuple[str, Any]] = {
    "smallint": ("-32768", -32768),
    "bigint": ("9223372036854775807", 9223372036854775807),
    "numeric": ("123456789012345678901234567890.1234567890", "123456789012345678901234567890.1234567890"),
    "numeric(10,3)": ("'1.5'", "1.500"),
    "numeric /*nan*/": ("'NaN'", "NaN"),
    "numeric /*inf*/": ("'-Infinity'", "-Infinity"),
    "double precision": ("0.1::float8 + 0.2::float8", 0.30000000000000004),
    "double precision /*nan*/": ("'NaN'", "NaN"),
    "double precision /*big*/": ("1e300", 1e300),
    "real": ("'-Infinity'", "-Infinity"),
    "boolean": ("true", True),
    "text": ("''", ""),
    "char(4)": ("'a'", "a   "),
    "bytea": (r"'\x00ff10'", r"\x00ff10"),
    "date": ("'infinity'", "infinity"),
    "timestamptz": ("'2026-11-18 14:45:00.123456+00'", "2026-11-18 14:45:00.123456+00"),
    "timestamptz /*inf*/": ("'-infinity'", "-infinity"),
    "timestamp": ("'0044-03-15 12:00:00 BC'", "0044-03-15 12:00:00 BC"),
    "interval": ("'1 year 2 days 00:00:03.5'", "1 year 2 days 00:00:03.5"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ("""'{"b": 1.0,  "a": [null, 12345678901234567890]}'""", {"b": 1.0, "a": [None, 12345678901234567890]}),
    "jsonb": ("""'"text"'""", "text"),
    "int[]": ("'{{1,2},{3,NULL}}'", [[1, 2], [3, None]]),
    "int[] /*empty*/": ("'{}'", []),
    "int[] /*bounds*/": ("'[0:1]={1,2}'", "[0:1]={1,2}"),
    "text[]": ("""array['a,b', '"', '\\', 'NULL', null, '', '{}']""", ["a,b", '"', "\\", "NULL", None, "", "{}"]),
    "bytea[]": (r"array['\x01'::bytea]", [r"\x01"]),
    "box[]": ("array['(1,1),(0,0)'::box, '(2,2),(0,0)']", ["(1,1),(0,0)", "(2,2),(0,0)"]),
    "jsonb[]": ("""array['{"a": 1}'::jsonb]""", [{"a": 1}]),
    "mood": ("'so so'", "so so"),
    "mood[]": ("array['so so', 'happy']::mood[]", ["so so", "happy"]),
    "positive": ("7", 7),
    "positive[]": ("array[7, 8]::positive[]", [7, 8]),
    "place": ("""row('a "b", \\c', 1.50, array[1,2], null)::place""",
              {"name": 'a "b", \\c', "size": "1.50", "numbers": [1, 2], "of day": None}),
    "place[]": ("""array[row('x', 2, null, 'happy')::place]""",
                [{"name": "x", "size": "2", "numbers": None, "of day": "happy"}]),
    "int4range": ("'[1,10]'", "[1,11)"),
    "nummultirange": ("'{[1.5,2.5),(3,)}'", "{[1.5,2.5),(3,)}"),
    "inet": ("'10.0.0.1/8'", "10.0.0.1/8"),
    "oid": ("4294967295", 4294967295),
    "int2vector": ("'1 2'", "1 2"),
    "tsvector": ("'a b'", "'a' 'b'"),
    "money": ("12.5", "$12.50"),
}  # fmt: skip


def test_types(source: Changes) -> None:
    db = source.db
    db.execute("create type mood as enum ('happy', 'so so')")
    db.execute("create domain positive as int check (value > 0)")
    db.execute('create type place as (name text, size numeric, numbers int[], "of day" mood)')
    columns = ", ".join(f'"{name}" {name}' for name in TYPES)
    db.execute(f"create table t (id int primary key, {columns})")
    source.publish("t")
    db.execute(f"insert into t values (1, {', '.join(sql for sql, _ in TYPES.values())})")
    db.execute("insert into t (id) values (2)")
    full, empty = (m["record"] for m in source.take())
    expected = {name: value for name, (_, value) in TYPES.items()}
    assert full == {"id": 1, **expected}
    assert empty == {"id": 2, **dict.fromkeys(TYPES)}


def test_unchanged_large_values_are_listed(source: Changes) -> None:
    db = source.db
    db.execute("create table t (id int primary key, n int, large text)")
    db.execute("alter table t alter large set storage external")
    source.publish("t")
    db.execute("insert into t values (1, 1, repeat('x', 10000))")
    db.execute("update t set n = 2")
    db.execute("update t set large = 'small'")
    db.execute("update t set id = 2, large = repeat('y', 10000)")
    db.execute("update t set id = 3")
    _, one, two, _, _, gone, moved = source.take()
    assert (one["record"], one["metadata"]["unchanged"]) == ({"id": 1, "n": 2}, ["large"])
    assert (two["record"], two["metadata"]["unchanged"]) == ({"id": 1, "n": 2, "large": "small"}, [])
    assert (gone["key"], gone["action"], gone["record"]) == ("public.t.2", "delete", {"id": 2})
    assert (moved["key"], moved["action"], moved["record"]) == ("public.t.3", "insert", {"id": 3, "n": 2})
    assert (moved["metadata"]["unchanged"], moved["metadata"]["old_key"]) == (["large"], "public.t.2")


def test_whole_old_rows(source: Changes) -> None:
    """With REPLICA IDENTITY FULL the old values are known, and nothing is unchanged and missing."""
    db = source.db
    db.execute("create table t (id int primary key, n int, large text)")
    db.execute("alter table t alter large set storage external, replica identity full")
    db.execute("create table u (a int, b text)")
    db.execute("alter table u replica identity full")
    source.publish("t", "u")
    db.execute("insert into t values (1, 1, repeat('x', 10000))")
    db.execute("update t set n = 2")
    db.execute("update t set id = 5")
    db.execute("insert into u values (1, null)")
    db.execute("update u set b = 'x'")
    db.execute("delete from u")
    large = "x" * 10000
    _, update, gone, moved, *keyless = source.take()
    assert (update["key"], update["record"]) == ("public.t.1", {"id": 1, "n": 2, "large": large})
    assert (update["changes"], update["metadata"]["unchanged"]) == ({"n": 1}, [])
    assert (gone["key"], gone["record"]) == ("public.t.1", {"id": 1, "n": 2, "large": large})
    assert (moved["key"], moved["record"]) == ("public.t.5", {"id": 5, "n": 2, "large": large})
    assert {m["key"] for m in keyless} == {"public.u"}
    assert [(m["action"], m["record"], m["changes"]) for m in keyless] == [
        ("insert", {"a": 1, "b": None}, None),
        ("update", {"a": 1, "b": "x"}, {"b": None}),
        ("delete", {"a": 1, "b": "x"}, None),
    ]


def test_a_large_key_that_an_update_leaves_alone(source: Changes) -> None:
    db = source.db
    db.execute("create table t (id text primary key, n int, other text)")
    db.execute("alter table t alter id set storage external, alter other set storage external")
    source.publish("t")
    db.execute("insert into t values (repeat('k', 2500), 1, repeat('x', 10000))")
    db.execute("update t set n = 2")
    insert, update = source.take()
    assert update["key"] == insert["key"]
    assert update["record"] == {"id": "k" * 2500, "n": 2}
    assert update["metadata"]["unchanged"] == ["other"]


def test_keys_schemas_and_truncate(source: Changes) -> None:
    db = source.db
    db.execute('create schema "a.b"')
    db.execute('create table "a.b"."T%" (n int, "Ünï" text, flag bool, primary key ("Ünï", n))')
    db.execute("create table u (id int primary key)")
    source.publish('"a.b"."T%"', "u")
    db.execute("""insert into "a.b"."T%" values (1, 'x.y', true)""")
    db.execute('truncate "a.b"."T%", u')
    insert, *truncates = source.take()
    assert insert["key"] == "a%2Eb.T%25.1.x%2Ey"  # in the order of the columns
    assert sorted((m["key"], m["action"], m["record"]) for m in truncates) == [
        ("a%2Eb.T%25", "truncate", None), ("public.u", "truncate", None)
    ]  # fmt: skip


def test_the_table_changes(source: Changes) -> None:
    """Rows are told with the columns that they had."""
    db = source.db
    db.execute("create table t (id int primary key, a text, b int)")
    source.publish("t")
    db.execute("insert into t values (1, 'x', 1)")
    db.execute("alter table t add c int default 7")
    db.execute("insert into t values (2, 'x', 1)")
    db.execute("alter table t rename a to d")
    db.execute("alter table t alter b type text")
    db.execute("insert into t values (3, 'x', '1')")
    db.execute("alter table t drop d")
    db.execute("insert into t values (4, '1', 1)")
    found = source.take()
    assert [m["record"] for m in found] == [
        {"id": 1, "a": "x", "b": 1}, {"id": 2, "a": "x", "b": 1, "c": 7},
        {"id": 3, "d": "x", "b": "1", "c": 7}, {"id": 4, "b": "1", "c": 1},
    ]  # fmt: skip
    assert len({m["metadata"]["schema_version"] for m in found}) == 4


def test_partitions_by_their_root(source: Changes) -> None:
    db = source.db
    db.execute("create table t (id int, at int, primary key (id, at)) partition by range (at)")
    db.execute("create table t1 partition of t for values from (0) to (10)")
    db.execute("create table t2 partition of t for values from (10) to (20)")
    source.publish("t", options="with (publish_via_partition_root)")
    db.execute("insert into t values (1, 5)")
    db.execute("update t set at = 15")  # moves it to the other partition
    assert [(m["key"], m["action"]) for m in source.take()] == [
        ("public.t.1.5", "insert"), ("public.t.1.5", "delete"), ("public.t.1.15", "insert")
    ]  # fmt: skip
