"""How long it takes to look: at a large stream of many channels, and at very many streams.

All of it is wall time of a call on a connection that has made a few before, as somebody sees it who looks, so that a
busy machine adds its share. Maintenance has taken its samples (docs/adr/0020) before many streams are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import psycopg

import headgate

from .bench import Bench
from .contenders import LaneSetup
from .results import Result

_CALLS = 20
_WARM_UPS = 2
_LOOK_MS = 50.0
_RECEIVES = 20  # of the large stream, so that it has messages in flight, parked and done

_CONSUMERS = ("a", "b", "c")
_LIST_MS, _STEP_MS, _FIRST_MS, _MEMORY_MB = 300.0, 100.0, 25.0, 300.0
_LEAST_STEPS = 20
_BLOCK = 50  # streams that one session makes: it keeps plans of each


def looking(bench: Bench) -> list[Result]:
    """Milliseconds of a look at a stream and its consumer, with many messages in many channels."""
    plan = bench.plan
    queue = bench.queue("headgate", lanes=LaneSetup("channel", plan.looked_channels))
    with bench.made({"headgate": queue}), headgate.connect(queue.url) as hg:
        waiting = bench.fill(queue, plan.looked_messages)
        stream, consumer = hg.stream(queue.name), hg.stream(queue.name).consumer(queue.consumer)
        for n in range(_RECEIVES):
            held = consumer.receive(100, wait=10)
            if n % 2:
                consumer.nack(held[::2], delay=3600, error="measured")
                consumer.ack(held[1::2])
        parked = consumer.peek(1, states=["parked"])
        failed = parked[0].seq if parked else 1
        looks: dict[str, Callable[[], Any]] = {
            "peek": consumer.peek,
            "peek parked": lambda: consumer.peek(states=["parked"]),
            "channels by size": consumer.channels,
            "channels by age": lambda: consumer.channels(sort="oldest"),
            "channels by name": lambda: consumer.channels(sort="name"),
            "consumer.info": consumer.info,
            "stream.info": stream.info,
            "message_life": lambda: stream.message_life(failed),
        }
        params: dict[str, int | str] = {"messages": waiting, "channels": plan.looked_channels}
        return [
            Result("looking", {"look": name, **params}, "ms", headgate=median(_times(look)), target=_LOOK_MS,
                   target_is="value at most")
            for name, look in looks.items()
        ]  # fmt: skip


def many_streams(bench: Bench) -> list[Result]:
    """What a server with very many streams asks of a listing, a first receive, a session's memory and maintenance."""
    n, url = bench.plan.streams, bench.server.spare_url
    names = [f"many_{i:05}" for i in range(n)]
    _make(url, names)
    first, memory = _use_all(url, names)
    with psycopg.connect(url, autocommit=True) as db:
        steps = _times(lambda: db.execute("select * from headgate.maintain()").fetchall(), max(_LEAST_STEPS, n // 5))
    with headgate.connect(url) as hg:
        listed = _times(hg.insights.consumers)
    params: dict[str, int | str] = {"streams": n, "consumers": len(_CONSUMERS)}
    found = [
        ("first receive, p95", "ms", quantiles(first, n=20)[-1], _FIRST_MS),
        ("list with lag", "ms", median(listed), _LIST_MS),
        ("maintain, p95", "ms", quantiles(steps, n=20)[-1], _STEP_MS),
        *([("memory of a session", "MB", memory, _MEMORY_MB)] if memory is not None else []),
    ]
    return [
        Result("streams", {"figure": figure, **params}, unit, headgate=value, target=target, target_is="value at most")
        for figure, unit, value, target in found
    ]


def _make(url: str, names: Sequence[str]) -> None:
    """Makes the streams, a block of them in each session. They go with the database: that is quicker."""
    for i in range(0, len(names), _BLOCK):
        with headgate.connect(url) as hg:
            for name in names[i : i + _BLOCK]:
                stream = hg.stream(name, create=True)
                for consumer in _CONSUMERS:
                    stream.consumer(consumer, create=True)
                stream.send_batch(["x"] * 4, key="k")


def _use_all(url: str, names: Sequence[str]) -> tuple[list[float], float | None]:
    """One session sends to each stream, and each consumer receives, acks and finds nothing more: how long each
    first receive took, in ms, and what the session keeps afterwards, in MB (None where it may not be known)."""
    first = []
    with psycopg.connect(url, autocommit=True) as db:
        receive = "select ack_id from headgate.receive(%s, %s, 10, 'w', %s::text[], false)"
        for name in names:
            db.execute("select headgate.send(%s, 'x', 'k')", (name,))
            for consumer in _CONSUMERS:
                start = perf_counter()
                got = [row[0] for row in db.execute(receive, (name, consumer, None))]
                if consumer == _CONSUMERS[0]:
                    first.append((perf_counter() - start) * 1000)
                db.execute(receive, (name, consumer, got)).fetchall()
        try:
            row = db.execute("select sum(total_bytes)::bigint from pg_backend_memory_contexts").fetchone()
        except psycopg.errors.InsufficientPrivilege:
            return first, None
    return first, int(row[0]) / 2**20 if row else None


def _times(call: Callable[[], Any], count: int = _CALLS) -> list[float]:
    """Milliseconds of each of some calls, after some that warm up."""
    took = []
    for _ in range(_WARM_UPS + count):
        start = perf_counter()
        call()
        took.append((perf_counter() - start) * 1000)
    return took[_WARM_UPS:]
