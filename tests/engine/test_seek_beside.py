"""A seek beside compaction, retention, redrives and changes of lanes: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from support.calls import Db, ack, call, column, datas, drain, facts, nack, receive, send, send_batch, tick, value
from support.storage import create, end_segment, exists, maintain
from support.waiting import wait_until

S, C = "s", "c"


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url) as connection:
        yield connection


def parked_in_a_closed_segment(db: Db, **settings: object) -> None:
    """Ten messages, all done but the first, which is parked for an hour; their segment could be compacted."""
    create(db, retain="until_acked", **settings)
    call(db, "create_consumer", S, C)
    send_batch(db, S, [f"m{i}" for i in range(10)], keys=[f"k{i}" for i in range(10)])
    tick(db, S)
    got = sorted(receive(db, S, C, 10), key=lambda m: m.seq)
    assert len(got) == 10
    nack(db, S, C, got[:1], delay="1 hour")
    ack(db, S, C, got[1:])
    end_segment(db)


@pytest.mark.parametrize("lane_by", ["hash", "key"])
def test_compaction_beside_an_open_seek(db: Db, other: Db, lane_by: str) -> None:
    """E17: neither saw what the other one had not committed yet."""
    parked_in_a_closed_segment(db, lane_by=lane_by)
    call(other, "seek", S, C, "beginning")
    assert call(db, "compact", S) == 0
    maintain(db)
    other.commit()
    assert drain(db, S, C) == sorted(f"m{i}" for i in range(10))
    assert facts(db, S, C)["lost"] == 0


def test_a_seek_beside_an_open_compaction(db: Db, other: Db) -> None:
    parked_in_a_closed_segment(db)
    assert call(other, "compact", S) == 1
    with pytest.raises(psycopg.errors.LockNotAvailable):
        call(db, "seek", S, C, "beginning")
    other.commit()
    call(db, "seek", S, C, "beginning")
    assert drain(db, S, C) == ["m0"]


def test_seeks_and_compactions_at_the_same_time(db: Db, database_url: str) -> None:
    """E17 in autocommit: 32 of 37 rounds lost the parked message."""
    create(db, retain="until_acked")
    call(db, "create_consumer", S, C)
    for round in range(15):
        name = f"r{round}."
        send_batch(db, S, [f"{name}{i}" for i in range(10)])
        tick(db, S)
        got = sorted(receive(db, S, C, 10), key=lambda m: m.seq)
        assert len(got) == 10
        nack(db, S, C, got[:1], delay="1 hour")
        ack(db, S, C, got[1:])
        end_segment(db)
        ready = threading.Barrier(2)

        def compact(ready: threading.Barrier = ready, pause: float = random.random() / 100) -> None:
            with psycopg.connect(database_url, autocommit=True) as session:
                ready.wait()
                threading.Event().wait(pause)
                call(session, "compact", S)

        thread = threading.Thread(target=compact)
        thread.start()
        ready.wait()
        while True:
            with suppress(psycopg.errors.LockNotAvailable):
                call(db, "seek", S, C, "beginning")
                break
        thread.join()
        assert f"{name}0" in drain(db, S, C)
        wait_until(
            lambda: (
                maintain(db) is not None
                and not value(db, "select count(*) from headgate.segments where state = 'closed'")
            )
        )


def test_a_seek_after_set_lanes_finds_kept_messages(db: Db) -> None:
    """E19: kept with the number of a lane that the consumer has left behind."""
    parked_in_a_closed_segment(db)
    assert call(db, "compact", S) == 1
    for lanes in (3, 5):
        wait_until(lambda lanes=lanes: changed(db, lanes))
        send_batch(db, S, ["x"], keys=["x"])
        drain(db, S, C)
        for _ in range(3):
            tick(db, S)
            maintain(db)
            drain(db, S, C)
    wait_until(lambda: maintain(db) is not None and value(db, "select min(lane) from headgate.cursor") > 1)
    call(db, "seek", S, C, "beginning")
    assert "m0" in drain(db, S, C)
    assert column(db, "select seq from headgate.parked") == []


def changed(db: Db, lanes: int) -> bool:
    tick(db, S)
    maintain(db)
    with suppress(psycopg.errors.LockNotAvailable):
        call(db, "set_lanes", S, lanes)
        return True
    return False


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_seek_beside_set_lanes(db: Db, other: Db, order: str) -> None:
    call(db, "create_stream", S, lanes=2)
    call(db, "create_consumer", S, C, order=order)
    send_batch(db, S, ["a", "b", "c"], keys=["a", "b", "c"])
    drain(db, S, C)
    call(other, "set_lanes", S, 3)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        call(db, "seek", S, C, "beginning")
    other.commit()
    call(db, "seek", S, C, "beginning")
    send_batch(db, S, ["d"], keys=["d"])
    assert drain(db, S, C) == ["a", "b", "c", "d"]


def test_a_redrive_beside_an_open_seek(db: Db, other: Db) -> None:
    """Given back and read again, it would come twice at once."""
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C, max_deliver=1)
    send(db, S, "m")
    nack(db, S, C, receive(db, S, C))
    call(other, "seek", S, C, "beginning")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        call(db, "redrive", S, C, all=True)
    other.commit()
    call(db, "redrive", S, C, all=True)
    assert datas(receive(db, S, C)) == ["m"]


@pytest.mark.parametrize("lane_by", ["hash", "channel"])
class TestASeq:
    """E13, E27: a consumer that starts at a seq gets nothing below it, and everything from it on."""

    def test_a_lower_one_that_commits_later(self, db: Db, other: Db, lane_by: str) -> None:
        call(db, "create_stream", S, lane_by=lane_by, lanes=2)
        where = {"channel": "x"} if lane_by == "channel" else {}
        first = call(other, "send", S, "below", **where)
        second = call(db, "send", S, "from", **where)
        assert second > first
        call(db, "create_consumer", S, C, start=str(second))
        call(db, "create_consumer", S, "all")
        assert datas(receive(db, S, C)) == ["from"]
        other.commit()
        call(db, "send", S, "later", **where)
        assert drain(db, S, C) == ["later"]
        assert drain(db, S, "all") == ["below", "from", "later"]
        assert facts(db, S, C)["unread"] == 0

    @pytest.mark.parametrize("how", ["start", "seek"])
    def test_in_the_future(self, db: Db, lane_by: str, how: str) -> None:
        call(db, "create_stream", S, lane_by=lane_by, lanes=2)
        where = {"channel": "x"} if lane_by == "channel" else {}
        call(db, "send", S, "1", **where)
        call(db, "create_consumer", S, C, **({"start": "4"} if how == "start" else {}))
        if how == "seek":
            call(db, "seek", S, C, "4")
        for n in range(2, 7):
            assert call(db, "send", S, str(n), **where) == n
            got = datas(receive(db, S, C))
            assert got == ([str(n)] if n >= 4 else [])
        assert facts(db, S, C)["unread"] == 0
        call(db, "seek", S, C, "beginning")
        assert len(drain(db, S, C)) == 3 + 3

    def test_after_set_lanes(self, db: Db, lane_by: str) -> None:
        if lane_by != "hash":
            pytest.skip("only hashed lanes can be changed")
        call(db, "create_stream", S, lanes=2)
        call(db, "create_consumer", S, C, start="5")
        call(db, "set_lanes", S, 3)
        send_batch(db, S, [str(n) for n in range(1, 9)], keys=[str(n) for n in range(1, 9)])
        assert drain(db, S, C) == ["5", "6", "7", "8"]


def test_a_seek_beside_lanes_that_are_being_made(db: Db, other: Db, database_url: str) -> None:
    """A lane that was made while the seek waited for the gatherer was out of its sight, and so was what came of it."""
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["a1", "a2"], keys=["a", "a"])
    first = receive(db, S, C, 2)
    send_batch(db, S, ["b1", "b2"], keys=["b", "b"])
    tick(db, S)
    other.execute("select pg_sleep(0.01)")  # so that what follows is seen to be part of a longer transaction
    assert datas(receive(other, S, C, 1)) == ["b1"]  # makes the lane
    # what a seek waits for in one go takes longer than usual here, so that the others get in between
    [(source,)] = db.execute("select pg_get_functiondef('headgate.hold_consumer'::regproc)").fetchall()
    db.execute(source.replace("'20ms'", "'10s'"))
    with (
        psycopg.connect(database_url) as holder,
        psycopg.connect(database_url) as late,
        psycopg.connect(database_url, autocommit=True) as seeker,
    ):

        def waits_for(session: Db) -> bool:
            blockers = value(db, "select pg_blocking_pids(%s)", seeker.info.backend_pid)
            return bool(blockers == [session.info.backend_pid])

        ack(holder, S, C, first[:1])
        thread = threading.Thread(target=call, args=(seeker, "seek", S, C, "beginning"))
        thread.start()
        wait_until(lambda: waits_for(other))  # for the gatherer
        late.execute("select pg_sleep(0.01)")
        other.commit()
        wait_until(lambda: waits_for(holder))  # for what it acks
        assert datas(receive(late, S, C, 1)) == [], "the lane is the seek's"
        holder.commit()
        late.commit()
        thread.join()
    assert value(db, "select count(*) from headgate.delivery") == 0
    assert drain(db, S, C) == ["a1", "a2", "b1", "b2"]


def test_a_time_finds_a_message_whose_seq_was_drawn_before(db: Db, other: Db) -> None:
    """E27: drawn, then written after that time; ticks between the two know its seq as drawn."""
    call(db, "create_stream", S, lanes=1)
    call(db, "send", S, "old")
    tick(db, S)
    value(other, "select pg_current_xact_id()")
    other.execute("lock table headgate.message_1 in row exclusive mode")
    drawn = value(other, "select nextval('headgate.seq_1')")
    call(db, "send", S, "middle")
    tick(db, S)
    moment = value(db, "select clock_timestamp()::text")
    other.execute(
        "insert into headgate.message_1 (seq, xid, lane, data) values (%s, pg_current_xact_id(), 0, 'drawn before')",
        (drawn,),
    )
    other.commit()
    call(db, "send", S, "after")
    tick(db, S)
    call(db, "create_consumer", S, C, start=moment)
    assert sorted(set(drain(db, S, C)) - {"middle"}) == ["after", "drawn before"]


def test_streams_that_nobody_polls_are_ticked_beside_idle_ones(db: Db) -> None:
    """E3: maintenance gave its tick to the stream whose last one was the oldest, and that was an idle one for ever."""
    for i in range(5):
        call(db, "create_stream", f"idle{i}")
        send(db, f"idle{i}", "m")
        tick(db, f"idle{i}")
    create(db, retain_up_to="1 second", segment_age="1 microsecond")
    send_batch(db, S, ["m"] * 100)
    db.execute("update headgate.tick set at = at - interval '1 hour'")
    segment = value(db, "select min(id) from headgate.segments where stream = %s", S)
    wait_until(lambda: maintain(db) is not None and not exists(db, segment), 15)


def test_losses_are_what_was_not_read(db: Db, database_url: str) -> None:
    """E27: counted before the segment was locked, beside a reader."""
    create(db, lanes=4, max_storage=1048576)
    call(db, "create_consumer", S, C)
    seen: list[str] = []
    stop = threading.Event()

    def read() -> None:
        with psycopg.connect(database_url, autocommit=True) as session:
            acks: list[str] = []
            while not stop.is_set():
                rows = session.execute(
                    "select ack_id, data from headgate.receive(%s, %s, 50, null, %s)", (S, C, acks)
                ).fetchall()
                seen.extend(row[1][:10] for row in rows)
                acks = list({row[0].rpartition(".")[0] for row in rows})

    thread = threading.Thread(target=read)
    thread.start()
    sent = 0
    for i in range(40):
        batch = [f"{sent + j:010}" + "x" * 500 for j in range(200)]
        send_batch(db, S, batch)
        sent += len(batch)
        if i % 4 == 3:
            maintain(db)
    done = threading.Event()

    def settled() -> bool:
        maintain(db)
        before = len(seen)
        done.wait(0.3)
        return len(seen) == before and facts(db, S, C)["unread"] == 0

    wait_until(settled)
    stop.set()
    thread.join()
    assert len(seen) == len(set(seen))
    assert len(seen) + facts(db, S, C)["lost"] == sent
