"""How long after its commit a message is in its worker's hands."""

from __future__ import annotations

from statistics import median

from .bench import Bench
from .contenders import Queue
from .plan import RATE
from .processes import Task
from .results import Result, compare

_BATCH = 100
_TARGETS = {"p50": 1.5, "p99": 1.5, "max": None}  # at most so many times pgmq


def latency(bench: Bench) -> list[Result]:
    """Milliseconds from the commit's confirmation to the handler, at a fixed rate: one publisher, one worker."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in _TARGETS}
    with bench.queues(bench.kinds) as queues:
        for _ in range(bench.plan.rounds):
            for kind, queue in queues.items():
                for name, figure in _measure(bench, queue).items():
                    found[name].setdefault(kind, []).append(figure)
    results = []
    for name, target in _TARGETS.items():
        figures = {kind: median(values) for kind, values in found[name].items()}
        results.append(
            compare("latency", {"figure": name, "rate": RATE}, figures, unit="ms", against="pgmq", target=target,
                    target_is="ratio at most")
        )  # fmt: skip
    return results


def _measure(bench: Bench, queue: Queue) -> dict[str, float]:
    seconds = bench.plan.latency_seconds
    sent, received = bench.processes.run([Task(queue, "pace", 1, seconds), Task(queue, "follow", _BATCH, seconds)])
    # A message can arrive before its publisher hears that the commit is through.
    waits = sorted(max(0.0, received.times[i] - at) * 1000 for i, at in sent.times.items() if i in received.times)
    if sent.count < seconds * RATE * 0.9:
        bench.talk(f"latency: {queue.kind} published only {sent.rate:.0f} of {RATE} messages a second")
    return {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)], "max": waits[-1]}
