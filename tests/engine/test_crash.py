"""PostgreSQL is killed in mid-traffic: nothing that was acknowledged is lost, everything is delivered at least once."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from support.engine import Received, ack, create, drain, receive, scalar, send, send_many, take
from support.postgres import NewCluster
from support.waiting import wait_until

ACK_WAIT = timedelta(seconds=1)
CONSUMERS = ("plain", "ordered")


@pytest.fixture(scope="module")
def own(new_cluster: NewCluster) -> Cluster:
    return new_cluster()


@pytest.fixture
def url(own: Cluster) -> str:
    name = f"crash_{random.randrange(10**9)}"
    with psycopg.connect(own.url(), autocommit=True) as db:
        db.execute(f"create database {name}")
    with psycopg.connect(own.url(name)) as db:
        db.execute(schema.install_sql())
        create(db, "plain", ack_wait=ACK_WAIT)
        create(db, "ordered", order="key", ack_wait=ACK_WAIT)
    return own.url(name)


class Traffic:
    """Publishers and workers that go on until the server goes away."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lock = threading.Lock()
        self.acknowledged: dict[int, str] = {}
        self.uncertain: set[str] = set()  # the commit was under way
        self.rolled_back: set[str] = set()
        self.received: dict[str, set[int]] = {name: set() for name in CONSUMERS}
        self.acked: dict[str, set[int]] = {name: set() for name in CONSUMERS}
        self.threads = [threading.Thread(target=self.publish, args=[number]) for number in range(6)]
        self.threads += [threading.Thread(target=self.work, args=[name]) for name in CONSUMERS for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()

    def publish(self, publisher: int) -> None:
        number = 0
        dice = random.Random(publisher)
        try:
            with psycopg.connect(self.url) as db:
                while True:
                    datas = [f"{publisher}.{number + n}" for n in range(dice.randint(1, 5))]
                    number += len(datas)
                    seqs = send_many(db, datas, [f"k{publisher}"] * len(datas))
                    time.sleep(dice.choice([0, 0, 0, 0.05]))
                    if dice.random() < 0.1:
                        db.rollback()
                        self.rolled_back.update(datas)
                        continue
                    self.uncertain.update(datas)
                    db.commit()
                    self.uncertain.difference_update(datas)
                    with self.lock:
                        self.acknowledged.update(zip(seqs, datas, strict=True))
        except psycopg.OperationalError:
            pass

    def work(self, consumer: str) -> None:
        try:
            with psycopg.connect(self.url, autocommit=True) as db:
                db.execute("set synchronous_commit = off")  # as the SDK does
                while True:
                    messages = receive(db, consumer, 20)
                    with self.lock:
                        self.received[consumer].update(m.seq for m in messages)
                    if not messages or random.random() < 0.1:
                        continue
                    acked, _ = ack(db, messages, consumer)
                    with self.lock:
                        self.acked[consumer].update(m.seq for m in messages[:acked])
        except psycopg.OperationalError:
            pass


def received_again(url: str, consumer: str) -> list[Received]:
    """All that comes until nothing is left; what was in flight comes after its deadline."""
    got: list[Received] = []
    with psycopg.connect(url, autocommit=True) as db:

        def is_empty() -> bool:
            got.extend(drain(db, consumer))
            return scalar(db, "select lag from headgate.consumers where name = %s", consumer) == 0

        wait_until(is_empty)
    return got


def test_killed_in_mid_traffic(own: Cluster, url: str) -> None:
    for _ in range(3):
        traffic = Traffic(url)
        wait_until(lambda traffic=traffic: len(traffic.acknowledged) > 500)  # type: ignore[misc]
        own.kill()
        traffic.join()
        own.start()
        with psycopg.connect(url, autocommit=True) as db:
            log: dict[int, str] = dict(db.execute('select seq, data from headgate."log_s"').fetchall())
            assert traffic.acknowledged.items() <= log.items(), "an acknowledged publish is lost"
            assert not traffic.rolled_back & set(log.values())
            ours = {seq for seq, data in log.items() if data in traffic.uncertain} | traffic.acknowledged.keys()
            send(db, "after")
        for name in CONSUMERS:
            again = received_again(url, name)
            seqs = [m.seq for m in again]
            assert len(seqs) == len(set(seqs)), "once is enough after the restart"
            assert ours <= traffic.received[name] | set(seqs), "a message is never delivered"
            assert ours - traffic.acked[name] <= set(seqs), "what was in flight does not come again"
            for key in {m.key for m in again} if name == "ordered" else ():
                of_key = [m.seq for m in again if m.key == key]
                assert of_key == sorted(of_key)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("select headgate.drop_stream('s')")
            create(db, "plain", ack_wait=ACK_WAIT)
            create(db, "ordered", order="key", ack_wait=ACK_WAIT)


def test_prepared_and_open_transactions_of_a_killed_server(own: Cluster, url: str) -> None:
    with (
        suppress(psycopg.OperationalError),  # they cannot say goodbye
        psycopg.connect(url, autocommit=True) as db,
        psycopg.connect(url) as prepared,
        psycopg.connect(url) as open_one,
    ):
        send(open_one, "open")
        send(prepared, "prepared")
        prepared.execute("prepare transaction 'p'")
        send(db, "kept")
        assert [m.data for m in take(db, "plain")] == ["kept"]
        send(db, "last")
        own.kill()
    own.start()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("commit prepared 'p'")
    # "kept" was received, which may be forgotten or expire, and was not acked
    assert sorted(m.data for m in received_again(url, "plain")) == ["kept", "last", "prepared"]
