"""Upgrades: older code leaves newer functions alone, nobody is held up, and nothing obsolete stays."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from engine.test_schema import at_migration, psql, source, with_a_stream
from headgate.database import schema
from headgate.postgres.cluster import Cluster
from support.command_line import CommandLine
from support.postgres import NewDatabase
from support.waiting import wait_until

Db = psycopg.Connection[Any]

PACKAGE = Path(headgate.__file__).parent
RELEASES = ("older", "this")

OLD_TICK = "create or replace function headgate.tick(stream text) returns bigint language sql as 'select 0::bigint';"


class Release:
    """A tree of the package with other functions, and the program in it."""

    def __init__(self, root: Path, version: int, change: Callable[[str], str]) -> None:
        self.root = root
        shutil.copytree(PACKAGE, root / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
        ticks = root / "headgate/sql/functions/ticks/ticks.sql"
        ticks.write_text(change(ticks.read_text()))
        (root / "headgate/sql/functions_version.txt").write_text(f"{version} {'0' * 16}\n")

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(self.root)}
        return subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, timeout=60, check=False)

    def migrate(self, url: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "headgate.cli", "migrate", "--database", url)

    def install_sql(self) -> str:
        done = self.run("-c", "import headgate; print(headgate.install_sql())")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def older(tmp_path: Path) -> Release:
    """An older patch release: the same migrations, and a tick that does nothing yet."""
    return Release(tmp_path / "older", schema.functions_version() - 1, lambda script: script + OLD_TICK)


# --- O1: never backwards


def test_the_version_is_raised_with_every_change_of_the_functions() -> None:
    recorded = (PACKAGE / "sql/functions_version.txt").read_text()
    assert recorded == f"{schema.functions_version()} {schema.digest()}\n", "run tools/functions_version.py"


def test_the_tool_that_raises_it() -> None:
    sys.path.insert(0, str(PACKAGE.parent.parent / "tools"))
    try:
        from functions_version import raised
    finally:
        sys.path.pop(0)
    a, b = "a" * 16, "b" * 16
    assert raised("", a) == f"1 {a}\n"
    assert raised(f"7 {a}\n", a) == f"7 {a}\n"
    assert raised(f"7 {a}\n", b) == f"8 {b}\n"
    merged = f"<<<<<<< ours\n9 {a}\n=======\n11 {b}\n>>>>>>> theirs\n"
    assert raised(merged, a) == f"12 {a}\n", "the highest of both sides counts"


def test_an_older_release_leaves_newer_functions_alone(older: Release, database_url: str, db: Db) -> None:
    before = source(db, "headgate.tick(text)")
    done = older.migrate(database_url)
    assert done.returncode == 0, done.stderr
    assert f"functions {schema.functions_version()}" in done.stderr
    assert "stays as it is" in done.stderr
    assert source(db, "headgate.tick(text)") == before
    with headgate.connect(database_url):
        pass  # the newer release is still content
    work = (
        "import sys, headgate\n"
        "hg = headgate.connect(sys.argv[1])\n"
        "stream = hg.stream('s', create=True)\n"
        "consumer = stream.consumer('c', create=True)\n"
        "stream.send('x')\n"
        "[m] = consumer.receive(wait=5)\n"
        "print(m.ack(), [f.subject for f in hg.doctor() if f.subject == 'version'])\n"
    )
    done = older.run("-c", work, database_url)
    assert done.stdout == "True []\n", done.stderr


def test_a_newer_release_replaces_older_functions(older: Release, empty_database: NewDatabase) -> None:
    url = empty_database()
    done = older.migrate(url)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(url, autocommit=True) as db:
        assert "select 0" in source(db, "headgate.tick(text)")
        with pytest.raises(headgate.errors.SchemaOutdated):
            headgate.connect(url)
        headgate.connect(url, migrate=True).close()
        assert "make_tick" in source(db, "headgate.tick(text)")


@pytest.mark.parametrize("how", ["functions", "migration"])
def test_a_script_refuses_to_go_backwards(
    older: Release, how: str, database_url: str, db: Db, bin_dir: Path, tmp_path: Path
) -> None:
    if how == "migration":
        newer = schema.newest_migration() + 1
        db.execute("insert into headgate.migration (version, name) values (%s, 'later')", [newer])
    script = tmp_path / "install.sql"
    script.write_text(older.install_sql())
    with pytest.raises(AssertionError, match="of Headgate's functions" if how == "functions" else "at migration"):
        psql(bin_dir, database_url, "--single-transaction", "--file", str(script))
    assert "make_tick" in source(db, "headgate.tick(text)")
    with pytest.raises(psycopg.Error) as caught:
        db.execute(script.read_text().encode())
    assert caught.value.sqlstate == headgate.errors.SchemaTooNew.sqlstate
    assert caught.value.diag.message_hint


def test_a_script_has_to_be_one_transaction(empty_database: NewDatabase, bin_dir: Path, tmp_path: Path) -> None:
    url = empty_database()
    script = tmp_path / "install.sql"
    script.write_text(headgate.install_sql())
    with pytest.raises(AssertionError, match="in one transaction"):
        psql(bin_dir, url, "--file", str(script))
    psql(bin_dir, url, "--single-transaction", "--file", str(script))
    headgate.connect(url).close()


# --- O2: nobody is held up


class Traffic:
    """Sessions that send, receive and ack all the time, and the longest time that one of their calls took. Another one
    asks for nothing: how long that takes at most is what the machine makes of a moment."""

    def __init__(self, url: str, sessions: int = 3) -> None:
        self.longest, self.idle, self.calls = 0.0, 0.0, 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(url, n)) for n in range(sessions)]
        self._threads.append(threading.Thread(target=self._ask, args=(url,)))

    def _work(self, url: str, n: int) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    db.execute("select headgate.send('orders', 'x', %s)", [f"k{n}"])
                    rows = db.execute("select ack_id from headgate.receive('orders', 'c', 5)").fetchall()
                    db.execute("select * from headgate.ack('orders', 'c', %s)", [[r[0] for r in rows]])
                except psycopg.Error as error:  # (a statement meets new functions: told below)
                    self.errors.append(f"{error.sqlstate} {error}")
                self.longest = max(self.longest, time.monotonic() - began)
                self.calls += 1

    def _ask(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            while not self._stop.is_set():
                began = time.monotonic()
                db.execute("select count(*) from pg_class")
                self.idle = max(self.idle, time.monotonic() - began)

    @property
    def was_stopped(self) -> str | None:
        """Says how long, when a call took more than a second; more, where the machine is that busy."""
        limit = 1 + 20 * self.idle
        return f"{self.longest:.2f} s of {limit:.2f} s" if self.longest > limit else None

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.calls > 20)
        self.longest = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


# A migration that alters tables everybody uses, and takes its columns away again: what a later release would bring.
ALTERING = """
alter table headgate.cursor add tried int;
alter table headgate.stream add tried int;
alter table headgate.delivery add tried int;
alter table headgate.cursor drop tried;
alter table headgate.stream drop tried;
alter table headgate.delivery drop tried;
"""


@pytest.fixture
def altering(monkeypatch: pytest.MonkeyPatch) -> schema.Migration:
    """This code with one more migration."""
    more = schema.Migration(schema.newest_migration() + 1, "altering", ALTERING)
    known = (*schema.migrations(), more)
    monkeypatch.setattr(schema, "migrations", lambda: known)
    return more


class Holder:
    """A transaction that is open, and holds locks on Headgate's tables."""

    def __init__(self, url: str, prepared: bool = False) -> None:
        self.db = psycopg.connect(url, application_name="the one in the way")
        self.db.execute("select headgate.send('orders', 'held')")
        self.db.execute("select * from headgate.receive('orders', 'c', 1)")
        self.db.execute("select count(*) from headgate.streams")
        self.prepared = prepared
        if prepared:
            self.db.execute("prepare transaction 'forgotten'")

    def end(self) -> None:
        if self.prepared:
            self.db.rollback()
            self.db.autocommit = True
            self.db.execute("rollback prepared 'forgotten'")
        self.db.close()


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["idle", "prepared"])
def test_a_migration_holds_nobody_up(
    kind: str, database_url: str, hg: headgate.Headgate, altering: schema.Migration
) -> None:
    hg.stream("orders", create=True, lanes=4).consumer("c", create=True)
    told: list[str] = []
    done: list[int] = []
    with Traffic(database_url) as traffic:
        holder = Holder(database_url, kind == "prepared")
        migration = threading.Thread(
            target=lambda: done.append(headgate.Headgate(database_url).migrate(wait=60, tell=told.append))
        )
        migration.start()
        wait_until(lambda: told)
        calls = traffic.calls
        wait_until(lambda: traffic.calls > calls + 200)  # they go on while it waits
        assert not done
        holder.end()
        migration.join(120)
        calls = traffic.calls
        wait_until(lambda: traffic.calls > calls + 20)
    assert done == [altering.version]
    assert traffic.errors == []
    assert traffic.was_stopped is None
    if kind == "prepared":
        assert 'prepared transaction "forgotten"' in told[0]
    else:
        assert f"session {holder.db.info.backend_pid}" in told[0] if not holder.db.closed else told[0]
        assert 'application "the one in the way", idle in transaction' in told[0]
        assert "user postgres" in told[0]
        assert "open since" in told[0]


