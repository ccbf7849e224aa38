"""Dump and restore: transaction ids mean nothing in another cluster, yet every message comes, and comes once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from headgate.postgres.cluster import Cluster
from support.engine import Received, ack, create, datas, drain, receive, scalar, send, send_many, take, tick
from support.postgres import NewCluster
from support.waiting import wait_until

ACK_WAIT = timedelta(milliseconds=500)


def run(bin_dir: Path, program: str, *arguments: str) -> None:
    done = subprocess.run([bin_dir / program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def move(bin_dir: Path, source: str, cluster: Cluster, dump: Path, *options: str, database: str = "moved") -> str:
    """Dump the database at `source` and restore it into `cluster`; returns the URL of the copy."""
    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute(f"drop database if exists {database} with (force)")
        db.execute(f"create database {database}")
        for role in ("owner", "producer", "consumer", "monitor"):  # what pg_dumpall --roles-only brings along
            if not db.execute("select to_regrole(%s)", [f"headgate_{role}"]).fetchone()[0]:  # type: ignore[index]
                db.execute(f"create role headgate_{role}")
    run(bin_dir, "pg_dump", "-Fc", "-f", str(dump), source)
    run(bin_dir, "pg_restore", "--exit-on-error", *options, "-d", cluster.url(database), str(dump))
    return cluster.url(database)


def burn_ids(cluster: Cluster, bin_dir: Path) -> None:
    """Let the cluster's transaction ids be far above those of any other here."""
    cluster.stop()
    segment = 1024 * 1024  # ids per file of pg_xact
    owner = (cluster.data_dir / "PG_VERSION").stat()
    file = cluster.data_dir / "pg_xact" / "0005"
    file.write_bytes(bytes(256 * 1024))
    os.chown(file, owner.st_uid, owner.st_gid)
    cluster._run(cluster.bin_dir / "pg_resetwal", "-x", str(5 * segment + 10), "-D", str(cluster.data_dir))
    cluster.start()


class Furniture:
    """A stream in every state that there is. `left` is what each consumer has still to get."""

    def __init__(self, db: Connection, late: Connection) -> None:
        create(db, "untouched", "half", "busy", "done", ack_wait=ACK_WAIT)
        create(db, "ordered", order="key", ack_wait=ACK_WAIT)
        # the ids of messages and ticks are to be well above a fresh cluster's
        db.execute("do $$ begin for i in 1 .. 3000 loop perform pg_current_xact_id(); commit; end loop; end $$")
        send(late, "late")
        send(late, "late too")
        tick(db)
        sent = self.send(db, 0, 200)
        self.left = {name: set(sent) for name in ("untouched", "half", "busy", "ordered")}
        self.settle(db, "half", receive(db, "half", 90))
        self.settle(db, "busy", receive(db, "busy", 50))
        tick(db)
        sent = self.send(db, 200, 300)
        db.execute("select count(nextval('headgate.seq_1')) from generate_series(1, 10000)")  # makes `late` late
        tick(db)
        tick(db)
        sent += ["late", "late too"]
        sent += [m.data for m in self.delayed(db)]
        receive(db, "half", 30)  # in flight
        nacked = receive(db, "busy", 20)
        db.execute("select headgate.nack('s', 'busy', %s, '1 second', 'later')", [[m.ack_id for m in nacked]])
        for name in self.left:
            self.left[name] |= set(sent)
        first = receive(db, "ordered", 5)
        db.execute("select headgate.nack('s', 'ordered', %s, '300 milliseconds')", [[first[0].ack_id]])
        receive(db, "ordered", 50)  # blocks keys and parks what is behind
        self.settle(db, "done", drain(db, "done"))
        late.commit()  # after the last tick, before the dump
        sent = self.send(db, 300, 320)
        for name in self.left:
            self.left[name] |= set(sent)
        self.left["done"] = set(sent) | {"late", "late too", "delayed"}

    def send(self, db: Connection, start: int, stop: int) -> list[str]:
        numbers = range(start, stop)
        send_many(db, [f"{number}" for number in numbers], [f"k{number % 10}" for number in numbers])
        return [f"{number}" for number in numbers]

    def delayed(self, db: Connection) -> list[Received]:
        seq = send(db, "delayed", "k1", timedelta(seconds=1))
        return [Received("", seq, "k1", "delayed", 0)]

    def settle(self, db: Connection, consumer: str, messages: list[Received]) -> None:
        if messages:
            ack(db, messages, consumer)
        if consumer in getattr(self, "left", {}):
            self.left[consumer] -= set(datas(messages))

    def add(self, sent: list[str]) -> None:
        for name in self.left:
            self.left[name] |= set(sent)

    def check(self, db: Connection) -> None:
        """Everything that is left comes, once."""
        for name, left in self.left.items():
            got: list[Received] = []
            deadline = time.monotonic() + 15

            def more(name: str = name, got: list[Received] = got, left: set[str] = left) -> bool:
                got += drain(db, name, 200)
                return {m.data for m in got} >= left

            while not more():
                missing = left - {m.data for m in got}
                assert time.monotonic() < deadline, f"{name} misses {len(missing)}: {sorted(missing)[:20]}"
            got += drain(db, name)
            found = datas(got)
            assert len(found) == len(set(found)), f"{name} gets messages twice"
            assert set(found) == left, f"{name} gets what it had finished"
            if name == "ordered":
                for key in {m.key for m in got}:
                    numbers = [int(m.data) for m in got if m.key == key and m.data.isdigit()]
                    assert numbers == sorted(numbers)
            assert scalar(db, "select lag from headgate.consumers where name = %s", name) == 0


