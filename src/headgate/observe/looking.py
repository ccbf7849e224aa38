"""One look at everything: what is sent and delivered, each consumer with its trouble, and the streams."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from .. import trouble
from ..database import statements
from ..errors import Error
from ..http import looking as requests
from ..sync import Headgate
from ..types import ConsumerInfo, StreamInfo

MOST_ASKED = 1000  # that a server lists in one answer
MOST = 500  # streams, and consumers, that one look shows: a filter finds the others
TOTALS = ("streams", "consumers", "sent", "delivered", "lag", "in_flight", "parked", "dead")


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
    """What was seen at a moment. Of many streams and consumers those that come first, and how many there are."""

    at: datetime
    totals: dict[str, float]
    lines: list[Line]
    streams: list[StreamInfo]
    lines_found: int
    streams_found: int

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
            "streams": [
                {
                    "stream": s.name, "messages": s.messages, "bytes": s.bytes, "rate": s.rate,
                    "consumers": s.consumers, "dead_of": s.dead_of, "is_full": s.is_full,
                }
                for s in self.streams
            ],
        }  # fmt: skip


def look(hg: Headgate, sort: str = "trouble", search: str = "", most: int | None = MOST) -> Look:
    """Looks once, at so many (None: at all). The totals are of all, whatever is searched for."""
    if hg.http is not None:
        return _ask(hg, sort, search, most)
    streams, consumers = hg.insights.streams(), hg.insights.consumers()
    now = datetime.now(UTC)
    totals = {
        "streams": len(streams), "consumers": len(consumers), "sent": sum(s.rate or 0.0 for s in streams),
        "delivered": sum(c.rate for c in consumers), "lag": sum(c.lag for c in consumers),
        "in_flight": sum(c.in_flight for c in consumers), "parked": sum(c.parked for c in consumers),
        "dead": sum(c.dead for c in consumers),
    }  # fmt: skip
    lines = [line_of(c, now) for c in consumers]
    wanted = search.lower()
    lines = [line for line in lines if wanted in " ".join(line.name).lower()]
    streams = [s for s in streams if wanted in s.name.lower()]
    lines.sort(key=lambda line: _order(line, sort))
    return Look(now, totals, lines[:most], streams[:most], len(lines), len(streams))


def _ask(hg: Headgate, sort: str, search: str, most: int | None) -> Look:
    """The same from a server: all who look share one of its looks at the database."""
    assert hg.http is not None
    asked = requests.overview(search, sort, most or MOST_ASKED)
    [(totals, streams, streams_found, lines_found, consumers, at)] = hg.http.call(asked)
    after = 0
    while most is None and (after := after + MOST_ASKED) < max(streams_found, lines_found):
        [(_, some_streams, _, _, some_consumers, _)] = hg.http.call(requests.overview(search, sort, MOST_ASKED, after))
        streams, consumers = [*streams, *some_streams], [*consumers, *some_consumers]
    lines = [Line(ConsumerInfo(*row), trouble.Trouble(word, about), age) for row, word, about, age in consumers]
    totals = {name: totals[name] for name in TOTALS}
    seen_at = msgspec.convert(at, datetime)
    return Look(seen_at, totals, lines, [StreamInfo(*row) for row in streams], lines_found, streams_found)


def line_of(info: ConsumerInfo, at: datetime) -> Line:
    """A consumer as it is listed."""
    return Line(info, trouble.of(info, at), trouble.age(info, at))


def _order(line: Line, sort: str) -> tuple[Any, ...]:
    figures = {
        "trouble": (line.trouble.rank, -line.info.lag, -line.info.dead), "name": (), "lag": (-line.info.lag,),
        "age": (-(line.age or 0.0),), "rate": (-line.info.rate,), "dead": (-line.info.dead,),
    }  # fmt: skip
    return (*figures[sort], *line.name)


def past(hg: Headgate) -> list[tuple[float, float]]:
    """What was sent and delivered a second in the last minutes, as far as maintenance has noted it, oldest first.

    A token that is bound to some streams may not see it: then there is none.
    """
    try:
        rows = hg.run(statements.HISTORY, (None, None, "15 minutes"))
    except Error:
        return []
    return [(sent, delivered) for _, sent, _, delivered, *_ in rows if sent is not None and delivered is not None]


def may_act(hg: Headgate) -> bool:
    """Whether this caller may pause, resume and redrive."""
    return bool(hg.run(statements.MAY_ACT, ())[0][0])


def place(hg: Headgate) -> str:
    """Where it looks, without a password."""
    return repr(hg).partition(": ")[2][:-1]
