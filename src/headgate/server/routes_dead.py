"""Dead letters of a consumer."""

from __future__ import annotations

from .answers_messages import Dead, Purged, Redriven
from .call import Call
from .requests import ChosenDead, PageQuery
from .routes_consumers import CONSUMER
from .routing import Routes

routes = Routes()


@routes.route("GET", CONSUMER + "/dead", scope="monitor", query=PageQuery, answer=list[Dead])
async def list_dead(call: Call) -> list[Dead]:
    """The dead letters of a consumer, oldest first."""
    found = await call.service.hg.insights.dead_letters(
        call.stream, call.consumer, call.query.limit, after=call.query.after
    )
    return [Dead.of(d) for d in found]


@routes.route("POST", CONSUMER + "/dead/redrive", scope="admin", body=ChosenDead, body_optional=True, answer=Redriven)
async def redrive_dead(call: Call) -> Redriven:
    """Gives dead letters back to the consumer, as if never delivered."""
    chosen: ChosenDead = call.body
    consumer = await call.service.consumer(call.stream, call.consumer)
    count = await consumer.redrive(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit)
    call.service.polling.stirred(call.stream, call.consumer, count)
    return Redriven(count)


@routes.route("DELETE", CONSUMER + "/dead", scope="admin", body=ChosenDead, body_optional=True, answer=Purged)
async def purge_dead(call: Call) -> Purged:
    """Throws dead letters away."""
    chosen: ChosenDead = call.body
    consumer = await call.service.consumer(call.stream, call.consumer)
    return Purged(await consumer.purge_dead(seqs=chosen.seqs, filter=chosen.filter, limit=chosen.limit))
