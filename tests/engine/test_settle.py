"""Receiving and settling: deadlines, acks, nacks, extensions, pauses."""

from __future__ import annotations

import threading
from collections import Counter
from statistics import mean

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.calls import (
    Db,
    ack,
    call,
    column,
    datas,
    extend,
    facts,
    ids,
    nack,
    pass_time,
    receive,
    same_lane_keys,
    send,
    send_batch,
    tick,
    value,
)

S = "orders"


@pytest.fixture(autouse=True)
def orders(db: Db) -> None:
    call(db, "create_stream", S, lanes=4)
    call(db, "create_consumer", S, "c")


def untouched(db: Db) -> tuple[int, int]:
    return value(db, "select count(*) from headgate.delivery"), value(db, "select count(*) from headgate.parked")


class TestReceive:
    def test_each_message_goes_to_one_worker(self, db: Db, database_url: str) -> None:
        send_batch(db, S, [str(i) for i in range(4000)], keys=[f"k{i % 50}" for i in range(4000)])
        got: Counter[str] = Counter()
        by_worker: list[int] = []

        def work(name: str) -> None:
            mine = 0
            with psycopg.connect(database_url, autocommit=True) as own:
                acks: list[str] = []
                for _ in range(2000):
                    batch = receive(own, S, "c", 20, name, acks)
                    got.update(datas(batch))
                    mine += len(batch)
                    acks = sorted({m.delivery for m in batch})
                    if not batch and value(own, "select lag from headgate.consumers where name = 'c'") == 0:
                        break
            by_worker.append(mine)

        workers = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(6)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(100)
        assert sum(by_worker) == 4000
        assert set(got.values()) == {1}
        assert untouched(db) == (0, 0)

    def test_consumers_do_not_touch_each_other(self, db: Db) -> None:
        call(db, "create_consumer", S, "other")
        send_batch(db, S, ["a", "b", "c"])
        first = receive(db, S, "c")
        assert ack(db, S, "other", first) == (0, 3)
        ack(db, S, "c", first)
        assert sorted(datas(receive(db, S, "other"))) == ["a", "b", "c"]

    def test_batches_are_full_when_there_is_work(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 1000)
        assert [len(receive(db, S, "c", 70)) for _ in range(15)] == [70] * 14 + [20]

    def test_batches_are_full_when_the_filter_matches_rarely(self, db: Db) -> None:
        call(db, "create_consumer", S, "rare", ["vip.>"])
        for _ in range(4):
            keys = [f"k.{i}" for i in range(2_999)] + ["vip.a"]
            send_batch(db, S, ["x"] * 2_999 + ["v"], keys=keys)
        assert datas(receive(db, S, "rare", 4)) == ["v"] * 4
        assert receive(db, S, "rare", 4) == []

    @pytest.mark.parametrize("n", [1, 10])
    def test_batches_are_full_behind_many_delayed_ones(self, db: Db, n: int) -> None:
        call(db, "create_stream", "one", lanes=1)
        call(db, "create_consumer", "one", "c")
        send_batch(db, "one", ["later"] * 3_000, delays=["1 hour"] * 3_000)
        send_batch(db, "one", ["now"] * 10)
        assert datas(receive(db, "one", "c", n)) == ["now"] * n

    @pytest.mark.parametrize("n", [0, -1, 10_001, None])
    def test_impossible_batches_are_refused(self, db: Db, n: int | None) -> None:
        with pytest.raises(psycopg.Error) as error:
            db.execute("select * from headgate.receive(%s, 'c', %s)", [S, n])
        assert error.value.sqlstate == "HG010"

    def test_unknown_names(self, db: Db) -> None:
        for names, state in ((("nowhere", "c"), "HG001"), ((S, "nobody"), "HG003")):
            for query in (
                "select * from headgate.receive(%s, %s)",
                "select headgate.ack(%s, %s, '{}')",
                "select headgate.nack(%s, %s, '{}')",
                "select headgate.extend(%s, %s, '{}', '1s')",
                "select headgate.peek(%s, %s)",
                "select headgate.seek(%s, %s, 'end')",
                "select headgate.pause(%s, %s)",
                "select headgate.redrive(%s, %s, '{1}')",
            ):
                with pytest.raises(psycopg.Error) as error:
                    db.execute(query, names)
                assert error.value.sqlstate == state, query

    def test_a_lane_that_another_transaction_holds_does_not_hold_the_others(self, db: Db, database_url: str) -> None:
        send_batch(db, S, ["x"] * 100)
        with psycopg.connect(database_url) as other:
            held = other.execute("select lane from headgate.cursor where lane < 3 for update").fetchall()
            assert len(held) == 3
            got = receive(db, S, "c", 100)
        assert got
        assert {m.ack_id.split(".")[0] for m in got} == {"3"}


