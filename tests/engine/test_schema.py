"""The schema: one snapshot whichever way it came about, and what a database that does not fit is answered with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from engine.schema_dump import dump, sources
from headgate.database import schema
from headgate.postgres.cluster import Cluster
from support.postgres import NewCluster, NewDatabase

Db = psycopg.Connection[Any]

SNAPSHOT = Path(__file__).with_name("schema_snapshot.txt")


@pytest.fixture(scope="module")
def other_cluster(new_cluster: NewCluster) -> Cluster:
    """A cluster without Headgate's roles, which belong to the whole cluster."""
    return new_cluster()


def with_a_stream(url: str) -> tuple[str, dict[str, str]]:
    """What the schema is, with what a stream and a consumer with dead letters bring along."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_stream('a.stream')")
        db.execute("select headgate.create_consumer('a.stream', 'c', max_deliver => 3)")
        return dump(db), sources(db)


# --- one schema, whichever way


def test_snapshot(database_url: str) -> None:
    """Reviewers read a change of the schema as a diff of this file; HEADGATE_UPDATE_SNAPSHOT=1 writes it anew."""
    found, _ = with_a_stream(database_url)
    if os.environ.get("HEADGATE_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text(), "run this test with HEADGATE_UPDATE_SNAPSHOT=1 and read the diff"


def test_migrate_gives_the_schema_of_install_sql(database_url: str, empty_database: NewDatabase) -> None:
    url = empty_database()
    with headgate.connect(url, migrate=True) as hg:
        assert hg.migrate() == schema.newest_migration()
    assert with_a_stream(url) == with_a_stream(database_url)


def test_install_sql_by_hand_gives_the_same_schema(
    database_url: str, empty_database: NewDatabase, bin_dir: Path, tmp_path: Path
) -> None:
    url = empty_database()
    script = tmp_path / "install.sql"
    script.write_text(headgate.install_sql())
    psql(bin_dir, url, "--single-transaction", "--file", str(script))
    headgate.connect(url).close()
    assert with_a_stream(url) == with_a_stream(database_url)


@pytest.mark.parametrize("version", [0, *(m.version for m in schema.migrations())])
def test_upgrade_from_each_migration_gives_the_same_schema(
    version: int, database_url: str, empty_database: NewDatabase
) -> None:
    """A database at each earlier migration: with that migration's tables; its functions are replaced anyway."""
    url = empty_database()
    with psycopg.connect(url) as db:
        at_migration(db, version)
    with headgate.connect(url, migrate=True):
        pass
    assert with_a_stream(url) == with_a_stream(database_url)
    with psycopg.connect(url) as db:
        ledger = db.execute("select version, name from headgate.migration order by version").fetchall()
    assert ledger == [(m.version, m.name) for m in schema.migrations()]


# what asks for the version, as it was before migration 20
INSTALLED_VERSION = """
create function headgate.installed_version(out migration int, out digest text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select (select max(version) from headgate.migration), (select digest from headgate.functions_digest)
$$"""


def at_migration(db: Db, version: int) -> None:
    """What the database had after migration `version`, as far as this code knows: without the later migrations."""
    script = schema.install_sql()
    if version == schema.newest_migration():
        db.execute(script.encode())
        db.execute("update headgate.functions_digest set digest = 'of an earlier release', version = 0")
    elif version:
        later = script.index(f"do $once_{version + 1}$")
        db.execute(script[:later].encode())
        if version < 20:
            db.execute(INSTALLED_VERSION)


def test_applying_it_twice_changes_nothing(database_url: str, db: Db) -> None:
    """Also with streams, consumers, messages and dead letters in it."""
    with headgate.connect(database_url) as hg:
        stream = hg.stream("orders", create=True)
        consumer = stream.consumer("c", create=True, max_deliver=1)
        stream.send_batch(["dead", "in flight", "available"], key="k")
        consumer.receive()[0].nack(error="no")
        assert [m.data for m in consumer.receive()] == ["in flight"]
        before = dump(db), sources(db), counts(db)
        for _ in range(2):
            db.execute(schema.install_sql(schema.newest_migration()).encode())
        assert (dump(db), sources(db), counts(db)) == before
        assert [m.data for m in consumer.receive(wait=5)] == ["available"], "the live consumer goes on"
        assert [d.data for d in consumer.dead_letters()] == ["dead"]


def counts(db: Db) -> list[int]:
    tables = (
        "migration",
        "stream",
        "consumer",
        "cursor",
        "delivery",
        "parked",
        "message_1",
        "message_2",
        "cluster_identity",
    )
    return [db.execute(f"select count(*) from headgate.{t}").fetchone()[0] for t in tables]  # type: ignore[index]


