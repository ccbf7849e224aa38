"""max_ack_pending: never more in flight, whoever receives."""

from __future__ import annotations

import threading

import psycopg
import pytest

import headgate
from support.calls import Db, call, ids, nack, pass_time, receive, send_batch, value

S = "orders"


@pytest.fixture(autouse=True)
def orders(db: Db) -> None:
    call(db, "create_stream", S, lanes=4)


class TestMaxAckPending:
    def test_it_holds_until_acks_make_room(self, db: Db) -> None:
        call(db, "create_consumer", S, "few", max_ack_pending=5)
        send_batch(db, S, ["x"] * 20)
        first = receive(db, S, "few", 3)
        assert len(receive(db, S, "few", 10)) == 2
        assert receive(db, S, "few", 10) == []
        assert len(receive(db, S, "few", 10, acks=ids(first))) == 3

    def test_nacked_and_expired_ones_make_room(self, db: Db) -> None:
        call(db, "create_consumer", S, "few", max_ack_pending=4)
        send_batch(db, S, ["x"] * 20)
        nack(db, S, "few", receive(db, S, "few", 2), "1 hour")
        assert len(receive(db, S, "few", 10)) == 4
        pass_time(db, "1 minute")
        assert len(receive(db, S, "few", 10)) == 4

    def test_expired_ones_do_not_count_even_when_there_is_room(self, db: Db) -> None:
        call(db, "create_consumer", S, "few", max_ack_pending=5)
        send_batch(db, S, ["x"] * 20)
        receive(db, S, "few", 4)
        pass_time(db, "1 minute")
        assert len(receive(db, S, "few", 10)) == 5

    def test_exact_under_eight_workers(self, db: Db, database_url: str) -> None:
        call(db, "create_consumer", S, "few", max_ack_pending=7)
        send_batch(db, S, ["x"] * 2000)
        done: list[int] = []
        over: list[int] = []
        stop = threading.Event()

        def work() -> None:
            # The SDK says that its call is a transaction of its own. In SQL it may look like part of an open one, which
            # takes no lock, when a busy machine is slow to begin it.
            with headgate.connect(database_url) as own:
                few = own.stream(S).consumer("few")
                while not stop.is_set():
                    batch = few.receive(3)
                    done.extend(m.seq for m in batch)
                    few.ack(batch)
                    if not batch and len(done) >= 2000:
                        return

        def watch() -> None:
            with psycopg.connect(database_url, autocommit=True) as own:
                while not stop.is_set():
                    n = value(
                        own,
                        "select coalesce(sum(cardinality(seqs)), 0) from headgate.deliveries where consumer = 'few'",
                    )
                    over.append(n)

        workers = [threading.Thread(target=work) for _ in range(8)]
        watcher = threading.Thread(target=watch)
        watcher.start()
        for w in workers:
            w.start()
        for w in workers:
            w.join(100)
        stop.set()
        watcher.join(10)
        assert sorted(done) == sorted(set(done))
        assert len(done) == 2000
        assert max(over) <= 7
        assert max(over) > 3

    def test_channels_that_there_was_no_room_for_stay_awake(self, db: Db, database_url: str) -> None:
        """Fewer messages than channels may be handed out: the others are not full, and wait for no ack of their own."""
        call(db, "create_stream", "jobs", lane_by="channel")
        call(db, "create_consumer", "jobs", "few", max_ack_pending=3)
        call(db, "send_batch", "jobs", ["x"] * 10, channels=[f"c{i}" for i in range(10)])
        seen: list[int] = []
        with headgate.connect(database_url) as own:
            few = own.stream("jobs").consumer("few")
            while got := few.receive(100):
                assert len(got) <= 3
                seen += [m.seq for m in got]
                few.ack(got)
        assert sorted(seen) == list(range(1, 11))
