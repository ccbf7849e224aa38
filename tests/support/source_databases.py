"""Databases whose tables are read: empty ones, dropped at the end together with the slots that are left on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from headgate.postgres.cluster import Cluster
from support.waiting import wait_until

_numbers = itertools.count(1)


@contextmanager
def source_database(cluster: Cluster) -> Iterator[str]:
    """The URL of an empty database."""
    name = f"source_{next(_numbers)}"
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
        try:
            yield cluster.url(name)
        finally:
            drop_slots(admin, name)
            admin.execute(f"drop database {name} with (force)")


def drop_slots(admin: psycopg.Connection, database: str) -> None:
    """Ends who reads a database, and removes its slots."""

    def gone() -> bool:
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (database,))
        admin.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not active",
            (database,),
        )
        query = "select count(*) from pg_replication_slots where database = %s"
        return admin.execute(query, (database,)).fetchone() == (0,)

    wait_until(gone)
