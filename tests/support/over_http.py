"""A server and its database for a module's tests, which leave no stream behind; to be imported by name."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.servers import Replica, replica


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url:
        yield url


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(url, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def behind(url: str) -> Iterator[psycopg.Connection]:
    """The database behind the server."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def database_url(url: str, behind: psycopg.Connection) -> Iterator[str]:
    """The same as a URL: without streams of other tests."""
    yield url
    for (name,) in behind.execute("select name from headgate.streams where dead_of is null").fetchall():
        behind.execute("select headgate.drop_stream(%s)", [name])
