"""What a deep backlog and a long transaction of somebody else do to the speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import psycopg

import headgate

from .bench import Bench
from .contenders import Kind, Queue
from .results import Result, compare

_WORKERS = 4
_DEEP_TARGET = 0.85
_PINNED_TARGET = 0.8
_PINNED_BATCHES = (10, 100)


def deep_backlog(bench: Bench) -> list[Result]:
    """The speed while millions of messages wait, over the speed with few."""
    results = []
    for kind in _enduring(bench):
        with bench.queues([kind]) as deep, bench.queues([kind]) as shallow:
            queues: dict[str, Queue] = {kind: deep[kind], "baseline": shallow[kind]}
            waiting = bench.fill(deep[kind], bench.plan.deep_messages)
            bench.talk(f"backlog: {waiting:,} messages wait")
            received = bench.rounds(queues, bench.consume, 100, _WORKERS)
            published = bench.rounds(queues, bench.publish, 100, 1)
        for work, found in (("receive", received), ("publish", published)):
            params: dict[str, int | str] = {"of": kind, "work": work, "batch": 100, "waiting": waiting}
            results.append(_alone("backlog", params, found, _DEEP_TARGET))
    return results


def pinned_snapshot(bench: Bench) -> list[Result]:
    """The speed at the end of a minute in which a session held a snapshot open, over the speed in another database.

    A snapshot holds up vacuum in its own database only, so both can be sampled in turns. Workers that take one message
    a time fill that minute: bloat comes from the number of batches, not of messages.
    """
    results = []
    for kind in _enduring(bench):
        with bench.queues([kind]) as pinned, bench.queues([kind], spare=True) as free, _maintained(bench):
            queues: dict[str, Queue] = {kind: pinned[kind], "baseline": free[kind]}
            with _pin(pinned[kind].url):
                opened = monotonic()
                samples = 2 * bench.plan.rounds * len(_PINNED_BATCHES) * bench.plan.seconds
                while (left := bench.plan.pin_seconds - samples - (monotonic() - opened)) > 0:
                    bench.consume(pinned[kind], 1, _WORKERS, seconds=min(left, 10))
                found = {batch: bench.rounds(queues, bench.consume, batch, _WORKERS) for batch in _PINNED_BATCHES}
        for batch in _PINNED_BATCHES:
            params: dict[str, int | str] = {"of": kind, "batch": batch, "workers": _WORKERS}
            results.append(_alone("pinned", params, found[batch], _PINNED_TARGET))
    return results


def _enduring(bench: Bench) -> tuple[Kind, ...]:
    """Headgate, and pgmq in a run that has the time."""
    return ("headgate", "pgmq_sql") if bench.plan.pgmq_endures and bench.server.pgmq_url else ("headgate",)


def _alone(name: str, params: dict[str, int | str], found: dict[str, float], target: float) -> Result:
    """A contender compared with itself. What pgmq reaches is for information: the target is Headgate's."""
    own = params["of"] == "headgate"
    return compare(name, params, found, unit="msg/s", against="baseline", target=target if own else None)


@contextmanager
def _pin(url: str) -> Iterator[None]:
    """Another session's REPEATABLE READ transaction: vacuum can remove nothing that it might still see."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1")
        yield


@contextmanager
def _maintained(bench: Bench) -> Iterator[None]:
    """Maintenance about every second, as the service does it."""
    ended = threading.Event()

    def maintain() -> None:
        with headgate.connect(bench.server.headgate_url) as hg, headgate.connect(bench.server.spare_url) as spare:
            while not ended.wait(1):
                for database in (hg, spare):
                    with suppress(headgate.errors.Conflict, headgate.errors.ConnectionFailed):
                        database.maintain()

    thread = threading.Thread(target=maintain, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)