def test_ledger(empty_database: NewDatabase) -> None:
    url = empty_database()
    headgate.connect(url, migrate=True).close()
    with psycopg.connect(url) as db:
        ledger = db.execute("select version, name, applied_by from headgate.migration order by version").fetchall()
        digests = db.execute("select digest from headgate.functions_digest").fetchall()
        installed = db.execute(schema.INSTALLED).fetchone()
    assert ledger == [(m.version, m.name, "postgres") for m in schema.migrations()]
    assert digests == [(schema.digest(),)]
    assert installed == (schema.newest_migration(), schema.digest(), schema.functions_version())


def test_migrations_are_numbered_without_gaps() -> None:
    assert [m.version for m in schema.migrations()] == list(range(1, len(schema.migrations()) + 1))


def test_functions_are_applied_again_when_they_differ(database_url: str, db: Db) -> None:
    db.execute(
        "create or replace function headgate.tick(stream text) returns bigint language sql as 'select 0::bigint'"
    )
    with headgate.connect(database_url, migrate=True):
        assert "select 0" in source(db, "headgate.tick(text)"), "the digest says that nothing has changed"
    db.execute("update headgate.functions_digest set digest = 'another'")
    before = db.execute("select max(applied_at) from headgate.migration").fetchone()
    with headgate.connect(database_url, migrate=True):
        assert "make_tick" in source(db, "headgate.tick(text)")
    assert db.execute("select max(applied_at) from headgate.migration").fetchone() == before, "no migration ran again"


def source(db: Db, function: str) -> str:
    row = db.execute("select prosrc from pg_proc where oid = %s::regprocedure", [function]).fetchone()
    assert row
    return str(row[0])


# --- migrating at once

MIGRATE = """
import sys, headgate
sys.stdin.readline()
for url in sys.argv[1:]:
    headgate.connect(url, migrate=True).close()
"""


@contextmanager
def migrating(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A process that migrates these databases once it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIGRATE, *args], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_processes_that_migrate_at_once(empty_database: NewDatabase) -> None:
    """Four rounds, each on an empty database, three processes at each."""
    urls = [empty_database() for _ in range(4)]
    with migrating(*urls) as a, migrating(*urls) as b, migrating(*urls) as c:
        finish(a, b, c)
    for url in urls:
        with psycopg.connect(url) as db:
            assert db.execute("select count(*) from headgate.migration").fetchone() == (len(schema.migrations()),)
            assert db.execute("select count(*) from headgate.cluster_identity").fetchone() == (1,)


def test_two_databases_of_a_new_cluster_migrate_at_once(other_cluster: Cluster) -> None:
    """Both make the roles, which belong to the cluster. Both databases get all the rights."""
    for attempt in range(3):
        names = [f"twin_{attempt}_{side}" for side in "ab"]
        with without_roles(other_cluster, *names) as admin:
            for name in names:
                admin.execute(f"create database {name}")
            with migrating(other_cluster.url(names[0])) as a, migrating(other_cluster.url(names[1])) as b:
                finish(a, b)
            left, right = (with_a_stream(other_cluster.url(name)) for name in names)
            assert left == right
            assert "headgate_producer execute" in left[0]


@contextmanager
def without_roles(cluster: Cluster, *databases: str) -> Iterator[Db]:
    """The cluster has none of our roles, and has none again, nor these databases, at the end."""
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        try:
            yield admin
        finally:
            for name in databases:
                admin.execute(f"drop database if exists {name} with (force)")
            admin.execute(
                "drop role if exists headgate_owner, headgate_producer, headgate_consumer, headgate_monitor, plain"
            )


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


# --- who may migrate


def test_a_role_that_may_not_create_roles_can_migrate(other_cluster: Cluster) -> None:
    """The roles are left out, with a notice; whoever migrated can do everything. Later an administrator adds them."""
    with without_roles(other_cluster, "plain") as admin:
        admin.execute("create role plain login")
        admin.execute("create database plain owner plain")
        url = other_cluster.url("plain").replace("//postgres@", "//plain@")
        notices: list[str] = []
        with psycopg.connect(url, autocommit=True) as db:
            db.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
            db.execute(schema.install_sql().encode())
            assert any("plain may not create roles" in n for n in notices), notices
        with headgate.connect(url) as hg:
            stream = hg.stream("s", create=True)
            stream.send({"a": 1})
            [message] = stream.consumer("c", create=True).receive(wait=5)
            assert message.ack()
            assert hg.insights.stream("s").messages == 1
        with psycopg.connect(other_cluster.url("plain"), autocommit=True) as db:
            db.execute(schema.install_sql(schema.newest_migration()).encode())
            granted = db.execute(
                "select bool_and(has_function_privilege('headgate_producer', oid, 'execute')) from pg_proc "
                "where pronamespace = 'headgate'::regnamespace and proname in ('send', 'send_batch')"
            ).fetchone()
            assert granted == (True,)


