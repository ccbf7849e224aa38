"""One publisher, several consumers that each get everything.

A Headgate stream is written once and has any number of consumers. pgmq needs a queue per consumer; its topics write the
batch to all of them in one call, which is the fastest way that it has.
"""

from __future__ import annotations

from dataclasses import replace

from . import backlog
from .bench import Bench
from .crew import Tally, Task
from .plan import FANOUT
from .results import Result, compare
from .sides import Place

_BATCH = 100
_TARGET = 3.0


def fanout(bench: Bench) -> list[Result]:
    """Messages a second from the first send to the last ack of the last consumer."""
    consumers = {kind: _places(bench, kind) for kind in bench.kinds}

    def measure(publisher: Place) -> float:
        n = bench.plan.fanout_messages
        sent: list[Tally] = bench.crew.run([Task(publisher, "send", _BATCH, count=n)])
        drained: list[Tally] = bench.crew.run(
            [Task(place, "drain", _BATCH, count=n) for place in consumers[publisher.kind]]
        )
        return n / (sent[0].seconds + max(tally.seconds for tally in drained))

    found = bench.rounds({kind: places[0] for kind, places in consumers.items()}, measure)
    bench.crew.release()
    for places in consumers.values():
        _drop(places)
    params: dict[str, int | str] = {"batch": _BATCH, "consumers": FANOUT, "messages": bench.plan.fanout_messages}
    return [compare("fanout", params, found, unit="msg/s", against="pgmq", target=_TARGET)]


def _places(bench: Bench, kind: str) -> list[Place]:
    """A place per consumer."""
    names = [f"consumer_{i}" for i in range(FANOUT)]
    if kind == "headgate":
        place = Place("headgate", bench.server.headgate_url, "fanout")
        backlog.create(place, names)
        return [replace(place, consumer=name) for name in names]
    queues = [
        Place(
            "pgmq_sql" if kind == "pgmq_sql" else "pgmq_client", bench.server.pgmq_url or "", f"{kind}_{i}", topic=kind
        )
        for i in range(FANOUT)
    ]
    for place in queues:
        backlog.create(place)
    return queues


def _drop(places: list[Place]) -> None:
    for place in places if places[0].kind != "headgate" else places[:1]:
        backlog.drop(place)
