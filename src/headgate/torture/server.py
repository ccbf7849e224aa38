"""The PostgreSQL that is tortured: a temporary one, or databases of our own on a given server."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headgate import schema
from headgate.cluster import Cluster, postgres_bin
from headgate.errors import from_database

SETTINGS = {"fsync": "off", "max_connections": "100", "shared_buffers": "128MB"}

Databases = Callable[[], AbstractContextManager[str]]  # each call is the URL of a fresh one, dropped at the end


@contextmanager
def temporary_server(bin_dir: Path | None = None) -> Iterator[Databases]:
    """A private cluster, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="headgate-torture-") as directory:
        home = Path(directory)
        cluster = Cluster(bin_dir or postgres_bin(), home / "data", home / "run", settings=SETTINGS)
        cluster.init()
        try:
            cluster.start()
            with databases_on(cluster.url()) as databases:
                yield databases
        finally:
            cluster.stop("immediate")


@contextmanager
def databases_on(url: str) -> Iterator[Databases]:
    """Databases of our own on the server of `url`, copies of one. Nothing else on it is touched."""
    token = secrets.token_hex(4)
    template = f"headgate_torture_{token}"
    try:
        with psycopg.connect(url, autocommit=True) as admin:

            def drop(name: str) -> None:
                admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

            @contextmanager
            def fresh() -> Iterator[str]:
                name = f"{template}_{secrets.token_hex(4)}"
                query = sql.SQL("create database {} template {}")
                admin.execute(query.format(sql.Identifier(name), sql.Identifier(template)))
                try:
                    yield make_conninfo(url, dbname=name)
                finally:
                    drop(name)

            admin.execute(sql.SQL("create database {}").format(sql.Identifier(template)))
            try:
                with psycopg.connect(make_conninfo(url, dbname=template)) as db:
                    db.execute(schema.install_sql().encode())
                yield fresh
            finally:
                drop(template)
    except psycopg.Error as error:
        raise from_database(error) or error from error
