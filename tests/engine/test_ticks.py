"""Ticks and spans: nothing committed is skipped or read twice, nothing rolled back is seen, nobody waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection

from support.calls import pass_time
from support.engine import create, datas, drain, receive, scalar, send, send_many, take, tick

Connect = Callable[[], Connection]


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    """Opens further sessions, not in autocommit."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(database_url))


def tick_count(db: Connection) -> int:
    found = scalar(db, "select count(*) from headgate.tick")
    assert isinstance(found, int)
    return found


def newest_tick(db: Connection, column: str) -> object:
    return scalar(db, f"select {column}::text from headgate.tick where base = id order by id desc limit 1")


def make_late(db: Connection) -> None:
    """Let so many seqs go by that every open transaction is late, and have the ticks notice."""
    tick(db)
    for _ in range(2):
        send_many(db, ["filler"] * 6000)
        tick(db)


def without_filler(found: list[str]) -> list[str]:
    return sorted(data for data in found if data != "filler")


def test_commits_out_of_order_are_not_skipped(db: Connection, connect: Connect) -> None:
    create(db, "c")
    sessions = [connect() for _ in range(5)]
    for number, session in enumerate(sessions):
        send(session, f"{number}")
    for number in (3, 1, 4, 0, 2):
        sessions[number].commit()
        assert datas(drain(db)) == [f"{number}"]
    assert drain(db) == []


def test_a_span_reads_in_the_order_of_seqs(db: Connection, connect: Connect) -> None:
    create(db, "c", lanes=1)
    first, second = connect(), connect()
    send(first, "a")
    send(second, "b")
    send(first, "c")
    second.commit()
    first.commit()
    assert datas(drain(db)) == ["a", "b", "c"]


