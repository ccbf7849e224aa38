"""Sources of tables from outside: what is checked, what is said, and the same through SDK, HTTP and command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from headgate.replication import checks, setup
from support.calls import column, value
from support.command_line import CommandLine
from support.postgres import NewCluster
from support.servers import data, error, replica
from support.source_databases import source_database
from support.source_readers import wait_until

Db = psycopg.Connection[Any]


@pytest.fixture
def source_url(source_cluster: Cluster) -> Iterator[str]:
    with source_database(source_cluster) as url:
        yield url


@pytest.fixture
def newest_url(cluster: Cluster) -> Iterator[str]:
    with source_database(cluster) as url:
        yield url


@pytest.fixture
def source(newest_url: str) -> Iterator[Db]:
    with psycopg.connect(newest_url, autocommit=True) as db:
        db.execute("create table orders (id int primary key, n int)")
        yield db


def left_behind(source: Db) -> list[Any]:
    return column(
        source, "select slot_name::text from pg_replication_slots where database = current_database()"
    ) + column(source, "select pubname::text from pg_publication")


def problems(url: str, *tables: str) -> dict[str, checks.Check]:
    return {c.found: c for c in setup.check(url, tables)[0] if not c.is_ok}


def test_what_is_missing_is_said(source_url: str) -> None:
    """Each with what to do; and nothing is done to the tables."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table keyless (n int)")
        source.execute("create table full_rows (n int); alter table full_rows replica identity full")
        source.execute("create table nothing (n int primary key); alter table nothing replica identity nothing")
        source.execute("create unlogged table fleeting (n int primary key)")
        source.execute("create table parts (n int) partition by range (n)")
        source.execute("create table part partition of parts for values from (0) to (1)")
        source.execute("create view seen as select 1")
        assert problems(source_url, "public.full_rows") == {}
        found = problems(
            source_url, "keyless", "nothing", "parts", "fleeting", "seen", "absent", "no.such", "none.*", "a b"
        )
        said = " ".join(found)
        for table in ("public.keyless", "public.nothing", "public.part"):
            [check] = [c for text, c in found.items() if text.startswith(f"{table} has no primary key")]
            assert check.advice == f"give it a primary key, or run ALTER TABLE {table} REPLICA IDENTITY FULL"
        for text in ("public.fleeting is unlogged", "public.seen is not a table", "there is no table absent",
                     "there is no table no.such", "there are no tables none.*", "there is no table a b"):  # fmt: skip
            assert text in said
        with pytest.raises(headgate.errors.SourceBlocked, match="updates and deletes of it"):
            setup.prepare(source_url, "shop", ["keyless"])
        source.execute("update keyless set n = 1")
        assert left_behind(source) == []


def test_rights(source: Db, newest_url: str, cluster: Cluster) -> None:
    source.execute("create role reader login")
    try:
        url = newest_url.replace("postgres@", "reader@")
        found = {c.name: c for c in setup.check(url, ["orders"])[0] if not c.is_ok}
        assert found["rights"].advice == 'run ALTER ROLE "reader" REPLICATION as its superuser'
        assert "replication" in found
        source.execute("alter role reader replication")
        with pytest.raises(headgate.errors.SourceBlocked) as blocked:
            setup.prepare(url, "shop", ["orders"])
        assert "permission denied" in blocked.value.message
        assert left_behind(source) == []
        source.execute("create publication ours for table orders")
        made = setup.prepare(url, "shop", ["orders"], publication="ours")
        assert made.made == ["slot"]
        setup.remove(url, made.publication, made.slot, made.made)
        assert left_behind(source) == ["ours"]
    finally:
        source.execute("drop owned by reader; drop role reader")


