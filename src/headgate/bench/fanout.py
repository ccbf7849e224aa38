"""One publisher, several consumers that each get everything.

A Headgate stream is written once and has any number of consumers. pgmq needs a queue per consumer; its topics write the
batch to all of them in one call, which is the fastest way that it has.
"""

from __future__ import annotations

from dataclasses import replace

from . import backlog
from .bench import Bench
from .contenders import Queue
from .plan import FANOUT
from .processes import Tally, Task
from .results import Result, compare

_BATCH = 100
_TARGET = 3.0


def fanout(bench: Bench) -> list[Result]:
    """Messages a second from the first send to the last ack of the last consumer."""
    consumers = {kind: _queues(bench, kind) for kind in bench.kinds}

    def measure(publisher: Queue) -> float:
        n = bench.plan.fanout_messages
        sent: list[Tally] = bench.processes.run([Task(publisher, "send", _BATCH, count=n)])
        drained: list[Tally] = bench.processes.run(
            [Task(queue, "drain", _BATCH, count=n) for queue in consumers[publisher.kind]]
        )
        return n / (sent[0].seconds + max(tally.seconds for tally in drained))

    found = bench.rounds({kind: of_kind[0] for kind, of_kind in consumers.items()}, measure)
    bench.processes.release()
    for queues in consumers.values():
        _drop(queues)
    params: dict[str, int | str] = {"batch": _BATCH, "consumers": FANOUT, "messages": bench.plan.fanout_messages}
    return [compare("fanout", params, found, unit="msg/s", against="pgmq", target=_TARGET)]


def _queues(bench: Bench, kind: str) -> list[Queue]:
    """A queue per consumer."""
    names = [f"consumer_{i}" for i in range(FANOUT)]
    if kind == "headgate":
        queue = Queue("headgate", bench.server.headgate_url, "fanout")
        backlog.create(queue, names)
        return [replace(queue, consumer=name) for name in names]
    queues = [
        Queue(
            "pgmq_sql" if kind == "pgmq_sql" else "pgmq_client", bench.server.pgmq_url or "", f"{kind}_{i}", topic=kind
        )
        for i in range(FANOUT)
    ]
    for queue in queues:
        backlog.create(queue)
    return queues


def _drop(queues: list[Queue]) -> None:
    for queue in queues if queues[0].kind != "headgate" else queues[:1]:
        backlog.drop(queue)
