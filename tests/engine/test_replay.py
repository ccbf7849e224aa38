"""Replays: a consumer gets chosen messages again, and stays where it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.calls import (
    Db,
    ack,
    call,
    column,
    datas,
    facts,
    nack,
    receive,
    record,
    same_lane_keys,
    send,
    send_batch,
    tick,
    value,
)  # fmt: skip
from support.storage import create, end_segment

S, C = "orders", "c"
LANES = {"hash": {"lanes": 3}, "key": {"lane_by": "key"}, "channel": {"lane_by": "channel"}}


@pytest.fixture(params=LANES)
def orders(db: Db, request: pytest.FixtureRequest) -> list[int]:
    """Ten messages, all done."""
    call(db, "create_stream", S, **LANES[request.param])
    call(db, "create_consumer", S, C)
    sent = send_batch(db, S, [str(i) for i in range(10)], keys=[f"k.{i % 3}" for i in range(10)])
    assert len(work(db)) == 10
    return sent


@pytest.fixture
def stream(db: Db) -> None:
    call(db, "create_stream", S, lanes=2)
    call(db, "create_consumer", S, C, max_deliver=2)


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def work(db: Db, consumer: str = C) -> list[Any]:
    """Receives and acks all there is."""
    done = []
    quiet = 0
    while quiet < 3:
        got = receive(db, S, consumer, 1000)
        if got:
            ack(db, S, consumer, got)
        quiet = 0 if got else quiet + 1
        done += got
    return done


def replay(db: Db, consumer: str = C, **chosen: Any) -> dict[str, Any]:
    named = ", ".join(f"{name} => %s" for name in chosen)
    return record(db, f"select * from headgate.replay(%s, %s, {named})", S, consumer, *chosen.values())


class TestChoosing:
    def test_by_seq(self, db: Db, orders: list[int]) -> None:
        assert replay(db, seqs=[orders[7], orders[2]]) == {
            "replayed": 2,
            "not_found": 0,
            "passed_over": 0,
            "next_seq": None,
        }
        again = work(db)
        assert sorted(m.seq for m in again) == [orders[2], orders[7]]
        assert {m.attempt for m in again} == {1}
        assert sorted(datas(again)) == ["2", "7"]
        assert work(db) == []

    def test_the_consumer_does_not_move(self, db: Db, orders: list[int]) -> None:
        replay(db, seqs=orders[:2])
        fresh = send(db, S, "new", key="k.9")
        assert sorted(m.seq for m in work(db)) == [*orders[:2], *fresh]

    def test_by_range(self, db: Db, orders: list[int]) -> None:
        assert replay(db, from_seq=orders[3], to_seq=orders[5])["replayed"] == 3
        assert sorted(m.seq for m in work(db)) == orders[3:6]
        assert replay(db, from_seq=orders[8])["replayed"] == 2
        assert replay(db, to_seq=orders[0])["replayed"] == 1
        assert sorted(m.seq for m in work(db)) == [orders[0], *orders[8:]]

    def test_by_filter_and_all_must_hold(self, db: Db, orders: list[int]) -> None:
        assert replay(db, filter=["k.1"])["replayed"] == 3
        assert {m.key for m in work(db)} == {"k.1"}
        assert replay(db, filter=["k.1"], from_seq=orders[4])["replayed"] == 2
        assert replay(db, seqs=orders[:3], filter=["k.2"])["replayed"] == 1

    def test_by_time(self, db: Db, orders: list[int]) -> None:
        tick(db, S)
        between = value(db, "select clock_timestamp()")
        later = send(db, S, "late", key="k.1")
        work(db)
        assert replay(db, from_time=between)["replayed"] == 1
        assert [m.seq for m in work(db)] == later
        assert replay(db, to_time=between)["replayed"] == 10
        assert sorted(m.seq for m in work(db)) == orders
        db.execute(
            "update headgate.tick set at = at + interval '1 minute' where id = (select max(id) from headgate.tick)"
        )
        assert replay(db, to_time=between, from_time=value(db, "select now() - interval '1 hour'"))["replayed"] == 10

    @pytest.mark.parametrize(
        ("chosen", "hint"),
        [
            ({}, "from_seq => 1"),
            ({"seqs": list(range(1, 10_002))}, "at most 10,000"),
            ({"from_seq": 2, "to_seq": 1}, "smaller seq"),
        ],
    )
    def test_nothing_is_meant_by_leaving_things_out(
        self, db: Db, orders: list[int], chosen: dict[str, Any], hint: str
    ) -> None:
        named = "".join(f", {name} => %s" for name in chosen)
        with pytest.raises(psycopg.Error) as error:
            db.execute(f"select headgate.replay(%s, %s{named})", [S, C, *chosen.values()])
        assert error.value.sqlstate == "HG010"
        assert hint in (error.value.diag.message_hint or "")
        assert work(db) == []

    def test_no_seqs_are_none(self, db: Db, orders: list[int]) -> None:
        assert replay(db, seqs=[])["replayed"] == 0

    def test_bounded_and_how_to_go_on(self, db: Db, stream: None) -> None:
        sent = send_batch(db, S, ["x"] * 10_000) + send_batch(db, S, ["x"] * 100)
        assert len(work(db)) == 10_100
        first = replay(db, from_seq=1)
        assert (first["replayed"], first["next_seq"]) == (10_000, sent[10_000])
        rest = replay(db, from_seq=first["next_seq"])
        assert (rest["replayed"], rest["next_seq"]) == (100, None)
        assert sorted(m.seq for m in work(db)) == sent

    def test_what_is_passed_over_is_counted_once(self, db: Db, stream: None) -> None:
        """Of those at the end of the first step and the beginning of the second."""
        sent = send_batch(db, S, ["x"] * 9_999) + send_batch(db, S, ["x"] * 4)
        got = [m for _ in range(30) for m in receive(db, S, C, 1000)]
        parked = {sent[9_998], sent[10_001]}  # before and after the message that ends the first step
        assert nack(db, S, C, [m for m in got if m.seq in parked], "1 hour") == (2, 0)
        assert ack(db, S, C, [m for m in got if m.seq not in parked]) == (10_001, 0)
        first = replay(db, from_seq=1)
        assert first == {"replayed": 10_000, "not_found": 0, "passed_over": 1, "next_seq": sent[10_000] + 1}
        assert replay(db, from_seq=first["next_seq"]) == {
            "replayed": 1, "not_found": 0, "passed_over": 1, "next_seq": None,
        }  # fmt: skip

    def test_exactly_as_many_as_fit(self, db: Db, stream: None) -> None:
        send_batch(db, S, ["x"] * 10_000)
        work(db)
        assert replay(db, from_seq=1)["next_seq"] is None


class TestStates:
    def test_unread_ones_come_anyway(self, db: Db, orders: list[int]) -> None:
        ahead = send(db, S, "ahead", key="k.1")
        assert replay(db, from_seq=1) | {"next_seq": None} == {
            "replayed": 10, "not_found": 0, "passed_over": 1, "next_seq": None,
        }  # fmt: skip
        assert sorted(m.seq for m in work(db)) == sorted(orders + ahead)

    def test_in_flight_and_parked_ones_are_not_doubled(self, db: Db, orders: list[int]) -> None:
        assert replay(db, seqs=orders[:4])["replayed"] == 4
        assert replay(db, seqs=orders[:4])["passed_over"] == 4
        held = []
        while got := receive(db, S, C, 4):
            held += got
        assert sorted(m.seq for m in held) == orders[:4]
        assert replay(db, seqs=orders[:5]) == {"replayed": 1, "not_found": 0, "passed_over": 4, "next_seq": None}
        nack(db, S, C, held[:2], "1 hour")
        ack(db, S, C, held[2:])
        assert [m.seq for m in work(db)] == [orders[4]]
        assert replay(db, seqs=[held[0].seq, held[2].seq])["replayed"] == 1

    def test_what_was_acked_in_part(self, db: Db, orders: list[int]) -> None:
        sent = send_batch(db, S, list("abcd"), keys=["same"] * 4)
        got = receive(db, S, C, 4)
        assert [m.seq for m in got] == sent
        ack(db, S, C, got[1:2])
        assert replay(db, seqs=sent)["replayed"] == 1
        ack(db, S, C, [*got[:1], *got[2:]])
        assert [m.seq for m in work(db)] == sent[1:2]

    def test_only_this_consumer(self, db: Db, orders: list[int]) -> None:
        call(db, "create_consumer", S, "other", start="end")
        replay(db, from_seq=1)
        assert work(db, "other") == []
        assert facts(db, S, C)["parked"] == 10

    def test_what_it_started_behind_can_be_had(self, db: Db, orders: list[int]) -> None:
        call(db, "create_consumer", S, "late", start="end")
        assert replay(db, "late", seqs=orders[:2])["replayed"] == 2
        assert sorted(m.seq for m in work(db, "late")) == orders[:2]
        call(db, "seek", S, C, "end")
        assert replay(db, seqs=orders[5:7])["replayed"] == 2

    def test_the_filter_of_the_consumer_holds(self, db: Db, orders: list[int]) -> None:
        call(db, "create_consumer", S, "some", filter=["k.1"])
        assert len(work(db, "some")) == 3
        assert replay(db, "some", from_seq=1) == {"replayed": 3, "not_found": 0, "passed_over": 7, "next_seq": None}
        assert {m.key for m in work(db, "some")} == {"k.1"}

    def test_it_can_fail_and_die_as_if_new(self, db: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        work(db)
        replay(db, seqs=[seq])
        for attempt in (1, 2):
            [m] = receive(db, S, C)
            assert m.attempt == attempt
            nack(db, S, C, [m], "0", "again")
        assert facts(db, S, C)["dead"] == 1
        assert replay(db, seqs=[seq])["replayed"] == 1
        assert facts(db, S, C)["dead"] == 0  # its dead letter went along
        assert [m.seq for m in work(db)] == [seq]

    def test_discarded_ones(self, db: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        nack(db, S, C, receive(db, S, C), "1 hour")
        call(db, "discard", S, C, [seq])
        assert replay(db, seqs=[seq])["replayed"] == 1
        assert [m.seq for m in work(db)] == [seq]
        assert column(db, "select state from headgate.message_states('orders', %s)", seq) == ["done"]

    def test_rolled_back(self, db: Db, orders: list[int]) -> None:
        with db.transaction(force_rollback=True):
            assert replay(db, from_seq=1)["replayed"] == 10
        assert work(db) == []

    def test_not_with_a_fixed_snapshot(self, db: Db, orders: list[int]) -> None:
        with db.transaction(), pytest.raises(psycopg.Error) as error:
            db.execute("set transaction isolation level repeatable read")
            replay(db, from_seq=1)
        assert error.value.sqlstate == "HG016"


class TestOrder:
    @pytest.fixture(params=LANES)
    def ordered(self, db: Db, request: pytest.FixtureRequest) -> None:
        call(db, "create_stream", S, **LANES[request.param])
        call(db, "create_consumer", S, C, order="key")

    def test_keys_stay_in_order(self, db: Db, ordered: None) -> None:
        sent = send_batch(db, S, list("abcdef"), keys=["k", "l"] * 3)
        work(db)
        assert replay(db, seqs=sent[::-1])["replayed"] == 6
        fresh = send_batch(db, S, ["g", "h"], keys=["k", "l"])
        got = work(db)
        for key in "kl":
            mine = [m.seq for m in got if m.key == key]
            assert mine == sorted(mine)
        assert sorted(m.seq for m in got) == sent + fresh

    def test_it_waits_for_a_later_one_in_flight_and_holds_the_next(self, db: Db, ordered: None) -> None:
        first = send(db, S, "a", key="k")
        work(db)
        send(db, S, "b", key="k")
        [b] = receive(db, S, C)
        send(db, S, "c", key="k")
        assert replay(db, seqs=first)["replayed"] == 1
        assert receive(db, S, C) == []
        ack(db, S, C, [b])
        got = []
        while not got:
            got = receive(db, S, C, 1)
        assert datas(got) == ["a"]
        assert receive(db, S, C) == []
        ack(db, S, C, got)
        assert datas(work(db)) == ["c"]


class TestStorage:
    @pytest.fixture
    def compacted(self, db: Db) -> list[int]:
        """Twenty messages; `other` has one parked, and their segment was compacted away."""
        create(db, S, retain="until_acked")
        for name in (C, "other"):
            call(db, "create_consumer", S, name)
        sent = send_batch(db, S, ["x"] * 20)
        work(db)
        got = receive(db, S, "other", 20)
        while len(got) < 20:
            got += receive(db, S, "other", 20)
        nack(db, S, "other", [m for m in got if m.seq == sent[3]], "1 hour")
        ack(db, S, "other", [m for m in got if m.seq != sent[3]])
        end_segment(db, S)
        assert call(db, "compact", S) == 1
        assert value(db, "select count(*) from headgate.preserved_1") == 1
        return sent

    def test_what_is_kept_can_be_replayed_and_the_rest_is_counted(self, db: Db, compacted: list[int]) -> None:
        found = replay(db, seqs=compacted)
        assert found == {"replayed": 1, "not_found": 19, "passed_over": 0, "next_seq": None}
        assert [m.seq for m in work(db)] == [compacted[3]]
        in_range = replay(db, from_seq=compacted[0], to_seq=compacted[-1])
        assert (in_range["replayed"], in_range["not_found"]) == (1, 19)
        call(db, "discard", S, "other", [compacted[3]])
        db.execute("select headgate.maintain()").fetchall()
        assert value(db, "select count(*) from headgate.preserved_1") == 1  # replayed, so it is still needed
        assert [m.seq for m in work(db)] == [compacted[3]]

    def test_compaction_beside_an_open_replay(self, db: Db, other: Db) -> None:
        create(db, S, retain="until_acked")
        call(db, "create_consumer", S, C)
        sent = send_batch(db, S, ["x"] * 20)
        assert len(work(db)) == 20
        end_segment(db, S)
        with other.transaction():
            assert replay(other, seqs=sent[:2])["replayed"] == 2
            for _ in range(3):
                db.execute("select headgate.maintain()").fetchall()
                call(db, "compact", S)
        for _ in range(3):
            db.execute("select headgate.maintain()").fetchall()
            call(db, "compact", S)
        assert sorted(m.seq for m in work(db)) == sent[:2]

    def test_only_the_newest_version_of_an_upsert_stream(self, db: Db, other: Db) -> None:
        call(db, "create_stream", S, lanes=2, one_message_per_key=True)
        call(db, "create_consumer", S, C)
        [old] = send(db, S, "old", key="k")
        work(db)
        with other.transaction():  # holds the old version, so that the next send has to leave it
            other.execute("select from headgate.message_1 for update")
            [new] = send(db, S, "new", key="k")
        work(db)
        assert replay(db, seqs=[old, new]) == {"replayed": 1, "not_found": 0, "passed_over": 1, "next_seq": None}
        assert datas(work(db)) == ["new"]

    def test_after_lanes_were_changed(self, db: Db) -> None:
        call(db, "create_stream", S, lanes=2)
        call(db, "create_consumer", S, C, order="key")
        sent = send_batch(db, S, ["x"] * 12, keys=[f"k{i}" for i in range(12)])
        work(db)
        call(db, "set_lanes", S, 5)
        assert replay(db, seqs=sent[:4])["replayed"] == 4
        for _ in range(5):
            db.execute("select headgate.maintain()").fetchall()
            tick(db, S)
        assert replay(db, seqs=sent[4:])["replayed"] == 8
        assert sorted(m.seq for m in work(db)) == sent


class TestTogether:
    def test_two_replays_and_a_worker_give_each_message_once(
        self, db: Db, database_url: str, orders: list[int]
    ) -> None:
        """Replays of one consumer go one after the other: none parks what another did and a worker has by now."""
        stop = threading.Event()
        seen: list[tuple[int, str]] = []

        def replays() -> None:
            with psycopg.connect(database_url, autocommit=True) as mine:
                while not stop.is_set():
                    replay(mine, seqs=orders)

        sessions = [threading.Thread(target=replays) for _ in range(2)]
        for session in sessions:
            session.start()
        try:
            for _ in range(60):
                got = receive(db, S, C, 10)
                assert len({m.seq for m in got}) == len(got)
                live = column(db, "select seq from headgate.in_flight")
                assert len(live) == len(set(live))
                assert not set(live) & set(column(db, "select seq from headgate.parked")), "in flight and parked"
                ack(db, S, C, got)
                seen += [(m.seq, m.ack_id) for m in got]
        finally:
            stop.set()
            for session in sessions:
                session.join()
        assert {seq for seq, _ in seen} == set(orders)

    def test_a_redrive_waits_for_an_open_replay_a_moment(self, db: Db, other: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        for _ in range(2):
            nack(db, S, C, receive(db, S, C), "0", "broken")
        with other.transaction():
            replay(other, seqs=[seq])
            with pytest.raises(psycopg.Error) as error:
                call(db, "redrive", S, C, all=True)
            assert error.value.sqlstate == "55P03"
            with pytest.raises(psycopg.Error) as error:
                replay(db, seqs=[seq])
            assert error.value.sqlstate == "55P03"
        assert call(db, "redrive", S, C, all=True) == 0
        assert [m.seq for m in work(db)] == [seq]

    def test_workers_go_on_beside_an_open_replay(self, db: Db, other: Db, orders: list[int]) -> None:
        with other.transaction():
            replay(other, seqs=orders[:3])
            fresh = send_batch(db, S, list("abc"), keys=list("abc"))
            assert sorted(m.seq for m in work(db)) == fresh
            assert call(db, "retry_now", S, C, all=True) == 0
        assert sorted(m.seq for m in work(db)) == orders[:3]


def test_same_lane_keys_stay_apart(db: Db, stream: None) -> None:
    """Replayed messages of a consumer without order come together, in one batch of their lane."""
    keys = same_lane_keys(db, 2, 2)
    sent = send_batch(db, S, ["a", "b"], keys=keys)
    work(db)
    replay(db, seqs=sent)
    assert sorted(m.seq for m in receive(db, S, C, 10)) == sent