class TestDeadline:
    def test_what_is_not_acked_in_time_comes_again(self, db: Db) -> None:
        send(db, S, "a")
        [first] = receive(db, S, "c")
        pass_time(db, "29 seconds")
        assert receive(db, S, "c") == []
        pass_time(db, "2 seconds")
        [second] = receive(db, S, "c")
        assert (second.seq, second.attempt) == (first.seq, 2)
        assert ack(db, S, "c", [first]) == (0, 1)
        assert ack(db, S, "c", [second]) == (1, 0)
        assert untouched(db) == (0, 0)

    def test_an_ack_after_the_deadline_counts_while_nobody_else_has_it(self, db: Db) -> None:
        send(db, S, "a")
        got = receive(db, S, "c")
        pass_time(db, "1 minute")
        assert ack(db, S, "c", got) == (1, 0)
        assert receive(db, S, "c") == []

    def test_maintenance_takes_it_apart_too(self, db: Db) -> None:
        send(db, S, "a")
        got = receive(db, S, "c")
        pass_time(db, "1 minute")
        db.execute("select headgate.maintain()")
        assert db.execute("select reason, attempt from headgate.parked_messages").fetchall() == [("expired", 1)]
        assert nack(db, S, "c", got) == (0, 1)
        assert [m.attempt for m in receive(db, S, "c")] == [2]

    def test_a_changed_ack_wait_holds_from_then_on(self, db: Db) -> None:
        call(db, "alter_consumer", S, "c", ack_wait="1 hour")
        send(db, S, "a")
        receive(db, S, "c")
        pass_time(db, "59 minutes")
        assert receive(db, S, "c") == []
        pass_time(db, "2 minutes")
        assert len(receive(db, S, "c")) == 1

    def test_real_time(self, db: Db) -> None:
        call(db, "alter_consumer", S, "c", ack_wait="50 milliseconds")
        send(db, S, "a")
        receive(db, S, "c")
        db.execute("select pg_sleep(0.06)")
        assert len(receive(db, S, "c")) == 1


