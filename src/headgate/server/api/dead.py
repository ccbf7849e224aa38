"""Dead letters of a consumer."""

from __future__ import annotations

from ...database import statements
from ..http.call import Call
from ..http.errors import Problem
from ..http.routing import Routes
from .answers_messages import Dead, DeadGroup, Purged, Redriven
from .consumers import CONSUMER
from .payloads import Eyes
from .requests import ChosenDead
from .requests_looking import DeadQuery

routes = Routes()


def _chosen(call: Call) -> ChosenDead:
    """Not all of them by accident, nor some and all."""
    chosen: ChosenDead = call.body
    if (chosen.seqs is not None or chosen.filter is not None or chosen.limit is not None) == chosen.all:
        raise Problem(
            422, "invalid_argument", "it is not said which dead letters", 'give seqs, filter or limit, or {"all": true}'
        )
    return chosen


@routes.route("GET", CONSUMER + "/dead", scope="monitor", query=DeadQuery, answer=list[Dead])
async def list_dead(call: Call) -> list[Dead]:
    """The dead letters of a consumer, oldest first: all, or those of a group."""
    q: DeadQuery = call.query
    found = await call.server.hg.insights.dead_letters(
        call.stream, call.consumer, q.limit, after=q.after, group=q.group
    )
    eyes = Eyes.of(call)
    return [eyes.dead(d) for d in found]


@routes.route("GET", CONSUMER + "/dead/groups", scope="monitor", answer=list[DeadGroup])
async def list_dead_groups(call: Call) -> list[DeadGroup]:
    """The newest 100,000 dead letters by their error, without numbers, ids and what is in quotes; the most first."""
    rows = await call.server.hg.run(statements.DEAD_GROUPS, (call.stream, call.consumer))
    return [DeadGroup(*row) for row in rows]


@routes.route("POST", CONSUMER + "/dead/redrive", scope="admin", body=ChosenDead, answer=Redriven)
async def redrive_dead(call: Call) -> Redriven:
    """Gives dead letters back to the consumer, as if never delivered: those chosen, or `{"all": true}`."""
    chosen = _chosen(call)
    consumer = await call.server.consumer(call.stream, call.consumer)
    count = await consumer.redrive(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit, all=chosen.all)
    call.server.polling.stirred(call.stream, call.consumer, count)
    return Redriven(count)


@routes.route("DELETE", CONSUMER + "/dead", scope="admin", body=ChosenDead, answer=Purged)
async def purge_dead(call: Call) -> Purged:
    """Throws dead letters away: those chosen, or `{"all": true}`."""
    chosen = _chosen(call)
    consumer = await call.server.consumer(call.stream, call.consumer)
    return Purged(await consumer.purge_dead(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit, all=chosen.all))
