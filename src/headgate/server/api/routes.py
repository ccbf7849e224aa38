"""All routes."""

from __future__ import annotations

from ..http.routing import Routes
from . import (
    channels,
    console,
    consumers,
    dead,
    history,
    messages,
    overview,
    receive,
    replay,
    server,
    sources,
    streams,
    table_sources,
    tokens,
    webhooks,
    workers,
)

ROUTES = Routes().include(
    module.routes
    for module in (
        streams, messages, consumers, channels, receive, workers, replay, dead, sources, table_sources, webhooks,
        tokens, overview, history, server, console,
    )
)  # fmt: skip
