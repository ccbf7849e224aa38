"""Deadlines of single calls and single messages, and acks that come after the deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from support.calls import (
    Db,
    Received,
    ack,
    call,
    column,
    datas,
    extend,
    facts,
    nack,
    pass_time,
    receive,
    send_batch,
    seqs,
    tick,
    value,
)
from support.waiting import wait_until

S, C = "s", "c"
KINDS = [("hash", "none"), ("hash", "key"), ("key", "none"), ("key", "key"), ("channel", "none"), ("channel", "key")]
AT_ONCE = 1.0


@pytest.fixture(params=KINDS, ids=[f"{lane_by}-{order}" for lane_by, order in KINDS])
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    """A session whose transactions are opened by hand."""
    with psycopg.connect(database_url) as connection:
        yield connection


def fill(db: Db, kind: tuple[str, str], n: int, *, keys: list[str] | None = None, **settings: object) -> None:
    lane_by, order = kind
    call(db, "create_stream", S, lanes=1 if lane_by == "hash" else 4, lane_by=lane_by)
    call(db, "create_consumer", S, C, **{"order": order, "ack_wait": "30 seconds"} | settings)
    channels = {"channels": ["x"] * n} if lane_by == "channel" else {}
    send_batch(db, S, [f"m{i}" for i in range(n)], keys=keys or ["k"] * n, **channels)
    tick(db, S)


def batch(
    db: Db,
    kind: tuple[str, str] = ("hash", "none"),
    n: int = 4,
    *,
    keys: list[str] | None = None,
    **settings: object,
) -> list[Received]:
    """One delivery of n messages."""
    fill(db, kind, n, keys=keys, **settings)
    got = receive(db, S, C, n)
    assert len(got) == n
    assert len({m.delivery for m in got}) == 1
    return got


def left(db: Db) -> tuple[int, int, int]:
    """How many rows tell of anything in flight, departed or parked: none, at the end."""
    call(db, "maintain")
    return tuple(value(db, f"select count(*) from headgate.{t}") for t in ("delivery", "departed", "parked"))  # type: ignore[return-value]


def receive_for(db: Db, ack_wait: str | None, n: int = 10) -> list[int]:
    return column(db, "select seq from headgate.receive(%s, %s, %s, ack_wait => %s::interval)", S, C, n, ack_wait)


class TestAckWaitOfACall:
    @pytest.mark.parametrize("wait", ["5 seconds", "10 minutes"])
    def test_it_holds_for_what_the_call_hands_out(self, db: Db, kind: tuple[str, str], wait: str) -> None:
        fill(db, kind, 4, keys=list("abcd"), ack_wait="1 minute")
        with db.transaction():
            first = receive_for(db, wait, 2)
        assert first
        deadline = value(db, "select min(deadline) - clock_timestamp() from headgate.delivery")
        assert abs(deadline.total_seconds() - (5 if wait == "5 seconds" else 600)) < 3
        rest = {m.seq for _ in range(4) for m in receive(db, S, C)}
        assert not rest & set(first)
        pass_time(db, "6 seconds")
        again = {m.seq for _ in range(4) for m in receive(db, S, C)}
        assert again == (set(first) if wait == "5 seconds" else set())

    def test_what_is_parked_comes_with_it_too(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, 1)
        nack(db, S, C, got)
        assert receive_for(db, "1 hour") == seqs(got)
        pass_time(db, "59 minutes")
        assert receive(db, S, C) == []
        pass_time(db, "2 minutes")
        assert seqs(receive(db, S, C)) == seqs(got)

    @pytest.mark.parametrize("bad", ["0", "-1 second", "8 days", "infinity"])
    def test_impossible_ones_are_refused(self, db: Db, kind: tuple[str, str], bad: str) -> None:
        fill(db, kind, 1)
        if bad == "infinity" and db.info.server_version < 170000:
            pytest.skip("there is no such interval")
        with pytest.raises(psycopg.Error) as error:
            receive_for(db, bad)
        assert error.value.sqlstate == "HG010"
        assert error.value.diag.message_hint == "choose more than 0 and at most 7 days"
        assert len(receive_for(db, None)) == 1


class TestOneMessage:
    def test_farther(self, db: Db, kind: tuple[str, str]) -> None:
        """REVIEW S16: one's extend by an hour withholds nothing of the others."""
        got = batch(db, kind, keys=list("aaaa") if kind[0] == "key" else list("abcd"))
        assert extend(db, S, C, got[3:], "1 hour") == (1, 0)
        assert facts(db, S, C)["in_flight"] == 4
        assert column(db, "select seqs from headgate.deliveries order by deadline") == [seqs(got[:3]), seqs(got[3:])]
        assert len(set(column(db, "select id from headgate.deliveries"))) == 1
        pass_time(db, "1 minute")
        if kind[0] == "key" and kind[1] == "key":  # what expired comes before it, so it goes back as well
            assert seqs(receive(db, S, C)) == seqs(got)
            assert ack(db, S, C, got[3:]) == (0, 1)
            return
        again = receive(db, S, C)
        assert seqs(again) == seqs(got[:3])
        assert ack(db, S, C, got[3:]) == (1, 0), "the ack_id stays good"
        assert ack(db, S, C, again) == (3, 0)
        assert left(db) == (0, 0, 0)

    def test_nearer(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, keys=list("aaaa") if kind[0] == "key" else list("abcd"))
        assert extend(db, S, C, got[3:], "5 seconds") == (1, 0)
        pass_time(db, "4 seconds")
        assert receive(db, S, C) == []
        pass_time(db, "2 seconds")
        if kind == ("key", "key"):  # it waits for those before it
            assert receive(db, S, C) == []
            assert ack(db, S, C, got[:3]) == (3, 0)
        again = receive(db, S, C)
        assert [(m.seq, m.attempt) for m in again] == [(got[3].seq, 2)]
        assert ack(db, S, C, got[3:]) == (0, 1), "another one has it"
        if kind != ("key", "key"):
            assert ack(db, S, C, [got[0].delivery]) == (3, 0)
        assert ack(db, S, C, again) == (1, 0)
        assert left(db) == (0, 0, 0)

    def test_nearer_while_lanes_are_busy(self, db: Db) -> None:
        got = batch(db, ("hash", "none"), 3)
        send_batch(db, S, ["x"] * 100)
        extend(db, S, C, got[:1], "5 seconds")
        receive(db, S, C, 1)
        pass_time(db, "6 seconds")
        assert got[0].seq in seqs(receive(db, S, C, 5))

    def test_now(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, keys=list("aaaa") if kind[0] == "key" else list("abcd"))
        assert extend(db, S, C, got[3:], "0") == (1, 0)
        assert facts(db, S, C)["in_flight"] == 3
        if kind == ("key", "key"):
            ack(db, S, C, got[:3])
        again = receive(db, S, C)
        assert [(m.seq, m.attempt) for m in again] == [(got[3].seq, 2)], (
            "the delivery was an attempt, and no more than one"
        )
        assert ack(db, S, C, got[3:]) == (0, 1)
        if kind != ("key", "key"):
            assert ack(db, S, C, [got[0].delivery]) == (3, 0)
        assert ack(db, S, C, again) == (1, 0)
        assert left(db) == (0, 0, 0)

    def test_now_is_acked_late_while_nobody_has_it(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, keys=list("aaaa") if kind[0] == "key" else list("abcd"))
        assert extend(db, S, C, got[3:], "0") == (1, 0)
        assert nack(db, S, C, got[3:]) == (0, 1)
        assert extend(db, S, C, got[3:], "1 minute") == (0, 1)
        assert ack(db, S, C, got[3:]) == (1, 0)
        assert ack(db, S, C, got[3:]) == (0, 1)
        assert ack(db, S, C, got[:3]) == (3, 0)
        assert left(db) == (0, 0, 0)

    def test_now_past_max_deliver(self, db: Db, kind: tuple[str, str]) -> None:
        """As a deadline that passes: the message is a dead letter."""
        got = batch(db, kind, 1, max_deliver=1)
        assert extend(db, S, C, got, "0") == (1, 0)
        assert value(db, "select count(*) from headgate.dead_letters(%s, %s)", S, C) == 1
        assert ack(db, S, C, got) == (0, 1)
        assert left(db) == (0, 0, 0)

    def test_a_batch_of_one_keeps_its_row(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, 1)
        assert extend(db, S, C, got, "1 hour") == (1, 0)
        assert extend(db, S, C, got, "5 seconds") == (1, 0)
        assert left(db)[:2] == (1, 0)
        pass_time(db, "6 seconds")
        assert [m.attempt for m in receive(db, S, C)] == [2]

    def test_again_and_again(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind)
        for by in ("1 hour", "5 seconds", "2 hours", "10 seconds", "1 day"):
            assert extend(db, S, C, got[1:3], by) == (2, 0)
        assert value(db, "select count(*) from headgate.delivery") == 3
        assert ack(db, S, C, [m.ack_id for m in got]) == (4, 0)
        assert left(db) == (0, 0, 0)

    @pytest.mark.parametrize("how", ["ack", "receive", "nack", "release"])
    def test_the_whole_delivery_covers_it(self, db: Db, kind: tuple[str, str], how: str) -> None:
        got = batch(db, kind)
        assert extend(db, S, C, got[1:2], "1 hour") == (1, 0)
        assert extend(db, S, C, got[2:3], "10 seconds") == (1, 0)
        pass_time(db, "1 second")  # rewrites the rows: nothing but the mark tells
        whole = [got[0].delivery]
        if how == "ack":
            assert ack(db, S, C, whole) == (4, 0)
        elif how == "receive":
            assert receive(db, S, C, acks=whole) == []
        elif how == "nack":
            assert nack(db, S, C, whole) == (4, 0)
        else:
            assert db.execute("select * from headgate.release(%s, %s, %s)", (S, C, whole)).fetchone() == (4, 0)
        if how in ("nack", "release"):
            again = receive(db, S, C)
            assert seqs(again) == seqs(got)
            assert {m.attempt for m in again} == {2 if how == "nack" else 1}
            assert ack(db, S, C, again) == (4, 0)
        assert ack(db, S, C, whole) == (0, 1)
        assert left(db) == (0, 0, 0)

    def test_the_whole_delivery_covers_what_expired_out_of_it(self, db: Db) -> None:
        got = batch(db)
        extend(db, S, C, got[:1], "0")
        extend(db, S, C, got[1:2], "5 seconds")
        pass_time(db, "6 seconds")
        call(db, "maintain")
        assert value(db, "select count(*) from headgate.parked") == 2
        assert ack(db, S, C, [got[0].delivery]) == (4, 0)
        assert receive(db, S, C) == []
        assert left(db) == (0, 0, 0)

    def test_extending_the_whole_delivery_takes_nothing_away(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind)
        extend(db, S, C, got[:1], "2 hours")
        extend(db, S, C, got[1:2], "5 seconds")
        assert extend(db, S, C, [got[0].delivery], "1 hour") == (1, 0)
        pass_time(db, "59 minutes")
        assert receive(db, S, C) == []
        assert extend(db, S, C, [got[0].delivery], "0") == (1, 0)
        assert seqs(receive(db, S, C)) == seqs(got)
        assert extend(db, S, C, [got[0].delivery], "1 hour") == (0, 1)

    def test_nacking_one_that_has_its_own(self, db: Db) -> None:
        got = batch(db)
        extend(db, S, C, got[:2], "1 hour")
        assert nack(db, S, C, got[1:3]) == (2, 0)
        assert seqs(receive(db, S, C)) == seqs(got[1:3])
        assert ack(db, S, C, got) == (2, 2)

    def test_ids_given_twice_count_once(self, db: Db) -> None:
        got = batch(db)
        assert extend(db, S, C, [got[0], got[0]], "1 hour") == (1, 0)
        assert extend(db, S, C, [got[0], got[0], "1.1.1"], "0") == (1, 1)

    def test_the_attempt_stays_what_deliveries_say(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, 2)
        nack(db, S, C, got)
        got = receive(db, S, C)
        assert [m.attempt for m in got] == [2, 2]
        extend(db, S, C, got[1:], "1 hour")
        extend(db, S, C, got[1:], "5 seconds")
        ack(db, S, C, got[:1])
        pass_time(db, "6 seconds")
        assert [m.attempt for m in receive(db, S, C)] == [3]


