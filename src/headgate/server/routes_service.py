"""The server itself: health, metrics, its description."""

from __future__ import annotations

import asyncio
from functools import cache

from .. import schema, statements
from ..errors import Error
from . import metrics
from .answers import Health
from .call import Call
from .errors import Problem
from .openapi import docs_page, document
from .routing import Routes

routes = Routes()

PATIENCE = 2.0  # seconds that the database may take to say that it is there


@routes.route("GET", "/healthz", scope=None, answer=Health)
async def healthz(call: Call) -> Health:
    """Whether this process works: if not, restart it."""
    if not call.service.polling.is_alive:
        raise Problem(503, "unhealthy", "the task that wakes polls has ended", "restart the server")
    if not call.service.pushing.is_alive:
        raise Problem(503, "unhealthy", "the task that starts pushing has ended", "restart the server")
    return Health("ok")


@routes.route("GET", "/readyz", scope=None, answer=Health)
async def readyz(call: Call) -> Health:
    """Whether to send requests here: the database answers, its schema fits, and the server is not stopping."""
    if call.service.polling.is_stopping:
        raise Problem(503, "stopping", "the server is stopping", retry_after=1.0)
    async with asyncio.timeout(PATIENCE):
        [(_, migration, digest)] = await call.service.hg.run(statements.VERSIONS, ())
    if (error := schema.check(migration, digest)) is not None:
        raise error
    return Health("ready")


@routes.route("GET", "/metrics", scope="monitor", everywhere=True, answer=metrics.CONTENT_TYPE)
async def get_metrics(call: Call) -> bytes:
    """Figures for Prometheus."""
    service = call.service
    lines: list[str] = []
    is_up = 1.0
    try:
        async with asyncio.timeout(PATIENCE * 2):
            streams, consumers = await service.hg.insights.streams(), await service.hg.insights.consumers()
            vitals = await service.hg.run(statements.VITALS, ())
        lines = metrics.render_insights(streams, consumers, [(n, s, v) for n, s, v in vitals])
    except (Error, TimeoutError):
        is_up = 0.0
    pool = service.hg.pool.get_stats()
    gauges = {
        "headgate_database_up": ("1 when the database answers.", is_up),
        "headgate_database_connections": ("Connections to the database.", float(pool.get("pool_size", 0))),
        "headgate_database_waiting": ("Calls that wait for a connection.", float(pool.get("requests_waiting", 0))),
        "headgate_http_in_work": ("Requests in work.", float(service.in_work.now)),
        "headgate_http_polls_waiting": ("Long polls that wait.", float(service.waiting.now)),
        "headgate_http_connections": ("Connections of callers.", float(service.connections())),
        "headgate_batch_groups_total": ("Commits of grouped sends.", float(service.batching.sends.groups)),
        "headgate_batch_calls_total": ("Sends in these groups.", float(service.batching.sends.calls)),
    }
    return "\n".join([*service.metrics.render(gauges), *lines, ""]).encode()


@routes.route("GET", "/openapi.json", scope=None, answer="application/json")
async def get_openapi(call: Call) -> bytes:
    """This description."""
    return _openapi()


@routes.route("GET", "/docs", scope=None, answer="text/html; charset=utf-8")
async def get_docs(call: Call) -> bytes:
    """The description for people."""
    return _docs()


@cache
def _openapi() -> bytes:
    from .routes import ROUTES  # here: it is made of this module, too

    return document(ROUTES)


@cache
def _docs() -> bytes:
    return docs_page(_openapi())
