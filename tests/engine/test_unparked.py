"""What is parked is handed out at the moment at which another session gives it back or supersedes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest

from headgate.postgres.cluster import Cluster
from headgate.torture.environment.server import Environments, databases_on
from headgate.torture.meetings import points
from headgate.torture.meetings.worlds import WORLDS
from support.calls import Db, Received, ack, call, column, datas, drain, facts, nack, receive, send
from support.storage import create, end_segment, remove
from support.waiting import wait_until

TO_BE_READ = "a named lane is to be read"
KEYS_FLY = "it is known which keys fly"  # what is due is to be unparked
TAKEN = "what was parked is to be looked up"
TAKEN_NAMED = "what was parked in a named lane is to be looked up"
BURIED = "dead letters are to be sent"

LOSSES = "select reason from headgate.loss"


@pytest.fixture(scope="module")
def environments(cluster: Cluster) -> Iterator[Environments]:
    """Databases with the test build."""
    with databases_on(cluster.url(), points.stopping_build()) as made:
        yield made


@pytest.fixture
def url(environments: Environments) -> Iterator[str]:
    with environments(WORLDS["hash"]) as environment:
        yield environment.url


@pytest.fixture
def db(url: str) -> Iterator[Db]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@contextmanager
def stopped(url: str, point: str, work: Callable[[Db], list[Received]]) -> Iterator[list[Received]]:
    """Does the work in a session of its own, which stands at a point while the body runs; what it gives comes after."""
    got: list[Received] = []
    with ExitStack() as stack:
        own = stack.enter_context(psycopg.connect(url, autocommit=True))
        director = stack.enter_context(closing(points.Director(url)))
        own.execute("select set_config('torture.stop_at', %s, false)", [f"1 {point}"])
        director.shut()
        threads = stack.enter_context(ThreadPoolExecutor(1))
        done = threads.submit(work, own)
        try:
            assert director.see_stop(own.info.backend_pid, done.done)
            yield got
        finally:
            director.open()
        got.extend(done.result())


@pytest.mark.parametrize(("lane_by", "order"), [("hash", "none"), ("hash", "key"), ("key", "key"), ("channel", "key")])
def test_redriven(db: Db, url: str, lane_by: str, order: str) -> None:
    """A dead letter, whose message is gone from the log, is given back by a transaction that ends while a receive takes
    what else is parked in the lane."""
    create(db, lanes=1, lane_by=lane_by, retain="until_acked")
    call(db, "create_consumer", "s", "c", max_deliver=1, order=order)
    send(db, "s", "A", key="k")
    nack(db, "s", "c", receive(db, "s", "c"))
    remove(db, end_segment(db)["id"])
    send(db, "s", "X", key="k")
    call(db, "release", "s", "c", [m.ack_id for m in receive(db, "s", "c")])
    with psycopg.connect(url) as redriver:
        assert call(redriver, "redrive", "s", "c", all=True) == 1
        with stopped(url, KEYS_FLY, lambda own: receive(own, "s", "c")) as got:
            redriver.commit()
    ack(db, "s", "c", got)
    came = datas(got)
    wait_until(lambda: came.extend(drain(db, "s", "c")) or sorted(came) == ["A", "X"])
    assert column(db, LOSSES) == []


@pytest.mark.parametrize(
    ("lane_by", "point"),
    [("hash", point) for point in (KEYS_FLY, TAKEN)]
    + [(lane_by, point) for lane_by in ("key", "channel") for point in (TO_BE_READ, KEYS_FLY, TAKEN_NAMED)],
)
def test_superseded(db: Db, url: str, lane_by: str, point: str) -> None:
    """The newer version comes when older ones have been looked for: the old one is handed out or not, and not lost."""
    create(db, lanes=1, lane_by=lane_by, one_message_per_key=True, retain="until_acked")
    call(db, "create_consumer", "s", "c")
    send(db, "s", "A", key="k")
    call(db, "release", "s", "c", [m.ack_id for m in receive(db, "s", "c")])
    with stopped(url, point, lambda own: receive(own, "s", "c")) as got:
        send(db, "s", "B", key="k")
    ack(db, "s", "c", got)
    came = datas(got)
    wait_until(lambda: came.extend(drain(db, "s", "c")) or came in (["A", "B"], ["B"]))
    assert column(db, LOSSES) == []


def test_superseded_at_the_moment_of_the_last_nack(db: Db, url: str) -> None:
    create(db, one_message_per_key=True)
    call(db, "create_consumer", "s", "c", max_deliver=1)
    send(db, "s", "A", key="k")
    batch = receive(db, "s", "c")

    def fail(own: Db) -> list[Received]:
        assert nack(own, "s", "c", batch) == (1, 0)
        return []

    with stopped(url, BURIED, fail):
        send(db, "s", "B", key="k")
        assert column(db, "select data from headgate.message_1") == ["B"]
    assert (column(db, LOSSES), facts(db, "s", "c")["dead"]) == ([], 0)
    assert drain(db, "s", "c") == ["B"]
