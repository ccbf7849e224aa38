"""Sources of tables from day to day: changed, limited, lost, read anew; and what never happens to the application."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from headgate.replication import setup, timelines
from headgate.replication.troubles import TargetFailed, explain
from support.calls import column, value
from support.postgres import SETTINGS
from support.servers import replica
from support.source_databases import source_database
from support.source_readers import Reading, caught_up, connected, messages, rebuilt, wait_until

Db = psycopg.Connection[Any]


@pytest.fixture
def source_url(cluster: Cluster) -> Iterator[str]:
    with source_database(cluster) as url:
        yield url


@pytest.fixture
def source(source_url: str) -> Iterator[Db]:
    with connected(source_url) as db:
        db.execute("create table orders (id int primary key, n int)")
        yield db


@pytest.fixture
def own_cluster(bin_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(bin_dir, tmp_path / "data", tmp_path / "run", settings=SETTINGS)
    cluster.init()
    cluster.start()
    yield cluster
    cluster.stop("immediate")


def state(hg: headgate.Headgate, wanted: str, says: str) -> headgate.types.PostgresSourceInfo:
    def holds() -> bool:
        shop = hg.sources.postgres("shop")
        return shop.state == wanted and says in (shop.error or "")

    try:
        wait_until(holds)
    except AssertionError:
        raise AssertionError(hg.sources.postgres("shop")) from None
    return hg.sources.postgres("shop")


def all_done(hg: headgate.Headgate) -> bool:
    return {b.state for b in hg.sources.backfills("shop")} == {"done"}


def slots(source: Db) -> list[str]:
    return column(source, "select slot_name::text from pg_replication_slots where database = current_database()")


# --- lost, and read anew


def test_a_dropped_publication_is_noticed_and_what_is_gone_is_told(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    """PostgreSQL 18 would skip changes in silence. Read anew, the stream gives the table again: also without the rows
    that were deleted in between."""
    hg.stream("changes", create=True)
    source.execute("insert into orders select i, 0 from generate_series(1, 50) i")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"], backfill=True)
    reading()
    wait_until(lambda: all_done(hg))
    source.execute("update orders set n = 1 where id = 50")
    caught_up(hg, source)
    source.execute("drop publication headgate_shop")
    shop = state(hg, "lost", "is gone: changes since")
    assert "headgate source restart" in (shop.hint or "")
    source.execute("delete from orders where id <= 10; update orders set id = 100 where id = 11")
    source.execute("insert into orders values (5, 5)")
    source.execute("create publication headgate_shop for table orders")
    state(hg, "lost", "was dropped and made anew")
    [finding] = [f for f in hg.doctor() if f.subject == "source shop"]
    assert finding.severity == "problem"
    assert "is lost" in finding.finding
    source.execute("drop publication headgate_shop")
    hg.sources.restart_postgres("shop")
    wait_until(lambda: all_done(hg))
    source.execute("update orders set n = 2 where id = 12")
    caught_up(hg, source)
    found = messages(db)
    expected = dict(source.execute("select id, n from orders").fetchall())
    assert {k: r["n"] for k, r in rebuilt(found, "orders").items()} == expected
    told = [m["record"]["id"] for m in found if m["metadata"].get("found_by") == "backfill"]
    assert sorted(told) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert [b.deleted for b in hg.sources.backfills("shop")] == [10]
    hg.sources.backfill("shop", deletions=True)
    wait_until(lambda: all_done(hg))
    assert hg.sources.backfills("shop")[0].deleted == 0, "told twice"


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_slot_that_keeps_too_much_is_dropped_where_that_is_wanted(
    is_paused: bool, hg: headgate.Headgate, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"], warn_bytes=1)
    if is_paused:
        hg.sources.pause("shop")
    reading()
    source.execute("insert into orders select generate_series(1, 1000)")
    wait_until(lambda: hg.sources.postgres("shop").retained_bytes)
    assert slots(source) == ["headgate_shop"], "without a limit nothing is dropped"
    if is_paused:
        assert any("is paused, and its slot keeps" in f.finding for f in hg.doctor())
    with source.transaction():  # the log is kept from the beginning of the oldest transaction on
        source.execute("insert into orders values (0)")
        with connected(source_url) as other:
            other.execute("insert into orders select generate_series(2000, 5000)")
            hg.sources.alter_postgres("shop", drop_bytes=10_000)
            if not is_paused:  # a reader learns of it when it begins
                hg.sources.pause("shop")
                hg.sources.resume("shop")
            shop = state(hg, "lost", "more than the limit of 10,000")
    assert "`headgate source restart shop`" in (shop.hint or "")
    wait_until(lambda: slots(source) == [])


def test_left_at() -> None:
    history = "1\t0/3000158\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01 # 3\n"
    assert timelines.left_at(history, 1) == 0x3000158
    assert timelines.left_at(history, 2) == 0x1000000A0
    assert timelines.left_at(history, 3) is None


def test_a_promoted_standby_that_was_behind_is_not_read(
    hg: headgate.Headgate, db: Db, own_cluster: Cluster, bin_dir: Path, tmp_path: Path,
    reading: Callable[[], Reading],
) -> None:  # fmt: skip
    """Its WAL is soon longer than what was read: only the history of its timelines tells."""
    hg.stream("changes", create=True)
    with connected(own_cluster.url()) as source:
        source.execute("create table orders (id int primary key)")
    hg.sources.add_postgres("shop", "changes", url=own_cluster.url(), tables=["orders"])
    own_cluster.stop("fast")
    subprocess.run(["cp", "-a", tmp_path / "data", tmp_path / "standby"], check=True)
    own_cluster.start()
    reading()
    with connected(own_cluster.url()) as source:
        source.execute("insert into orders select generate_series(1, 1000)")
        caught_up(hg, source)
    own_cluster.stop("fast")
    (tmp_path / "standby" / "standby.signal").touch()
    standby = Cluster(bin_dir, tmp_path / "standby", tmp_path / "run2", settings=SETTINGS)
    standby.start()
    try:
        with connected(standby.url()) as source:
            source.execute("select pg_promote(true, 120)")
            wait_until(lambda: not value(source, "select pg_is_in_recovery()"))
            source.execute("insert into orders select generate_series(5001, 9000)")
        hg.sources.alter_postgres("shop", url=standby.url())
        state(hg, "lost", "another server was promoted")
        assert len(messages(db)) == 1000
        hg.sources.restart_postgres("shop")
        wait_until(lambda: all_done(hg))
        assert set(rebuilt(messages(db), "orders")) == set(range(5001, 9001))
    finally:
        standby.stop("immediate")


def test_password_rights_and_hosts(
    hg: headgate.Headgate, db: Db, own_cluster: Cluster, tmp_path: Path, reading: Callable[[], Reading]
) -> None:
    """Each has a state, a sentence and something to do; no password is in any; and nothing is missing afterwards."""
    hg.stream("changes", create=True)
    with connected(own_cluster.url()) as source:
        source.execute("create table orders (id int primary key)")
        source.execute("create role reader login replication password 'first one'")
        source.execute("alter table orders owner to reader; grant create on database postgres to reader")
    hba = tmp_path / "data" / "pg_hba.conf"
    hba.write_text("local all postgres trust\nhost all postgres all trust\nlocal all reader scram-sha-256\n"
                   "local replication reader scram-sha-256\nhost all reader all scram-sha-256\n"
                   "host replication reader all scram-sha-256\n")  # fmt: skip
    with connected(own_cluster.url()) as source:
        source.execute("select pg_reload_conf()")
        url = own_cluster.url().replace("postgres@", "reader:first%20one@")
        hg.sources.add_postgres("shop", "changes", url=url, tables=["orders"])
        reading()
        source.execute("insert into orders values (1)")
        caught_up(hg, source)
        end = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'reader'"
        source.execute("alter role reader password 'second one'")
        source.execute(end)
        shop = state(hg, "failing", "refuses the password")
        assert "--url" in (shop.hint or "")
        source.execute("insert into orders values (2)")
        hg.sources.alter_postgres("shop", url=url.replace("first", "second"))
        caught_up(hg, source)
        source.execute("alter role reader noreplication")
        source.execute(end)
        shop = state(hg, "failing", "replication")
        source.execute("insert into orders values (3)")
        source.execute("alter role reader replication")
        caught_up(hg, source)
        said = db.execute("select coalesce(string_agg(p::text, ' '), '') from headgate.postgres_sources() p").fetchone()
        assert "one" not in str(said).replace("none", "")
        with pytest.raises(headgate.errors.SourceBlocked) as blocked:
            setup.check(url, ["orders"])
        assert "first" not in str(blocked.value)
        assert [m["record"]["id"] for m in messages(db)] == [1, 2, 3]


def test_what_the_streams_database_refuses_is_said(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    """As when its disk is full; afterwards it goes on, and nothing is missing or twice."""
    stream = hg.stream("changes", create=True)
    number = value(db, "select id from headgate.stream")
    db.execute("create function full_disk() returns trigger language plpgsql as "
               "$$ begin raise exception using errcode = '53100', message = 'No space left'; end $$")  # fmt: skip
    db.execute(
        f"create trigger full_disk before insert on headgate.message_{number} for each row "  # type: ignore[arg-type]
        "execute function full_disk()"
    )
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
    reading()
    source.execute("insert into orders select generate_series(1, 3000)")
    shop = state(hg, "failing", "the stream's database: the disk is full: No space left")
    assert "nothing is lost" in (shop.hint or "")
    db.execute(f"drop trigger full_disk on headgate.message_{number}")  # type: ignore[arg-type]
    source.execute("insert into orders values (0)")
    caught_up(hg, source)
    assert [m["record"]["id"] for m in messages(db)] == [*range(1, 3001), 0]
    stream.send("still there")


def test_what_is_said() -> None:
    full = psycopg.errors.DiskFull("could not extend file: No space left on device")
    failed = TargetFailed(full)
    assert explain(failed)[0] == "failing"
    assert "the stream's database: the disk is full" in explain(failed)[1]
    assert "the source's database: the disk is full" in explain(full)[1]
    assert "nothing is lost" in explain(ValueError("x"))[2]


# --- changed while it runs


def test_tables_streams_keys_and_url_are_changed(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    hg.stream("people", create=True)
    source.execute("create table people (id int primary key, city text, name text)")
    source.execute("insert into people values (1, 'Rome', 'Ann')")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
    reading()
    with pytest.raises(headgate.errors.SourceBlocked, match="city is not in the log when a row"):
        hg.sources.alter_postgres("shop", tables=["orders", "people"], keys={"people": ["city"]})
    source.execute("alter table people replica identity full")
    made = hg.sources.alter_postgres(
        "shop", tables=["orders", "people"], keys={"people": ["city"]}, streams={"people": "people"}, backfill=True
    )
    assert made.tables == ["public.orders", "public.people"]
    assert made.routes == {"public.people": {"stream": "people", "key": ["city"]}}
    wait_until(lambda: all_done(hg))
    source.execute("insert into people values (2, 'Rome', 'Bob')")
    source.execute("update people set city = 'Oslo' where id = 1")
    source.execute("delete from people where id = 2; insert into orders values (1, 1)")
    caught_up(hg, source)
    assert [(m["key"], m["action"]) for m in messages(db, "people")] == [
        ("public.people.Rome", "read"), ("public.people.Rome", "insert"), ("public.people.Rome", "delete"),
        ("public.people.Oslo", "insert"), ("public.people.Rome", "delete"),
    ]  # fmt: skip
    assert [m["key"] for m in messages(db)] == ["public.orders.1"]
    with pytest.raises(headgate.Error, match='source "shop" sends to this stream'):
        hg.stream("people").drop()
    with pytest.raises(headgate.errors.InvalidArgument, match="another database"):
        hg.sources.alter_postgres("shop", url=re.sub("source_[0-9]+", "template1", source_url))
    with pytest.raises(headgate.Error, match="key of your own"):
        hg.sources.backfill("shop", deletions=True)
    assert hg.sources.alter_postgres("shop", tables=["orders"]).routes == {}
    hg.stream("people").drop()
    assert column(source, "select tablename::text from pg_publication_tables") == ["orders"]


def test_a_stream_for_each_table(hg: headgate.Headgate, db: Db, source: Db, source_url: str) -> None:
    source.execute("create table people (id int primary key)")
    made = hg.sources.add_postgres("shop", "shop.{schema}.{table}", url=source_url, tables=["*"])
    assert {t: r["stream"] for t, r in made.routes.items()} == {
        "public.orders": "shop.public.orders", "public.people": "shop.public.people",
    }  # fmt: skip
    assert set(hg.streams()) == {"shop.public.orders", "shop.public.people"}


def test_backfills_are_paused_slowed_and_cancelled(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    source.execute("insert into orders select i, i % 10 from generate_series(1, 3000) i")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"], backfill_rate=100, backfill=True)
    reading()
    wait_until(lambda: hg.sources.backfills("shop")[0].rows > 0)
    hg.sources.pause_backfill("shop")
    assert hg.sources.backfills("shop")[0].state == "paused"
    source.execute("insert into orders values (5000, 1)")
    caught_up(hg, source)  # changes go on
    assert 0 < hg.sources.backfills("shop")[0].rows < 3000, "the rate does not hold"
    hg.sources.alter_postgres("shop", backfill_rate=0)
    hg.sources.resume_backfill("shop")
    wait_until(lambda: all_done(hg))
    assert len(rebuilt(messages(db), "orders")) == 3001
    hg.sources.alter_postgres("shop", backfill_rate=1)
    hg.sources.backfill("shop")
    wait_until(lambda: hg.sources.backfills("shop")[0].state == "running")
    hg.sources.cancel_backfill("shop")
    assert hg.sources.backfills("shop")[0].error == "it was cancelled"
    hg.sources.alter_postgres("shop", backfill_rate=0)
    before = len(messages(db))
    hg.sources.backfill("shop", from_column="n", from_value="9")
    wait_until(lambda: all_done(hg))
    caught_up(hg, source)
    read = [m for m in messages(db)[before:] if m["action"] == "read" and m["record"]["n"] == 9]
    assert 300 <= len(read) < 310  # (the one that was cancelled may have sent a row)
    hg.sources.backfill("shop", from_column="no_such", from_value="9")
    wait_until(lambda: hg.sources.backfills("shop")[0].state == "failed")
    assert "has no column no_such" in (hg.sources.backfills("shop")[0].error or "")


def test_large_rows_are_read_a_few_at_a_time(
    hg: headgate.Headgate, db: Db, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    source.execute("create table large (id int primary key, t text)")
    source.execute("insert into large select i, repeat(i::text, 50000) from generate_series(100, 199) i")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["large"], backfill=True)
    reading()
    wait_until(lambda: all_done(hg))
    found = rebuilt(messages(db), "large")
    assert {k: len(r["t"]) for k, r in found.items()} == dict.fromkeys(range(100, 200), 150_000)


# --- the application


def test_tables_whose_writes_would_fail_are_refused(source: Db, source_url: str) -> None:
    source.execute("create table later (id int primary key deferrable)")
    source.execute("create table parent (id int primary key); create table child (x int) inherits (parent)")
    found = {c.found: c for c in setup.check(source_url, ["later", "parent"])[0] if not c.is_ok}
    assert [text.split()[0] for text in found] == ["public.later"]
    if source.info.server_version >= 180000:
        source.execute("create table computed (id int primary key, n int generated always as (id * 2) virtual)")
        source.execute("insert into computed values (1)")
        assert all(c.is_ok for c in setup.check(source_url, ["computed"])[0])
        source.execute("alter table computed replica identity full")
        [wrong] = [c for c in setup.check(source_url, ["computed"])[0] if not c.is_ok]
        assert "virtual generated columns" in wrong.found
        source.execute("create publication risky for table computed with (publish_generated_columns = stored)")
        with pytest.raises(psycopg.Error, match="cannot update table"):
            source.execute("update computed set id = 2")
        source.execute("drop publication risky")
    made = setup.prepare(source_url, "shop", ["parent"])
    try:
        source.execute("insert into child values (1, 1)")
        source.execute("update child set x = 2")  # it has no identity, and is not read
        assert column(source, "select tablename::text from pg_publication_tables") == ["parent"]
    finally:
        setup.remove(source_url, made.publication, made.slot, made.made)


def test_a_table_that_loses_its_identity_is_told(
    hg: headgate.Headgate, source: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    source.execute("create table people (id int primary key)")
    hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders", "people"])
    source.execute("alter table orders drop constraint orders_pkey; drop table people")
    reading()
    wait_until(lambda: len(hg.sources.postgres("shop").problems) == 2)
    said = sorted(hg.sources.postgres("shop").problems)
    assert said[0].startswith("public.orders has no replica identity any more")
    assert said[1].startswith("public.people is gone")
    assert sum(f.subject == "source shop" and f.severity == "warning" for f in hg.doctor()) == 2


def test_a_publication_and_slot_that_are_there(source: Db, source_url: str) -> None:
    source.execute("create table people (id int primary key)")
    source.execute("create publication ours for table orders with (publish = 'insert')")
    found = [c.found for c in setup.check(source_url, ["orders", "people"], publication="ours", slot="no")[0]
             if not c.is_ok]  # fmt: skip
    assert found == [
        'there is no slot "no" of pgoutput in this database', 'the publication "ours" has not all kinds of changes',
        'public.people is not in the publication "ours"',
    ]  # fmt: skip
    with pytest.raises(headgate.errors.SourceBlocked, match="not all kinds"):
        setup.prepare(source_url, "shop", ["orders"], publication="ours")
    assert slots(source) == []


def test_deletions_are_not_told_where_sources_share_a_stream(
    hg: headgate.Headgate, cluster: Cluster, source: Db, source_url: str
) -> None:
    """Rows of the other source would look as if they were gone."""
    hg.stream("changes", create=True)
    with source_database(cluster) as other_url:
        with connected(other_url) as other:
            other.execute("create table orders (id int primary key)")
        for name, url in (("eu", source_url), ("us", other_url)):
            hg.sources.add_postgres(name, "changes", url=url, tables=["orders"])
        with pytest.raises(headgate.Error, match="another source sends a table of this name"):
            hg.sources.backfill("eu", deletions=True)
        hg.sources.remove_postgres("us")
        hg.sources.backfill("eu", deletions=True)


def test_the_sdk_over_http(
    hg: headgate.Headgate, database_url: str, source: Db, source_url: str, tmp_path: Path
) -> None:
    """A client that does not reach the databases has the server do it."""
    hg.stream("changes", create=True)
    hg.sources.create("hooks", "changes", scheme="none")
    with replica(database_url, tmp_path) as server, headgate.connect(server.url, token=server.token) as remote:
        sources = remote.sources
        assert all(c.is_ok for c in sources.check_postgres(source_url, ["orders"]))
        made = sources.add_postgres("shop", "changes", url=source_url, tables=["orders"], drop_bytes=10**10)
        assert (made.name, made.tables, made.drop_bytes) == ("shop", ["public.orders"], 10**10)
        assert [s.name for s in sources.all()] == ["hooks"]
        assert [s.name for s in sources.all_postgres()] == ["shop"]
        with pytest.raises(headgate.errors.SourceExists):
            sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
        with pytest.raises(headgate.errors.SourceBlocked, match="there is no table nowhere"):
            sources.alter_postgres("shop", tables=["nowhere"])
        sources.pause_backfill("shop")
        sources.backfill("shop", deletions=True)
        assert [b.state for b in sources.backfills("shop")] == ["paused"]
        sources.resume_backfill("shop")
        wait_until(lambda: [b.state for b in sources.backfills("shop")] == ["done"])
        sources.pause("shop")
        assert sources.postgres("shop").state == "paused"
        sources.restart_postgres("shop", backfill=False)
        wait_until(lambda: sources.postgres("shop").state == "reading")
        sources.remove_postgres("shop")
        with pytest.raises(headgate.errors.SourceNotFound):
            sources.postgres("shop")
    assert slots(source) == []
