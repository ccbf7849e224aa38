"""Publishing, and consuming a backlog."""

from __future__ import annotations

from .bench import Bench
from .contenders import Acks, Queue
from .results import Result, compare

_PUBLISH = 0.9  # at least that many times pgmq
_PUBLISH_OF_COPY = 0.8  # with one connection
_CONSUME = {(10, 4): 3.0, (100, 4): 5.0}  # batch, workers
_SQL = {10: 1.6, 100: 2.5}  # batch
_SQL_CONNECTIONS = 4
_ACKS: tuple[Acks, ...] = ("with receive", "apart")


def publish(bench: Bench) -> list[Result]:
    """Messages a second that are sent and committed."""
    results = []
    for connections in bench.plan.connections:
        for batch in bench.plan.batches:
            copied = batch == 1000 and bench.server.pgmq_url is not None
            with bench.queues([*bench.kinds, "copy"] if copied else bench.kinds) as queues:
                found = bench.rounds(queues, bench.publish, batch, connections)
            params: dict[str, int | str] = {"batch": batch, "connections": connections}
            results.append(compare("publish", params, found, unit="msg/s", against="pgmq", target=_PUBLISH))
            if copied:
                target = _PUBLISH_OF_COPY if connections == 1 else None
                results.append(compare("publish", params, found, unit="msg/s", against="copy", target=target))
    return results


def consume(bench: Bench) -> list[Result]:
    """Messages a second that are received and acked, out of a backlog."""
    results = []
    for workers in bench.plan.workers:
        for batch in bench.plan.batches:
            with bench.queues(bench.kinds) as queues:
                found = bench.rounds(queues, bench.consume, batch, workers)
            params: dict[str, int | str] = {"batch": batch, "workers": workers}
            target = _CONSUME.get((batch, workers))
            results.append(compare("consume", params, found, unit="msg/s", against="pgmq", target=target))
    return results


def by_sql(bench: Bench) -> list[Result]:
    """Messages a second by plain SQL: received, acked by the name of each message, and committed durably.

    pgmq reads in one call and deletes in another. Headgate takes the acks with the next receive; that they can be a
    call of their own, too, is measured beside it.
    """
    results = []
    for batch, target in _SQL.items():
        queues: dict[str, Queue] = {acks: bench.queue("headgate", by_sql=acks) for acks in _ACKS}
        if bench.server.pgmq_url:
            queues["pgmq_sql"] = bench.queue("pgmq_sql")
        with bench.made(queues):
            found = bench.rounds(queues, bench.consume, batch, _SQL_CONNECTIONS)
        for acks in _ACKS:
            figures = {"headgate": found[acks]} | {name: found[name] for name in ("pgmq_sql",) if name in found}
            params: dict[str, int | str] = {"acks": acks, "batch": batch, "workers": _SQL_CONNECTIONS}
            judged = target if acks == "with receive" else None
            results.append(compare("sql", params, figures, unit="msg/s", against="pgmq", target=judged))
    return results
