"""Workers of leased consumers: join, stay alive, leave; who has which lanes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...database import statements
from ...types import WorkerInfo
from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import Body, Response, fields_of

routes = Routes()


class ToJoin(Body):
    """A worker of a leased consumer, by a name that no other one has."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]


class Leases(Struct):
    """The lanes that are leased to a worker now, and how soon it must be seen again."""

    worker: str
    lanes: list[int]
    lease_time_ms: int


class Left(Struct):
    """How many lanes are free for others."""

    freed: int


class Worker(fields_of(WorkerInfo), Response):  # type: ignore[misc]
    """A worker of a leased consumer. It counts as alive until `until`, unless it is seen again."""


WORKERS_PATH = CONSUMER_PATH + "/workers"
WORKER_PATH = WORKERS_PATH + "/{worker}"


@routes.route("POST", WORKERS_PATH, scope="consume", body=ToJoin, response=Leases)
async def join_workers(call: Call) -> Leases:
    """Joins the workers of a leased consumer: receive with this `worker`, and send heartbeats."""
    return await _leases(call, call.body.worker)


@routes.route("POST", WORKER_PATH + "/heartbeat", scope="consume", response=Leases)
async def heartbeat(call: Call) -> Leases:
    """The worker is alive: to be sent three times in the consumer's lease_time. Answers the lanes that are its own."""
    return await _leases(call, call.path["worker"])


@routes.route("DELETE", WORKER_PATH, scope="consume", response=Left)
async def leave_workers(call: Call) -> Left:
    """Gives the worker's lanes to the others at once. What it has in hand stays its own."""
    consumer = await call.server.consumer(call.stream, call.consumer)
    freed = await consumer.leave(worker=call.path["worker"])
    call.server.polling.may_have_work(call.stream, call.consumer)
    return Left(freed)


@routes.route("GET", WORKERS_PATH, scope="monitor", response=list[Worker])
async def list_workers(call: Call) -> list[Worker]:
    """The workers of a consumer and their lanes."""
    await call.server.stream(call.stream).consumer(call.consumer)
    return [Worker.of(w) for w in await call.server.hg.insights.workers(call.stream, call.consumer)]


async def _leases(call: Call, worker: str) -> Leases:
    consumer = (call.stream, call.consumer)
    # joining is the first one; and the lease_time by which it counts, which others may have changed
    [(lanes, lease_time)] = await call.server.hg.run(statements.BEAT, (*consumer, worker, *consumer))
    return Leases(worker, lanes, round(lease_time * 1000))
