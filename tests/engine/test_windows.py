"""Another session commits between two statements of one call: nothing sleeps for ever, and nothing comes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.torture.environment.server import databases_on
from headgate.torture.meetings import points
from headgate.torture.meetings.worlds import WORLDS
from support.calls import Db, ack, call, column, datas, extend, receive, send, tick, value

S, C = "s", "c"
MOVE = "select headgate.find_ready_lanes_1(c, headgate.newest_tick(c.stream), clock_timestamp(), null"
RECEIVE = "select data from headgate.receive('s', 'c', %s, open => %s)"


class Stage:
    """Sessions on a database of the test build, one of which can be stopped at a point."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self.stack = stack
        self.director = stack.enter_context(closing(points.Director(url)))
        self.thread = stack.enter_context(ThreadPoolExecutor(1))
        self.db = self.session()

    def session(self) -> Db:
        return self.stack.enter_context(psycopg.connect(self.url, autocommit=True))

    @contextmanager
    def stopped(self, db: Db, point: str, work: Callable[[], Any]) -> Iterator[Future[Any]]:
        """While this session does its work in a thread and stands at the point."""
        db.execute("select set_config('torture.stop_at', %s, false)", [f"1 {point}"])
        self.director.shut()
        done = self.thread.submit(work)
        try:
            assert self.director.see_stop(db.info.backend_pid, done.done)
            yield done
        finally:
            self.director.open()

    def rest(self, calls: int = 20) -> list[str]:
        """All that still comes."""
        got: list[str] = []
        for _ in range(calls):
            got += datas(receive(self.db, S, C))
        return got


@pytest.fixture(scope="module")
def build() -> str:
    return points.stopping_build(schema.install_sql())


@pytest.fixture
def stage(cluster: Cluster, build: str) -> Iterator[Stage]:
    with databases_on(cluster.url(), build) as environments, ExitStack() as stack:
        yield Stage(stack.enter_context(environments(WORLDS["keys"])).url, stack)


def test_a_discovered_lane_is_read_while_the_gatherer_is_moved(stage: Stage) -> None:
    """It gets its cursor after the mover has looked, and its reader knows nothing of the move."""
    db, mover, reader = stage.db, stage.session(), stage.session()
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    send(db, S, "1", channel="x")
    tick(db, S)
    db.execute(f"{MOVE}, 0) from headgate.consumer c")  # as one does that may hold no more lanes
    assert value(db, "select count(*) from headgate.discovered") == 1
    send(db, S, "2", channel="x")
    tick(db, S)
    with stage.stopped(mover, "known lanes are woken", lambda: mover.execute(f"{MOVE}) from headgate.consumer c")):
        assert column(reader, RECEIVE, 1, False) == ["1"]
    assert stage.rest() == ["2"]


def test_a_lane_that_the_gatherer_met_out_of_sight(stage: Stage) -> None:
    """A mover only holds a lane that is due. A claim with an older snapshot puts it to sleep: whoever sees more looks
    again."""
    db, fixed = stage.db, stage.session()
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    send(db, S, "1", "2", channel="x")
    tick(db, S)
    assert column(db, RECEIVE, 1, False) == ["1"]
    fixed.execute("begin isolation level repeatable read")
    assert value(fixed, "select count(*) from headgate.stream") == 1
    send(db, S, "3", channel="x")
    tick(db, S)
    db.execute(f"{MOVE}) from headgate.consumer c")
    assert column(fixed, RECEIVE, 10, None) == ["2"]
    fixed.execute("commit")
    assert stage.rest() == ["3"]
    assert value(db, "select count(*) from headgate.wake") == 0


def test_notes_of_fixed_snapshots_end(stage: Stage) -> None:
    """Where nothing was sent since, a claim with a fixed snapshot leaves no note: or lanes were never forgotten."""
    db = stage.db
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    send(db, S, "1", channel="x")
    tick(db, S)
    db.execute(f"{MOVE}) from headgate.consumer c")
    seen = []
    while not seen or value(db, "select count(*) from headgate.wake") > 0:
        db.execute("begin isolation level repeatable read")
        seen.append(column(db, RECEIVE, 10, None))
        db.execute("commit")
    assert seen[0] == ["1"]
    assert seen[1:] == [[]] * (len(seen) - 1)


def test_the_first_of_a_freed_key_is_acked_late_meanwhile(stage: Stage) -> None:
    """The claim that knows it as the first one does not get it; what waits behind it goes on."""
    db, claimer = stage.db, stage.session()
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, order="key")
    send(db, S, "1", "2", key="k")
    first = receive(db, S, C)
    assert extend(db, S, C, first, "0") == (2, 0)
    again = receive(db, S, C, 1)
    assert datas(again) == ["1"]
    send(db, S, "3", key="k")
    assert receive(db, S, C) == []  # parks it behind the second one
    assert ack(db, S, C, again) == (1, 0)
    point = "the first of freed keys are known"
    with stage.stopped(claimer, point, lambda: column(claimer, RECEIVE, 10, False)) as claimed:
        assert ack(db, S, C, first[1:]) == (1, 0)
    assert claimed.result() + stage.rest() == ["3"]


