"""What a deep backlog and a long transaction of somebody else do to the speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import psycopg

import headgate

from .bench import Bench
from .results import Result, compare
from .sides import Kind, Place

_WORKERS = 4
_DEEP_TARGET = 0.85
_PINNED_TARGET = 0.8
_PINNED_BATCHES = (10, 100)


def deep_backlog(bench: Bench) -> list[Result]:
    """The speed while millions of messages wait, over the speed with few."""
    results = []
    for kind in _enduring(bench):
        with bench.queues([kind]) as deep, bench.queues([kind]) as shallow:
            places = {"headgate": deep[kind], "baseline": shallow[kind]}
            waiting = bench.fill(deep[kind], bench.plan.deep_messages)
            bench.talk(f"backlog: {waiting:,} messages wait")
            received = bench.rounds(places, lambda place: bench.consume(place, 100, _WORKERS))
            published = bench.rounds(places, lambda place: bench.publish(place, 100, 1))
        for work, found in (("receive", received), ("publish", published)):
            params: dict[str, int | str] = {"of": kind, "work": work, "batch": 100, "waiting": waiting}
            results.append(_alone("backlog", params, found, _DEEP_TARGET))
    return results


def pinned_snapshot(bench: Bench) -> list[Result]:
    """The speed at the end of a minute in which a session held a snapshot open, over the speed before.

    Workers that take one message a time fill that minute: bloat comes from the number of batches, not of messages.
    """
    results = []
    for kind in _enduring(bench):
        with bench.queues([kind]) as places, _maintained(bench):
            place = places[kind]
            before = _sample(bench, place)
            with _pin(place.url):
                samples = bench.plan.rounds * len(_PINNED_BATCHES) * bench.plan.seconds
                opened = monotonic()
                while (left := bench.plan.pin_seconds - samples - (monotonic() - opened)) > 0:
                    bench.consume(place, 1, _WORKERS, seconds=min(left, 10))
                under = _sample(bench, place)
        for batch in _PINNED_BATCHES:
            params: dict[str, int | str] = {"of": kind, "batch": batch, "workers": _WORKERS, "seconds": int(bench.plan.pin_seconds)}
            results.append(_alone("pinned", params, {"headgate": under[batch], "baseline": before[batch]}, _PINNED_TARGET))
    return results


def _enduring(bench: Bench) -> tuple[Kind, ...]:
    """Headgate, and pgmq in a run that has the time."""
    return ("headgate", "pgmq_sql") if bench.plan.pgmq_endures and bench.server.pgmq_url else ("headgate",)


def _alone(name: str, params: dict[str, int | str], found: dict[str, float], target: float) -> Result:
    """A side compared with itself. What pgmq reaches is for information: the target is Headgate's."""
    own = params["of"] == "headgate"
    return compare(name, params, found, unit="msg/s", against="baseline", target=target if own else None)


def _sample(bench: Bench, place: Place) -> dict[int, float]:
    """The speed of each batch size; they take turns. The backlog for all of it is there before."""
    found: dict[int, list[float]] = {batch: [] for batch in _PINNED_BATCHES}
    for _ in range(bench.plan.rounds):
        for batch in _PINNED_BATCHES:
            bench.rates.pop(place, None)
            found[batch].append(bench.consume(place, batch, _WORKERS))
    return {batch: sorted(figures)[len(figures) // 2] for batch, figures in found.items()}


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
        with headgate.connect(bench.server.headgate_url) as hg:
            while not ended.wait(1):
                with suppress(headgate.Conflict):
                    hg.maintain()

    thread = threading.Thread(target=maintain, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)
