"""Lanes by key: each key its own lane, one delivery in flight when order is kept."""

from __future__ import annotations

import threading

import psycopg
import pytest

from support.calls import Db, Received, ack, call, nack, receive, send_batch, value
from support.waiting import wait_until

S, C = "orders", "c"


@pytest.fixture
def orders(db: Db) -> Db:
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C, order="key")
    return db


def fill(db: Db, *pairs: str) -> list[int]:
    """`a1` is a message of key a."""
    return send_batch(db, S, pairs, keys=[p[0] for p in pairs])


def got(messages: list[Received]) -> list[str]:
    return sorted(m.data for m in messages)


class TestOrder:
    def test_a_key_in_flight_is_withheld_and_others_go_on(self, orders: Db) -> None:
        fill(orders, "a1", "a2", "b1", "c1", "c2")
        first = receive(orders, S, C, 3)
        assert got(first) == ["a1", "b1", "c1"]
        assert receive(orders, S, C, 10) == []
        ack(orders, S, C, [m for m in first if m.key == "c"])
        assert got(receive(orders, S, C, 10)) == ["c2"]

    def test_acks_with_the_next_receive_wake_the_lane(self, orders: Db) -> None:
        fill(orders, *(f"a{i}" for i in range(6)))
        seen: list[str] = []
        acks: list[str] = []
        for _ in range(6):
            (message,) = receive(orders, S, C, 1, acks=acks)
            seen.append(message.data)
            acks = [message.delivery]
        assert seen == [f"a{i}" for i in range(6)]
        assert receive(orders, S, C, 1, acks=acks) == []

    def test_a_failed_message_blocks_its_key_alone(self, orders: Db) -> None:
        fill(orders, "a1", "a2", "b1", "b2")
        first = receive(orders, S, C, 2)
        nack(orders, S, C, [m for m in first if m.key == "a"], "1 hour")
        ack(orders, S, C, [m for m in first if m.key == "b"])
        assert got(receive(orders, S, C, 10)) == ["b2"]
        fill(orders, "a3", "d1")
        assert got(receive(orders, S, C, 10)) == ["d1"]
        assert call(orders, "retry_now", S, C, all=True) == 1
        (again,) = receive(orders, S, C, 10)
        assert (again.data, again.attempt) == ("a1", 2)
        ack(orders, S, C, [again])
        for data in ("a2", "a3"):
            (message,) = receive(orders, S, C, 1)
            assert message.data == data
            ack(orders, S, C, [message])

    def test_part_of_a_delivery_fails(self, orders: Db) -> None:
        fill(orders, "a1", "a2", "a3")
        batch = receive(orders, S, C, 10)
        assert [m.data for m in batch] == ["a1", "a2", "a3"]
        ack(orders, S, C, batch[:1])
        nack(orders, S, C, batch[1:2], "0 seconds")
        again: list[Received] = []
        wait_until(lambda: again.extend(receive(orders, S, C, 10)) or len(again) == 2)
        assert [(m.data, m.attempt) for m in again] == [("a2", 2), ("a3", 1)]

    def test_delayed_messages_hold_their_key(self, orders: Db) -> None:
        send_batch(orders, S, ["a1", "b1"], keys=["a", "b"], delays=["1 hour", None])
        fill(orders, "a2", "b2")
        assert got(receive(orders, S, C, 10)) == ["b1", "b2"]
        call(orders, "retry_now", S, C, all=True)
        assert [m.data for m in receive(orders, S, C, 10)] == ["a1", "a2"]

    def test_messages_without_a_key_are_plain(self, orders: Db) -> None:
        send_batch(orders, S, [f"n{i}" for i in range(50)])
        found = receive(orders, S, C, 30) + receive(orders, S, C, 30)
        assert len({m.seq for m in found}) == 50

    def test_max_deliver_lets_the_key_go_on(self, orders: Db) -> None:
        call(orders, "create_consumer", S, "once", order="key", max_deliver=1)
        fill(orders, "a1", "a2")
        (first,) = receive(orders, S, "once", 1)
        nack(orders, S, "once", [first])
        assert [m.data for m in receive(orders, S, "once", 10)] == ["a2"]


def test_unordered_consumers_take_a_key_in_parallel(orders: Db) -> None:
    call(orders, "create_consumer", S, "plain")
    fill(orders, "a1", "a2")
    assert [m.data for m in receive(orders, S, "plain", 1)] == ["a1"]
    assert [m.data for m in receive(orders, S, "plain", 1)] == ["a2"]


def test_many_workers_and_writers(database_url: str, orders: Db) -> None:
    """Keys in order, nothing twice, nothing lost: with nacks, and writers whose transactions stay open."""
    keys, per_writer, writers = 30, 150, 4
    seen: dict[tuple[str | None, str], list[int]] = {}  # of each key and writer
    flying: dict[str, int] = {}
    lock, stop = threading.Lock(), threading.Event()
    wrong: list[object] = []

    def write(w: int) -> None:
        with psycopg.connect(database_url) as db:
            for i in range(per_writer):
                key = f"k{(i * 7 + w) % keys}"
                db.execute("select headgate.send(%s, %s, %s)", (S, f"{w}.{i}", key))
                if i % 5 == w:
                    db.execute("select pg_sleep(0.01)")
                if i % 3 == 0:
                    db.commit()

    def work(n: int) -> None:
        with psycopg.connect(database_url, autocommit=True) as db:
            acks: list[str] = []
            turn = 0
            while not stop.is_set():
                turn += 1
                batch = receive(db, S, C, 7, f"w{n}", acks)
                acks = []
                with lock:
                    for m in batch:
                        before = seen.setdefault((m.key, m.data.split(".")[0]), [])
                        if before and before[-1] > m.seq:
                            wrong.append((m.key, before[-1], m.seq))
                        if flying.get(m.key or "", n) != n:
                            wrong.append(("two workers", m.key))
                        flying[m.key or ""] = n
                failed: set[str | None] = set()  # what comes behind a failed message of its key is taken back with it
                for m in batch:
                    if m.key in failed:
                        continue
                    if m.seq % 41 == 0 and m.attempt == 1:
                        failed.add(m.key)
                        with lock:
                            flying.pop(m.key or "", None)
                        nack(db, S, C, [m], "20 milliseconds")
                    else:
                        with lock:
                            seen[m.key, m.data.split(".")[0]].append(m.seq)
                            flying.pop(m.key or "", None)
                        ack(db, S, C, [m]) if turn % 2 else acks.append(m.ack_id)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    senders = [threading.Thread(target=write, args=(w,)) for w in range(writers)]
    for thread in workers + senders:
        thread.start()
    for thread in senders:
        thread.join()

    def is_all_done() -> bool:
        return bool(value(orders, "select lag from headgate.consumers where name = %s", C) == 0)

    try:
        wait_until(is_all_done, 60)
    finally:
        stop.set()
        for thread in workers:
            thread.join()
    done = [seq for one in seen.values() for seq in one]
    assert len(set(done)) == writers * per_writer, "none lost"
    assert wrong == []
