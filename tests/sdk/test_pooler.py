"""Behind a pooler in transaction mode, where each transaction may run on another connection: PgBouncer itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin:/opt/homebrew/bin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed: apt-get install pgbouncer")


def version() -> tuple[int, int]:
    if PGBOUNCER is None:
        return (0, 0)
    said = subprocess.run([PGBOUNCER, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


@contextmanager
def bouncer(database_url: str, cluster: Cluster, home: Path, prepared: bool) -> Iterator[str]:
    """PgBouncer in front of a database, with three server connections, on a unix socket of its own; gives the URL."""
    assert PGBOUNCER
    for directory in (home, *home.parents[:2]):
        directory.chmod(directory.stat().st_mode | 0o711)  # it does not run as root, like PostgreSQL
    run, config = home / "bouncer", home / "pgbouncer.ini"
    run.mkdir()
    run.chmod(0o777)
    config.write_text(
        f"[databases]\n* = host={cluster.socket_dir} port={cluster.port} user=postgres\n"
        "[pgbouncer]\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\nauth_type = any\n"
        f"unix_socket_dir = {run}\nlisten_addr =\nlisten_port = 6432\n"
        + ("max_prepared_statements = 100\n" if prepared else "")
    )
    config.chmod(0o644)
    user = ["-u", cluster.data_dir.owner()] if os.geteuid() == 0 else []
    process = subprocess.Popen([PGBOUNCER, "-q", *user, str(config)], stderr=subprocess.PIPE, text=True)
    try:
        name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
        url = f"postgresql://postgres@/{name}?host={run}&port=6432"
        wait_until(lambda: answers(url), 10)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=10)


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(params=["pooler=True", *(["prepared statements"] if version() >= (1, 21) else [])])
def hg(
    request: pytest.FixtureRequest, database_url: str, cluster: Cluster, tmp_path: Path
) -> Iterator[headgate.Headgate]:
    """A client behind PgBouncer, which knows prepared statements since 1.21."""
    prepared = request.param == "prepared statements"
    with bouncer(database_url, cluster, tmp_path, prepared) as url, headgate.connect(url, pooler=not prepared) as hg:
        yield hg


def test_everything_works(hg: headgate.Headgate) -> None:
    stream = hg.stream("orders", create=True, lanes=4)
    consumer = stream.consumer("billing", create=True, order="key", max_deliver=2)
    stream.send_batch([(f"k{n % 5}", {"n": n}) for n in range(50)])
    stream.send(b"\x00\xff", key="k0", headers={"a": 1}, id="once")
    stream.send(b"\x00\xff", key="k0", headers={"a": 1}, id="once")
    [first] = consumer.receive(wait=5)
    assert first.extend(60)
    assert first.nack(delay=0, error="again")
    seen: list[int] = [first.seq]
    while messages := consumer.receive(10, wait=0.3):
        seen += [m.seq for m in messages]
        assert consumer.ack(messages).stale == 0
    assert len(seen) == 52
    assert len(set(seen)) == 51
    info = consumer.info()
    assert (info.lag, info.in_flight, info.dead) == (0, 0, 0)
    with pytest.raises(headgate.errors.StreamNotFound):
        hg.stream("no")
    hg.maintain()


def test_transaction(hg: headgate.Headgate) -> None:
    """Work and ack stay on one server connection for as long as the transaction lasts."""
    stream = hg.stream("orders", create=True)
    consumer = stream.consumer("billing", create=True)
    stream.send_batch([{"n": n} for n in range(20)])
    with consumer.transaction(5, wait=5) as (tx, messages):
        tx.execute("create table done (n int)")
        for m in messages:
            tx.execute("insert into done values (%s)", [m.data["n"]])
    with pytest.raises(ZeroDivisionError), consumer.transaction(5, wait=5) as (tx, messages):
        tx.execute("delete from done")
        raise ZeroDivisionError
    total = len(hg.run("select n from done", ()))
    while total < 20:
        with consumer.transaction(7, wait=5) as (tx, messages):
            for m in messages:
                tx.execute("insert into done values (%s)", [m.data["n"]])
        total += len(messages)
    assert sorted(hg.run("select n from done", ())) == [(n,) for n in range(20)]


def test_many_clients_on_few_server_connections(hg: headgate.Headgate) -> None:
    """Eight threads with connections of their own share three: nothing is lost, nothing comes twice."""
    stream = hg.stream("orders", create=True, lanes=4)
    consumer = stream.consumer("billing", create=True)
    seen: list[int] = []
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def send() -> None:
        for n in range(25):
            stream.send_batch([{"n": n}] * 4)

    def receive() -> None:
        done: list[headgate.Message] = []
        while len(seen) < 400 and not errors and time.monotonic() < stop:
            done = consumer.receive(10, wait=0.05, acks=done)
            seen.extend(m.seq for m in done)
        consumer.ack(done)

    stop = time.monotonic() + 30
    threads = [threading.Thread(target=guarded, args=[work]) for work in [send] * 4 + [receive] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(seen) == len(set(seen)) == 400
    assert consumer.info().lag == 0


def test_migrating(hg: headgate.Headgate) -> None:
    hg.run("update headgate.functions_digest set version = 0, digest = 'older'", ())
    hg.migrate()
    for _ in range(6):
        assert hg.run("select current_setting('lock_timeout'), current_setting('check_function_bodies')", ()) == [
            ("0", "on")
        ]
