"""The benchmarks of the HTTP server, each with what it must reach."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import headgate

from ..contenders import Queue
from ..processes import Processes, Task
from ..results import Result, compare
from .load import Found, Load
from .replicas import Replica, replica

CLIENTS = 50
PUBLISHERS = 20  # of the clients; the others receive
BATCH = 10
CONSUMERS = ("c1", "c2", "c3")
SDK_CONNECTIONS = 4

_numbers = itertools.count(1)
_PARAMS: dict[str, int | str] = {"batch": BATCH, "clients": CLIENTS, "consumers": len(CONSUMERS)}


@dataclass(frozen=True)
class HttpPlan:
    """The size of a run."""

    rounds: int = 5
    seconds: float = 4.0  # of a round
    wakes: int = 500
    polls: int = 2000

    def scaled(self, factor: float) -> HttpPlan:
        """A smaller run, for tests."""
        if factor == 1:
            return self
        return replace(
            self, rounds=1, seconds=max(0.5, self.seconds * factor), wakes=max(10, int(self.wakes * factor)),
            polls=max(20, int(self.polls * factor)),
        )  # fmt: skip


FULL = HttpPlan()
QUICK = HttpPlan(rounds=3, seconds=1.5, wakes=150)


@dataclass
class HttpBench:
    """What every benchmark is given: a database, processes for clients, and servers on demand."""

    database: str
    plan: HttpPlan
    home: Path  # where the servers keep their token
    server: Replica
    clients: Processes
    sdk: Processes

    def stream(self, *consumers: str) -> str:
        """A fresh stream."""
        name = f"bench_{next(_numbers)}"
        with headgate.connect(self.database) as hg:
            stream = hg.stream(name, create=True)
            for consumer in consumers:
                stream.consumer(consumer, create=True)
        return name

    def replica(self, *, batching: bool = True, processes: int = 1) -> AbstractContextManager[Replica]:
        """Another server, as long as a benchmark needs it: it too has connections, and maintains."""
        return replica(self.database, self.home, batching=batching, processes=processes)

    def run(self, load: Load) -> Found:
        """What one process of clients found."""
        found: Found = self.clients.run([load])[0]
        return found


def traffic(bench: HttpBench) -> list[Result]:
    """Messages a second that come through: sent by some clients, and received and acked by others for each consumer."""
    stream = bench.stream(*CONSUMERS)
    server = bench.server
    load = Load(
        "traffic", server.url, server.token, stream, seconds=bench.plan.seconds, batch=BATCH,
        publishers=PUBLISHERS, receivers=(CLIENTS - PUBLISHERS) // len(CONSUMERS), consumers=CONSUMERS,
    )  # fmt: skip
    rounds = [bench.run(load) for _ in range(bench.plan.rounds)]
    figures = {"published": median(r.published for r in rounds)}
    for i, name in enumerate(CONSUMERS):
        figures[f"delivered to {name}"] = median(r.delivered[i] for r in rounds)
    return [
        Result("traffic", {"figure": name, **_PARAMS}, "msg/s", value, target=5000, target_is="value at least")
        for name, value in figures.items()
    ]


def processes(bench: HttpBench) -> list[Result]:
    """The same traffic through a server of two processes, in turns with one of one."""
    streams = {1: bench.stream(*CONSUMERS), 2: bench.stream(*CONSUMERS)}
    found: dict[int, list[float]] = {1: [], 2: []}
    with bench.replica(processes=2) as two:
        for _ in range(bench.plan.rounds * 2 + 1):
            for count, server in ((1, bench.server), (2, two)):
                load = Load(
                    "traffic", server.url, server.token, streams[count], seconds=bench.plan.seconds / 2, batch=BATCH,
                    publishers=PUBLISHERS, receivers=(CLIENTS - PUBLISHERS) // len(CONSUMERS), consumers=CONSUMERS,
                )  # fmt: skip
                found[count].append(bench.run(load).published)
    pairs = [two / one for one, two in zip(found[1], found[2], strict=True) if one]
    params: dict[str, int | str] = {"processes": 2, **_PARAMS}
    return [
        Result("processes", params, "msg/s", median(found[2]), baseline=median(found[1]), against="baseline",
               ratio=median(pairs) if pairs else None, target=1)
    ]  # fmt: skip


def single(bench: HttpBench) -> list[Result]:
    """Sends of one message over many connections, beside the same without batching and beside the SDK."""
    found: dict[str, list[float]] = {"headgate": [], "baseline": [], "sdk": []}
    # A machine that others use changes its speed all the time: many short rounds, each beside its like.
    stream, seconds = bench.stream(), bench.plan.seconds / 2
    queue = Queue("headgate", bench.database, bench.stream("workers"))
    with bench.replica(batching=False) as plain:
        for _ in range(bench.plan.rounds * 2 + 1):
            for name, server in (("headgate", bench.server), ("baseline", plain)):
                load = Load("single", server.url, server.token, stream, seconds=seconds, publishers=CLIENTS)
                found[name].append(bench.run(load).published)
            found["sdk"].append(_sdk(bench, queue, 1))
    params: dict[str, int | str] = {"batch": 1, "clients": CLIENTS}
    # What is compared was measured one after the other: the ratio is that of each pair, not of the medians.
    pairs = [on / off for on, off in zip(found["headgate"], found["baseline"], strict=True) if off]
    figures = {name: median(values) for name, values in found.items()}
    batched = Result(
        "single", params, "msg/s", figures["headgate"], baseline=figures["baseline"], against="baseline",
        ratio=median(pairs) if pairs else None, target=5,
    )  # fmt: skip
    probe = {"headgate": figures["headgate"], "baseline": figures["sdk"]}
    return [batched, compare("probe", {**params, "connections": SDK_CONNECTIONS}, probe, unit="msg/s",
                             against="baseline")]  # fmt: skip


def probe(bench: HttpBench) -> list[Result]:
    """Batches sent over HTTP, beside the same batches sent straight through the SDK."""
    queue = Queue("headgate", bench.database, bench.stream("workers"))
    http, sdk = [], []
    server = bench.server
    load = Load(
        "single", server.url, server.token, bench.stream(), seconds=bench.plan.seconds, batch=BATCH,
        publishers=CLIENTS,
    )  # fmt: skip
    for _ in range(bench.plan.rounds):
        http.append(bench.run(load).published)
        sdk.append(_sdk(bench, queue, BATCH))
    found = {"headgate": median(http), "baseline": median(sdk)}
    params: dict[str, int | str] = {"batch": BATCH, "clients": CLIENTS, "connections": SDK_CONNECTIONS}
    return [compare("probe", params, found, unit="msg/s", against="baseline")]


def wake(bench: HttpBench) -> list[Result]:
    """Milliseconds from the answer of a publish to the answer of a poll that waited for it."""
    results = []
    server = bench.server
    with bench.replica() as other:
        for through, sender in (("same", server), ("other", other)):
            load = Load(
                "wake", server.url, server.token, bench.stream("waiter"), consumers=("waiter",),
                count=bench.plan.wakes, other=sender.url,
            )  # fmt: skip
            times = sorted(seconds * 1000 for seconds in bench.run(load).times)
            for figure, share in (("p50", 0.5), ("p99", 0.99)):
                params: dict[str, int | str] = {"figure": figure, "replica": through}
                value = times[int(len(times) * share)]
                results.append(Result("wake", params, "ms", value, target=10, target_is="value at most"))
    return results


def polls(bench: HttpBench) -> list[Result]:
    """What polls that wait cost the server: its memory, and connections to the database."""
    count = bench.plan.polls
    consumers = tuple(f"c{i}" for i in range(10))
    bench.sdk.release()
    server = bench.server
    load = Load(
        "hold", server.url, server.token, bench.stream(*consumers), seconds=0.5, consumers=consumers,
        count=count, database=bench.database, pid=server.pid,
    )  # fmt: skip
    found = bench.run(load)
    params: dict[str, int | str] = {"waiting": count}
    return [
        Result("polls", {"figure": "memory", **params}, "MB", found.memory / 2**20, target=300,
               target_is="value at most"),
        Result("polls", {"figure": "connections", **params}, "connections", found.connections, target=10,
               target_is="value at most"),
    ]  # fmt: skip


def _sdk(bench: HttpBench, queue: Queue, batch: int) -> float:
    tallies = bench.sdk.run([Task(queue, "publish", batch, bench.plan.seconds)] * SDK_CONNECTIONS)
    return float(sum(t.rate for t in tallies))


BENCHMARKS: dict[str, Callable[[HttpBench], list[Result]]] = {
    "traffic": traffic,
    "processes": processes,
    "single": single,
    "probe": probe,
    "wake": wake,
    "polls": polls,
}
