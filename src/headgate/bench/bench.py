"""A run: which sides take part, where they work, and rounds in which they take turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from . import backlog
from .crew import Crew, Tally, Task
from .plan import Plan
from .server import Server
from .sides import Kind, Place

_numbers = itertools.count(1)


@dataclass
class Bench:
    """What every benchmark is given."""

    server: Server
    plan: Plan
    crew: Crew
    talk: Callable[[str], None]
    left: dict[Place, int] = field(default_factory=dict)  # messages that wait in a queue
    rates: dict[tuple[Place, int], float] = field(default_factory=dict)  # how fast it was consumed in the last round

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The queues that are compared."""
        return ("headgate", "pgmq_sql", "pgmq_client") if self.server.pgmq_url else ("headgate",)

    @contextmanager
    def queues(self, kinds: Iterable[Kind], *, spare: bool = False) -> Iterator[dict[str, Place]]:
        """A fresh queue of each kind, in the spare database on demand. If something fails they go with the database."""
        made: dict[str, Place] = {}
        for kind in kinds:
            url = self.server.pgmq_url if kind.startswith("pgmq") else self.server.headgate_url
            made[kind] = Place(kind, self.server.spare_url if spare else url or "", f"bench_{next(_numbers)}")
            backlog.create(made[kind])
        yield made
        self.crew.release()
        for place in made.values():
            backlog.drop(place)

    def rounds(self, places: dict[str, Place], measure: Callable[..., float], *args: int) -> dict[str, float]:
        """The median of `measure(place, *args)` for each place; they take turns, forwards and backwards."""
        found: dict[str, list[float]] = {name: [] for name in places}
        for number in range(self.plan.rounds):
            for name in sorted(places, reverse=number % 2 == 1):
                found[name].append(measure(places[name], *args))
        return {name: median(figures) for name, figures in found.items()}

    def publish(self, place: Place, batch: int, connections: int) -> float:
        """Messages a second, published."""
        tallies = self.crew.run([Task(place, "publish", batch, self.plan.seconds)] * connections)
        self.left[place] = self.left.get(place, 0) + sum(t.count for t in tallies)
        return sum(t.rate for t in tallies)

    def fill(self, place: Place, count: int) -> int:
        """Sees to it that `count` messages wait, as far as there is time; returns how many do."""
        missing = count - self.left.get(place, 0)
        filled = backlog.fill(place, missing, limit_seconds=self.plan.fill_seconds)
        self.left[place] = self.left.get(place, 0) + filled
        return self.left[place]

    def consume(self, place: Place, batch: int, workers: int, *, seconds: float | None = None) -> float:
        """Messages a second, received and acked; a backlog that lasts is put there first."""
        seconds = self.plan.seconds if seconds is None else seconds
        expected = self.rates.get((place, batch)) or _GUESSES["headgate" if place.kind == "headgate" else "pgmq"][batch]
        self.fill(place, int(expected * seconds * 1.4) + batch * workers * 10)
        tallies: list[Tally] = self.crew.run([Task(place, "consume", batch, seconds)] * workers)
        rate = sum(t.rate for t in tallies)
        taken = sum(t.count for t in tallies) + batch * workers * 8  # with what was taken to warm up
        self.left[place] = 0 if any(t.dry for t in tallies) else max(0, self.left[place] - taken)
        self.rates[place, batch] = max(rate, expected * 1.5 if any(t.dry for t in tallies) else 0)
        return rate


# Messages a second of a fast machine's workers, before the first round tells: too many are only left over.
_GUESSES = {
    "headgate": {1: 8_000, 10: 60_000, 100: 250_000, 1000: 400_000},
    "pgmq": {1: 4_000, 10: 16_000, 100: 60_000, 1000: 90_000},
}