def test_a_migration_gives_up_after_a_while(
    database_url: str, hg: headgate.Headgate, altering: schema.Migration
) -> None:
    hg.stream("orders", create=True, lanes=4).consumer("c", create=True)
    holder = Holder(database_url)
    with pytest.raises(headgate.errors.Conflict) as caught:
        hg.migrate(wait=0.5, tell=lambda _: None)
    assert f"session {holder.db.info.backend_pid}" in caught.value.message
    assert "--wait" in str(caught.value.hint)
    with psycopg.connect(database_url, autocommit=True) as db, pytest.raises(psycopg.errors.LockNotAvailable) as late:
        db.execute("set headgate.migrate_wait = '200ms'")
        db.execute(schema.install_sql().encode())  # by hand: the same
    assert f"session {holder.db.info.backend_pid}" in str(late.value)
    holder.end()
    assert hg.migrate() == altering.version


def test_the_doctor_says_who_would_be_in_the_way(
    run: CommandLine, database_url: str, hg: headgate.Headgate, db: Db
) -> None:
    hg.stream("orders", create=True, lanes=4).consumer("c", create=True)
    holder = Holder(database_url)
    db.execute("update headgate.functions_digest set version = 0, digest = 'older'")
    done = run("doctor")
    assert done.code == 1
    assert f"An upgrade would wait for session {holder.db.info.backend_pid}" in done.out
    done = run("migrate", "--wait", "0.2")
    assert done.code == 1
    assert f"session {holder.db.info.backend_pid}" in done.err
    holder.end()
    assert run("migrate").out.strip() == str(schema.newest_migration())


