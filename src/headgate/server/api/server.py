"""The server itself: health, metrics, its description."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct

from ...aio import AsyncHeadgate
from ...database import schema, statements
from ...errors import ConnectionFailed, Error
from ...types import ConsumerInfo, PostgresSourceInfo, StreamInfo
from ..console import assets
from ..http.errors import Problem
from ..http.openapi import docs_page, document
from ..http.routing import Call, Routes
from ..operate import metrics

routes = Routes()


class Welcome(Struct):
    """What this server is."""

    name: str
    links: dict[str, str]
    token: str | None


class Health(Struct):
    """How the server is."""

    status: str


GAUGES = {  # summed over the processes
    "headgate_database_connections": "Connections to the database.",
    "headgate_database_waiting": "Calls that wait for a connection.",
    "headgate_http_in_work": "Requests in work.",
    "headgate_http_polls_waiting": "Long polls that wait.",
    "headgate_http_connections": "Connections of callers.",
    "headgate_batch_groups_total": "Commits of grouped sends.",
    "headgate_batch_calls_total": "Sends in these groups.",
}

LINKS = {
    "/docs": "the HTTP API",
    "/openapi.json": "the same for programs",
    "/readyz": "whether the database answers",
    "/healthz": "whether this process works",
    "/metrics": "figures for Prometheus; needs a token that may monitor",
}

PATIENCE = 2.0  # seconds that the database may take to say that it is there
AWAY = 0.5  # seconds after which it is away for /metrics: it is to answer in a second
FIGURES = 4.0  # seconds that a database which is there may take for all figures

T = TypeVar("T")
_abandoned: set[asyncio.Task[Any]] = set()


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """What it answers, or TimeoutError.

    (asyncio.timeout waits until what it cancels has ended, for which a call of a database that hangs takes its time.)
    """
    task = asyncio.create_task(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
        raise TimeoutError
    finally:
        if not task.done():
            _abandoned.add(task)
            task.add_done_callback(_forget)
            task.cancel()


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # nobody waits for it any more


async def _listings(hg: AsyncHeadgate) -> tuple[list[StreamInfo], list[ConsumerInfo], list[PostgresSourceInfo]]:
    return await hg.insights.streams(), await hg.insights.consumers(), await hg.sources.all_postgres()


@routes.route("GET", "/", scope=None, response=Welcome, page=assets.index)
async def get_root(call: Call) -> Welcome:
    """What this is, and where the rest is: a page for browsers."""
    about = "send Authorization: Bearer TOKEN; the first one is in the file that `headgate up` names as it starts"
    return Welcome("headgate", LINKS, about if call.server.settings.auth else None)


@routes.route("GET", "/healthz", scope=None, response=Health)
async def healthz(call: Call) -> Health:
    """Whether this process works: if not, restart it."""
    if ended := call.server.ended:
        raise Problem(503, "unhealthy", f"{', '.join(ended)}: the task has ended", "restart the server")
    return Health("ok")


@routes.route("GET", "/readyz", scope=None, response=Health)
async def readyz(call: Call) -> Health:
    """Whether to send requests here: the database answers, its schema fits, and the server is not stopping."""
    if call.server.polling.is_draining:
        raise Problem(503, "stopping", "the server is stopping", retry_after=1.0)
    hg = call.server.hg
    try:
        [(_, *installed)] = await within(PATIENCE, hg.run(statements.VERSIONS, ()))
        [(is_read_only,)] = await within(PATIENCE, hg.run(statements.IS_READ_ONLY, ()))
    except (TimeoutError, ConnectionFailed) as away:
        raise _away(hg) from away
    if is_read_only:
        raise Problem(503, "database_unavailable", "the database is read-only", "connect to the primary", 1.0)
    if (error := schema.check(schema.Installed(*installed))) is not None:
        raise error
    return Health("ready")


def _away(hg: AsyncHeadgate) -> Problem:
    """Why the database did not answer in time, as far as this process can tell without naming it to anybody."""
    pool = hg.pool.get_stats()
    if pool.get("pool_size", 0) >= pool["pool_max"] and pool.get("requests_waiting", 0):
        return Problem(
            503, "database_busy",
            f"all {pool['pool_max']} connections to the database are in use, and none was free within {PATIENCE:g} s",
            "see whether the database hangs, and look for slow calls", 1.0,
        )  # fmt: skip
    return Problem(
        503, "database_away", f"the database does not answer within {PATIENCE:g} s",
        "see that it runs and can be reached from here", 1.0,
    )  # fmt: skip


@routes.route("GET", "/metrics", scope="monitor", everywhere=True, patience=AWAY, response=metrics.CONTENT_TYPE)
async def get_metrics(call: Call) -> bytes:
    """Figures for Prometheus. While the database is away: those of this process, and that it is."""
    server = call.server
    lines: list[str] = []
    is_up = 1.0
    try:
        vitals = await within(AWAY, server.hg.run(statements.VITALS, ()))
        streams, consumers, sources = await within(FIGURES, _listings(server.hg))
        lines = metrics.render_insights(streams, consumers, [(n, s, v) for n, s, v in vitals], sources)
    except (Error, TimeoutError):
        is_up = 0.0
    whole = metrics.Metrics()
    for figures in (server.figures(), *await server.siblings.figures()):
        whole.merge(figures)
    found = whole.figures({}).gauges
    gauges = {
        "headgate_database_up": ("1 when the database answers.", is_up),
        "headgate_processes": ("Processes of this server.", float(server.siblings.processes)),
        "headgate_process_restarts_total": (
            "Processes that were started again, because they had ended.", float(server.siblings.restarts),
        ),
        **{name: (about, found.get(name, 0.0)) for name, about in GAUGES.items()},
    }  # fmt: skip
    return "\n".join([*whole.render(gauges), *lines, ""]).encode()


@routes.route("GET", "/openapi.json", scope=None, response="application/json")
async def get_openapi(call: Call) -> bytes:
    """This description."""
    return _openapi()


@routes.route("GET", "/docs", scope=None, response="text/html; charset=utf-8")
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