class TestAck:
    def test_one_some_and_all(self, db: Db) -> None:
        keys = same_lane_keys(db, 4, 1) * 6
        send_batch(db, S, list("abcdef"), keys=keys)
        got = receive(db, S, "c")
        assert len({m.delivery for m in got}) == 1
        assert ack(db, S, "c", [got[2]]) == (1, 0)
        assert ack(db, S, "c", [got[0], got[5]]) == (2, 0)
        assert column(db, "select seqs from headgate.deliveries") == [[got[1].seq, got[3].seq, got[4].seq]]
        assert ack(db, S, "c", [got[0].delivery]) == (3, 0)
        assert untouched(db) == (0, 0)

    def test_the_rest_of_a_delivery_expires_alone(self, db: Db) -> None:
        send_batch(db, S, list("abc"), keys=same_lane_keys(db, 4, 1) * 3)
        got = receive(db, S, "c")
        ack(db, S, "c", [got[1]])
        pass_time(db, "1 minute")
        assert [(m.data, m.attempt) for m in receive(db, S, "c")] == [("a", 2), ("c", 2)]

    def test_several_deliveries_in_one_call(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 100)
        got = receive(db, S, "c", 100)
        whole = sorted({m.delivery for m in got})
        assert len(whole) == 4
        first = [m for m in got if m.delivery == whole[0]]
        rest = [m for m in got if m.delivery != whole[0]]
        assert ack(db, S, "c", [whole[0], *rest]) == (len(first) + len(rest), 0)

    def test_twice(self, db: Db) -> None:
        send_batch(db, S, ["a", "b"], keys=same_lane_keys(db, 4, 1) * 2)
        a, b = receive(db, S, "c")
        assert ack(db, S, "c", [a, a]) == (1, 0)
        assert ack(db, S, "c", [a]) == (0, 1)
        assert ack(db, S, "c", [a, b]) == (1, 1)
        assert ack(db, S, "c", [a, b]) == (0, 2)
        assert ack(db, S, "c", [a.delivery]) == (0, 1)

    def test_with_receive(self, db: Db) -> None:
        send_batch(db, S, list("abcd"), keys=same_lane_keys(db, 4, 1) * 4)
        first = receive(db, S, "c", 2)
        second = receive(db, S, "c", 1, acks=ids(first))
        third = receive(db, S, "c", 1, acks=[second[0].delivery])
        assert datas(third) == ["d"]
        assert receive(db, S, "c", 1, acks=ids(third)) == []
        assert untouched(db) == (0, 0)

    def test_stale_ones_with_receive_change_nothing(self, db: Db) -> None:
        send_batch(db, S, ["a", "b"])
        first = receive(db, S, "c")
        pass_time(db, "1 minute")
        again = receive(db, S, "c", acks=[])
        assert len(again) == 2
        assert receive(db, S, "c", acks=ids(first)) == []
        assert receive(db, S, "c", acks=[m.delivery for m in first]) == []
        assert facts(db, S, "c")["in_flight"] == 2

    @pytest.mark.parametrize(
        "bad",
        [
            "",
            "1",
            "1.",
            "a.b.c",
            "1.2.3.4",
            "-1.2.3",
            "1.2.3 ",
            " 1.2",
            "1.2.",
            "9999999999999999999.1.1",
            "1.1.9999999999999999999",
            None,
        ],
    )
    def test_malformed_ones_are_refused_and_change_nothing(self, db: Db, bad: str | None) -> None:
        send(db, S, "a")
        [m] = receive(db, S, "c")
        for query in (
            "select headgate.ack('orders', 'c', %s)",
            "select headgate.nack('orders', 'c', %s)",
            "select headgate.extend('orders', 'c', %s, '1s')",
            "select headgate.receive('orders', 'c', 1, null, %s)",
        ):
            with pytest.raises(psycopg.Error) as error:
                db.execute(query, [[m.ack_id, bad]])
            assert error.value.sqlstate == "HG008"
        assert untouched(db) == (1, 0)

    def test_in_the_users_own_transaction(self, db: Db, database_url: str) -> None:
        send_batch(db, S, ["a", "b"], keys=same_lane_keys(db, 4, 1) * 2)
        a, b = receive(db, S, "c")
        with psycopg.connect(database_url) as mine:
            ack(mine, S, "c", [a])
            mine.rollback()
            ack(mine, S, "c", [b])
            assert receive(db, S, "c") == []  # nobody waits for it
            mine.commit()
        assert ack(db, S, "c", [a, b]) == (1, 1)

    def test_expiry_leaves_alone_what_is_being_acked(self, db: Db, database_url: str) -> None:
        send(db, S, "a")
        got = receive(db, S, "c")
        with psycopg.connect(database_url) as mine:
            ack(mine, S, "c", got)
            pass_time_elsewhere = "update headgate.cursor set expires_at = clock_timestamp() - interval '1 minute'"
            db.execute(pass_time_elsewhere)
            call(db, "alter_consumer", S, "c", ack_wait="1 second")
            assert receive(db, S, "c") == []
            mine.commit()
        assert untouched(db) == (0, 0)
        assert receive(db, S, "c") == []