def test_functions_alone_wait_for_nobody_who_uses_tables(database_url: str, db: Db, hg: headgate.Headgate) -> None:
    hg.stream("orders", create=True, lanes=4).consumer("c", create=True)
    db.execute("update headgate.functions_digest set version = 0, digest = 'older'")
    with psycopg.connect(database_url) as holder:
        holder.execute("select headgate.send('orders', 'held')")
        holder.execute("select * from headgate.receive('orders', 'c', 1)")
        holder.execute("select * from headgate.log_orders")
        hg.migrate(wait=0, tell=pytest.fail)
        holder.rollback()


@pytest.mark.alone
def test_many_streams_are_built_before_tables_are_locked(
    database_url: str, hg: headgate.Headgate, altering: schema.Migration
) -> None:
    hg.stream("orders", create=True, lanes=4).consumer("c", create=True)
    for n in range(100):
        hg.stream(f"s{n}", create=True, lanes=1)
    with Traffic(database_url) as traffic:
        began = time.monotonic()
        assert hg.migrate() == altering.version
        took = time.monotonic() - began
        calls = traffic.calls
        wait_until(lambda: traffic.calls > calls + 20)
    assert traffic.errors == []
    assert traffic.was_stopped is None
    assert traffic.longest < took * 0.8, (traffic.longest, took)


