"""Webhooks that come through sources."""

from __future__ import annotations

from msgspec import Struct

from ..http.routing import Call, Routes
from ..intake.webhooks import take

routes = Routes()


class Taken(Struct):
    """A webhook that is in the stream, on disk; its delivery was there before if it is an old seq."""

    seq: int


@routes.route("POST", "/api/webhooks/{source}", scope=None, raw_body=True, response=Taken)
async def take_webhook(call: Call) -> Taken:
    """Takes a webhook, once its signature was checked; answers once it is on disk."""
    server = call.server
    source = await server.sources.find(call.path["source"])
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    sending = take(source, headers, call.body, trace=call.trace)
    if source.rate_limit is not None:
        server.webhook_rates.spend(f"source {source.name}", source.rate_limit, "this source")
    [seq] = await server.batching.send(source.stream, sending)
    return Taken(seq)