class TestOrder:
    """No later message of a key is handed out, or can still be acked, before an earlier one that has gone back."""

    KINDS = pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])

    @KINDS
    def test_an_earlier_one_takes_the_later_ones_back(self, db: Db, lane_by: str) -> None:
        got = batch(db, (lane_by, "key"), 4)
        assert extend(db, S, C, got[1:2], "0") == (1, 0)
        assert ack(db, S, C, got[2:]) == (0, 2), "they went back with it"
        assert receive(db, S, C) == [], "its key has one in flight"
        assert ack(db, S, C, got[:1]) == (1, 0)
        again = [m for _ in range(3) for m in receive(db, S, C)]
        assert [(m.seq, m.attempt) for m in again] == [(got[1].seq, 2), (got[2].seq, 1), (got[3].seq, 1)]

    @KINDS
    def test_a_nearer_deadline_that_passes_does_so_too(self, db: Db, lane_by: str) -> None:
        got = batch(db, (lane_by, "key"), 4)
        extend(db, S, C, got[3:], "1 hour")
        extend(db, S, C, got[:1], "5 seconds")
        pass_time(db, "6 seconds")
        again = receive(db, S, C)
        assert [(m.seq, m.attempt) for m in again] == [
            (got[0].seq, 2), (got[1].seq, 1), (got[2].seq, 1), (got[3].seq, 1)
        ]  # fmt: skip
        assert ack(db, S, C, got) == (0, 4)
        assert ack(db, S, C, again) == (4, 0)
        assert left(db) == (0, 0, 0)

    @KINDS
    def test_the_batch_expires_before_a_later_one(self, db: Db, lane_by: str) -> None:
        got = batch(db, (lane_by, "key"), 3)
        extend(db, S, C, got[2:], "1 hour")
        pass_time(db, "31 seconds")
        assert [(m.seq, m.attempt) for m in receive(db, S, C)] == [(got[0].seq, 2), (got[1].seq, 2), (got[2].seq, 1)]

    @KINDS
    def test_an_earlier_one_with_more_time_holds_the_later_ones(self, db: Db, lane_by: str) -> None:
        got = batch(db, (lane_by, "key"), 3)
        extend(db, S, C, got[:1], "1 hour")
        pass_time(db, "31 seconds")
        assert receive(db, S, C) == []
        assert ack(db, S, C, got[:1]) == (1, 0)
        assert seqs([m for _ in range(3) for m in receive(db, S, C)]) == seqs(got[1:])

    def test_other_keys_stay(self, db: Db) -> None:
        got = batch(db, ("hash", "key"), 4, keys=["a", "b", "a", "b"])
        extend(db, S, C, got[:1], "0")
        assert ack(db, S, C, got) == (3, 1)
        assert left(db)[0] == 0

    @KINDS
    def test_a_late_ack_lets_the_next_one_go(self, db: Db, lane_by: str) -> None:
        fill(db, (lane_by, "key"), 3)
        first = receive(db, S, C, 1)
        assert receive(db, S, C) == []
        pass_time(db, "31 seconds")
        call(db, "maintain")
        assert ack(db, S, C, first) == (1, 0)
        wait_until(lambda: seqs(receive(db, S, C, 1)) == [first[0].seq + 1])


