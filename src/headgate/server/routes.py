"""All routes."""

from __future__ import annotations

from . import (
    routes_again,
    routes_console,
    routes_consumers,
    routes_dead,
    routes_looking,
    routes_messages,
    routes_receive,
    routes_service,
    routes_sources,
    routes_streams,
    routes_tokens,
    routes_workers,
)
from .routing import Routes

ROUTES = Routes().include(
    module.routes
    for module in (
        routes_streams, routes_messages, routes_consumers, routes_receive, routes_workers, routes_again, routes_dead,
        routes_sources, routes_tokens, routes_looking, routes_service, routes_console,
    )
)  # fmt: skip
