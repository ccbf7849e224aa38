"""Push consumers with several servers: nothing is sent twice, and nothing is lost when one of them dies or stops."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import headgate
from support.receivers import SECRET, Post, Reply, receiver
from support.servers import replica
from support.waiting import wait_until

PRIVATE = "push_private=on"


def lag(hg: headgate.Headgate) -> int:
    return hg.insights.consumer("orders", "c").lag


def test_two_replicas_never_send_twice(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    orders = hg.stream("orders", create=True, lanes=4)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with receiver() as there:
        orders.consumer("c", create=True, order="key", push={"url": there.url, "secret": SECRET, "concurrency": 4})
        with (
            replica(database_url, tmp_path / "1", PRIVATE) as one,
            replica(database_url, tmp_path / "2", PRIVATE) as two,
        ):
            for n in range(20):
                orders.send_batch([(f"k{k}", n) for k in range(10)])
            wait_until(lambda: lag(hg) == 0)
            counts = []
            for r in (one, two):
                with r.client() as client:
                    [line] = [
                        x for x in client.get("/metrics").text.splitlines() if x.startswith("headgate_push_total{")
                    ]
                    counts.append(int(line.rpartition(" ")[2]))
    assert sum(counts) == len(there.posts) == 200
    assert min(counts) > 0, "both have a part in it"
    by_key: dict[str, list[int]] = {}
    for post in there.posts:
        by_key.setdefault(post.json["key"], []).append(post.data)
    assert by_key == {f"k{k}": list(range(20)) for k in range(10)}


def test_kill_of_a_replica_in_the_middle_of_a_push(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    """What it had in hand comes again, by another one, with the same webhook-id."""
    orders = hg.stream("orders", create=True)
    began, go = threading.Event(), threading.Event()

    def reply(post: Post) -> Reply:
        if not began.is_set():
            began.set()
            go.wait(20)
        return 200

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with receiver(reply) as there:
        orders.consumer("c", create=True, ack_wait=1, push={"url": there.url, "secret": SECRET})
        with replica(database_url, tmp_path / "1", PRIVATE) as one:
            orders.send("x")
            assert began.wait(20)
            one.process.kill()
            one.process.wait()
        with replica(database_url, tmp_path / "2", PRIVATE):
            wait_until(lambda: lag(hg) == 0)
            go.set()
    assert [p.json["attempt"] for p in there.posts] == [1, 2]
    assert len({p.headers["webhook-id"] for p in there.posts}) == 1


def test_stopping_finishes_what_is_under_way_and_hands_back_the_rest(
    database_url: str, hg: headgate.Headgate, tmp_path: Path
) -> None:
    orders = hg.stream("orders", create=True, lanes=1)
    began = threading.Event()

    def reply(post: Post) -> Reply:
        began.set()
        time.sleep(0.5)
        return 200

    with receiver(reply) as there:
        orders.consumer("c", create=True, order="key", push={"url": there.url, "secret": SECRET, "concurrency": 4})
        orders.send_batch(["a", "b", "c"], key="k")
        with replica(database_url, tmp_path, PRIVATE) as one:
            assert began.wait(20)
            one.process.terminate()
            assert one.process.wait(20) == 0
        found = hg.insights.consumer("orders", "c")
        assert there.datas == ["a"]
        assert (found.in_flight, found.lag) == (0, 2), "the others are free at once"
        assert [m.attempt for m in hg.stream("orders").consumer("c").receive(5, wait=5)] == [1, 1], "and not counted"


def test_a_limit_over_all_replicas(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    """`concurrency` is each server's own; `max_ack_pending` is the consumer's, wherever it is pushed from."""
    orders = hg.stream("orders", create=True, lanes=4)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()

    def reply(post: Post) -> Reply:
        time.sleep(0.02)
        return 200

    with receiver(reply) as there:
        push: headgate.types.Push = {"url": there.url, "secret": SECRET, "concurrency": 4}
        orders.consumer("c", create=True, max_ack_pending=2, push=push)
        with replica(database_url, tmp_path / "1", PRIVATE), replica(database_url, tmp_path / "2", PRIVATE):
            orders.send_batch(range(12))
            wait_until(lambda: lag(hg) == 0)
    assert sorted(there.datas) == list(range(12))
    assert there.most_at_once <= 2


def test_a_server_that_does_not_push(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    orders = hg.stream("orders", create=True)
    with receiver() as there:
        orders.consumer("c", create=True, push={"url": there.url, "secret": SECRET})
        with replica(database_url, tmp_path, PRIVATE, "push=off") as one, one.client() as client:
            orders.send("x")
            assert client.get("/healthz").status_code == 200
            assert [m.data for m in orders.consumer("c").receive(1, wait=5)] == ["x"]
    assert there.posts == []
