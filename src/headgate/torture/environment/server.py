"""The PostgreSQL that is tortured: a temporary one, or databases of our own on a given server."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headgate.database import schema
from headgate.errors import EmbeddedServerError, from_database
from headgate.postgres.cluster import Cluster, postgres_bin

from ..presets.preset import Preset
from .environment import Environment
from .faults import NEEDS_DISK, NEEDS_STANDBY
from .proxy import Proxy

SETTINGS = {
    "fsync": "off",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_prepared_transactions": "50",
    "superuser_reserved_connections": "0",
}
SMALL = {"max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "32MB"}
DISK_MEGABYTES = 400

Environments = Callable[[Preset], AbstractContextManager[Environment]]  # a fresh database each, dropped at the end


@contextmanager
def temporary_server(bin_dir: Path | None = None, script: str | None = None) -> Iterator[Environments]:
    """A private cluster, removed at the end; presets that harm more than the server get one of their own."""
    programs = bin_dir or postgres_bin()
    with (
        temporary_home() as home,
        running(Cluster(programs, home / "data", home / "run", settings=SETTINGS)) as cluster,
    ):
        proxy = Proxy(home / "proxy", socket_of(cluster))
        with proxy.running(), databases_on(cluster.url(), script, cluster, proxy) as shared:

            def environment(preset: Preset) -> AbstractContextManager[Environment]:
                needs_own = (NEEDS_STANDBY | NEEDS_DISK) & preset.faults.keys()
                return own_environment(programs, preset) if needs_own else shared(preset)

            yield environment


@contextmanager
def own_environment(programs: Path, preset: Preset) -> Iterator[Environment]:
    """A server for one history: with a standby, or on a small disk."""
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home())
        disk = stack.enter_context(small_disk(home / "disk")) if NEEDS_DISK & preset.faults.keys() else None
        cluster = Cluster(programs, (disk or home) / "data", home / "run", settings=SETTINGS | SMALL)
        stack.enter_context(running(cluster))
        proxy = Proxy(home / "proxy", socket_of(cluster))
        stack.enter_context(proxy.running())
        environments = stack.enter_context(databases_on(cluster.url(), None, cluster, proxy))
        environment = stack.enter_context(environments(preset))
        if NEEDS_STANDBY & preset.faults.keys():
            standby = Cluster(programs, home / "standby", home / "standby-run", settings=SETTINGS | SMALL)
            standby.follow(cluster)
            stack.enter_context(running(standby))
            environment = environment._replace(standby=standby, url=environment.sessions_url, proxy=None, switch=proxy)
            if "fail_over" in preset.faults:  # the standby, copied before, will not wait for one of its own
                administer(cluster.url(), "alter system set synchronous_standby_names = '*'")
                administer(cluster.url(), "select pg_reload_conf()")
        stack.callback(cluster.stop, "immediate")  # before all else: it may wait for a standby that is gone
        yield environment._replace(disk=disk)


@contextmanager
def temporary_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headgate-torture-") as directory:
        Path(directory).chmod(0o711)  # for PostgreSQL's user, when we are root
        yield Path(directory)


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    if not cluster.is_initialized():
        cluster.init()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop("immediate")


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of its own, in memory, that can be filled up. Only root can make one."""
    if os.geteuid() != 0:
        raise EmbeddedServerError("a disk that is full can only be made by root", hint="leave the preset out")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=711", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def socket_of(cluster: Cluster) -> Path:
    return cluster.socket_dir / f".s.PGSQL.{cluster.port}"


def administer(url: str, query: str, *names: str) -> None:
    """In a connection of its own: the server may have been killed since the last one."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL(query).format(*map(sql.Identifier, names)))


@contextmanager
def databases_on(
    url: str, script: str | None = None, cluster: Cluster | None = None, proxy: Proxy | None = None
) -> Iterator[Environments]:
    """Databases of our own on the server of `url`, copies of one that a script (ours, if none) has made. Nothing else
    on it is touched."""
    template = f"headgate_torture_{secrets.token_hex(4)}"

    @contextmanager
    def fresh(preset: Preset) -> Iterator[Environment]:
        name = f"{template}_{secrets.token_hex(4)}"
        administer(url, "create database {} template {}", name, template)
        try:
            yield Environment(make_conninfo(url, dbname=name), cluster, proxy)
        finally:
            if cluster is None or cluster.is_running():
                administer(url, "drop database if exists {} with (force)", name)

    try:
        administer(url, "create database {}", template)
        try:
            with psycopg.connect(make_conninfo(url, dbname=template)) as db:
                db.execute((script or schema.install_sql()).encode())
            yield fresh
        finally:
            if cluster is None or cluster.is_running():
                administer(url, "drop database if exists {} with (force)", template)
    except psycopg.Error as error:
        raise from_database(error) or error from error