class TestLateAck:
    def test_it_counts_while_nobody_else_has_it(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind)
        pass_time(db, "31 seconds")
        call(db, "maintain")
        assert value(db, "select count(*) from headgate.parked") == 4
        assert ack(db, S, C, got[:2]) == (2, 0)
        again = receive(db, S, C)
        assert seqs(again) == seqs(got[2:])
        assert ack(db, S, C, got[2:]) == (0, 2)
        assert ack(db, S, C, [got[0].delivery]) == (0, 1)
        assert ack(db, S, C, again) == (2, 0)
        assert left(db) == (0, 0, 0)

    def test_whole_and_with_receive(self, db: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind)
        ack(db, S, C, got[:1])
        pass_time(db, "31 seconds")
        call(db, "maintain")
        assert receive(db, S, C, acks=[got[0].delivery]) == []
        assert left(db) == (0, 0, 0)

    def test_not_after_another_attempt(self, db: Db) -> None:
        first = batch(db)
        pass_time(db, "31 seconds")
        second = receive(db, S, C)
        pass_time(db, "31 seconds")
        call(db, "maintain")
        assert ack(db, S, C, first) == (0, 4), "that is not the last delivery"
        assert ack(db, S, C, second) == (4, 0)

    @pytest.mark.alone
    @pytest.mark.parametrize("ends", ["commit", "rollback"])
    def test_claims_pass_over_what_an_open_transaction_acks(
        self, db: Db, other: Db, kind: tuple[str, str], ends: str
    ) -> None:
        got = batch(db, kind, keys=list("aaaa") if kind[0] == "key" else list("abcd"))
        pass_time(db, "31 seconds")
        call(db, "maintain")
        assert ack(other, S, C, got[:1]) == (1, 0)
        began = time.monotonic()
        assert ack(db, S, C, got[:1]) == (0, 1)
        again = seqs(receive(db, S, C))
        assert time.monotonic() - began < AT_ONCE
        assert again == ([] if kind == ("key", "key") else seqs(got[1:]))
        getattr(other, ends)()
        expected = seqs(got) if ends == "rollback" else seqs(got[1:])
        more: list[int] = []

        def all_there() -> bool:
            found = receive(db, S, C)
            more.extend(seqs(found))
            if found:
                ack(db, S, C, found)
            return sorted(again + more) == expected

        wait_until(all_there)

    def test_parked_messages_of_a_new_layout_are_found(self, db: Db) -> None:
        got = batch(db)
        pass_time(db, "31 seconds")
        call(db, "maintain")
        call(db, "set_lanes", S, 3)
        call(db, "maintain")
        assert ack(db, S, C, got) == (4, 0)
        assert receive(db, S, C) == []

    def test_a_seek_ends_it(self, db: Db) -> None:
        got = batch(db)
        pass_time(db, "31 seconds")
        call(db, "maintain")
        call(db, "seek", S, C, "beginning")
        assert ack(db, S, C, got) == (0, 4)
        assert seqs(receive(db, S, C)) == seqs(got)