@contextmanager
def furnished(url: str, lane_by: str = "hash") -> Iterator[tuple[Connection, Furniture]]:
    with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url) as late:
        db.execute("select headgate.create_stream('s', lanes => 4, lane_by => %s)", [lane_by])
        yield db, Furniture(db, late)


@pytest.fixture(scope="module")
def fresh(new_cluster: NewCluster) -> Cluster:
    """A cluster whose transaction ids are lower than those that are restored."""
    return new_cluster()


@pytest.fixture(scope="module")
def older(new_cluster: NewCluster, bin_dir: Path) -> Cluster:
    """A cluster whose transaction ids are higher."""
    cluster = new_cluster()
    burn_ids(cluster, bin_dir)
    return cluster


@pytest.mark.parametrize(
    ("target", "options", "lane_by"),
    [
        pytest.param("fresh", [], "hash", id="lower ids"),
        pytest.param("fresh", ["-1"], "hash", id="in one transaction"),
        pytest.param("fresh", ["-j2"], "hash", id="in parallel"),
        pytest.param("older", [], "hash", id="higher ids"),
        pytest.param("cluster", [], "hash", id="same cluster"),
        pytest.param("fresh", [], "key", id="lanes by key, lower ids"),
        pytest.param("older", [], "channel", id="lanes by channel, higher ids"),
    ],
)
def test_everything_comes_once(
    database_url: str,
    target: str,
    bin_dir: Path,
    tmp_path: Path,
    options: list[str],
    lane_by: str,
    request: pytest.FixtureRequest,
) -> None:
    cluster: Cluster = request.getfixturevalue(target)
    with furnished(database_url, lane_by) as (old, furniture):
        url = move(bin_dir, database_url, cluster, tmp_path / "dump", *options)
        highest_id = scalar(old, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url) as open_one:
        here = scalar(db, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        assert (int(str(here)) < int(str(highest_id))) == (target == "fresh")
        furniture.add(furniture.send(db, 1000, 1010))  # before the first receive
        open_one.execute("select 1")
        with open_one.transaction():  # in a subtransaction, open while others build the bridge
            send(open_one, "open")
        furniture.settle(db, "half", receive(db, "half", 10))
        open_one.commit()
        furniture.add(["open", *furniture.send(db, 1010, 1020)])
        furniture.check(db)
        furniture.left = {name: set() for name in furniture.left}
        furniture.add(furniture.send(db, 1020, 1030))
        furniture.check(db)


def test_seek_to_the_beginning(database_url: str, fresh: Cluster, bin_dir: Path, tmp_path: Path) -> None:
    with furnished(database_url) as (old, _):
        everything = {data for (data,) in old.execute('select data from headgate."log_s"')}
        url = move(bin_dir, database_url, fresh, tmp_path / "dump")
    with psycopg.connect(url, autocommit=True) as db:
        sent = [f"new {number}" for number in range(10)]
        send_many(db, sent[:5])
        db.execute("select headgate.seek('s', 'half', 'beginning')")
        send_many(db, sent[5:])
        db.execute("select headgate.create_consumer('s', 'new')")
        db.execute("select headgate.create_consumer('s', 'end', start => 'end')")
        send(db, "last")
        for name in ("half", "new"):
            got: list[str] = []
            wait_until(lambda name=name, got=got: got.extend(datas(drain(db, name))) or "delayed" in got)  # type: ignore[misc]
            assert sorted(got) == sorted(everything | set(sent) | {"last"})
        assert datas(drain(db, "end")) == ["last"]


def test_moving_again(database_url: str, fresh: Cluster, older: Cluster, bin_dir: Path, tmp_path: Path) -> None:
    """To a cluster with higher ids, and on to one with lower ids, and back to the second."""
    with furnished(database_url) as (_, furniture):
        url = move(bin_dir, database_url, older, tmp_path / "1")
    for number, cluster in enumerate([fresh, older], 2):
        with psycopg.connect(url, autocommit=True) as db:
            start = number * 1000
            furniture.add(furniture.send(db, start, start + 20))
            furniture.settle(db, "half", receive(db, "half", 7))
            tick(db)
            furniture.add(furniture.send(db, start + 20, start + 40))
            furniture.settle(db, "busy", receive(db, "busy", 7))
            receive(db, "untouched", 7)  # in flight
            furniture.settle(db, "done", take(db, "done"))
            furniture.add(furniture.send(db, start + 40, start + 60))
        url = move(bin_dir, url, cluster, tmp_path / f"{number}", database=f"moved_{number}")
    with psycopg.connect(url, autocommit=True) as db:
        furniture.add(furniture.send(db, 9000, 9010))
        furniture.check(db)


def test_workers_that_come_at_once(database_url: str, fresh: Cluster, bin_dir: Path, tmp_path: Path) -> None:
    """One of them builds the bridge; the others neither fail nor read with ids of the old cluster."""
    with psycopg.connect(database_url, autocommit=True) as db:
        create(db, "c")
        send_many(db, [f"{number}" for number in range(100)])
        tick(db)
    url = move(bin_dir, database_url, fresh, tmp_path / "dump")
    with psycopg.connect(url, autocommit=True) as mover, psycopg.connect(url, autocommit=True) as db:
        # holds cluster_identity until it commits; in one string: not taken for a transaction that was open already
        mover.execute("begin; select headgate.receive('s', 'c', 10)")
        db.execute("set lock_timeout = '100ms'")
        assert drain(db) is not None
        mover.execute("rollback")
        send(db, "new")
        assert len(drain(db)) <= 101
        assert scalar(db, "select lag from headgate.consumers") == 0
