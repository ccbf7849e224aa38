"""One look at everything: what is sent and delivered, and each consumer with its trouble."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .. import trouble
from ..sync import Headgate
from ..types import ConsumerInfo


@dataclass(frozen=True)
class Line:
    """A consumer as it is listed."""

    info: ConsumerInfo
    trouble: trouble.Trouble
    age: float | None

    @property
    def name(self) -> tuple[str, str]:
        """Its stream and its own name."""
        return self.info.stream, self.info.name


@dataclass(frozen=True)
class Look:
    """What was seen at a moment."""

    at: datetime
    totals: dict[str, float]
    lines: list[Line]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "at": self.at.isoformat(),
            "totals": self.totals,
            "consumers": [
                {
                    "stream": line.info.stream, "consumer": line.info.name, "trouble": line.trouble.word,
                    "about": line.trouble.about, "lag": line.info.lag, "unread": line.info.unread,
                    "in_flight": line.info.in_flight, "parked": line.info.parked, "dead": line.info.dead,
                    "rate": line.info.rate, "age": line.age, "paused": line.info.paused,
                }
                for line in self.lines
            ],
        }  # fmt: skip


def look(hg: Headgate, sort: str = "trouble", search: str = "") -> Look:
    """Looks once. The totals are of all, whatever is searched for."""
    streams, consumers = hg.insights.streams(), hg.insights.consumers()
    now = datetime.now(UTC)
    totals = {
        "streams": len(streams), "consumers": len(consumers), "sent": sum(s.rate or 0.0 for s in streams),
        "delivered": sum(c.rate for c in consumers), "lag": sum(c.lag for c in consumers),
        "in_flight": sum(c.in_flight for c in consumers), "parked": sum(c.parked for c in consumers),
        "dead": sum(c.dead for c in consumers),
    }  # fmt: skip
    lines = [Line(c, trouble.of(c, now), trouble.age(c, now)) for c in consumers]
    wanted = search.lower()
    lines = [line for line in lines if wanted in " ".join(line.name).lower()]
    return Look(now, totals, sorted(lines, key=lambda line: _order(line, sort)))


def _order(line: Line, sort: str) -> tuple[Any, ...]:
    figures = {
        "trouble": (line.trouble.rank, -line.info.lag, -line.info.dead), "name": (), "lag": (-line.info.lag,),
        "age": (-(line.age or 0.0),), "rate": (-line.info.rate,), "dead": (-line.info.dead,),
    }  # fmt: skip
    return (*figures[sort], *line.name)