class TestBeside:
    """Several sessions at once."""

    @pytest.mark.alone
    def test_extending_different_messages_of_a_batch(self, db: Db, other: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind)
        assert extend(db, S, C, got[3:], "1 hour") == (1, 0)
        assert extend(other, S, C, got[:1], "1 hour") == (1, 0)  # and leaves its transaction open
        began = time.monotonic()
        assert extend(db, S, C, got[1:2], "1 hour") == (1, 0)
        assert ack(db, S, C, got[1:3]) == (2, 0)
        assert time.monotonic() - began < AT_ONCE
        assert facts(db, S, C)["in_flight"] == 2
        other.commit()
        assert ack(db, S, C, [got[0].delivery]) == (2, 0)
        assert left(db) == (0, 0, 0)

    @pytest.mark.parametrize("ends", ["commit", "rollback"])
    def test_a_whole_ack_beside_an_open_extend(self, db: Db, other: Db, ends: str) -> None:
        got = batch(db)
        assert extend(other, S, C, got[:1], "1 hour") == (1, 0)
        assert ack(db, S, C, [got[0].delivery]) == (3, 1), "one is another's at the moment"
        getattr(other, ends)()
        assert facts(db, S, C)["in_flight"] == 1
        assert ack(db, S, C, [got[0].delivery]) == (1, 0)
        assert left(db) == (0, 0, 0)

    @pytest.mark.parametrize("order", ["none", "key"])
    def test_an_ack_of_thousands_beside_an_open_extend(self, db: Db, other: Db, order: str) -> None:
        """All but those are acked that the other has: they are not given up because it takes too long."""
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, C, order=order)
        send_batch(db, S, ["x"] * 10_000, keys=[f"k{i}" for i in range(10_000)])
        got = receive(db, S, C, 10_000)
        assert len({m.delivery for m in got}) == 1
        theirs = [got[0], got[4_000], got[9_999]]
        assert extend(other, S, C, theirs, "1 hour") == (3, 0)
        assert ack(db, S, C, got) == (9_997, 3)
        other.rollback()
        assert ack(db, S, C, theirs) == (3, 0)
        assert left(db) == (0, 0, 0)

    def test_an_open_extend_keeps_its_message_past_the_deadline(self, db: Db, other: Db, kind: tuple[str, str]) -> None:
        got = batch(db, kind, ack_wait="200 milliseconds", keys=list("aaaa") if kind[0] == "key" else list("abcd"))
        assert extend(other, S, C, got[3:], "1 hour") == (1, 0)
        deadline = value(db, "select max(deadline) from headgate.delivery")
        wait_until(lambda: value(db, "select clock_timestamp() > %s + interval '1 millisecond'", deadline))
        assert got[3].seq not in seqs(receive(db, S, C))
        other.commit()
        assert got[3].seq not in seqs(receive(db, S, C)) or kind == ("key", "key")

    @pytest.mark.parametrize("n", [1, 3])
    def test_an_open_receive_holds_the_lanes_it_took_from(
        self, db: Db, other: Db, kind: tuple[str, str], n: int
    ) -> None:
        """Of eight lanes with a message each, whose deadlines were moved nearer and have passed."""
        lane_by, order = kind
        keys = column(
            db,
            "select min(k) from (select 'k' || i as k from generate_series(1, 999) i) x "
            "group by (hashtextextended(k, 0) %% 8 + 8) %% 8",
        )
        call(db, "create_stream", S, lanes=8, lane_by=lane_by)
        call(db, "create_consumer", S, C, order=order, ack_wait="1 hour")
        send_batch(db, S, ["x"] * 8, keys=keys, **({"channels": keys} if lane_by == "channel" else {}))
        first: list[Received] = []
        wait_until(lambda: first.extend(receive(db, S, C)) or len(first) == 8)
        assert len({m.delivery for m in first}) == 8
        assert extend(db, S, C, first, "1 minute") == (8, 0)
        pass_time(db, "2 minutes")
        value(other, "select pg_current_xact_id()")
        mine = receive(other, S, C, n)
        assert len(mine) == n
        rest: list[Received] = []
        wait_until(lambda: rest.extend(receive(db, S, C)) or len(rest) >= 8 - n, timeout=5)
        assert sorted(seqs(mine) + seqs(rest)) == sorted(seqs(first))

    def test_an_ack_at_a_fixed_snapshot(self, db: Db, other: Db, kind: tuple[str, str]) -> None:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        got = batch(db, kind)
        other.execute("select count(*) from headgate.delivery")
        extend(db, S, C, got[:1], "1 hour")
        with pytest.raises(psycopg.errors.SerializationFailure):
            ack(other, S, C, got[:1])
        other.rollback()
        assert ack(other, S, C, got[:1]) == (1, 0)
        other.commit()
        assert facts(db, S, C)["in_flight"] == 3

    def test_a_row_of_its_own_out_of_sight(self, db: Db, other: Db) -> None:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        fill(db, ("hash", "none"), 3)
        other.execute("select count(*) from headgate.delivery")
        got = receive(db, S, C)
        extend(db, S, C, got[:1], "1 hour")
        ack(db, S, C, got[1:])
        with pytest.raises(psycopg.errors.SerializationFailure):
            ack(other, S, C, got[:1])
        other.rollback()
        assert ack(db, S, C, got[:1]) == (1, 0)

    @pytest.mark.parametrize("order", ["none", "key"])
    def test_many_settle_one_batch_at_once(self, db: Db, database_url: str, order: str) -> None:
        """Every message is settled once, whoever extends, acks, or lets go."""
        n = 60
        got = batch(db, ("hash", order), n, keys=[f"k{i % 7}" for i in range(n)])
        acked: list[int] = []
        errors: list[BaseException] = []

        def work(own: int) -> None:
            try:
                with psycopg.connect(database_url, autocommit=True) as mine:
                    for i in range(n):
                        m = got[(i * (own * 2 + 1)) % n]
                        step = (i + own) % 4
                        if step == 0:
                            extend(mine, S, C, [m], "1 hour")
                        elif step == 1:
                            extend(mine, S, C, [m, got[(i + 1) % n]], "10 minutes")
                        elif step == 2:
                            extend(mine, S, C, [m.delivery], "1 hour")
                        else:
                            acked.append(ack(mine, S, C, [m])[0])
                    acked.append(ack(mine, S, C, [got[0].delivery])[0])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert not errors
        acked.append(ack(db, S, C, [got[0].delivery])[0])
        assert sum(acked) == n
        assert left(db) == (0, 0, 0)