class TestNack:
    def test_it_comes_again_after_the_delay_and_says_why(self, db: Db) -> None:
        send(db, S, "a")
        [m] = receive(db, S, "c")
        assert nack(db, S, "c", [m], "10 minutes", "no disk") == (1, 0)
        assert db.execute("select attempt, reason, last_error from headgate.parked_messages").fetchall() == [
            (1, "nacked", "no disk")
        ]
        pass_time(db, "9 minutes")
        assert receive(db, S, "c") == []
        pass_time(db, "2 minutes")
        [again] = receive(db, S, "c")
        assert (again.seq, again.attempt) == (m.seq, 2)

    def test_at_once_without_backoff(self, db: Db) -> None:
        send(db, S, "a")
        for attempt in range(1, 6):
            [m] = receive(db, S, "c")
            assert m.attempt == attempt
            nack(db, S, "c", [m])

    def test_some_of_a_delivery(self, db: Db) -> None:
        send_batch(db, S, list("abcd"), keys=same_lane_keys(db, 4, 1) * 4)
        a, b, c, d = receive(db, S, "c")
        assert nack(db, S, "c", [b, d]) == (2, 0)
        assert ack(db, S, "c", [a.delivery]) == (2, 0)
        assert datas(receive(db, S, "c")) == ["b", "d"]
        assert nack(db, S, "c", [a, b, c]) == (0, 3)

    def test_a_whole_delivery(self, db: Db) -> None:
        send_batch(db, S, list("abc"), keys=same_lane_keys(db, 4, 1) * 3)
        got = receive(db, S, "c")
        assert nack(db, S, "c", [got[0].delivery]) == (3, 0)
        assert nack(db, S, "c", [got[0].delivery]) == (0, 1)
        assert [(m.data, m.attempt) for m in receive(db, S, "c")] == [("a", 2), ("b", 2), ("c", 2)]

    def test_a_negative_delay_is_refused(self, db: Db) -> None:
        send(db, S, "a")
        with pytest.raises(psycopg.Error) as error:
            nack(db, S, "c", receive(db, S, "c"), "-1 second")
        assert error.value.sqlstate == "HG010"

    @pytest.mark.parametrize(
        ("backoff", "expected"),
        [
            (60, [60, 60, 60, 60]),
            (0.5, [0.5, 0.5]),
            ([10, 60, 3600], [10, 60, 3600, 3600, 3600]),
            ({"first": 10}, [10, 20, 40, 80]),
            ({"first": 10, "factor": 3, "max": 100}, [10, 30, 90, 100, 100]),
            ({"first": 10, "factor": 1}, [10, 10, 10]),
        ],
    )
    def test_backoff(self, db: Db, backoff: object, expected: list[float]) -> None:
        call(db, "alter_consumer", S, "c", backoff=Jsonb(backoff))
        send(db, S, "a")
        waits = []
        for _ in expected:
            nack(db, S, "c", receive(db, S, "c"))
            waits.append(
                float(value(db, "select extract(epoch from visible_at - parked_at) from headgate.parked_messages"))
            )
            pass_time(db, "2 hours")
        assert waits == pytest.approx(expected, abs=0.05)

    def test_a_given_delay_beats_backoff(self, db: Db) -> None:
        call(db, "alter_consumer", S, "c", backoff=Jsonb(3600))
        send(db, S, "a")
        nack(db, S, "c", receive(db, S, "c"), "0")
        assert len(receive(db, S, "c")) == 1

    def test_jitter_spreads_around_the_backoff(self, db: Db) -> None:
        call(db, "alter_consumer", S, "c", backoff=Jsonb({"first": 100, "jitter": 0.2}))
        send_batch(db, S, ["x"] * 300)
        nack(db, S, "c", receive(db, S, "c", 300))
        waits = [
            float(w)
            for w in column(db, "select extract(epoch from visible_at - parked_at) from headgate.parked_messages")
        ]
        assert len(set(waits)) > 250
        assert 79 < min(waits) < 90
        assert 110 < max(waits) < 121
        assert 96 < mean(waits) < 104

    def test_a_steep_backoff_does_not_overflow(self, db: Db) -> None:
        call(db, "alter_consumer", S, "c", backoff=Jsonb({"first": 10, "factor": 1e12, "max": 60}))
        assert value(db, "select headgate.backoff_delay(backoff, 1000) from headgate.consumer").total_seconds() == 60

    @pytest.mark.parametrize(
        "bad",
        [
            "10",
            [],
            [1, "a"],
            [-1],
            -1,
            {"factor": 2},
            {"first": 1, "often": 1},
            {"first": -1},
            True,
            1e10,
            1e308,
            [1, 1e10],
            {"first": 1e10},
            {"first": 1, "max": 1e10},
            {"first": 1, "jitter": 5},
        ],
    )
    def test_senseless_backoff_is_refused(self, db: Db, bad: object) -> None:
        for function, name in (("create_consumer", "new"), ("alter_consumer", "c")):
            with pytest.raises(psycopg.Error) as error:
                call(db, function, S, name, backoff=Jsonb(bad))
            assert error.value.sqlstate == "HG010"


