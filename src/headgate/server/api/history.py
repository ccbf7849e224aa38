"""How streams and consumers were in the last hour or day."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import Body

routes = Routes()


class HistoryQuery(Body):
    """Of how long: up to a day is kept."""

    minutes: Annotated[int, Meta(ge=1, le=1500)] = 60


class Past(Struct):
    """How it was at a moment: rates are messages a second, sent and first delivered. Null is what it is not about."""

    at: datetime
    sent: float | None
    bytes: int | None
    delivered: float | None
    lag: int | None
    in_flight: int | None
    parked: int | None
    dead: int | None


@routes.route("GET", "/api/history", scope="monitor", everywhere=True, query=HistoryQuery, response=list[Past])
async def get_history(call: Call) -> list[Past]:
    """How all streams and consumers together were in the last hour or day, oldest first."""
    return await _past(call, None, None)


@routes.route("GET", "/api/streams/{stream}/history", scope="monitor", query=HistoryQuery, response=list[Past])
async def get_stream_history(call: Call) -> list[Past]:
    """How a stream was in the last hour or day, oldest first."""
    return await _past(call, call.stream, None)


@routes.route("GET", CONSUMER_PATH + "/history", scope="monitor", query=HistoryQuery, response=list[Past])
async def get_consumer_history(call: Call) -> list[Past]:
    """How a consumer was in the last hour or day, oldest first."""
    return await _past(call, call.stream, call.consumer)


async def _past(call: Call, stream: str | None, consumer: str | None) -> list[Past]:
    since = f"{call.query.minutes} minutes"
    return [Past(*row) for row in await call.server.histories.get(stream, consumer, since)]
