"""Dead letters of a consumer."""

from __future__ import annotations

from ..http.call import Call
from ..http.errors import Problem
from ..http.routing import Routes
from .answers_messages import Dead, Purged, Redriven
from .consumers import CONSUMER_PATH
from .requests import ChosenDead, PageQuery

routes = Routes()


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