def test_the_documented_way_without_createrole(other_cluster: Cluster, bin_dir: Path, tmp_path: Path) -> None:
    """As docs/guides/operating.md says it: migrate, have an administrator make the roles, migrate again."""
    with without_roles(other_cluster, "plain") as admin:
        admin.execute("create role plain login")
        admin.execute("create database plain owner postgres")
        with psycopg.connect(other_cluster.url("plain"), autocommit=True) as dba:
            dba.execute("create schema headgate authorization plain")  # all that it owns
        url = other_cluster.url("plain").replace("//postgres@", "//plain@")
        with headgate.connect(url, migrate=True) as hg:
            hg.stream("before", create=True)
            [finding] = [f for f in hg.doctor() if f.subject == "roles"]
            run_sql(admin, finding.advice)
            assert hg.migrate() == schema.newest_migration()
            assert [f for f in hg.doctor() if "role" in f.subject or f.subject == "rights"] == []
            hg.stream("after", create=True)
        as_made_by_an_administrator(other_cluster.url("plain"))


ROLES = "headgate_owner, headgate_producer, headgate_consumer, headgate_monitor"


def test_the_guide_says_how_to_make_the_roles(other_cluster: Cluster) -> None:
    guide = (Path(__file__).parent.parent.parent / "docs/guides/operating.md").read_text()
    [statements] = re.findall(r"```sql[^\n]*\n(create role headgate_owner.*?)```", guide, re.DOTALL)
    with without_roles(other_cluster, "plain") as admin:
        admin.execute("create role plain login")
        admin.execute("create database plain owner plain")
        url = other_cluster.url("plain").replace("//postgres@", "//plain@")
        headgate.connect(url, migrate=True).close()
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("select headgate.create_stream('before')")
        admin.execute(statements)
        with headgate.connect(url, migrate=True) as hg:
            assert [f for f in hg.doctor() if "role" in f.subject] == []
            hg.stream("after", create=True)
        as_made_by_an_administrator(other_cluster.url("plain"))


def as_made_by_an_administrator(url: str) -> None:
    """Every role has its rights, in the streams made before there were roles, too, and all is the owner's."""
    with psycopg.connect(url, autocommit=True) as db:
        for role in ROLES.split(", "):
            db.execute(f"set role {role}")
            db.execute("select headgate.installed_version()")
        for stream in ("before", "after"):
            db.execute("set role headgate_monitor")
            db.execute(f"select * from headgate.log_{stream}")
            db.execute("set role headgate_owner")
            db.execute("select headgate.send(%s, 'x')", [stream])
            db.execute("select headgate.create_consumer(%s, 'c')", [stream])
            db.execute("select * from headgate.receive(%s, 'c', 1)", [stream])
        db.execute("reset role")
        owners = db.execute(
            "select distinct proowner::regrole::text from pg_proc where pronamespace = 'headgate'::regnamespace "
            "union select distinct relowner::regrole::text from pg_class where relnamespace = 'headgate'::regnamespace"
        ).fetchall()
        assert owners == [("plain",)]


def run_sql(admin: Db, advice: str) -> None:
    """The statements in a sentence of the doctor's."""
    statements = re.findall(r"(?:create role|grant|revoke) [^;]*;", advice)
    assert statements, advice
    for statement in statements:
        admin.execute(statement)


def test_the_doctors_advice_about_rights_clears_the_finding(other_cluster: Cluster) -> None:
    """Each finding, with what is advised done as it is written, by a superuser and by the schema's owner."""
    with without_roles(other_cluster, "plain") as admin:
        admin.execute("create role plain login")
        admin.execute("create database plain owner plain")
        url = other_cluster.url("plain").replace("//postgres@", "//plain@")
        with (
            psycopg.connect(other_cluster.url("plain"), autocommit=True) as dba,
            headgate.connect(url, migrate=True) as hg,
        ):
            found: Callable[[], list[headgate.types.Finding]] = lambda: [f for f in hg.doctor() if "role" in f.subject]  # noqa: E731
            hg.stream("s", create=True)
            dba.execute(headgate.install_sql().encode())  # an administrator applies it, roles and all
            assert found() == []
            for harm in (
                "revoke headgate_producer from headgate_owner",
                "revoke execute on function headgate.tick(text) from headgate_consumer",
                "revoke all on all functions in schema headgate from headgate_monitor",
            ):
                dba.execute(harm)
                [finding] = found()
                if "headgate migrate" in finding.advice:
                    hg.migrate()
                else:
                    run_sql(dba, finding.advice)
                assert found() == [], harm
        as_owner = {
            name
            for (name,) in psycopg.connect(url).execute(
                "select distinct proowner::regrole::text from pg_proc where pronamespace = 'headgate'::regnamespace"
            )
        }
        assert as_owner == {"plain"}, "what an administrator applies belongs to the owner"