def test_what_is_rolled_back_never_appears(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    rolled_back = [send(session, "no") for _ in range(5)]
    assert drain(db) == []
    session.rollback()
    kept = send(session, "yes")
    session.commit()
    assert kept > max(rolled_back), "the gap stays"
    assert datas(drain(db)) == ["yes"]
    assert scalar(db, "select unread from headgate.consumers") == 0


def test_subtransactions(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    send(session, "outer")
    with session.transaction():
        send(session, "released")
        with session.transaction(force_rollback=True):
            send(session, "rolled back")
        with session.transaction():
            send(session, "deep")
    assert drain(db) == []
    session.commit()
    assert sorted(datas(drain(db))) == ["deep", "outer", "released"]


def test_a_subtransaction_is_the_first_to_write(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    session.execute("select 1")
    with session.transaction(), session.transaction():
        send(session, "a")
        assert receive(db) == []
        with session.transaction():
            send(session, "b")
    assert drain(db) == []
    session.commit()
    assert sorted(datas(drain(db))) == ["a", "b"]


def test_an_open_publisher_delays_nobody(db: Connection, connect: Connect) -> None:
    create(db, "c")
    publisher, other_work = connect(), connect()
    send(publisher, "open")
    other_work.execute("create table unrelated ()")
    for number in range(20):
        send(db, f"{number}")
        assert datas(drain(db)) == [f"{number}"]
    publisher.commit()
    other_work.commit()
    assert datas(drain(db)) == ["open"]


def test_prepared_transactions(db: Connection, connect: Connect) -> None:
    create(db, "c")
    for name in ("kept", "dropped"):
        session = connect()
        send(session, name)
        session.execute(f"prepare transaction '{name}'")
    send(db, "other")
    assert datas(drain(db)) == ["other"]
    db.execute("commit prepared 'kept'")
    db.execute("rollback prepared 'dropped'")
    assert datas(drain(db)) == ["kept"]


def test_a_late_prepared_transaction(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    send(session, "early")
    session.execute("prepare transaction 'late'")
    make_late(db)
    pass_time(db, "2 seconds")  # after a second pg_locks is asked about it: it must be found to hold its lock
    make_late(db)
    assert without_filler(datas(drain(db))) == []
    db.execute("commit prepared 'late'")
    assert datas(drain(db)) == ["early"]


@pytest.mark.parametrize("reads_on", [True, False], ids=["cursor behind", "cursor at the start"])
def test_a_late_transaction_is_delivered_once(db: Connection, connect: Connect, reads_on: bool) -> None:
    """Published early, committed after a second and 10,000 seqs: what it wrote is found by `late` ranges."""
    create(db, "c")
    session = connect()
    early = [send(session, "early") for _ in range(3)]
    make_late(db)
    pass_time(db, "2 seconds")
    make_late(db)
    if reads_on:
        assert set(datas(drain(db))) == {"filler"}
    assert int(str(newest_tick(db, "lo"))) > max(early), "lo does not wait for a late transaction"
    send(session, "written late")
    session.commit()
    tick(db)
    late = scalar(db, "select late::text from headgate.tick where late is not null")
    assert late is not None
    assert scalar(db, "select %s::int8multirange @> %s::bigint", late, early[0])
    assert without_filler(datas(drain(db))) == ["early", "early", "early", "written late"]
    assert newest_tick(db, "late_xids") is None


def test_a_late_transaction_that_is_rolled_back(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    send(session, "no")
    make_late(db)
    session.rollback()
    send(db, "yes")
    assert without_filler(datas(drain(db))) == ["yes"]
    assert scalar(db, "select count(*) from headgate.tick where late is not null") == 0


@pytest.mark.parametrize("order", ["none", "key"])
def test_late_transactions_meet_a_filtered_and_an_ordered_consumer(
    db: Connection, connect: Connect, order: str
) -> None:
    create(db)
    db.execute("select headgate.create_consumer('s', 'c', filter => '{a.>}', \"order\" => %s)", [order])
    sessions = [connect() for _ in range(3)]
    for number, session in enumerate(sessions):
        send_many(session, [f"{number}"] * 50, ["a.x", "b.x"] * 25)
    make_late(db)
    assert drain(db) == []
    for session in sessions:
        session.commit()
        send_many(db, ["new"], ["a.y"])
    assert sorted(datas(drain(db, n=7))) == ["0"] * 25 + ["1"] * 25 + ["2"] * 25 + ["new"] * 3


def test_a_late_transaction_that_never_published_costs_nothing(db: Connection, connect: Connect) -> None:
    create(db, "c")
    other_work = connect()
    other_work.execute("create table unrelated ()")
    make_late(db)
    pass_time(db, "2 seconds")  # pg_locks is asked about it once a second
    make_late(db)
    late_from = newest_tick(db, "late_from[1]")
    assert int(str(late_from)) >= 12_000, "its lower bound moves up while it holds no lock on the stream"
    send(other_work, "at last")
    make_late(db)
    other_work.commit()
    assert without_filler(datas(drain(db))) == ["at last"]
    late = scalar(db, "select upper(late) - lower(late) from headgate.tick where late is not null")
    assert late == 1


def test_a_bulk_transaction_that_takes_more_than_a_second(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    for part in range(4):
        send_many(session, [f"{part}.{number}" for number in range(5000)])
        send(db, f"other {part}")
        assert datas(drain(db)) == [f"other {part}"]
        time.sleep(0.3)
    session.commit()
    found = datas(drain(db))
    assert len(found) == 20_000
    assert set(found) == {f"{part}.{number}" for part in range(4) for number in range(5000)}


def test_no_tick_when_nothing_can_have_changed(db: Connection, connect: Connect) -> None:
    create(db, "c")
    send(db, "a")
    drain(db)
    before = tick_count(db)
    for _ in range(5):
        tick(db)
        assert receive(db) == []
    assert tick_count(db) == before
    session = connect()
    send(session, "b")
    session.rollback()
    tick(db)
    assert tick_count(db) != before


def test_ticks_come_in_bursts(db: Connection) -> None:
    """The first messages after a quiet moment get a tick each, at once; then there is one a millisecond."""
    create(db, "c")
    time.sleep(0.01)
    before = tick_count(db)
    for made in range(1, 6):
        send(db, str(made))
        scalar(db, "select headgate.tick('s')")
        assert tick_count(db) == before + made
    began = time.monotonic()
    before = tick_count(db)
    for _ in range(500):
        send(db, "more")
        scalar(db, "select headgate.tick('s')")
    assert tick_count(db) - before <= 1000 * (time.monotonic() - began) + 9
    assert len(drain(db)) == 505


@pytest.mark.parametrize("jump", ["1 hour", "-1 hour"])
def test_a_clock_that_jumps_stops_no_ticks(db: Connection, jump: str) -> None:
    create(db, "c")
    for _ in range(3):
        send(db, "before")
        scalar(db, "select headgate.tick('s')")
    db.execute("update headgate.tick set at = at + %s::interval, paced_to = paced_to + %s::interval", [jump, jump])
    send(db, "after")
    assert sorted(datas(drain(db))) == ["after", "before", "before", "before"]


def test_ticks_never_wait(db: Connection, connect: Connect) -> None:
    """Nor does anybody go without messages while somebody holds the stream's row."""
    create(db, "c")
    holder = connect()
    holder.execute("select from headgate.stream for update")
    db.execute("set lock_timeout = '1ms'")
    public = newest_tick(db, "id")
    for data in ("a", "b"):
        send(db, data)
        time.sleep(0.02)
        tick(db)
        assert datas(drain(db)) == [data]
    assert newest_tick(db, "id") == public
    holder.rollback()
    send(db, "c")
    assert datas(drain(db)) == ["c"]
    assert newest_tick(db, "id") != public


def test_concurrent_ticks_make_one_history(db: Connection, connect: Connect) -> None:
    """Of public ticks a higher id means a later snapshot."""
    create(db)
    sessions = [connect() for _ in range(4)]
    for session in sessions:
        session.autocommit = True
    for number in range(30):
        send(sessions[number % 4], "x")
        tick(sessions[(number + 1) % 4])
    assert scalar(
        db,
        """select bool_and(pg_snapshot_xmax(snap) >= before and lo <= hi0 and hi0 <= hi) from (
             select *, lag(pg_snapshot_xmax(snap), 1, '3') over (order by id) as before from headgate.tick) t""",
    )


def test_a_cursor_never_goes_back_to_an_older_tick(db: Connection) -> None:
    """A worker may have looked up the newest tick before another one made a newer tick and claimed with that."""
    create(db, "c")
    send(db, "a")
    older = tick(db)
    send(db, "b")
    assert sorted(datas(take(db))) == ["a", "b"]
    assert scalar(
        db,
        """select bool_and(next.to_tick = k.to_tick and next.from_tick = k.from_tick)
             from headgate.cursor k, headgate.tick t cross join lateral headgate.next_span(k, t) next
            where t.id = %s and k.to_tick > t.id""",
        older,
    )


def test_thinning_keeps_delivering(db: Connection, connect: Connect) -> None:
    """Ticks are thinned out under cursors at every distance, with late ranges among them."""
    create(db, "start", "middle", "end")
    late, sent = connect(), []
    send(late, "late")
    make_late(db)
    for number in range(60):
        send(db, f"{number}")
        sent.append(f"{number}")
        tick(db)
        if number == 20:
            middle = datas(take(db, "middle"))
        if number == 40:
            late.commit()
            sent.append("late")
    end = datas(take(db, "end"))
    db.execute("update headgate.tick set at = at - interval '2 hours' where id < (select max(id) from headgate.tick)")
    before = tick_count(db)
    thinned = scalar(db, "select headgate.thin_ticks((select id from headgate.stream))")
    assert isinstance(thinned, int)
    assert thinned > 50
    assert tick_count(db) == int(str(before)) - thinned
    send(db, "after")
    sent.append("after")
    assert without_filler(datas(take(db, "start"))) == sorted(sent)
    assert without_filler(middle + datas(take(db, "middle"))) == sorted(sent)
    assert without_filler(end + datas(take(db, "end"))) == sorted(sent)
    assert scalar(db, "select count(*) from headgate.tick where late is not null") == 1, "on the next one kept"


def test_an_expired_delivery_comes_again(db: Connection) -> None:
    create(db, "c", ack_wait=timedelta(milliseconds=500))
    send(db, "a")
    (first,) = take(db)
    time.sleep(0.51)
    (second,) = take(db)
    assert (first.seq, first.attempt + 1) == (second.seq, second.attempt)
