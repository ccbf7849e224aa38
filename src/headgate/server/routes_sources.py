"""Sources, and the webhooks that come through them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from .answers import SETTINGS, Nothing, Source, Taken
from .call import Call
from .errors import Problem
from .requests import NewSource, SourceChange
from .routing import Routes
from .sources import take

routes = Routes()

SOURCE = "/api/sources/{source}"


@routes.route("POST", "/api/sources", scope="admin", everywhere=True, body=NewSource, answer=Source, status=201)
async def create_source(call: Call) -> Source:
    """Makes a source."""
    new: NewSource = call.body
    if new.kind != "webhook":
        raise Problem(
            422,
            "not_in_this_version",
            f"sources of kind {new.kind} are not in this version",
            "there are webhook sources",
        )
    made = await call.service.hg.sources.create(
        new.name,
        new.stream,
        kind=new.kind,
        scheme=new.scheme,
        secret=new.secret,
        settings=_settings(new),
        exist_ok=new.if_not_exists,
    )
    call.service.sources.forget(new.name)
    return Source.of(made)


@routes.route("GET", "/api/sources", scope="monitor", everywhere=True, answer=list[Source])
async def list_sources(call: Call) -> list[Source]:
    """All sources."""
    return [Source.of(s) for s in await call.service.hg.sources.all()]


@routes.route("GET", SOURCE, scope="monitor", everywhere=True, answer=Source)
async def get_source(call: Call) -> Source:
    """One source."""
    return Source.of(await call.service.hg.sources.get(call.path["source"]))


@routes.route("PATCH", SOURCE, scope="admin", everywhere=True, body=SourceChange, answer=Source)
async def change_source(call: Call) -> Source:
    """Changes settings of a source. Other replicas notice within a second."""
    change: SourceChange = call.body
    name = call.path["source"]
    secret = [] if change.secret is None else change.secret
    changed = await call.service.hg.sources.alter(
        name,
        stream=None if change.stream is UNSET else change.stream,
        scheme=None if change.scheme is UNSET else change.scheme,
        secret=None if secret is UNSET else secret,
        settings=_settings(change),
    )
    call.service.sources.forget(name)
    return Source.of(changed)


@routes.route("DELETE", SOURCE, scope="admin", everywhere=True, answer=Nothing)
async def drop_source(call: Call) -> Nothing:
    """Removes a source. What it brought stays."""
    await call.service.hg.sources.drop(call.path["source"])
    call.service.sources.forget(call.path["source"])
    return Nothing()


@routes.route("POST", "/api/webhooks/{source}", scope=None, raw_body=True, answer=Taken)
async def take_webhook(call: Call) -> Taken:
    """Takes a webhook, once its signature was checked; answers once it is on disk."""
    service = call.service
    source = await service.sources.find(call.path["source"])
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    sending = take(source, headers, call.body, trace=call.trace)
    if source.rate_limit is not None:
        service.webhook_rates.spend(f"source {source.name}", source.rate_limit, "this source")
    [seq] = await service.batching.send(source.stream, sending)
    return Taken(seq)


def _settings(given: NewSource | SourceChange) -> dict[str, Any]:
    """The settings that were given, as the SDK takes them."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        value = getattr(given, "tolerance_ms" if name == "tolerance" else name)
        if value is not UNSET:
            found[name] = value / 1000 if name == "tolerance" and value is not None else value
    return dict(msgspec.to_builtins(found))
