"""Publishing, and consuming a backlog."""

from __future__ import annotations

from .bench import Bench
from .results import Result, compare

_PUBLISH = {(100, 1): 1.8}  # batch, connections: at least that many times pgmq
_PUBLISH_OF_COPY = {(1000, 1): 0.75}
_CONSUME = {(10, 4): 5.0, (100, 4): 4.0}  # batch, workers


def publish(bench: Bench) -> list[Result]:
    """Messages a second that are sent and committed."""
    results = []
    for connections in bench.plan.connections:
        for batch in bench.plan.batches:
            copied = batch == 1000 and bench.server.pgmq_url is not None
            with bench.queues([*bench.kinds, "copy"] if copied else bench.kinds) as places:
                found = bench.rounds(places, bench.publish, batch, connections)
            params: dict[str, int | str] = {"batch": batch, "connections": connections}
            target = _PUBLISH.get((batch, connections))
            results.append(compare("publish", params, found, unit="msg/s", against="pgmq", target=target))
            if copied:
                target = _PUBLISH_OF_COPY.get((batch, connections))
                results.append(compare("publish", params, found, unit="msg/s", against="copy", target=target))
    return results


def consume(bench: Bench) -> list[Result]:
    """Messages a second that are received and acked, out of a backlog."""
    results = []
    for workers in bench.plan.workers:
        for batch in bench.plan.batches:
            with bench.queues(bench.kinds) as places:
                found = bench.rounds(places, bench.consume, batch, workers)
            params: dict[str, int | str] = {"batch": batch, "workers": workers}
            target = _CONSUME.get((batch, workers))
            results.append(compare("consume", params, found, unit="msg/s", against="pgmq", target=target))
    return results
