"""A run: which contenders take part, where they work, and rounds in which they take turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from . import backlog
from .contenders import Acks, Kind, LaneSetup, Queue, Read
from .plan import BenchPlan
from .processes import Processes, Tally, Task
from .server import BenchServer

_numbers = itertools.count(1)


@dataclass
class Bench:
    """What every benchmark is given."""

    server: BenchServer
    plan: BenchPlan
    processes: Processes
    talk: Callable[[str], None]
    left: dict[Queue, int] = field(default_factory=dict)  # messages that wait in a queue
    filled: dict[Queue, int] = field(default_factory=dict)  # messages that were ever put there to wait
    rates: dict[tuple[Queue, int], float] = field(default_factory=dict)  # how fast it was consumed in the last round

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The queues that are compared."""
        return ("headgate", "pgmq_sql", "pgmq_client") if self.server.pgmq_url else ("headgate",)

    def queue(
        self,
        kind: Kind,
        *,
        spare: bool = False,
        lanes: LaneSetup | None = None,
        read: Read = "read",
        by_sql: Acks | None = None,
    ) -> Queue:
        """Where a queue can be made, in the spare database on demand."""
        url = self.server.pgmq_url if kind.startswith("pgmq") else self.server.headgate_url
        url = self.server.spare_url if spare else url or ""
        return Queue(kind, url, f"bench_{next(_numbers)}", lanes=lanes, read=read, by_sql=by_sql)

    @contextmanager
    def made(self, queues: dict[str, Queue]) -> Iterator[dict[str, Queue]]:
        """Makes the queues, and drops them at the end. If something fails they go with the database."""
        for queue in queues.values():
            backlog.create(queue)
        yield queues
        self.processes.release()
        for queue in queues.values():
            backlog.drop(queue)

    @contextmanager
    def queues(self, kinds: Iterable[Kind], *, spare: bool = False) -> Iterator[dict[str, Queue]]:
        """A fresh queue of each kind."""
        with self.made({kind: self.queue(kind, spare=spare) for kind in kinds}) as made:
            yield made

    def rounds(self, queues: dict[str, Queue], measure: Callable[..., float], *args: int) -> dict[str, float]:
        """The median of `measure(queue, *args)` for each queue; they take turns, forwards and backwards."""
        found: dict[str, list[float]] = {name: [] for name in queues}
        for number in range(self.plan.rounds):
            for name in sorted(queues, reverse=number % 2 == 1):
                found[name].append(measure(queues[name], *args))
        return {name: median(figures) for name, figures in found.items()}

    def publish(self, queue: Queue, batch: int, connections: int) -> float:
        """Messages a second, published."""
        tallies: list[Tally] = self.processes.run([Task(queue, "publish", batch, self.plan.seconds)] * connections)
        self.left[queue] = self.left.get(queue, 0) + sum(t.count for t in tallies)
        return sum(t.rate for t in tallies)

    def fill(self, queue: Queue, count: int) -> int:
        """Sees to it that `count` messages wait, as far as there is time; returns how many do."""
        missing, start = count - self.left.get(queue, 0), self.filled.get(queue, 0)
        filled = backlog.fill(queue, missing, start=start, limit_seconds=self.plan.fill_seconds)
        self.filled[queue] = start + filled
        self.left[queue] = self.left.get(queue, 0) + filled
        return self.left[queue]

    def consume(self, queue: Queue, batch: int, workers: int, *, seconds: float | None = None) -> float:
        """Messages a second, received and acked; a backlog that lasts is put there first."""
        tallies = self._consume(queue, batch, workers, self.plan.seconds if seconds is None else seconds)
        return sum(t.rate for t in tallies)

    def receive_time(self, queue: Queue, batch: int, workers: int) -> float:
        """Milliseconds that a receive takes (with the acks of the batch before): the median."""
        tallies = self._consume(queue, batch, workers, self.plan.seconds)
        return median(seconds for t in tallies for seconds in t.calls) * 1000

    def drain(self, queue: Queue, workers: int = 4) -> None:
        """Consumes all there is."""
        task = Task(queue, "consume", 100, _DRAIN_SECONDS)
        while any(tally.count for tally in self.processes.run([task] * workers)):
            pass
        self.left[queue] = 0

    def _consume(self, queue: Queue, batch: int, workers: int, seconds: float) -> list[Tally]:
        guesses = _GUESSES["headgate" if queue.kind == "headgate" else "pgmq", queue.lanes is not None]
        expected = self.rates.get((queue, batch)) or guesses[batch]
        # at the end, too, something waits in each named lane
        names = queue.lanes.count if queue.lanes else 0
        self.fill(queue, int(expected * seconds * 1.4) + batch * workers * 10 + names)
        lasts = queue.read != "read"  # pgmq's grouped reads hide the groups that others look at
        tallies: list[Tally] = self.processes.run([Task(queue, "consume", batch, seconds, lasts=lasts)] * workers)
        rate = sum(t.rate for t in tallies)
        taken = sum(t.count for t in tallies) + batch * workers * 8  # with what was taken to warm up
        self.left[queue] = 0 if any(t.dry for t in tallies) else max(0, self.left[queue] - taken)
        self.rates[queue, batch] = max(rate, expected * 1.5 if any(t.dry for t in tallies) else 0)
        return tallies


_DRAIN_SECONDS = 60.0
# Messages a second of a fast machine's workers, before the first round tells: too many are only left over. By
# contender, and whether lanes are named.
_GUESSES = {
    ("headgate", False): {1: 8_000, 10: 60_000, 100: 250_000, 1000: 400_000},
    ("headgate", True): {10: 15_000, 100: 60_000},
    ("pgmq", False): {1: 4_000, 10: 16_000, 100: 60_000, 1000: 90_000},
    ("pgmq", True): {100: 1_000},
}
