"""All routes."""

from __future__ import annotations

from ..http.routing import Routes
from . import again as routes_again
from . import console as routes_console
from . import consumers as routes_consumers
from . import dead as routes_dead
from . import looking as routes_looking
from . import messages as routes_messages
from . import receive as routes_receive
from . import server as routes_server
from . import sources as routes_sources
from . import streams as routes_streams
from . import tokens as routes_tokens
from . import workers as routes_workers

ROUTES = Routes().include(
    module.routes
    for module in (
        routes_streams, routes_messages, routes_consumers, routes_receive, routes_workers, routes_again, routes_dead,
        routes_sources, routes_tokens, routes_looking, routes_server, routes_console,
    )
)  # fmt: skip
