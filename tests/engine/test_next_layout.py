"""What meets a consumer that goes over from the lanes of one layout to those of the next: nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
from psycopg import errors

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.torture.environment.server import databases_on
from headgate.torture.meetings import points
from headgate.torture.meetings.worlds import WORLDS
from support.calls import Db, ack, call, column, drain, nack, receive, send, value
from support.waiting import wait_until

S, C = "s", "c"
MAINTAIN = "select task from headgate.maintain()"
BLOCKED = "select pg_blocking_pids(%s) <> '{}'"
HAS_ID = "select backend_xid is not null from pg_stat_activity where pid = %s"


class Stage:
    """A database of the test build, and one session that is stopped."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url, self.stack = url, stack
        self.director = stack.enter_context(closing(points.Director(url)))
        self.threads = stack.enter_context(ThreadPoolExecutor(1))

    def connect(self) -> Db:
        return self.stack.enter_context(psycopg.connect(self.url, autocommit=True))

    def stop(self, session: Db, point: str, query: str, nth: int = 1) -> Future[list[str]]:
        session.execute("select set_config('torture.stop_at', %s, false)", [f"{nth} {point}"])
        self.director.shut()
        ended = self.threads.submit(column, session, query)
        assert self.director.see_stop(session.info.backend_pid, ended.done)
        return ended


@contextmanager
def on_stage(cluster: Cluster) -> Iterator[Stage]:
    with databases_on(cluster.url(), points.stopping_build(schema.install_sql())) as environments, ExitStack() as stack:
        yield Stage(stack.enter_context(environments(WORLDS["keys"])).url, stack)


@pytest.mark.parametrize("how", ["redrive", "replay"])
@pytest.mark.parametrize("point", ["the cursors of a layout are held", "nothing of a layout is in flight"])
def test_given_back_meanwhile(cluster: Cluster, point: str, how: str) -> None:
    with on_stage(cluster) as stage:
        db, mover, giver = stage.connect(), stage.connect(), stage.connect()
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, C, order="key", max_deliver=1)
        (seq,) = send(db, S, "1", key="k")
        got = receive(db, S, C)
        if how == "redrive":
            nack(db, S, C, got)
        else:
            ack(db, S, C, got)
        call(db, "set_lanes", S, 2)
        moved = stage.stop(mover, point, MAINTAIN)
        # it does not know yet where the consumer will be
        with pytest.raises(errors.LockNotAvailable, match="cannot be") as refused, giver.transaction():
            call(giver, how, S, C, seqs=[seq])
            stage.director.open()  # (it did: the other goes on, and does not see what was parked)
            moved.result()
        assert "repeat the call" in str(refused.value.diag.message_hint)
        stage.director.open()
        moved.result()
        call(giver, how, S, C, seqs=[seq])
        assert drain(db, S, C) == ["1"]


def seed_of(db: Db, streams: list[str]) -> float:
    """What makes maintenance take the streams by chance in this order."""
    for seed in range(100):
        db.execute("select setseed(%s)", [seed / 100])
        if column(db, "select name from headgate.stream s order by random() limit 500") == streams:
            return seed / 100
    raise AssertionError("chance does not give them in this order")


def test_written_by_one_that_is_younger_than_the_tick(cluster: Cluster) -> None:
    """Maintenance makes the ticks of many streams in one transaction, whose id may be older than that of one that has
    begun to write in the old lanes by then: such a tick does not tell that all of those have ended."""
    with on_stage(cluster) as stage:
        db, writer, keeper, mover, other = (stage.connect() for _ in range(5))
        threads = stage.stack.enter_context(ThreadPoolExecutor(1))
        call(db, "create_stream", "a")
        call(db, "create_stream", S, lanes=1, one_message_per_key=True)
        call(db, "create_consumer", S, C)
        send(db, S, "0", key="k")
        assert drain(db, S, C) == ["0"]
        with writer.transaction():
            with keeper.transaction():  # the writer knows its lane, and has no id yet
                keeper.execute("lock table headgate.message_id in share mode")
                sent = threads.submit(call, writer, "send", S, "late", "k2", id="x")
                wait_until(lambda: value(db, BLOCKED, writer.info.backend_pid))
                call(db, "set_lanes", S, 2)
                send(db, "a", "1")
                send(db, S, "1", key="k1")
                mover.execute("select setseed(%s)", [seed_of(db, ["a", S])])
                moved = stage.stop(mover, "a tick has its hi0", MAINTAIN, 2)
                assert value(db, HAS_ID, mover.info.backend_pid)
            sent.result()
            writer.execute("select")  # (an answer that may still be fetched keeps its snapshot)
            column(other, MAINTAIN)  # finds that nobody can begin to write there any more
            stage.director.open()
            moved.result()
            for _ in range(3):
                drained = drain(db, S, C)
                column(other, MAINTAIN)
                assert drained in (["1"], [])
        assert drain(db, S, C) == ["late"]
