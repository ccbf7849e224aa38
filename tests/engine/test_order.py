"""order=key: a message is never handed out while an earlier one of its key is in flight or parked. One lane, a hashed
one and that of a channel, so that everything that could get in each other's way does."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import psycopg
import pytest

from support.calls import (
    Db,
    Received,
    ack,
    call,
    column,
    datas,
    discard,
    facts,
    ids,
    nack,
    pass_time,
    receive,
    send,
    send_batch,
)

S = "orders"


@pytest.fixture(autouse=True, params=[{"lanes": 1}, {"lane_by": "channel"}], ids=["hashed", "channel"])
def orders(db: Db, request: pytest.FixtureRequest) -> None:
    call(db, "create_stream", S, **request.param)
    call(db, "create_consumer", S, "c", order="key", max_deliver=3)


def put(db: Db, *messages: str, delay: str | None = None) -> None:
    """Messages are named after their key: a1, a2, b1."""
    send_batch(
        db, S, list(messages), keys=[m[0] if m[0] != "-" else None for m in messages], delays=[delay] * len(messages)
    )


def take(db: Db, n: int = 10) -> dict[str, Received]:
    return {m.data: m for m in receive(db, S, "c", n)}


class TestOneAtATime:
    def test_messages_of_a_key_in_one_delivery_are_in_order(self, db: Db) -> None:
        put(db, "a1", "b1", "a2", "a3", "b2")
        assert datas(receive(db, S, "c")) == ["a1", "b1", "a2", "a3", "b2"]

    def test_followers_wait_for_the_ack_and_other_keys_do_not(self, db: Db) -> None:
        put(db, "a1", "a2", "b1", "b2", "a3")
        first = take(db, 1)
        assert list(first) == ["a1"]
        assert list(take(db)) == ["b1", "b2"]
        assert take(db) == {}
        put(db, "a4", "d1")
        assert list(take(db)) == ["d1"]
        ack(db, S, "c", list(first.values()))
        assert list(take(db)) == ["a2", "a3", "a4"]

    def test_each_message_of_a_delivery_must_be_acked(self, db: Db) -> None:
        put(db, "a1", "a2", "b1")
        got = take(db)
        put(db, "a3", "b2")
        ack(db, S, "c", [got["a1"]])
        assert take(db) == {}
        ack(db, S, "c", [got["b1"]])
        assert list(take(db)) == ["b2"]
        ack(db, S, "c", [got["a2"]])
        assert list(take(db)) == ["a3"]

    def test_ack_and_receive_in_one_call(self, db: Db) -> None:
        put(db, *(f"a{i}" for i in range(1, 8)))
        got = receive(db, S, "c", 1)
        assert receive(db, S, "c", 1) == []
        seen = datas(got)
        while got := receive(db, S, "c", 1, acks=ids(got)):
            seen += datas(got)
        assert seen == [f"a{i}" for i in range(1, 8)]

    def test_messages_without_a_key_are_not_held(self, db: Db) -> None:
        put(db, "-1", "-2", "a1", "a2")
        assert list(take(db, 1)) == ["-1"]
        held = take(db, 2)
        assert list(held) == ["-2", "a1"]
        put(db, "-3")
        assert list(take(db)) == ["-3"]
        nack(db, S, "c", [held["a1"]], "0")
        assert list(take(db)) == ["a1", "a2"]  # although messages without a key are in flight

    def test_an_ack_in_an_open_transaction_holds_the_key_until_it_commits(self, db: Db, database_url: str) -> None:
        put(db, "a1", "a2", "b1")
        got = take(db, 1)
        with psycopg.connect(database_url) as mine:
            ack(mine, S, "c", list(got.values()))
            assert list(take(db)) == ["b1"]
            mine.commit()
        pass_time(db, "10 seconds")  # it asks again by itself
        assert list(take(db)) == ["a2"]

    def test_followers_go_on_when_the_ack_and_the_parking_cross(self, db: Db) -> None:
        """The ack left no note, because the follower was parked a moment later: it asks again by itself."""
        put(db, "a1", "a2")
        got = take(db, 1)
        assert take(db) == {}
        ack(db, S, "c", list(got.values()))
        db.execute("delete from headgate.wake")
        pass_time(db, "100 milliseconds")
        assert list(take(db)) == ["a2"]


class TestFailure:
    def test_nacked_with_a_delay(self, db: Db) -> None:
        put(db, "a1", "b1")
        got = take(db)
        nack(db, S, "c", [got["a1"]], "1 hour")
        put(db, "a2", "b2")
        assert take(db) == {}  # b1 is in flight
        ack(db, S, "c", [got["b1"]])
        assert list(take(db)) == ["b2"]
        pass_time(db, "2 hours")
        assert [(m.data, m.attempt) for m in receive(db, S, "c") if m.key == "a"] == [("a1", 2), ("a2", 1)]

    def test_later_ones_of_the_same_delivery_are_released_with_it(self, db: Db) -> None:
        put(db, "a1", "b1", "a2", "a3", "b2")
        got = take(db)
        assert nack(db, S, "c", [got["a2"]], "1 hour") == (1, 0)
        assert ack(db, S, "c", [got["a3"]]) == (0, 1)
        assert ack(db, S, "c", [got["a1"], got["b1"], got["b2"]]) == (3, 0)
        put(db, "a4")
        assert take(db) == {}
        pass_time(db, "2 hours")
        assert [(m.data, m.attempt) for m in receive(db, S, "c")] == [("a2", 2), ("a3", 1), ("a4", 1)]

    def test_a_later_one_nacked_waits_for_the_earlier(self, db: Db) -> None:
        put(db, "a1", "a2", "a3")
        got = take(db)
        nack(db, S, "c", [got["a2"]], "0")
        assert take(db) == {}
        assert take(db) == {}
        ack(db, S, "c", [got["a1"]])
        assert list(take(db)) == ["a2", "a3"]

    def test_expired(self, db: Db) -> None:
        put(db, "a1", "a2", "b1")
        take(db, 1)
        take(db)
        pass_time(db, "1 minute")
        assert [(m.data, m.attempt) for m in receive(db, S, "c")] == [("a1", 2), ("a2", 1), ("b1", 2)]

    def test_delayed(self, db: Db) -> None:
        put(db, "a1", delay="1 hour")
        put(db, "a2", "b1")
        assert list(take(db)) == ["b1"]
        put(db, "a3")
        assert take(db) == {}
        pass_time(db, "2 hours")
        assert [m.data for m in receive(db, S, "c") if m.key == "a"] == ["a1", "a2", "a3"]

    def test_delayed_behind_one_in_flight(self, db: Db) -> None:
        put(db, "a1")
        put(db, "a2", delay="1 hour")
        put(db, "a3")
        got = take(db)
        assert list(got) == ["a1"]
        call(db, "alter_consumer", S, "c", ack_wait="7 days")
        db.execute("select * from headgate.extend('orders', 'c', %s, '7 days')", [[got["a1"].ack_id]])
        pass_time(db, "2 hours")
        assert take(db) == {}
        ack(db, S, "c", list(got.values()))
        assert list(take(db)) == ["a2", "a3"]

    @pytest.mark.parametrize("how", ["nack", "expiry"])
    def test_dead_lettered_then_the_next_goes_on(self, db: Db, how: str) -> None:
        put(db, "a1")
        for _ in range(2):
            nack(db, S, "c", list(take(db).values()), "0")
        last = take(db)
        put(db, "a2", "a3")
        assert take(db) == {}  # parks the followers
        if how == "nack":
            nack(db, S, "c", list(last.values()), "0")
        else:
            pass_time(db, "1 minute")
        assert list(take(db, 1)) == ["a2"]
        assert facts(db, S, "c")["dead"] == 1

    def test_redriven_waits_for_a_later_one_in_flight_and_holds_the_next(self, db: Db) -> None:
        put(db, "a1")
        for _ in range(3):
            nack(db, S, "c", list(take(db).values()), "0")
        put(db, "a2", "a3")
        flying = take(db, 1)
        assert list(flying) == ["a2"]
        assert call(db, "redrive", S, "c", all=True) == 1
        assert take(db) == {}
        put(db, "b1")
        assert list(take(db)) == ["b1"]
        ack(db, S, "c", list(flying.values()))
        assert list(take(db)) == ["a1", "a3"]

    def test_discarded_then_the_followers_go_on(self, db: Db) -> None:
        put(db, "a1", "a2", "b1")
        nack(db, S, "c", list(take(db, 1).values()), "1 hour")
        assert list(take(db)) == ["b1"]
        [seq] = column(db, "select seq from headgate.parked_messages where reason = 'nacked'")
        assert discard(db, S, "c", [seq]).discarded == 1
        assert list(take(db)) == ["a2"]

    def test_retry_now_of_a_follower_does_not_overtake(self, db: Db) -> None:
        put(db, "a1", "a2")
        got = take(db)
        nack(db, S, "c", [got["a1"]], "1 hour")
        call(db, "retry_now", S, "c", [got["a2"].seq])
        assert take(db) == {}
        call(db, "retry_now", S, "c", all=True)
        assert list(take(db)) == ["a1", "a2"]

    def test_what_is_due_behind_something_that_waits_does_not_hide_other_keys(self, db: Db) -> None:
        put(db, "a1", "a2", "b1", "b2")
        got = take(db)
        nack(db, S, "c", [got["a1"]], "1 hour")  # a2 is due, but waits for a1
        nack(db, S, "c", [got["b1"]], "0")
        assert list(take(db, 1)) == ["b1"]

    def test_keys_left_over_from_a_full_batch_stay_due(self, db: Db) -> None:
        put(db, "a1", "a2", "b1", "b2", "d1")
        nack(db, S, "c", list(take(db).values()), "0")
        assert list(take(db, 2)) == ["a1", "a2"]
        assert list(take(db, 2)) == ["b1", "b2"]
        assert list(take(db, 2)) == ["d1"]

    def test_a_message_committed_late_does_not_wait_for_later_ones(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as slow:
            send(slow, S, "a1", key="a")
            put(db, "a2", delay="1 hour")
            assert take(db) == {}
            slow.commit()
        assert list(take(db)) == ["a1"]

    def test_a_message_committed_late_waits_for_one_in_flight(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as slow:
            send(slow, S, "a1", key="a")
            put(db, "a2")
            got = take(db)
            slow.commit()
        assert take(db) == {}
        ack(db, S, "c", list(got.values()))
        assert list(take(db)) == ["a1"]


class TestMany:
    def test_many_followers_of_a_failed_message(self, db: Db) -> None:
        put(db, *(f"a{i}" for i in range(1, 3001)), "b1")
        nack(db, S, "c", list(take(db, 1).values()), "1 hour")
        assert any("b1" in take(db) for _ in range(5))  # (one call looks only so far)
        put(db, "b2", "d1")
        assert list(take(db)) == ["d1"]
        pass_time(db, "2 hours")
        seen: list[str] = []
        got: list[Received] = []
        while got := receive(db, S, "c", 100, acks=ids(got)):
            seen += [m.data for m in got if m.key == "a"]
        assert seen == [f"a{i}" for i in range(1, 3001)]

    def test_many_followers_of_one_in_flight(self, db: Db) -> None:
        """Only so many are parked behind it; the lane goes on once it is acked."""
        put(db, *(f"a{i}" for i in range(1, 5001)), "b1")
        got = take(db, 1)
        for _ in range(20):
            take(db, 100)
        assert facts(db, S, "c")["parked"] < 3000
        ack(db, S, "c", list(got.values()))
        seen = []
        more: list[Received] = []
        while more := receive(db, S, "c", 1000, acks=ids(more)):
            seen += [m.data for m in more if m.key == "a"]
        assert seen == [f"a{i}" for i in range(2, 5001)]

    @pytest.mark.parametrize("lanes", [{"lanes": 1}, {"lanes": 3}, {"lane_by": "channel"}], ids=str)
    def test_hot_keys_failures_and_several_workers(self, db: Db, database_url: str, lanes: dict[str, object]) -> None:
        """Workers fail and drop messages at random; whatever is handed out has no unfinished predecessor."""
        call(db, "create_stream", "hot", **lanes)
        call(db, "create_consumer", "hot", "c", order="key", ack_wait="300 milliseconds")
        keys = ["hot"] * 300 + [f"k{i % 5}" for i in range(300)]
        random.Random(7).shuffle(keys)
        sent = send_batch(db, "hot", ["x"] * 600, keys=keys)
        of_key: dict[str, list[int]] = defaultdict(list)
        for key, seq in zip(keys, sent, strict=True):
            of_key[key].append(seq)
        before = {seq: seqs[:i] for seqs in of_key.values() for i, seq in enumerate(seqs)}
        done: set[int] = set()
        wrong: list[tuple[int, set[int]]] = []
        lock = threading.Lock()

        def work(seed: int) -> None:
            rng = random.Random(seed)
            with psycopg.connect(database_url, autocommit=True) as own:
                while len(done) < 600:
                    got = receive(own, "hot", "c", rng.choice([1, 3, 20]))
                    mine: set[int] = set()
                    for m in got:
                        with lock:
                            if missing := set(before[m.seq]) - done - mine - {g.seq for g in got if g.seq < m.seq}:
                                wrong.append((m.seq, missing))
                        fate = rng.random()
                        if fate < 0.08:
                            nack(own, "hot", "c", [m], rng.choice(["0", "5 milliseconds", "50 milliseconds"]))
                        elif fate > 0.99:
                            break  # the rest expires
                        else:
                            with lock:  # before the ack, so that nobody who gets the next one finds this one missing
                                done.add(m.seq)
                            if ack(own, "hot", "c", [m]) == (0, 1) and m.seq not in mine:
                                with lock:
                                    stale.add(m.seq)
                        mine.add(m.seq)

        stale: set[int] = set()
        workers = [threading.Thread(target=work, args=(i,)) for i in range(5)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(60)
        assert wrong == []
        assert len(done) == 600