class TestExtend:
    def test_it_keeps_from_expiring_and_is_no_attempt(self, db: Db) -> None:
        send(db, S, "a")
        got = receive(db, S, "c")
        assert extend(db, S, "c", got, "10 minutes") == (1, 0)
        pass_time(db, "9 minutes")
        assert receive(db, S, "c") == []
        assert extend(db, S, "c", [got[0].delivery], "10 minutes") == (1, 0)
        pass_time(db, "9 minutes")
        assert receive(db, S, "c") == []
        pass_time(db, "2 minutes")
        assert [m.attempt for m in receive(db, S, "c")] == [2]

    def test_it_never_shortens(self, db: Db) -> None:
        send(db, S, "a")
        got = receive(db, S, "c")
        assert extend(db, S, "c", [got[0].delivery], "1 second") == (1, 0)
        pass_time(db, "20 seconds")
        assert receive(db, S, "c") == []

    def test_stale(self, db: Db) -> None:
        send_batch(db, S, ["a", "b"], keys=same_lane_keys(db, 4, 1) * 2)
        a, b = receive(db, S, "c")
        ack(db, S, "c", [a])
        assert extend(db, S, "c", [a], "1 minute") == (0, 1)
        assert extend(db, S, "c", [a, b], "1 minute") == (1, 1)
        ack(db, S, "c", [b])
        assert extend(db, S, "c", [a.delivery], "1 minute") == (0, 1)

    @pytest.mark.parametrize("by", ["-1 second", "8 days", None])
    def test_impossible_extensions_are_refused(self, db: Db, by: str) -> None:
        with pytest.raises(psycopg.Error) as error:
            extend(db, S, "c", ["1.1"], by)
        assert error.value.sqlstate == "HG010"


class TestPause:
    def test_nothing_is_received_but_acks_count(self, db: Db) -> None:
        send_batch(db, S, ["a", "b"], keys=same_lane_keys(db, 4, 1) * 2)
        [a] = receive(db, S, "c", 1)
        call(db, "pause", S, "c")
        assert facts(db, S, "c")["paused"]
        assert receive(db, S, "c", acks=[a.ack_id]) == []
        assert facts(db, S, "c")["in_flight"] == 0
        call(db, "create_consumer", S, "other")
        assert len(receive(db, S, "other")) == 2
        call(db, "resume", S, "c")
        assert datas(receive(db, S, "c")) == ["b"]


def test_receive_without_an_explicit_tick_finds_what_was_committed(db: Db) -> None:
    send(db, S, "a")
    tick(db, S)
    send(db, S, "b")
    got = []
    for _ in range(50):
        got += [row[0] for row in db.execute("select data from headgate.receive('orders', 'c', 10)")]
        if len(got) == 2:
            break
        db.execute("select pg_sleep(0.001)")
    assert sorted(got) == ["a", "b"]


@pytest.mark.parametrize("lane_by", ["hash", "channel"])
def test_a_delivery_of_before_a_crash_is_not_another_one(db: Db, lane_by: str) -> None:
    """A crash may take the sequence of numbers back: an ack of the old one, whole, must not settle the new one."""
    call(db, "create_stream", "crashed", lanes=1, lane_by=lane_by)
    call(db, "create_consumer", "crashed", "c")
    channels = ["x"] if lane_by == "channel" else None
    send_batch(db, "crashed", ["a"], channels=channels)
    [old] = receive(db, "crashed", "c")
    db.execute("delete from headgate.delivery")
    db.execute("select setval('headgate.delivery_id', 1, false)")
    send_batch(db, "crashed", ["b"], channels=channels)
    [new] = receive(db, "crashed", "c")
    assert int(new.delivery.split(".")[1]) // 65536 == int(old.delivery.split(".")[1]) // 65536
    assert ack(db, "crashed", "c", [old.delivery]) == (0, 1)
    assert ack(db, "crashed", "c", [new.delivery]) == (1, 0)
