"""Push consumers that are changed, stopped and told to wait while they push."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import psycopg
import pytest

import headgate
from support.receivers import SECRET, Post, Reply, receiver
from support.servers import replica
from support.waiting import wait_until

PRIVATE = "push_private=on"


def test_a_change_that_is_committed_after_a_later_one(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    """It has the lower version, and is seen all the same."""
    orders = hg.stream("orders", create=True)
    with receiver() as before, receiver() as after, psycopg.connect(database_url) as slow:
        first = orders.consumer("first", create=True, push={"url": before.url, "secret": SECRET})
        second = orders.consumer("second", create=True, push={"url": before.url, "secret": SECRET})
        with replica(database_url, tmp_path, PRIVATE):
            orders.send("1")
            wait_until(lambda: first.info().lag == second.info().lag == 0)
            slow.execute(
                "select headgate.alter_consumer('orders', 'first', push => jsonb_build_object('url', %s::text))",
                [after.url],
            )
            second.alter(push={"url": after.url})

            def is_seen() -> bool:
                orders.send("x")
                return "second" in {p.json["consumer"] for p in after.posts}

            wait_until(is_seen)
            slow.commit()
            wait_until(lambda: orders.send("y") and "first" in {p.json["consumer"] for p in after.posts})


@pytest.mark.parametrize("after", ["0.5 seconds", "2 seconds"])
def test_a_shorter_ack_wait(database_url: str, hg: headgate.Headgate, tmp_path: Path, after: str) -> None:
    """What is being posted does not come a second time meanwhile."""
    orders = hg.stream("orders", create=True, lanes=1)

    def reply(post: Post) -> Reply:
        if post.data != "warm":
            time.sleep(3)  # longer than the new ack_wait
        return 200

    with receiver(reply) as there, psycopg.connect(database_url, autocommit=True) as db:
        consumer = orders.consumer(
            "c", create=True, ack_wait=60, push={"url": there.url, "secret": SECRET, "concurrency": 4}
        )
        with replica(database_url, tmp_path, PRIVATE):
            orders.send("warm")
            wait_until(lambda: consumer.info().lag == 0)
            db.execute("select headgate.alter_consumer('orders', 'c', ack_wait => %s::interval)", [after])
            for n in range(6):  # before the server has read the new setting, and after
                orders.send(n)
                time.sleep(1.2)
            wait_until(lambda: consumer.info().lag == 0)
    assert sorted(there.datas, key=str) == [0, 1, 2, 3, 4, 5, "warm"]


def test_a_server_that_stood_posts_nothing_that_others_have(
    database_url: str, hg: headgate.Headgate, tmp_path: Path
) -> None:
    """Stopped for longer than ack_wait, with messages of a key in hand, which another worker has done meanwhile."""
    orders = hg.stream("orders", create=True, lanes=1)
    began = threading.Event()

    def reply(post: Post) -> Reply:
        began.set()
        time.sleep(0.3)
        return 200

    with receiver(reply) as there:
        consumer = orders.consumer(
            "c", create=True, order="key", ack_wait=1, push={"url": there.url, "secret": SECRET, "concurrency": 8}
        )
        orders.send_batch(list(range(6)), key="k")
        with replica(database_url, tmp_path, PRIVATE) as server:
            assert began.wait(20)
            server.process.send_signal(signal.SIGSTOP)
            done: list[object] = []
            while len(done) < 6:
                for m in consumer.receive(10, wait=5):
                    m.ack()
                    done.append(m.data)
            server.process.send_signal(signal.SIGCONT)
            orders.send("last", key="k")
            wait_until(lambda: "last" in there.datas and consumer.info().lag == 0)
    assert done == [0, 1, 2, 3, 4, 5]
    assert there.datas[1:] == ["last"], "only the one that was under way"


def test_a_pause_that_an_endpoint_asks_for_is_bounded(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    orders = hg.stream("orders", create=True)
    with receiver(lambda post: (503, {"Retry-After": "86400"})) as there:
        consumer = orders.consumer("c", create=True, push={"url": there.url, "secret": SECRET})
        with replica(database_url, tmp_path, PRIVATE):
            orders.send("x")
            wait_until(lambda: consumer.info().parked == 1)
        [parked] = hg.run(
            "select extract(epoch from not_before - clock_timestamp())::float8 from "
            "(select visible_at as not_before from headgate.parked) p"
        )
    assert 200 < parked[0] <= 300


@pytest.mark.parametrize("through", ["http", "sql"])
def test_a_pause_stops_a_chain_in_hand(database_url: str, hg: headgate.Headgate, tmp_path: Path, through: str) -> None:
    """Ten messages of a key are with the server when its consumer is paused: the one under way is the last."""
    orders = hg.stream("orders", create=True, lanes=1)
    orders.send_batch(range(10), key="k")
    began = threading.Event()

    def reply(post: Post) -> Reply:
        began.set()
        time.sleep(0.5)
        return 200

    with receiver(reply) as there, replica(database_url, tmp_path, PRIVATE) as server, server.client() as admin:
        consumer = orders.consumer(
            "c", create=True, order="key", push={"url": there.url, "secret": SECRET, "concurrency": 20}
        )
        assert began.wait(10)
        before = len(there.datas)
        if through == "http":
            assert admin.post("/api/streams/orders/consumers/c/pause").is_success
        else:
            consumer.pause()
        wait_until(lambda: consumer.info().in_flight == 0)
        posted = len(there.datas)
        assert posted - before <= (2 if through == "http" else 4)  # other servers look every second
        assert consumer.info().lag == 10 - posted
        consumer.resume()
        wait_until(lambda: consumer.info().lag == 0)
    assert there.datas == list(range(10))
