"""What applications and operators do that a source has to live with: odd names, odd values, odd transactions, limits
of roles. Nothing of it stops a source, and everything in the stream is JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import headgate
from headgate.errors import SourceBlocked
from headgate.postgres.cluster import Cluster
from headgate.replication import setup
from support.calls import column, value
from support.source_databases import drop_slots, source_database
from support.source_readers import Reading, caught_up, connected, messages, rebuilt, wait_until

Db = psycopg.Connection[Any]
Start = Callable[[], Reading]


@pytest.fixture
def source_url(source_cluster: Cluster) -> Iterator[str]:
    with source_database(source_cluster) as url:
        yield url


@pytest.fixture
def source(source_url: str) -> Iterator[Db]:
    with connected(source_url) as db:
        db.execute("create table orders (id int primary key, n int)")
        yield db


def all_done(hg: headgate.Headgate) -> bool:
    found = hg.sources.backfills("shop")
    assert not [b for b in found if b.state == "failed"], found
    return {b.state for b in found} == {"done"}


def pause(hg: headgate.Headgate) -> None:
    """Pauses it, and waits until it is not read any more."""
    hg.sources.pause("shop")
    wait_until(lambda: hg.sources.postgres("shop").reader is None)


def strictly(data: str) -> Any:
    """What a reader makes of it that is no Python: NaN is not JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {data[:200]}")

    return json.loads(data, parse_constant=refuse)


# --- values