def test_servers_that_cannot_be_read(new_cluster: NewCluster, newest_url: str) -> None:
    with pytest.raises(headgate.errors.SourceBlocked, match="cannot be reached"):
        setup.check(newest_url.replace("source_", "no_source_"), ["*"])
    with pytest.raises(headgate.errors.InvalidArgument) as unread:
        setup.check("postgresql://a:pass word@h/db?x=secret", ["*"])
    assert "secret" not in str(unread.value)


def test_wal_level_slots_and_pooler(bin_dir: Path, tmp_path: Path) -> None:
    settings = {"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "1", "fsync": "off"}
    cluster = Cluster(bin_dir, tmp_path / "data", tmp_path / "run", settings=settings)
    cluster.init()
    cluster.start()
    try:
        with psycopg.connect(cluster.url(), autocommit=True) as db:
            db.execute("create table orders (id int primary key)")
        found = {c.name: c for c in setup.check(cluster.url(), ["orders"])[0] if not c.is_ok}
        assert found.keys() == {"wal_level", "slots"}
        assert "ALTER SYSTEM SET wal_level = logical" in (found["wal_level"].advice or "")
        assert "max_replication_slots" in (found["slots"].advice or "")
    finally:
        cluster.stop("immediate")


def test_what_is_in_the_way_of_a_slot(source: Db, newest_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new slot waits for open transactions: not for ever, and nothing is left behind."""
    monkeypatch.setattr(setup, "SLOT_SECONDS", 1)
    with psycopg.connect(newest_url) as other:
        other.execute("insert into orders values (1)")
        with pytest.raises(headgate.errors.SourceBlocked, match=str(other.info.backend_pid)):
            setup.prepare(newest_url, "shop", ["orders"])
    assert left_behind(source) == []


def test_all_tables_leave_out_our_own(hg: headgate.Headgate, db: Db, database_url: str) -> None:
    """The stream's own database is a source like any other; its schema headgate is not read."""
    hg.stream("changes", create=True)
    db.execute("create table orders (id int primary key)")
    db.execute("create schema other; create table other.people (id int primary key)")
    try:
        made = hg.sources.add_postgres("shop", "changes", url=database_url, tables=["*"])
        assert made.tables == ["other.people", "public.orders"]
        with pytest.raises(headgate.errors.SourceBlocked, match="is not a table of yours"):
            hg.sources.add_postgres("own", "changes", url=database_url, tables=["headgate.stream"])
        with pytest.raises(headgate.errors.SourceExists):
            hg.sources.add_postgres("shop", "changes", url=database_url, tables=["*"])
        same = hg.sources.add_postgres("shop", "changes", url=database_url, tables=["*"], exist_ok=True)
        assert same.created_at == made.created_at
    finally:
        for name in [s.name for s in hg.sources.all_postgres()]:
            hg.sources.remove_postgres(name)
    assert left_behind(db) == []


def test_over_http(hg: headgate.Headgate, database_url: str, source: Db, newest_url: str, tmp_path: Path) -> None:
    """Made, read, paused, resumed and removed through the server, which reads it."""
    hg.stream("changes", create=True)
    consumer = hg.stream("changes").consumer("c", create=True, filter=["public.orders.>"])
    with replica(database_url, tmp_path) as server, server.client() as admin:
        new = {"name": "shop", "stream": "changes", "kind": "postgres", "url": newest_url, "tables": ["public.orders"]}
        assert error(admin.post("/api/sources", json={**new, "tables": ["nowhere"]}), 409) == "source_blocked"
        assert error(admin.post("/api/sources", json={**new, "secret": "12345678"}), 422) == "invalid_body"
        assert error(admin.post("/api/sources", json={**new, "url": "x"}), 422) == "invalid_body"
        assert error(admin.post("/api/sources", json={**new, "kind": "webhook"}), 422) == "invalid_body"
        assert error(admin.post("/api/sources", json={**new, "stream": "nowhere"}), 404) == "stream_not_found"
        assert left_behind(source) == []
        made = data(admin.post("/api/sources", json=new))
        assert (made["kind"], made["postgres"]["tables"]) == ("postgres", ["public.orders"])
        assert error(admin.post("/api/sources", json=new), 409) == "source_exists"
        assert error(admin.post("/api/webhooks/shop", json={}), 404) == "source_not_found"
        source.execute("insert into orders values (1, 2)")
        [message] = consumer.receive(1, wait=30)
        assert message.key == "public.orders.1"
        assert message.data["record"] == {"id": 1, "n": 2}
        message.ack()
        wait_until(lambda: data(admin.get("/api/sources/shop"))["postgres"]["state"] == "reading")
        assert data(admin.post("/api/sources/shop/pause"))["postgres"]["state"] == "paused"
        assert data(admin.post("/api/sources/shop/resume"))["postgres"]["state"] != "paused"
        source.execute("insert into orders values (2, 2)")
        assert [m.key for m in consumer.receive(1, wait=30)] == ["public.orders.2"]
        assert error(admin.post("/api/sources/shop/backfill", json={"tables": ["public.x"]}), 422) == "invalid_argument"
        assert [b["state"] for b in data(admin.post("/api/sources/shop/backfill", json={}))] == ["waiting"]
        wait_until(lambda: data(admin.get("/api/sources/shop/backfill"))[0]["state"] == "done")
        assert data(admin.get("/api/sources/shop/backfill"))[0]["rows"] == 2
        assert [s["name"] for s in data(admin.get("/api/sources"))] == ["shop"]
        data(admin.delete("/api/sources/shop"))
        assert error(admin.get("/api/sources/shop"), 404) == "source_not_found"
    assert left_behind(source) == []


def test_command_line(run: CommandLine, hg: headgate.Headgate, source: Db, newest_url: str) -> None:
    hg.stream("changes", create=True)
    source.execute("create table keyless (n int)")
    bad = run("source", "check", "--url", newest_url)
    assert bad.code == 3
    assert "ALTER TABLE public.keyless REPLICA IDENTITY FULL" in bad.out
    assert run("source", "check", "--url", newest_url, "--table", "orders").code == 0
    add = ["source", "add", "shop", "changes", "--kind", "postgres", "--url", newest_url]
    refused = run(*add, "--table", "keyless")
    assert (refused.code, refused.out) == (1, "")
    assert "hint: give it a primary key" in refused.err
    assert run(*add, "--table", "orders").out == "shop\n"
    shown = run("source", "show", "shop", "--json").json
    assert (shown["tables"], shown["state"], shown["kind"]) == (["public.orders"], "starting", "postgres")
    assert "shop" in run("source", "list").out
    assert "waiting" in run("source", "backfill", "shop").out
    assert [b["table"] for b in run("source", "backfill", "shop", "--status", "--json").json] == ["public.orders"]
    assert run("source", "pause", "shop").out == "shop\n"
    assert hg.sources.postgres("shop").state == "paused"
    assert run("source", "resume", "shop").code == 0
    assert run("source", "remove", "shop", "--yes").code == 0
    assert run("source", "show", "shop").code == 3
    assert left_behind(source) == []


def test_forgetting_a_source_whose_database_is_gone(
    run: CommandLine, hg: headgate.Headgate, db: Db, source: Db, newest_url: str
) -> None:
    hg.stream("changes", create=True)
    hg.sources.add_postgres("shop", "changes", url=newest_url, tables=["orders"])
    db.execute("update headgate.postgres_source set url = replace(url, 'source_', 'gone_')")
    refused = run("source", "remove", "shop", "--yes").err
    assert "cannot be reached" in refused
    assert "`headgate source remove shop --forget`" in refused
    assert hg.sources.postgres("shop").state != "paused", "it is still there, and goes on"
    assert run("source", "remove", "shop", "--yes", "--forget").code == 0
    assert hg.sources.all_postgres() == []
    assert value(source, "select count(*) from pg_replication_slots where slot_name = 'headgate_shop'") == 1