def test_a_stream_that_is_created_meanwhile_gets_the_new_functions(
    database_url: str, db: Db, hg: headgate.Headgate
) -> None:
    db.execute(
        "do $$ begin execute replace(pg_get_functiondef('headgate.templates()'::regprocedure), "
        "'declare n bigint;', 'declare n bigint; /* older */'); end $$"
    )
    db.execute("update headgate.functions_digest set version = 0, digest = 'older'")
    told: list[str] = []
    migration = threading.Thread(target=lambda: hg.migrate(tell=told.append))
    with psycopg.connect(database_url) as creator:
        creator.execute("select headgate.create_stream('late')")
        assert "older" in move_of(creator, "late")
        migration.start()
        wait_until(lambda: told)
    migration.join(120)
    assert "older" not in move_of(db, "late")


def move_of(db: Db, stream: str) -> str:
    query = "select prosrc from pg_proc where proname = (select 'move_' || id from headgate.stream where name = %s)"
    row = db.execute(query, [stream]).fetchone()
    assert row
    return str(row[0])


# --- nothing obsolete stays


def test_obsolete_functions_go(database_url: str, db: Db, empty_database: NewDatabase) -> None:
    """Of an earlier release: a function that there is no more, one with other arguments, one made for a stream."""
    with headgate.connect(database_url) as hg:
        stream = hg.stream("orders", create=True)
        stream.consumer("c", create=True)
        db.execute(
            """
            create function headgate.gone() returns int language sql as 'select 1';
            create function headgate.check_name(p_what text, p_name text, p_more int default 1) returns void
              language sql as 'select';
            create function headgate.claim_1() returns int language sql as 'select 1';
            update headgate.functions_digest set version = 0, digest = 'older'
            """
        )
        hg.migrate()
        stream.send("x")
    url = empty_database()
    headgate.connect(url, migrate=True).close()
    with psycopg.connect(url, autocommit=True) as new:
        new.execute("select headgate.create_stream('orders')")
        new.execute("select headgate.create_consumer('orders', 'c')")
        assert names(db) == names(new)


def names(db: Db) -> set[str]:
    query = "select oid::regprocedure::text from pg_proc where pronamespace = 'headgate'::regnamespace"
    return {row[0] for row in db.execute(query)}


def test_a_function_that_is_no_more_and_had_another_parameter(database_url: str, db: Db) -> None:
    """`headgate torture --older` found that a database of migration 16 could not be upgraded."""
    db.execute(
        """
        create function headgate.receive_template(p_open boolean) returns text language sql as 'select null::text';
        update headgate.functions_digest set version = 0, digest = 'older'
        """
    )
    with headgate.connect(database_url, migrate=True) as hg:
        stream = hg.stream("orders", create=True)
        stream.send("x")
        assert [m.data for m in stream.consumer("c", create=True).receive()] == ["x"]
    assert "headgate.receive_template(boolean)" not in names(db)