def test_annotations_are_json_whatever_is_said(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    hg.stream("changes", create=True)
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
    reading()
    said = ["NaN", '{"a": -Infinity}', "[" * 100_000, "", "\ufeff1", "1" * 5000, '"\\ud800"', '{"a": "\\u0000"}', "1 2"]
    for n, text in enumerate(said):
        with source.transaction():
            source.execute("select pg_logical_emit_message(true, 'headgate.annotate', %s)", (text,))
            source.execute("insert into orders values (%s)", (n,))
    caught_up(hg, source)
    sent = column(db, "select data from headgate.messages('changes', 100) order by seq")
    told = [strictly(data)["metadata"]["annotations"] for data in sent]
    assert told == [*said[:6], "\ud800", {"a": "\0"}, "1 2"]


def test_gone_rows_are_found_where_json_is_not_text(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    """A json column keeps escapes that no text of PostgreSQL can have."""
    hg.stream("changes", create=True)
    source.execute("alter table orders add j json")
    for number, text in enumerate(('"\\u0000\\u0000"', '"\\ud800 \\\\u0000"', '{"\\udc00": "\\\\\\u0000"}', "1"), 1):
        source.execute("insert into orders (id, j) values (%s, %s)", (number, text))
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"], backfill=True)
    reading()
    wait_until(lambda: all_done(hg))
    source.execute("delete from orders where id <> 2")
    caught_up(hg, source)
    pause(hg)
    source.execute("insert into orders (id, j) values (5, '\"\\u0000\"')")
    hg.sources.restart_postgres("shop")
    wait_until(lambda: all_done(hg))
    pause(hg)
    source.execute("delete from orders where id = 5")
    hg.sources.restart_postgres("shop")
    wait_until(lambda: all_done(hg))
    told = [m["record"] for m in messages(db) if m["metadata"].get("found_by") == "backfill"]
    assert told == [{"id": 5, "n": None, "j": "\ufffd"}]
    assert set(rebuilt(messages(db), "orders")) == {2}


def test_composite_types_that_are_altered(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    """The log has values of the type as it was, and does not tell its fields."""
    hg.stream("changes", create=True)
    source.execute("create domain amount as int; create type pair as (x amount, y text)")
    source.execute("alter table orders add p pair, add ps pair[]")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
    source.execute("insert into orders values (1, 0, row(1, 'abc'), array[row(1, 'x,\"y')::pair])")
    source.execute("alter type pair drop attribute x; alter type pair add attribute z amount")
    reading()
    caught_up(hg, source)
    source.execute("insert into orders values (2, 0, row('abc', 1), null)")
    source.execute("alter type pair add attribute w jsonb")
    source.execute("insert into orders values (3, 0, row('abc', 1, '[1]'), null)")
    caught_up(hg, source)
    found = [strictly(data)["record"] for data in column(db, "select data from headgate.messages('changes', 9)")]
    assert sorted((r["id"], r["p"], r["ps"]) for r in found) == [
        (1, "(1,abc)", ['(1,"x,""y")']),
        (2, {"y": "abc", "z": 1}, None),
        (3, {"y": "abc", "z": 1, "w": [1]}, None),
    ]


def test_keys_of_any_length_and_names_of_any_kind(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    hg.stream("changes", create=True)
    table = '"Ä.%s "."Tab""le %d.ü"'
    source.execute('create schema "Ä.%s "')
    source.execute(f'create table {table} ("I d" text, "%s" int, "a""b\\c" int, primary key ("I d", "%s"))')  # type: ignore[arg-type]
    for text in ("😀" * 990, "." * 500, "x" * 1000, "%" * 1001, "", "a\nb\t", "*", ">", " "):
        source.execute(f"insert into {table} values (%s, 1, 2)".replace("Ä.%s", "Ä.%%s").replace("%d", "%%d"), (text,))  # type: ignore[arg-type]
    made = hg.sources.add_postgres("shop", "changes", url=source_url, tables=["*"], backfill=True)
    assert made.tables == [table, "public.orders"]
    reading()
    wait_until(lambda: all_done(hg))
    source.execute(f'update {table} set "a""b\\c" = 3')  # type: ignore[arg-type]
    caught_up(hg, source)
    pause(hg)
    hg.sources.alter_postgres("shop", tables=[table], keys={table: ["%s"]})
    hg.sources.resume("shop")
    source.execute(f"delete from {table}")  # type: ignore[arg-type]
    caught_up(hg, source)
    found = messages(db)
    assert [m["action"] for m in found] == ["read"] * 9 + ["update"] * 9 + ["delete"] * 9
    assert len({m["key"] for m in found}) == 9 + 1
    consumer = hg.stream("changes").consumer("audit", order="key", create=True)
    got = 0
    while got < 27:
        got += len(several := consumer.receive(100, wait=5))
        consumer.ack(several)


# --- transactions


def test_prepared_transactions_and_savepoints(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    """A backfill waits for the one that is prepared, and says so; what is taken back is nowhere."""
    hg.stream("changes", create=True)
    source.execute("insert into orders select i, 0 from generate_series(1, 300) i")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
    reading()
    with connected(source_url) as other:
        other.execute("begin; update orders set n = 5 where id between 100 and 200; prepare transaction 'two'")
        hg.sources.backfill("shop")
        wait_until(lambda: "it waits for a transaction" in (hg.sources.backfills("shop")[0].error or ""))
        with source.transaction():
            for i in range(300):
                with suppress(psycopg.errors.UniqueViolation), source.transaction():
                    source.execute("insert into orders values (%s, 1)", (1000 + i,))
                    if i % 3 == 0:
                        source.execute("insert into orders values (%s, 1)", (1000 + i,))
        caught_up(hg, source)
        other.execute("commit prepared 'two'")
    wait_until(lambda: all_done(hg))
    source.execute("begin; truncate orders; insert into orders values (7, 7); prepare transaction 'three'")
    source.execute("rollback prepared 'three'")
    caught_up(hg, source)
    found = messages(db)
    assert sum(m["action"] == "insert" for m in found) == 200
    newest = {m["record"]["id"]: m["record"]["n"] for m in found}
    assert newest == dict(source.execute("select id, n from orders").fetchall())


def test_who_holds_up_a_new_slot(source: Db, source_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "SLOT_SECONDS", 1)
    source.execute("begin; insert into orders values (1); prepare transaction 'forgotten one'")
    try:
        with pytest.raises(SourceBlocked, match="the prepared 'forgotten one' of database source_") as blocked:
            setup.prepare(source_url, "shop", ["orders"])
        assert "ROLLBACK PREPARED 'forgotten one' or" in (blocked.value.hint or "")
    finally:
        source.execute("rollback prepared 'forgotten one'")


def test_databases_in_other_encodings(
    hg: headgate.Headgate, db: Db, source_cluster: Cluster, source: Db, reading: Start
) -> None:
    hg.stream("changes", create=True)
    name = "in_another_encoding"
    reading()
    for encoding, word in (("LATIN1", "é"), ("EUC_JP", "日本"), ("SQL_ASCII", "a")):
        source.execute(
            f"create database {name} encoding '{encoding}' template template0 locale_provider 'libc' locale 'C'"
        )  # type: ignore[arg-type]
        try:
            with connected(source_cluster.url(name)) as other:
                other.execute("set client_encoding = 'UTF8'")
                other.execute(f'create table "{word}" (id text primary key)')  # type: ignore[arg-type]
                other.execute(f"insert into \"{word}\" values ('{word}1')")  # type: ignore[arg-type]
                hg.sources.add_postgres("shop", "changes", url=source_cluster.url(name), tables=["*"], backfill=True)
                wait_until(lambda: all_done(hg))
                with other.transaction():
                    other.execute(f"select pg_logical_emit_message(true, 'headgate.annotate', '\"{word}\"')")  # type: ignore[arg-type]
                    other.execute(f"insert into \"{word}\" values ('{word}2')")  # type: ignore[arg-type]
                wait_until(lambda word=word: messages(db)[-1]["key"] == f"public.{word}.{word}2")
                assert messages(db)[-2]["record"] == {"id": f"{word}1"}
            hg.sources.remove_postgres("shop")
        finally:
            drop_slots(source, name)
            source.execute(f"drop database {name} with (force)")  # type: ignore[arg-type]


# --- limits and rights


def test_limits_that_are_meant_for_applications(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    """A role's or a database's timeouts would end a large transaction or a long backfill again and again."""
    hg.stream("changes", create=True)
    source.execute("create table large (id int primary key, t text)")
    source.execute("insert into large select i, repeat('x', 100) from generate_series(1, 20000) i")
    everywhere = ("statement_timeout = '100ms'", "lock_timeout = '1ms'", "default_transaction_isolation = serializable")
    there = ("idle_in_transaction_session_timeout = '10ms'", "idle_session_timeout = '100ms'",
             "default_transaction_read_only = on")  # fmt: skip
    for of, limits in ((source, (*everywhere, *there)), (db, everywhere)):
        for limit in limits:
            of.execute(f"alter database {value(of, 'select current_database()')} set {limit}")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["large"], backfill=True)
    process = reading()
    wait_until(lambda: all_done(hg))
    began = hg.sources.postgres("shop").since
    source.execute("update large set t = 'y'")
    caught_up(hg, source)
    assert len(messages(db)) == 40_000
    assert hg.sources.postgres("shop").since == began, "it was interrupted"
    assert process.process.poll() is None


def test_a_reader_that_may_only_replicate(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Start
) -> None:
    """Changes need no SELECT; rows do, and a policy must not hide some of them in silence."""
    hg.stream("changes", create=True)
    source.execute("create table secret (id int primary key); insert into secret values (1)")
    source.execute("alter table orders enable row level security; create policy p on orders using (n = 1)")
    source.execute("insert into orders values (1, 1), (2, 2); create publication ours for table orders, secret")
    source.execute("create role replicates login replication; grant select on orders to replicates")
    url = source_url.replace("postgres@", "replicates@")
    try:
        hg.sources.add_postgres(
            "shop", "changes", url=url, tables=["orders", "secret"], publication="ours", backfill=True
        )
        reading()
        wait_until(lambda: {b.state for b in hg.sources.backfills("shop")} == {"failed"})
        assert sorted(b.error or "" for b in hg.sources.backfills("shop")) == [
            "permission denied for table secret",
            'query would be affected by row-level security policy for table "orders"',
        ]
        source.execute("update orders set n = 3")
        caught_up(hg, source)
        assert [m["record"]["id"] for m in messages(db)] == [1, 2]
        hg.sources.remove_postgres("shop")
    finally:
        source.execute("drop owned by replicates; drop role replicates")


def test_a_publication_of_more_than_the_tables(source: Db, source_url: str) -> None:
    """What it has beside them would come into the stream, too."""
    source.execute("create table people (id int primary key); create publication ours for table orders, people")
    with pytest.raises(SourceBlocked, match=r'"ours" also has public\.people') as blocked:
        setup.prepare(source_url, "shop", ["orders"], publication="ours")
    assert 'ALTER PUBLICATION "ours" DROP TABLE public.people' in (blocked.value.hint or "")


def test_a_publication_of_all_tables_does_not_feed_itself(
    hg: headgate.Headgate, db: Db, database_url: str, reading: Start
) -> None:
    """Each message would be a change, and each change a message."""
    hg.stream("changes", create=True)
    db.execute("create table orders (id int primary key)")
    db.execute("create publication everything for all tables")
    with pytest.raises(SourceBlocked, match="tables of Headgate itself"):
        hg.sources.add_postgres("shop", "changes", url=database_url, tables=["orders"], publication="everything")
    db.execute("drop publication everything; create publication everything for table orders")
    hg.sources.add_postgres("shop", "changes", url=database_url, tables=["orders"], publication="everything")
    number = value(db, "select id from headgate.stream")
    db.execute(f"alter publication everything add table headgate.message_{number}")  # type: ignore[arg-type]
    reading()
    try:
        for turn in range(3):
            db.execute("insert into orders values (%s)", (turn,))
            caught_up(hg, db)
        assert [m["key"] for m in messages(db)] == [f"public.orders.{turn}" for turn in range(3)]
    finally:
        hg.sources.remove_postgres("shop")


def test_partitions_that_are_made_later_can_be_updated(source: Db, source_url: str) -> None:
    """Of the identities that a partitioned table can have, a new partition gets the primary key alone."""
    source.execute("create table parts (n int) partition by range (n)")
    with pytest.raises(SourceBlocked, match=r"public\.parts is partitioned and has no primary key"):
        setup.prepare(source_url, "shop", ["parts"])
    source.execute("create table part partition of parts for values from (0) to (10)")
    source.execute("alter table part replica identity full")
    with pytest.raises(SourceBlocked, match=r"public\.parts is partitioned and has no primary key"):
        setup.prepare(source_url, "shop", ["parts"])
    made = setup.prepare(source_url, "shop", ["part"])
    try:
        source.execute("create table later partition of parts for values from (10) to (20)")
        source.execute("insert into parts values (1), (11); update parts set n = n + 1")
    finally:
        setup.remove(source_url, made.publication, made.slot, made.made)
