"""Discarding messages of a consumer, wherever they are: unread, delayed, parked or in flight."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from support.calls import (
    Db,
    ack,
    call,
    column,
    datas,
    discard,
    discard_all,
    drain,
    facts,
    nack,
    receive,
    send,
    send_batch,
    seqs,
    tick,
    value,
)
from support.storage import create, end_segment, exists, lost, maintain
from support.waiting import wait_until

S, C = "s", "c"

LANES = [
    {"lane_by": "hash", "lanes": 1},
    {"lane_by": "hash", "lanes": 8},
    {"lane_by": "key", "lanes": 4},
    {"lane_by": "channel", "lanes": 4},
]
CONSUMERS = [{}, {"order": "key"}, {"filter": ["k.>"]}, {"order": "key", "filter": ["k.>"]}, {"max_ack_pending": 1000}]


def fill(db: Db, n: int, lane_by: str = "hash", keys: int = 5, **named: object) -> list[int]:
    """n messages 0 … n-1 over some keys."""
    sent: list[int] = []
    for i in range(0, n, 10_000):
        part = range(i, min(i + 10_000, n))
        if lane_by == "channel":
            named["channels"] = [f"k.{i % keys}" for i in part]
        sent += send_batch(db, S, [str(i) for i in part], keys=[f"k.{i % keys}" for i in part], **named)
    return sent


def states(db: Db) -> dict[int, str]:
    return dict(db.execute("select seq, state from headgate.peek(%s, %s, 10000)", (S, C)).fetchall())


def maintained(db: Db) -> None:
    db.execute("select * from headgate.maintain()")


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    """Another session, with transactions that stay open until they are ended."""
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.fixture(params=LANES, ids=lambda p: f"{p['lane_by']}-{p['lanes']}")
def lanes(request: pytest.FixtureRequest, db: Db) -> str:
    """How a stream with a consumer maps messages to lanes."""
    call(db, "create_stream", S, **request.param)
    call(db, "create_consumer", S, C)
    return str(request.param["lane_by"])


@pytest.mark.parametrize("consumer", CONSUMERS, ids=str)
@pytest.mark.parametrize("stream", LANES, ids=lambda p: f"{p['lane_by']}-{p['lanes']}")
class TestUnread:
    def test_by_seq(self, db: Db, stream: dict[str, object], consumer: dict[str, object]) -> None:
        """Unread ones are never handed out, in whatever way the lane is read; the others are."""
        call(db, "create_stream", S, **stream)
        call(db, "create_consumer", S, C, **consumer)
        sent = fill(db, 40, str(stream["lane_by"]))
        gone = sent[3:30:2]
        assert discard(db, S, C, gone) == (len(gone), 0, None)
        assert discard(db, S, C, gone) == (0, 0, None), "once"
        assert {seq for seq, state in states(db).items() if state == "discarded"} == set(gone)
        assert facts(db, S, C)["unread"] == 40 - len(gone)
        got = drain(db, S, C)
        assert got == sorted(str(i) for i in range(40) if sent[i] not in gone)
        assert facts(db, S, C)["lag"] == 0
        assert facts(db, S, C)["floor"] == sent[-1]
        fresh = fill(db, 10, str(stream["lane_by"]))
        assert len(drain(db, S, C)) == len(fresh)

    def test_halfway(self, db: Db, stream: dict[str, object], consumer: dict[str, object]) -> None:
        """Some unread, some in flight, some parked, some done."""
        call(db, "create_stream", S, **stream)
        call(db, "create_consumer", S, C, **consumer)
        sent = fill(db, 30, str(stream["lane_by"]), keys=30)
        first = receive(db, S, C, 4)
        nack(db, S, C, first[:2], "1 hour")
        ack(db, S, C, first[2:3])
        before = states(db)
        unfinished = [seq for seq, state in before.items() if state != "done"]
        assert {"available", "delivered", "parked", "done"} <= set(before.values())
        assert discard(db, S, C, sent) == (len(unfinished), 0, None)
        assert set(states(db).values()) == {"done", "discarded"}
        assert ack(db, S, C, first[3:]) == (0, 1), "stale"
        assert receive(db, S, C) == []
        row = facts(db, S, C)
        assert (row["unread"], row["in_flight"], row["parked"], row["lag"]) == (0, 0, 0, 0)
        maintained(db)
        assert receive(db, S, C) == []
        assert set(states(db).values()) == {"done", "discarded"}
        more = fill(db, 10, str(stream["lane_by"]))
        assert len(drain(db, S, C)) == len(more)


class TestChoosing:
    def test_something_must_be_chosen(self, db: Db, lanes: str) -> None:
        fill(db, 3, lanes)
        for named in ({}, {"all": False}, {"all": True, "filter": ["a"]}, {"older_than": "-1 second"}):
            with pytest.raises(psycopg.Error) as error:
                discard(db, S, C, **named)
            assert error.value.sqlstate == "HG010"
            assert error.value.diag.message_hint
        assert discard(db, S, C, []) == (0, 0, None)
        assert len(drain(db, S, C)) == 3

    def test_a_bad_filter(self, db: Db, lanes: str) -> None:
        with pytest.raises(psycopg.Error) as error:
            discard(db, S, C, filter=["a..b"])
        assert error.value.sqlstate == "HG006"

    @pytest.mark.parametrize("mark", ["", "x", "1/2//", "1/2//5:3:", "1/2/3/5:6:", "-1/2//5:6:"])
    def test_a_bad_place_to_go_on(self, db: Db, lanes: str, mark: str) -> None:
        with pytest.raises(psycopg.Error) as error:
            discard(db, S, C, all=True, go_on=mark)
        assert error.value.sqlstate == "HG010"

    def test_everything(self, db: Db, lanes: str) -> None:
        fill(db, 20, lanes)
        receive(db, S, C, 5)
        assert discard(db, S, C, all=True) == (20, 0, None)
        assert drain(db, S, C) == []

    def test_by_key(self, db: Db, lanes: str) -> None:
        fill(db, 20, lanes)
        batch = receive(db, S, C, 6)
        nack(db, S, C, batch[:3], "1 hour")
        expected = 8  # of two keys, some of them in flight and parked
        assert discard(db, S, C, filter=["k.1", "k.3"]) == (expected, 0, None)
        assert discard(db, S, C, filter=["q.>"]) == (0, 0, None)
        ack(db, S, C, batch)
        call(db, "retry_now", S, C, all=True)
        assert {int(d) % 5 for d in drain(db, S, C)} <= {0, 2, 4}

    def test_without_a_key(self, db: Db, lanes: str) -> None:
        send(db, S, "a")
        fill(db, 2, lanes)
        assert discard(db, S, C, filter=[">"]) == (2, 0, None)
        assert drain(db, S, C) == ["a"]

    def test_by_age(self, db: Db, lanes: str) -> None:
        old = fill(db, 6, lanes)
        value(db, "select pg_sleep(0.3)")
        fill(db, 4, lanes)
        assert discard(db, S, C, older_than="1 hour") == (0, 0, None)
        age = value(db, "select clock_timestamp() - max(created_at) from headgate.log_s where seq <= %s", old[-1])
        assert discard(db, S, C, older_than=age) == (6, 0, None)
        assert drain(db, S, C) == ["0", "1", "2", "3"]

    def test_all_of_it_must_fit(self, db: Db, lanes: str) -> None:
        sent = fill(db, 20, lanes)
        assert discard(db, S, C, sent[:10], filter=["k.2"], older_than="0") == (2, 0, None)
        assert discard(db, S, C, sent, filter=["k.2"], older_than="1 hour") == (0, 0, None)
        assert len(drain(db, S, C)) == 18

    def test_by_channel(self, db: Db) -> None:
        call(db, "create_stream", S, lane_by="channel")
        call(db, "create_consumer", S, C)
        fill(db, 20, "channel")
        assert discard(db, S, C, channel="k.1") == (4, 0, None), "before anybody has discovered the channel"
        assert discard(db, S, C, channel="nobody's") == (0, 0, None)
        assert len(drain(db, S, C)) == 16
        fill(db, 20, "channel")
        receive(db, S, C, 10)
        assert discard(db, S, C, channel="k.2", older_than="0") == (4, 0, None)

    def test_by_channel_where_lanes_are_keys(self, db: Db) -> None:
        call(db, "create_stream", S, lane_by="key")
        call(db, "create_consumer", S, C, order="key")
        fill(db, 20)
        assert discard(db, S, C, channel="k.1") == (4, 0, None)
        assert len(drain(db, S, C)) == 16

    def test_no_channels(self, db: Db) -> None:
        call(db, "create_stream", S)
        call(db, "create_consumer", S, C)
        with pytest.raises(psycopg.Error) as error:
            discard(db, S, C, channel="a")
        assert error.value.sqlstate == "HG010"

    def test_what_a_filter_passes_over_is_not_counted(self, db: Db, lanes: str) -> None:
        call(db, "create_consumer", S, "few", filter=["k.1"])
        fill(db, 20, lanes)
        assert discard(db, S, "few", all=True) == (4, 0, None)

    def test_delayed(self, db: Db, lanes: str) -> None:
        send(db, S, "later", key="k.1", delay="1 hour")
        assert discard(db, S, C, all=True) == (1, 0, None), "unread"
        send(db, S, "later", key="k.1", delay="1 hour")
        assert receive(db, S, C) == []
        assert discard(db, S, C, all=True) == (1, 0, None), "parked"
        call(db, "retry_now", S, C, all=True)
        assert receive(db, S, C) == []


class TestManyMessages:
    @pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
    def test_in_steps(self, db: Db, lane_by: str) -> None:
        call(db, "create_stream", S, lane_by=lane_by)
        call(db, "create_consumer", S, C)
        sent = fill(db, 25_000, lane_by, keys=3000)
        parked = receive(db, S, C, 100)
        nack(db, S, C, parked[:50], "1 hour")
        first = discard(db, S, C, all=True)
        assert (0 < first.discarded <= 10_000, first.held) == (True, 0)
        later = fill(db, 5, lane_by)
        total, go_on = first.discarded, first.more
        while go_on:
            done = discard(db, S, C, all=True, go_on=go_on)
            assert done.held == 0
            total, go_on = total + done.discarded, done.more
        assert total == len(sent), "and not what was sent after the first call"
        came: list[str] = []  # a receive passes over lanes for a second at most, which here can be too short for all
        wait_until(lambda: came.extend(drain(db, S, C)) or len(came) >= len(later))
        assert len(came) == len(later)

    def test_few_of_many(self, db: Db) -> None:
        call(db, "create_stream", S)
        call(db, "create_consumer", S, C)
        fill(db, 30_000, keys=6000)
        assert discard_all(db, S, C, filter=["k.5999"]) == 5
        assert discard_all(db, S, C, filter=["k.1", "k.2", "k.5999"]) == 10

    def test_more_new_lanes_than_a_transaction_may_hold(self, db: Db, other: Db) -> None:
        """In an open transaction lanes are added one by one, so many as there are locks; the next one goes on."""
        call(db, "create_stream", S, lane_by="key")
        call(db, "create_consumer", S, C)
        sent = fill(db, 300, keys=300)
        total, go_on, calls = 0, None, 0
        while calls == 0 or go_on:
            value(other, "select pg_current_xact_id()")
            done = discard(other, S, C, sent, go_on=go_on)
            assert done.held == 0
            total, go_on, calls = total + done.discarded, done.more, calls + 1
            other.commit()
        assert total == 300
        assert calls > 1
        assert drain(db, S, C) == []

    def test_more_new_lanes_in_one_transaction(self, db: Db, other: Db) -> None:
        """When it can add no more lanes, there is more to do, and nothing is held by others; the same transaction
        cannot go on, and is told so instead of going round for ever."""
        call(db, "create_stream", S, lane_by="key")
        call(db, "create_consumer", S, C)
        sent = fill(db, 300, keys=300)
        value(other, "select pg_current_xact_id()")
        first = discard(other, S, C, sent)
        assert (0 < first.discarded < 300, first.held) == (True, 0)
        again = discard(other, S, C, sent)
        assert (again.discarded, again.held, again.more is not None) == (0, 0, True)
        with other.transaction(force_rollback=True), pytest.raises(psycopg.Error, match="end this one") as raised:
            discard(other, S, C, sent, go_on=again.more)
        assert raised.value.sqlstate == "HG010"
        other.commit()
        assert first.discarded + discard_all(db, S, C, seqs=sent) == 300

    def test_held_and_more(self, db: Db, other: Db, database_url: str) -> None:
        """What another transaction has in hand is counted also where the call ends early."""
        call(db, "create_stream", S, lane_by="key")
        call(db, "create_consumer", S, C)
        sent = fill(db, 300, keys=300)
        with psycopg.connect(database_url) as holder:
            mine = receive(holder, S, C, 1)
            value(other, "select pg_current_xact_id()")
            total, held, go_on, calls = 0, 0, None, 0
            while calls == 0 or go_on:
                done = discard(other, S, C, sent, go_on=go_on)
                total, held, go_on, calls = total + done.discarded, held + done.held, done.more, calls + 1
                other.commit()
                value(other, "select pg_current_xact_id()")
        assert (total + held, calls > 1) == (300, True)
        assert held >= len(mine)

    def test_a_long_stretch_is_passed_over(self, db: Db, lanes: str) -> None:
        fill(db, 6000, lanes)
        last = send(db, S, "last", key="k.1", **({"channel": "k.1"} if lanes == "channel" else {}))
        assert discard_all(db, S, C, seqs=list(range(1, last[0]))) == 6000
        got: list[str] = []
        wait_until(lambda: bool(got.extend(datas(receive(db, S, C))) or got))
        assert got == ["last"]


class TestAfterwards:
    def test_the_rows_go(self, db: Db, lanes: str) -> None:
        sent = fill(db, 20, lanes)
        discard(db, S, C, sent[:10])
        assert value(db, "select count(*) from headgate.discarded where lane is not null") == 10
        assert value(db, "select count(*) from headgate.cursor where discards") > 0
        maintained(db)
        assert value(db, "select count(*) from headgate.discarded where lane is not null") == 10, "still ahead"
        drain(db, S, C)
        maintained(db)
        assert value(db, "select count(*) from headgate.discarded where lane is not null") == 0
        assert value(db, "select count(*) from headgate.cursor where discards") == 0, "and nobody looks any more"
        assert {seq for seq, state in states(db).items() if state == "discarded"} == set(sent[:10])

    def test_a_lane_with_discards_is_not_forgotten(self, db: Db) -> None:
        """Idle for long, and what was discarded there the gatherer has still to come to."""
        call(db, "create_stream", S, lane_by="key")
        call(db, "create_consumer", S, C)
        fill(db, 5)
        assert len(drain(db, S, C)) == 5
        sent = fill(db, 10)
        assert discard(db, S, C, sent[:5], open=None).discarded == 5
        db.execute("update headgate.cursor set served_at = '2000-01-01', rate_since = '2000-01-01'")
        db.execute("select headgate.forget_lanes(c) from headgate.consumer c")
        assert len(drain(db, S, C)) == 5

    def test_a_seek_forgets_what_was_discarded(self, db: Db, lanes: str) -> None:
        sent = fill(db, 20, lanes)
        ack(db, S, C, receive(db, S, C, 5))
        discard(db, S, C, all=True)
        call(db, "seek", S, C, str(sent[10]))
        assert column(db, "select seq from headgate.discarded") == []
        assert drain(db, S, C) == sorted(str(i) for i in range(10, 20))

    def test_a_redriven_one_comes_again(self, db: Db, lanes: str) -> None:
        """A dead letter whose message is unread again, after a seek, and discarded: it comes once, and is done then."""
        call(db, "alter_consumer", S, C, max_deliver=1)
        sent = fill(db, 5, lanes)
        nack(db, S, C, receive(db, S, C, 5))
        assert facts(db, S, C)["dead"] == 5
        call(db, "seek", S, C, "beginning")
        assert discard(db, S, C, sent) == (5, 0, None)
        assert call(db, "redrive", S, C, all=True) == 5
        assert set(states(db).values()) == {"parked"}
        assert drain(db, S, C) == list("01234")
        assert set(states(db).values()) == {"done"}
        maintained(db)
        assert column(db, "select seq from headgate.discarded") == []
        assert drain(db, S, C) == []

    def test_a_discarded_dead_letter_that_is_redriven_is_discarded_again(self, db: Db, lanes: str) -> None:
        call(db, "alter_consumer", S, C, max_deliver=1)
        sent = fill(db, 1, lanes)
        nack(db, S, C, receive(db, S, C))
        call(db, "redrive", S, C, all=True)
        assert discard(db, S, C, sent) == (1, 0, None)
        assert states(db) == {sent[0]: "discarded"}

    def test_another_consumer_has_it(self, db: Db, lanes: str) -> None:
        call(db, "create_consumer", S, "two")
        fill(db, 10, lanes)
        discard(db, S, C, all=True)
        assert drain(db, S, C) == []
        assert len(drain(db, S, "two")) == 10

    def test_dropping_the_consumer(self, db: Db, lanes: str) -> None:
        fill(db, 10, lanes)
        discard(db, S, C, all=True)
        call(db, "drop_consumer", S, C)
        assert column(db, "select seq from headgate.discarded") == []


class TestOrder:
    @pytest.mark.parametrize("stream", LANES, ids=lambda p: f"{p['lane_by']}-{p['lanes']}")
    @pytest.mark.parametrize("held", ["in flight", "parked"])
    def test_what_waited_behind_goes_on(self, db: Db, stream: dict[str, object], held: str) -> None:
        call(db, "create_stream", S, **stream)
        call(db, "create_consumer", S, C, order="key")
        named = {"channels": ["a"] * 4} if stream["lane_by"] == "channel" else {}
        sent = send_batch(db, S, list("abcd"), keys=["k"] * 4, **named)
        batch = receive(db, S, C, 1)
        assert datas(batch) == ["a"]
        assert receive(db, S, C) == []
        if held == "parked":
            nack(db, S, C, batch, "1 hour")
            assert receive(db, S, C) == []
        assert discard(db, S, C, sent[:2]) == (2, 0, None)
        got: list[str] = []

        def come() -> bool:
            more = receive(db, S, C)
            got.extend(datas(more))
            ack(db, S, C, more)
            return len(got) >= 2

        wait_until(come)
        assert got == ["c", "d"]

    def test_out_of_the_middle_of_a_batch(self, db: Db) -> None:
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, C, order="key")
        send_batch(db, S, list("abcd"), keys=["k"] * 4)
        batch = receive(db, S, C, 4)
        assert discard(db, S, C, seqs(batch)[1:3]) == (2, 0, None)
        assert ack(db, S, C, batch) == (2, 2)

    def test_a_full_channel_has_room_again(self, db: Db) -> None:
        call(db, "create_stream", S, lane_by="channel")
        call(db, "create_consumer", S, C, max_concurrency=1)
        send_batch(db, S, ["a", "b"], channels=["x", "x"])
        first = receive(db, S, C)
        assert (datas(first), receive(db, S, C)) == (["a"], [])
        discard(db, S, C, seqs(first))
        assert datas(receive(db, S, C)) == ["b"]


class TestUpserts:
    @pytest.mark.parametrize("lane_by", ["hash", "key"])
    def test_the_newest_version(self, db: Db, lane_by: str) -> None:
        call(db, "create_stream", S, one_message_per_key=True, lane_by=lane_by)
        call(db, "create_consumer", S, C)
        send(db, S, "old", key="k")
        send(db, S, "new", key="k")
        send(db, S, "other", key="l")
        assert discard(db, S, C, filter=["k"]) == (1, 0, None), "the older one counts no more"
        assert drain(db, S, C) == ["other"]
        send(db, S, "newer", key="k")
        assert drain(db, S, C) == ["newer"]


class TestLanes:
    @pytest.mark.parametrize("order", ["none", "key"])
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_over_a_change_of_lanes(self, db: Db, order: str, when: str) -> None:
        call(db, "create_stream", S, lanes=2)
        call(db, "create_consumer", S, C, order=order)
        sent = fill(db, 20)
        receive(db, S, C, 3)
        if when == "before":
            assert discard(db, S, C, sent[1::2]).discarded == 10
        call(db, "set_lanes", S, 5)
        sent += fill(db, 20)
        tick(db, S)
        gone = set(sent[1::2]) if when == "after" else set(sent[1:20:2]) | set(sent[21::4])
        assert discard(db, S, C, sorted(gone)).discarded == (20 if when == "after" else 5)
        unfinished = {seq for seq, state in states(db).items() if state not in ("done", "discarded")}
        assert unfinished == set(sent) - gone
        db.execute("update headgate.delivery set deadline = clock_timestamp()")
        db.execute("update headgate.cursor set expires_at = clock_timestamp()")
        got: set[int] = set()

        def come() -> bool:
            batch = receive(db, S, C, 100)
            got.update(seqs(batch))
            ack(db, S, C, batch)
            maintained(db)
            return got >= unfinished

        wait_until(come)
        assert got == unfinished
        assert value(db, "select count(*) from headgate.cursor where consumer = 1 and lane < 2") == 0, "left behind"

    def test_a_writer_from_before_the_change(self, db: Db, other: Db) -> None:
        """What feeds the next layout is not given to it when it was discarded."""
        call(db, "create_stream", S, lanes=2)
        call(db, "create_consumer", S, C, order="key")
        other.execute("set transaction isolation level repeatable read")
        value(other, "select 1")
        call(db, "set_lanes", S, 3)
        for _ in range(3):
            receive(db, S, C)
            maintained(db)
        sent = send_batch(other, S, list("abc"), keys=list("abc"))
        other.commit()
        assert discard(db, S, C, sent[:2]) == (2, 0, None)
        got: list[str] = []
        wait_until(lambda: bool(got.extend(drain(db, S, C)) or maintained(db) or got))
        assert got == ["c"]
        for _ in range(3):
            maintained(db)
            assert drain(db, S, C) == []

    def test_leased(self, db: Db, lanes: str) -> None:
        call(db, "create_consumer", S, "l", leased=True)
        db.execute("select * from headgate.join_workers(%s, 'l', 'w')", (S,))
        sent = fill(db, 20, lanes)
        batch = receive(db, S, "l", 5, "w")
        assert len(batch) == 5
        assert discard(db, S, "l", sent[::2]).discarded == 10
        rest = set(sent[1::2]) - set(seqs(batch))
        ack(db, S, "l", batch)
        got: set[int] = set()

        def come() -> bool:
            more = receive(db, S, "l", 50, "w")
            got.update(seqs(more))
            ack(db, S, "l", more)
            return got >= rest

        wait_until(come)
        assert got == rest

    @pytest.mark.parametrize("lane_by", ["key", "channel"])
    def test_lanes_that_were_discovered(self, db: Db, lane_by: str) -> None:
        """Lanes that a receive in an open transaction has met and left to others."""
        call(db, "create_stream", S, lane_by=lane_by)
        call(db, "create_consumer", S, C)
        sent = fill(db, 200, lane_by, keys=200)
        tick(db, S)
        db.execute(
            "select headgate.find_ready_lanes_1(c, headgate.newest_tick(c.stream), clock_timestamp(), null, 2) "
            "from headgate.consumer c"
        )
        assert value(db, "select count(*) from headgate.discovered") == 198
        assert discard(db, S, C, sent[:100:2], open=None).discarded > 0, "as many as one transaction may add"
        assert discard_all(db, S, C, seqs=sent[::2]) > 0
        assert facts(db, S, C)["unread"] == 100
        assert len(drain(db, S, C)) == 100


class TestRetention:
    def test_discarded_is_done(self, db: Db) -> None:
        create(db, S, retain="until_acked")
        call(db, "create_consumer", S, C)
        sent = fill(db, 20)
        id = end_segment(db, S)["id"]
        fill(db, 10)
        assert discard(db, S, C, sent).discarded == 20
        assert facts(db, S, C)["floor"] >= sent[-1]
        wait_until(lambda: maintain(db) is not None and not exists(db, id))
        assert lost(db, C) == 0
        assert len(drain(db, S, C)) == 10
        wait_until(lambda: maintain(db) is not None and column(db, "select seq from headgate.discarded") == [])

    def test_nothing_is_lost_that_was_discarded(self, db: Db) -> None:
        create(db, S, retain_up_to="1 millisecond")
        call(db, "create_consumer", S, C)
        sent = fill(db, 20)
        id = end_segment(db, S)["id"]
        discard(db, S, C, sent[:8])
        wait_until(lambda: maintain(db) is not None and not exists(db, id))
        assert lost(db, C) == 12


class TestConcurrently:
    def test_a_fixed_snapshot(self, db: Db, lanes: str) -> None:
        fill(db, 3, lanes)
        with pytest.raises(psycopg.Error) as error, db.transaction():
            db.execute("set transaction isolation level repeatable read")
            discard(db, S, C, all=True)
        assert error.value.sqlstate == "HG016"

    def test_a_receive_with_an_older_snapshot(self, db: Db, other: Db, lanes: str) -> None:
        before, sent = fill(db, 5, lanes), fill(db, 5, lanes)
        tick(db, S)
        discard(db, S, C, before)  # so that nothing of the lanes need be changed by the next one
        other.execute("set transaction isolation level repeatable read")
        value(other, "select count(*) from headgate.log_s")
        discard(db, S, C, sent)
        try:
            assert other.execute("select seq from headgate.receive(%s, %s, 10)", (S, C)).fetchall() == []
        except psycopg.errors.SerializationFailure:
            other.rollback()

    def test_what_is_sent_later_is_not_discarded(self, db: Db, other: Db, lanes: str) -> None:
        named = {"channel": "k.1"} if lanes == "channel" else {}
        call(other, "send", S, "uncommitted", "k.1", **named)
        fill(db, 5, lanes)
        assert discard(db, S, C, all=True) == (5, 0, None)
        other.commit()
        assert drain(db, S, C) == ["uncommitted"]

    def test_what_is_sent_by_the_same_transaction_is_not_discarded(self, db: Db, other: Db, lanes: str) -> None:
        named = {"channel": "k.1"} if lanes == "channel" else {}
        call(other, "send", S, "own", "k.1", **named)
        assert discard(other, S, C, all=True) == (0, 0, None)
        other.commit()
        assert drain(db, S, C) == ["own"]

    def test_a_late_transaction(self, db: Db, other: Db, lanes: str) -> None:
        """Its messages lie below what was read long ago."""
        named = {"channel": "k.1"} if lanes == "channel" else {}
        late = [call(other, "send", S, f"late {i}", "k.1", **named) for i in range(4)]
        fill(db, 20, lanes)
        assert len(drain(db, S, C)) == 20
        value(db, "select pg_sleep(1.1)")
        fill(db, 20, lanes)
        assert len(drain(db, S, C)) == 20
        other.commit()
        assert discard(db, S, C, late[:2]) == (2, 0, None)
        assert drain(db, S, C) == ["late 2", "late 3"]
        assert discard(db, S, C, all=True) == (0, 0, None)
        maintained(db)
        assert value(db, "select count(*) from headgate.discarded where lane is not null") == 0

    def test_a_late_transaction_by_key(self, db: Db, other: Db, lanes: str) -> None:
        named = {"channel": "late"} if lanes == "channel" else {}
        call(other, "send", S, "late", "late", **named)
        value(db, "select pg_sleep(1.1)")
        fill(db, 20, lanes)
        assert len(drain(db, S, C)) == 20
        other.commit()
        assert discard(db, S, C, filter=["late"]) == (1, 0, None)
        assert drain(db, S, C) == []

    def test_an_open_receive_has_some_in_hand(self, db: Db, other: Db, lanes: str) -> None:
        sent = fill(db, 40, lanes)
        tick(db, S)
        mine = {row[0] for row in other.execute("select seq from headgate.receive(%s, %s, 3)", (S, C)).fetchall()}
        assert mine
        done = discard(db, S, C, sent)
        assert done.discarded + done.held == 40
        assert done.held >= len(mine)
        other.commit()
        assert {seq for seq, state in states(db).items() if state == "delivered"} == mine
        assert discard(db, S, C, sent) == (done.held, 0, None)

    def test_an_open_ack_has_some_in_hand(self, db: Db, other: Db, lanes: str) -> None:
        fill(db, 3, lanes)
        batch = receive(db, S, C, 3)
        assert ack(other, S, C, batch[:1]) == (1, 0)
        assert discard(db, S, C, all=True) == (2, 1, None)
        other.commit()
        assert discard(db, S, C, all=True) == (0, 0, None)
        assert states(db)[batch[0].seq] == "done"

    def test_an_ack_beside_an_open_discard(self, db: Db, other: Db, lanes: str) -> None:
        fill(db, 3, lanes)
        batch = receive(db, S, C, 3)
        assert discard(other, S, C, seqs(batch)[:1]) == (1, 0, None)
        assert ack(db, S, C, batch) == (2, 1)
        other.rollback()
        assert ack(db, S, C, batch[:1]) == (1, 0)

    def test_two_at_once(self, db: Db, other: Db, lanes: str) -> None:
        sent = fill(db, 10, lanes)
        receive(db, S, C, 2)
        assert discard(other, S, C, sent) == (10, 0, None)
        assert discard(db, S, C, sent) == (0, 10, None), "in the hands of the other"
        other.rollback()
        assert discard(db, S, C, sent) == (10, 0, None)

    @pytest.mark.parametrize("lane_by", ["key", "channel"])
    def test_lanes_that_there_are_only_notes_of(self, db: Db, other: Db, lane_by: str) -> None:
        """The gatherer has passed, and others hold the lanes: what is there is seen, and is not discarded."""
        call(db, "create_stream", S, lane_by=lane_by)
        call(db, "create_consumer", S, C)
        fill(db, 5, lane_by)
        assert len(drain(db, S, C)) == 5
        sent = fill(db, 10, lane_by)
        other.execute("select from headgate.cursor where lane >= 0 for no key update")
        assert receive(db, S, C) == []
        rows = db.execute("select seq from headgate.peek(%s, %s, 100, states => '{available}')", (S, C)).fetchall()
        assert [row[0] for row in rows] == sent
        assert discard(db, S, C, filter=["k.>"]) == (0, 10, None)
        other.rollback()
        assert discard(db, S, C, filter=["k.>"]) == (10, 0, None)

    def test_receives_go_on_beside_an_open_discard(self, db: Db, other: Db) -> None:
        for lane_by in ("hash", "channel"):
            stream = f"s-{lane_by}"
            call(db, "create_stream", stream, lane_by=lane_by)
            call(db, "create_consumer", stream, C)
            named = {"channels": [f"c{i % 10}" for i in range(100)]} if lane_by == "channel" else {}
            sent = send_batch(db, stream, ["x"] * 100, keys=[f"k.{i % 10}" for i in range(100)], **named)
            keys = column(db, f'select key from headgate."log_{stream}" where seq = %s', sent[0])
            assert discard(other, stream, C, filter=keys).discarded == 10
            assert len(receive(db, stream, C, 100)) > 20
            other.rollback()

    def test_a_seek_beside_an_open_discard(self, db: Db, other: Db, lanes: str) -> None:
        fill(db, 3, lanes)
        discard(other, S, C, all=True)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            call(db, "seek", S, C, "beginning")
        other.rollback()
        call(db, "seek", S, C, "beginning")

    def test_rolled_back(self, db: Db, other: Db, lanes: str) -> None:
        fill(db, 10, lanes)
        receive(db, S, C, 2)
        discard(other, S, C, all=True)
        other.rollback()
        assert set(states(db).values()) == {"available", "delivered"}
        assert len(drain(db, S, C)) == 8

    @pytest.mark.parametrize("order", ["none", "key"])
    @pytest.mark.parametrize("stream", LANES, ids=lambda p: f"{p['lane_by']}-{p['lanes']}")
    def test_beside_receives(self, db: Db, database_url: str, stream: dict[str, object], order: str) -> None:
        """Each message ends once: acked, or discarded. Acks and discards are counted right."""
        call(db, "create_stream", S, **stream)
        call(db, "create_consumer", S, C, order=order)
        acked: list[int] = []
        given_up: list[int] = []
        stop = threading.Event()

        def work() -> None:
            with psycopg.connect(database_url, autocommit=True) as mine:
                while not stop.is_set():
                    for m in receive(mine, S, C, 7):
                        if ack(mine, S, C, [m]) == (1, 0):
                            acked.append(m.seq)

        def give_up() -> None:
            with psycopg.connect(database_url, autocommit=True) as mine:
                while not stop.is_set():
                    for i in range(0, 20, 3):
                        given_up.append(discard(mine, S, C, filter=[f"k.{i}"]).discarded)

        threads = [threading.Thread(target=work) for _ in range(2)] + [threading.Thread(target=give_up)]
        for thread in threads:
            thread.start()
        sent: list[int] = []
        for _ in range(15):
            sent += fill(db, 40, str(stream["lane_by"]), keys=20)
        wait_until(lambda: facts(db, S, C)["lag"] == 0)
        stop.set()
        for thread in threads:
            thread.join()
        gone = {seq for seq, state in states(db).items() if state == "discarded"}
        assert len(set(acked)) == len(acked)
        assert set(acked) | gone == set(sent)
        assert not set(acked) & gone
        assert sum(given_up) == len(gone)
