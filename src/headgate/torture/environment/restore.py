"""A dump that is made under traffic, and restored in another cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from headgate.postgres.cluster import Cluster

from .environment import Environment

ROLES = """
do $$ declare r text; begin
  foreach r in array array['owner', 'producer', 'consumer', 'monitor'] loop
    if to_regrole('headgate_' || r) is null then execute format('create role headgate_%s', r); end if;
  end loop;
end $$
"""  # what pg_dumpall --roles-only brings along


def dump(environment: Environment, file: Path) -> None:
    assert environment.cluster is not None
    program(environment.cluster, "pg_dump", "-Fc", "-f", str(file), environment.url)


@contextmanager
def restored(environment: Environment, file: Path) -> Iterator[str]:
    """The URL of the restored database, in a cluster of its own whose transaction ids know nothing of the first."""
    assert environment.cluster is not None
    home = file.parent
    cluster = Cluster(
        environment.cluster.bin_dir, home / "restored", home / "restored-run", settings=environment.cluster.settings
    )
    cluster.init()
    try:
        cluster.start()
        with psycopg.connect(cluster.url(), autocommit=True) as db:
            db.execute(ROLES)
        program(cluster, "pg_restore", "--exit-on-error", "-d", cluster.url(), str(file))
        yield cluster.url()
    finally:
        cluster.stop("immediate")


def program(cluster: Cluster, name: str, *arguments: str) -> None:
    subprocess.run([cluster.bin_dir / name, *arguments], check=True, capture_output=True, timeout=120)