class TestLimits:
    def test_max_ack_pending(self, db: Db, kind: tuple[str, str]) -> None:
        fill(db, kind, 4, keys=list("abcd"), max_ack_pending=2)
        got = [m for _ in range(3) for m in receive(db, S, C, 1)]
        assert len(got) == 2
        extend(db, S, C, got[:1], "1 hour")
        assert receive(db, S, C) == [] or pytest.fail("one that is extended is in flight as before")
        extend(db, S, C, got[:1], "0")
        assert len(receive(db, S, C)) == 1

    def test_the_concurrency_of_a_channel(self, db: Db) -> None:
        fill(db, ("channel", "none"), 5, max_concurrency=3)
        got = receive(db, S, C)
        assert len(got) == 3
        extend(db, S, C, got[:1], "1 hour")
        assert receive(db, S, C) == []
        extend(db, S, C, got[:1], "5 seconds")
        pass_time(db, "6 seconds")
        assert len(receive(db, S, C)) == 1
        extend(db, S, C, got[1:2], "0")
        assert len(receive(db, S, C)) == 1
        assert receive(db, S, C) == []

    @pytest.mark.parametrize("lane_by", ["hash", "key"])
    def test_leases(self, db: Db, lane_by: str) -> None:
        """A lane goes on with its next worker when all that the last one had is settled."""
        call(db, "create_stream", S, lanes=1, lane_by=lane_by)
        call(db, "create_consumer", S, C, order="key", leased=True, lease_time="1 hour")
        send_batch(db, S, list("abc"), keys=["k"] * 3)
        call(db, "join_workers", S, C, "one")
        got = receive(db, S, C, 2, "one")
        extend(db, S, C, got[1:], "1 hour")
        call(db, "leave_workers", S, C, "one")
        call(db, "join_workers", S, C, "two")
        assert ack(db, S, C, got[:1]) == (1, 0)
        assert receive(db, S, C, 2, "two") == []
        assert value(db, "select sum(in_flight) from headgate.workers") is not None
        extend(db, S, C, got[1:], "0")
        assert datas(receive(db, S, C, 2, "two")) == ["b"]
