"""Dead letters of a consumer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from ...database import statements
from ...types import DeadLetter
from ..http.errors import Problem
from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import Body, Count, DataLimit, Filter, Limit, Response, Seq, Text, fields_of
from .payloads import Eyes

routes = Routes()


class DeadQuery(Body):
    """How many, and after which; of one group alone; how much of their data."""

    limit: Limit = 100
    after: Seq = 0
    group: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    data_limit: DataLimit | None = None


class Dead(fields_of(DeadLetter), Response, omit_defaults=True):  # type: ignore[misc]
    """A message that failed too often. `cut`: the data is so long, and these are its first characters."""

    cut: int | None = None


class DeadGroup(Struct):
    """Dead letters with one error, without what differs in it. `complete`: there are no more than were looked at."""

    group: str
    letters: int
    first_at: datetime
    last_at: datetime
    last_error: str | None
    complete: bool


class ChosenDead(Body):
    """Which dead letters: those that fit all of what is given, the oldest first, or, asked for by name, all."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    filter: Filter | Text | None = None
    limit: Count | None = None
    all: bool = False


class Redriven(Struct):
    """How many dead letters were given back."""

    redriven: int


class Purged(Struct):
    """How many dead letters were thrown away."""

    purged: int


def _chosen(call: Call) -> ChosenDead:
    """Not all of them by accident, nor some and all."""
    chosen: ChosenDead = call.body
    if (chosen.seqs is not None or chosen.filter is not None or chosen.limit is not None) == chosen.all:
        raise Problem(
            422, "invalid_argument", "it is not said which dead letters", 'give seqs, filter or limit, or {"all": true}'
        )
    return chosen


@routes.route("GET", CONSUMER_PATH + "/dead", scope="monitor", query=DeadQuery, response=list[Dead])
async def list_dead(call: Call) -> list[Dead]:
    """The dead letters of a consumer, oldest first: all, or those of a group."""
    q: DeadQuery = call.query
    found = await call.server.hg.insights.dead_letters(
        call.stream, call.consumer, q.limit, after=q.after, group=q.group
    )
    eyes = Eyes.of(call)
    return [Dead.of(d, **eyes.look(d)) for d in found]


@routes.route("GET", CONSUMER_PATH + "/dead/groups", scope="monitor", response=list[DeadGroup])
async def list_dead_groups(call: Call) -> list[DeadGroup]:
    """The newest 100,000 dead letters by their error, without numbers, ids and what is in quotes; the most first."""
    rows = await call.server.hg.run(statements.DEAD_GROUPS, (call.stream, call.consumer))
    return [DeadGroup(*row) for row in rows]


@routes.route("POST", CONSUMER_PATH + "/dead/redrive", scope="admin", body=ChosenDead, response=Redriven)
async def redrive_dead(call: Call) -> Redriven:
    """Gives dead letters back to the consumer, as if never delivered: those chosen, or `{"all": true}`."""
    chosen = _chosen(call)
    consumer = await call.server.consumer(call.stream, call.consumer)
    count = await consumer.redrive(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit, all=chosen.all)
    call.server.polling.may_have_work(call.stream, call.consumer, count)
    return Redriven(count)


@routes.route("DELETE", CONSUMER_PATH + "/dead", scope="admin", body=ChosenDead, response=Purged)
async def purge_dead(call: Call) -> Purged:
    """Throws dead letters away: those chosen, or `{"all": true}`."""
    chosen = _chosen(call)
    consumer = await call.server.consumer(call.stream, call.consumer)
    return Purged(await consumer.purge_dead(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit, all=chosen.all))
