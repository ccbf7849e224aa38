"""Dead letters of a consumer."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...types import DeadLetter
from ..http.call import Call
from ..http.errors import Problem
from ..http.routing import Routes
from .consumers import CONSUMER_PATH
from .fields import Body, Count, Filter, Limit, Response, Seq, Text, fields_of

routes = Routes()


class PageQuery(Body):
    """How many, and after which."""

    limit: Limit = 100
    after: Seq = 0


class Dead(fields_of(DeadLetter), Response):  # type: ignore[misc]
    """A message that failed too often."""


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


@routes.route("GET", CONSUMER_PATH + "/dead", scope="monitor", query=PageQuery, answer=list[Dead])
async def list_dead(call: Call) -> list[Dead]:
    """The dead letters of a consumer, oldest first."""
    found = await call.server.hg.insights.dead_letters(
        call.stream, call.consumer, call.query.limit, after=call.query.after
    )
    return [Dead.of(d) for d in found]


@routes.route("POST", CONSUMER_PATH + "/dead/redrive", scope="admin", body=ChosenDead, answer=Redriven)
async def redrive_dead(call: Call) -> Redriven:
    """Gives dead letters back to the consumer, as if never delivered: those chosen, or `{"all": true}`."""
    chosen = _chosen(call)
    consumer = await call.server.consumer(call.stream, call.consumer)
    count = await consumer.redrive(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit, all=chosen.all)
    call.server.polling.stirred(call.stream, call.consumer, count)
    return Redriven(count)


@routes.route("DELETE", CONSUMER_PATH + "/dead", scope="admin", body=ChosenDead, answer=Purged)
async def purge_dead(call: Call) -> Purged:
    """Throws dead letters away: those chosen, or `{"all": true}`."""
    chosen = _chosen(call)
    consumer = await call.server.consumer(call.stream, call.consumer)
    return Purged(await consumer.purge_dead(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit, all=chosen.all))
