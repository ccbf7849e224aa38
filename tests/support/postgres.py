"""The PostgreSQL that tests share, and fresh databases in it."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import psycopg

from headgate.postgres.cluster import Cluster

TEMPLATE = "headgate_template"

SETTINGS = {
    "wal_level": "logical",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "shared_buffers": "256MB",
    "fsync": "off",  # no test pulls the plug of the machine; killing PostgreSQL does not need it
}

NewCluster = Callable[[], Cluster]
NewDatabase = Callable[[], str]

T = TypeVar("T")

_database_numbers = itertools.count(1)


class FreshDatabases:
    """Copies of the template. The next ones are made, and the last ones dropped, while a test runs: a third of the
    suite's time otherwise, because dropping waits for sessions to end, and copying through the log is slow."""

    def __init__(self, cluster: Cluster, ahead: int = 2) -> None:
        self._cluster = cluster
        self._as_new_until = 0.0
        self._maker, self._dropper = (_Sideline(cluster) for _ in range(2))
        self._made = deque(self._maker.start(self._make) for _ in range(ahead))

    def take(self) -> str:
        self._made.append(self._maker.start(self._make))
        return self._made.popleft().result()

    def drop(self, name: str) -> None:
        self._dropper.start(lambda c: c.execute(f"drop database {name} with (force)"))

    def close(self) -> None:
        self._maker.close()
        self._dropper.close()

    def _make(self, connection: psycopg.Connection) -> str:
        if time.monotonic() > self._as_new_until:  # else the doctor would find that nobody maintains it
            with psycopg.connect(self._cluster.url(TEMPLATE)) as template:
                template.execute("update headgate.maintenance_run set at = clock_timestamp()")
            self._as_new_until = time.monotonic() + 60
        name = f"test_{next(_database_numbers)}"
        connection.execute(f"create database {name} template {TEMPLATE} strategy file_copy")
        return name


class _Sideline:
    """A connection, and a thread that works on it."""

    def __init__(self, cluster: Cluster) -> None:
        self._connection = psycopg.connect(cluster.url(), autocommit=True)
        self._thread = ThreadPoolExecutor(1)

    def start(self, work: Callable[[psycopg.Connection], T]) -> Future[T]:
        return self._thread.submit(work, self._connection)

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()