def test_what_somebody_has_built_on_stays(database_url: str, db: Db) -> None:
    db.execute(
        """
        create function headgate.gone() returns int language sql as 'select 1';
        create view public.mine as select headgate.gone();
        update headgate.functions_digest set version = 0, digest = 'older'
        """
    )
    headgate.connect(database_url, migrate=True).close()
    assert "headgate.gone()" in names(db)
    db.execute("drop view public.mine; update headgate.functions_digest set version = 0")
    headgate.connect(database_url, migrate=True).close()
    assert "headgate.gone()" not in names(db)


def test_a_session_is_left_as_it_was(database_url: str, db: Db, altering: schema.Migration) -> None:
    """Behind a pooler the next transaction on the connection may be anybody's; a script is run in somebody's own."""
    settings = (
        "select current_user, current_setting('lock_timeout'), current_setting('check_function_bodies'), "
        "current_setting('statement_timeout'), coalesce(current_setting('headgate.functions', true), ''), "
        "coalesce(current_setting('headgate.functions_before', true), '')"
    )
    db.execute("set lock_timeout = '7s'")
    before = db.execute(settings).fetchone()
    db.execute(schema.install_sql().encode())
    assert db.execute(settings).fetchone() == before
    assert db.execute("select max(version) from headgate.migration").fetchone() == (altering.version,)


def test_a_role_that_sees_little_is_told_the_session(cluster: Cluster, empty_database: NewDatabase) -> None:
    """Of other users' sessions PostgreSQL shows it neither the state nor since when."""
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute("create role plain_upgrader login")
        url = empty_database()
        name = url.split("?")[0].rpartition("/")[2]
        try:
            admin.execute(f"alter database {name} owner to plain_upgrader")
            own = url.replace("//postgres@", "//plain_upgrader@")
            with headgate.connect(own, migrate=True) as hg, psycopg.connect(url) as holder:
                hg.stream("orders", create=True)
                with psycopg.connect(url, autocommit=True) as db:
                    db.execute("update headgate.functions_digest set version = 0, digest = 'older'")
                holder.execute("select * from headgate.streams")
                with pytest.raises(headgate.errors.Conflict) as caught:
                    hg.migrate(wait=0, tell=lambda _: None)
                assert f"session {holder.info.backend_pid} (user postgres" in caught.value.message
                assert "state not shown" in caught.value.message
                holder.rollback()
                hg.migrate()
        finally:
            admin.execute(f"drop database {name} with (force)")
            admin.execute(f"create database {name}")  # the fixture drops it
            admin.execute("drop role plain_upgrader")


# --- several at once, and killed

MIGRATE = "import sys, headgate; headgate.connect(sys.argv[1], migrate=True).close()"


@contextmanager
def process(url: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", MIGRATE, url])
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def test_killed_in_the_middle(empty_database: NewDatabase) -> None:
    """kill -9 at any moment leaves the old schema or the new one, and the next one goes on."""
    url = empty_database()
    with psycopg.connect(url, autocommit=True) as db:
        at_migration(db, 10)
        for n in range(6):
            with process(url) as killed:
                wait_until(lambda: is_migrating(db) or killed.poll() is not None)
                time.sleep(0.01 * n)
                killed.kill()
            found = db.execute("select max(version) from headgate.migration").fetchone()
            assert found in ((10,), (schema.newest_migration(),))
        with ExitStack() as stack:
            several = [stack.enter_context(process(url)) for _ in range(3)]
            assert [p.wait(60) for p in several] == [0, 0, 0]
    with_a_stream(url)
    headgate.connect(url).close()


def is_migrating(db: Db) -> bool:
    query = "select count(*) from pg_locks where locktype = 'advisory' and objid = %s"
    row = db.execute(query, [schema.LOCK_KEY]).fetchone()
    return bool(row and row[0])


def test_no_migration_is_put_in_twice() -> None:
    """Each is guarded in the script, whatever it contains."""
    script = schema.install_sql()
    assert [int(n) for n in re.findall(r"^do \$once_(\d+)\$", script, re.MULTILINE)] == [
        m.version for m in schema.migrations()
    ]
