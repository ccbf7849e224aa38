"""Workers of leased consumers: join, stay alive, leave; who has which lanes."""

from __future__ import annotations

from ...database import statements
from ..http.call import Call
from ..http.routing import Routes
from .answers import Leases, Left, Worker
from .consumers import CONSUMER_PATH
from .requests import ToJoin

routes = Routes()

WORKERS = CONSUMER_PATH + "/workers"
WORKER = WORKERS + "/{worker}"


@routes.route("POST", WORKERS, scope="consume", body=ToJoin, answer=Leases)
async def join_workers(call: Call) -> Leases:
    """Joins the workers of a leased consumer: receive with this `worker`, and send heartbeats."""
    return await _leases(call, call.body.worker)


@routes.route("POST", WORKER + "/heartbeat", scope="consume", answer=Leases)
async def heartbeat(call: Call) -> Leases:
    """The worker is alive: to be sent three times in the consumer's lease_time. Answers the lanes that are its own."""
    return await _leases(call, call.path["worker"])


@routes.route("DELETE", WORKER, scope="consume", answer=Left)
async def leave_workers(call: Call) -> Left:
    """Gives the worker's lanes to the others at once. What it has in hand stays its own."""
    consumer = await call.server.consumer(call.stream, call.consumer)
    freed = await consumer.leave(worker=call.path["worker"])
    call.server.polling.stirred(call.stream, call.consumer)
    return Left(freed)


@routes.route("GET", WORKERS, scope="monitor", answer=list[Worker])
async def list_workers(call: Call) -> list[Worker]:
    """The workers of a consumer and their lanes."""
    await call.server.stream(call.stream).consumer(call.consumer)
    return [Worker.of(w) for w in await call.server.hg.insights.workers(call.stream, call.consumer)]


async def _leases(call: Call, worker: str) -> Leases:
    consumer = (call.stream, call.consumer)
    # joining is the first one; and the lease_time by which it counts, which others may have changed
    [(lanes, lease_time)] = await call.server.hg.run(statements.BEAT, (*consumer, worker, *consumer))
    return Leases(worker, lanes, round(lease_time * 1000))
