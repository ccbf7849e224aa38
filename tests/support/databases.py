"""Databases for more than one test: those of a module whose tests leave nothing behind that another would notice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from headgate.postgres.cluster import Cluster
from support.postgres import TEMPLATE

_numbers = itertools.count(1)


@contextmanager
def new_database(cluster: Cluster) -> Iterator[str]:
    """The URL of a database with Headgate installed, which is dropped at the end."""
    name = f"shared_{next(_numbers)}"
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute(f"create database {name} template {TEMPLATE}")
    try:
        yield cluster.url(name)
    finally:
        with psycopg.connect(cluster.url(), autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)")