# --- databases that do not fit


def test_schema_missing(empty_database: NewDatabase) -> None:
    with pytest.raises(headgate.errors.SchemaMissing) as caught:
        headgate.connect(empty_database())
    assert "headgate migrate" in str(caught.value)


def test_schema_half_gone(database_url: str, db: Db) -> None:
    """Somebody else's schema of that name, or a database that lost its tables."""
    db.execute("drop function headgate.installed_version() cascade")
    with pytest.raises(headgate.errors.SchemaMissing):
        headgate.connect(database_url)


@pytest.mark.parametrize(
    "change",
    ["update headgate.functions_digest set digest = 'another'", "delete from headgate.functions_digest"],
)
def test_schema_outdated(database_url: str, db: Db, change: str) -> None:
    db.execute(change)
    with pytest.raises(headgate.errors.SchemaOutdated) as caught:
        headgate.connect(database_url)
    assert "hint: run `headgate migrate`" in str(caught.value)
    headgate.connect(database_url, migrate=True).close()


def test_schema_too_new(database_url: str, db: Db) -> None:
    """It is not touched: a newer release has made it."""
    db.execute("insert into headgate.migration (version, name) values (%s, 'later')", [schema.newest_migration() + 1])
    before = dump(db), sources(db)
    for migrate in (False, True):
        with pytest.raises(headgate.errors.SchemaTooNew) as caught:
            headgate.connect(database_url, migrate=migrate)
        assert "upgrade the headgate package" in str(caught.value)
    assert (dump(db), sources(db)) == before


def test_what_the_check_says() -> None:
    """Every kind of a migration, digest and version of the functions."""
    newest, digest, functions = schema.newest_migration(), schema.digest(), schema.functions_version()

    def check(migration: int, digest: str | None, functions: int) -> headgate.Error | None:
        return schema.check(schema.Installed(migration, digest, functions))

    assert check(newest, digest, functions) is None
    assert check(newest, "newer", functions + 1) is None
    assert isinstance(check(0, None, 0), headgate.errors.SchemaMissing)
    assert isinstance(check(newest, None, 0), headgate.errors.SchemaOutdated)
    assert isinstance(check(newest, "another", functions), headgate.errors.SchemaOutdated)
    assert isinstance(check(newest, "older", functions - 1), headgate.errors.SchemaOutdated)
    assert isinstance(check(newest - 1, "any", functions + 1), headgate.errors.SchemaOutdated)
    assert isinstance(check(newest + 1, digest, functions), headgate.errors.SchemaTooNew)


@pytest.mark.parametrize(("version", "fits"), [(90624, False), (149999, False), (150000, True), (180004, True)])
def test_server_version(version: int, fits: bool) -> None:
    error = schema.check_server(version)
    assert (error is None) == fits
    if error:
        assert isinstance(error, headgate.errors.ServerTooOld)
        assert "15 or newer" in str(error)
        assert error.hint


# --- databases that cannot be reached


@pytest.mark.parametrize(
    "url",
    ["postgresql://somebody:secret@127.0.0.1:1/x", "postgresql://somebody:secret@no-such-host.invalid/x"],
    ids=["refused", "no such host"],
)
def test_unreachable(url: str) -> None:
    with pytest.raises(headgate.errors.ConnectionFailed) as caught:
        headgate.connect(url, timeout=5)
    assert caught.value.hint
    assert "secret" not in complete(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://somebody:secret%zz@localhost/x", "secret", "postgresql://localhost:secret/x"]
)
def test_unreadable_urls(url: str) -> None:
    with pytest.raises((headgate.errors.InvalidArgument, headgate.errors.ConnectionFailed)) as caught:
        headgate.connect(url)
    assert caught.value.hint
    if "%zz" in url:
        assert "secret" not in complete(caught.value)


def complete(error: BaseException) -> str:
    """The error with its causes, as a traceback shows them."""
    shown, inner = "", error
    while inner is not None:
        shown += str(inner)
        inner = inner.__cause__ or (None if inner.__suppress_context__ else inner.__context__)
    return shown


def psql(bin_dir: Path, url: str, *args: str) -> None:
    """PostgreSQL's own client."""
    command = [str(bin_dir / "psql"), "-X", "--quiet", "-v", "ON_ERROR_STOP=1", "-d", url, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
