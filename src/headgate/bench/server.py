"""The PostgreSQL that a run measures: a temporary one, or databases of our own on a given server."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import headgate
from headgate.errors import from_database
from headgate.postgres.cluster import Cluster, postgres_bin

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "100",
    "fsync": "on",
    "synchronous_commit": "on",
}


@dataclass(frozen=True)
class BenchServer:
    """The URLs of the databases that the contenders work in, all on one server."""

    headgate_url: str
    pgmq_url: str | None
    spare_url: str  # a database with both
    version: str
    settings: dict[str, str]


def server_for(database: str | None, *, pgmq: bool) -> AbstractContextManager[BenchServer]:
    """Databases of our own on the server of a URL, or a temporary server without one."""
    return databases_on(database, pgmq=pgmq) if database else temporary_server(pgmq=pgmq)


@contextmanager
def temporary_server(*, pgmq: bool) -> Iterator[BenchServer]:
    """A private cluster, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as directory:
        home = Path(directory)
        cluster = Cluster(postgres_bin(), home / "data", home / "run", settings=SETTINGS)
        cluster.init()
        try:
            cluster.start()
            with databases_on(cluster.url(), pgmq=pgmq) as server:
                yield server
        finally:
            cluster.stop("immediate")


@contextmanager
def databases_on(url: str, *, pgmq: bool) -> Iterator[BenchServer]:
    """Databases of our own on the server of `url`, dropped at the end. Nothing else on it is touched."""
    token = secrets.token_hex(4)
    names = [f"{name}_bench_{token}" for name in ("headgate", "pgmq", "spare")]
    try:
        with psycopg.connect(url, autocommit=True) as admin:
            try:
                for name in names:
                    admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
                urls = [make_conninfo(url, dbname=name) for name in names]
                for url in (urls[0], urls[2]):
                    headgate.connect(url, migrate=True).close()
                for url in urls[1:] if pgmq else ():
                    _install_pgmq(url)
                settings = {name: _scalar(admin, "select current_setting(%s)", name) for name in SETTINGS}
                version = _scalar(admin, "select current_setting(%s)", "server_version").split()[0]
                yield BenchServer(urls[0], urls[1] if pgmq else None, urls[2], version, settings)
            finally:
                for name in names:
                    admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise from_database(error) or error from error


def pgmq_version() -> str:
    """The version of pgmq's SQL, or an error that says how to get it."""
    try:
        from pgmq.install import get_embedded_sql_version
    except ImportError as error:
        raise headgate.Error(
            "the pgmq package, which Headgate is measured beside, is not installed",
            hint="pip install 'headgate[bench]', or use --only-headgate",
        ) from error
    return str(get_embedded_sql_version())


def _install_pgmq(url: str) -> None:
    from pgmq.install import get_embedded_install_sql

    with psycopg.connect(url) as connection:
        connection.execute(get_embedded_install_sql().encode())


def _scalar(connection: psycopg.Connection, query: str, *parameters: str) -> str:
    row = connection.execute(query.encode(), parameters).fetchone()
    return str(row[0]) if row else ""