def test_a_lane_is_forgotten_after_the_gatherer_was_read(stage: Stage) -> None:
    """A receive in an open transaction adds lanes from where the gatherer was when it looked. One of them has been read
    before, and is forgotten now that the gatherer has passed it."""
    db, reader, adder = stage.db, stage.session(), stage.session()
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    send(db, S, "1", channel="x")
    tick(db, S)
    with reader.transaction():
        reader.execute("select pg_current_xact_id()")
        got = receive(reader, S, C)  # leaves the gatherer where it is
    assert datas(got) == ["1"]
    assert ack(db, S, C, got) == (1, 0)
    db.execute("update headgate.cursor set served_at = served_at - interval '1 hour' where lane >= 0")
    db.execute("update headgate.cursor set rate_since = rate_since - interval '1 hour' where lane = -1")

    def add() -> list[str]:
        with adder.transaction():
            adder.execute("select pg_current_xact_id()")
            return datas(receive(adder, S, C))

    with stage.stopped(adder, "the gatherer has read", add) as added:
        assert receive(db, S, C) == []
        assert value(db, "select headgate.forget_lanes(c) from headgate.consumer c") == 1
    assert added.result() == []
    assert stage.rest() == []


@pytest.mark.parametrize("lane_by", ["hash", "key"])
def test_the_last_two_of_a_batch_are_acked_at_once(stage: Stage, lane_by: str) -> None:
    """Neither ack sees the other, so that the row of the delivery stays. Nothing of it is in flight: the next worker of
    the lane goes on."""
    db, other = stage.db, stage.session()
    call(db, "create_stream", S, lanes=1, lane_by=lane_by)
    call(db, "create_consumer", S, C, leased=True)
    send(db, S, "1", "2", key="k")
    call(db, "join_workers", S, C, "a")
    got = receive(db, S, C, worker="a")
    assert datas(got) == ["1", "2"]
    with db.transaction(), other.transaction():
        assert ack(db, S, C, got[:1]) == (1, 0)
        assert ack(other, S, C, got[1:]) == (1, 0)
    call(db, "leave_workers", S, C, "a")
    assert call(db, "join_workers", S, C, "b") == [0]
    send(db, S, "3", key="k")
    assert datas(receive(db, S, C, worker="b")) == ["3"]


def test_a_heartbeat_that_takes_longer_than_the_lease(stage: Stage) -> None:
    """The worker counts as dead by then, and has no lanes; its next one joins again."""
    db, slow = stage.db, stage.session()
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, leased=True, lease_time="100 milliseconds")
    lasts = "select clock_timestamp() - query_start > interval '200 milliseconds' from pg_stat_activity where pid = %s"
    with stage.stopped(slow, "shares are held", lambda: call(slow, "heartbeat", S, C, "a")) as beat:
        while not value(db, lasts, slow.info.backend_pid):
            pass
    assert beat.result() == []
    while call(db, "heartbeat", S, C, "a") != [0]:
        pass


def test_a_dead_workers_lane_is_held_for_long(stage: Stage) -> None:
    """By its own transaction that hangs, for instance, until nobody remembers the worker. Then the lane goes on."""
    db, hanging = stage.db, stage.session()
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, leased=True, ack_wait="1 hour")
    send(db, S, "1", "2")
    call(db, "join_workers", S, C, "a")
    assert datas(receive(db, S, C, 1, "a")) == ["1"]
    with hanging.transaction(force_rollback=True):
        assert datas(receive(hanging, S, C, 1, "a")) == ["2"]
        db.execute("update headgate.worker set until = until - interval '1 hour'")
        assert call(db, "join_workers", S, C, "b") == [0]
    call(db, "heartbeat", S, C, "b")
    assert sorted(datas(receive(db, S, C, 10, "b"))) == ["1", "2"]


def test_lanes_are_changed_after_the_last_two_of_a_batch_were_acked_at_once(stage: Stage) -> None:
    """The row of their delivery does not keep the new lanes from being read until its deadline."""
    db, other = stage.db, stage.session()
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, order="key", ack_wait="1 hour")
    send(db, S, "1", "2", key="k")
    got = receive(db, S, C)
    with db.transaction(), other.transaction():
        assert ack(db, S, C, got[:1]) == (1, 0)
        assert ack(other, S, C, got[1:]) == (1, 0)
    call(db, "set_lanes", S, 2)
    send(db, S, "3", key="k")
    call(db, "maintain")
    assert stage.rest() == ["3"]
    assert value(db, "select count(*) from headgate.delivery") == 1
