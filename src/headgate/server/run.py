"""Running the server: the database, maintenance, and HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from ..aio import AsyncHeadgate
from ..errors import Error
from ..maintenance import AsyncMaintenance
from .http.app import App
from .http.listening import BACKLOG, listen, url_of
from .http.protocol import Protocol
from .operate.trace_export import export_traces
from .processes.member import Member
from .processes.messages import Ready
from .processes.supervisor import Supervisor
from .server import Server
from .settings import Settings

log = logging.getLogger("headgate.server")

LAST_REQUESTS = 30  # seconds that requests in work have when the server is stopped


def serve(settings: Settings, ready: Callable[[Running], None] | None = None) -> None:
    """Runs the server until SIGINT or SIGTERM; what is in flight is finished. `ready` is told once it serves.

    With several processes this one becomes their parent: it forks, so the program must have no other threads.
    """
    if settings.processes == 1:
        _run(settings, None, ready)
        return
    sockets = listen(settings.host, settings.port)
    url = url_of(settings.host, sockets[0].getsockname()[1])

    def announce(told: Ready) -> None:
        if ready is not None:
            ready(Running(told.database, url, Path(told.token_file) if told.token_file else None))

    def run(member: Member) -> None:
        _run(settings.of_process(member.slot), member, None)

    Supervisor(settings.processes, sockets, run, announce).run()


def _run(settings: Settings, member: Member | None, ready: Callable[[Running], None] | None) -> None:
    """One process that serves."""
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # it is not made for every platform
        import uvloop

        loop = uvloop.new_event_loop
    last_spans = export_traces()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(_serve(settings, member, ready))
    finally:
        last_spans()


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    database_url: str
    url: str  # where to send requests
    token_file: Path | None  # where a token for administrators is; None: none is needed, or it is not ours


class _HttpServer(uvicorn.Server):
    """uvicorn, with the signals left to us, and polls answered when it stops instead of waited for."""

    def __init__(
        self, config: uvicorn.Config, server: Server, member: Member | None, listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._server = server
        self._member = member
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self._member is not None:  # its connections come from its parent
            state, loop = self.lifespan.state, asyncio.get_running_loop()
            self._member.take(lambda: Protocol(self.config, self.server_state, state, loop))
        self._listening()

    async def shutdown(self, sockets: Any = None) -> None:
        self._server.drain()
        await super().shutdown(sockets)


async def _serve(settings: Settings, member: Member | None, ready: Callable[[Running], None] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # before a private PostgreSQL is started, which must be left again
    for number in (signal.SIGINT, signal.SIGTERM) if member is None else (signal.SIGTERM,):
        with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stop.set if member is None else member.leave)
    hg = AsyncHeadgate(
        settings.database,
        directory=settings.directory,
        max_connections=settings.max_connections,
        timeout=settings.timeout,
        pooler=settings.pooler,
    )
    if member is not None:
        await member.connect(stop)
    try:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(hg.close)
            await _Process(hg, settings, member, ready, stack).run(stop)
    except Error as error:
        if member is None:
            raise
        member.failed(error.message, error.hint)
        raise SystemExit(1) from error
    finally:
        if member is not None:
            await member.close()


class _Process:
    """One process that serves: it opens the database and listens; when the database is away, the other way round."""

    def __init__(
        self,
        hg: AsyncHeadgate,
        settings: Settings,
        member: Member | None,
        ready: Callable[[Running], None] | None,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._hg = hg
        self._settings = settings
        self._member = member
        self._ready = ready
        self._stack = stack  # what is left at the end
        self._server = Server(hg, settings, member)
        self._is_first = member is None or member.slot == 0  # the others come when it has migrated

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is to stop."""
        opening = asyncio.create_task(self._server.availability.open(migrate=self._is_first))
        is_open = await self._unless(stop, opening)
        if is_open is None:
            return
        running = await self._begin() if is_open else None
        settings, member = self._settings, self._member
        sockets = listen(settings.host, settings.port) if member is None else []
        url = url_of(settings.host, sockets[0].getsockname()[1]) if sockets else ""
        config = uvicorn.Config(
            App(self._server),
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # who calls is who connects: nobody can write another address into the audit log
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=LAST_REQUESTS,
        )

        # What is loaded by now stays: without this the collector would look through it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)

        listens = asyncio.Event()
        http = _HttpServer(config, self._server, member, listens.set)
        self._server.connections = lambda: len(http.server_state.connections)
        serving = asyncio.create_task(http.serve(sockets))
        announcing = asyncio.create_task(self._announce(listens, url, running))
        await self._unless(stop, serving, announcing)
        announcing.cancel()
        http.should_exit = True
        await serving
        if announcing.done() and not announcing.cancelled():
            announcing.result()

    async def _unless(self, stop: asyncio.Event, *tasks: asyncio.Task[Any]) -> Any:
        """What the first one returns, unless the process is to stop before. An error of another one counts, too."""
        stopped = asyncio.create_task(stop.wait())
        try:
            left = set(tasks)
            while not tasks[0].done() and not stopped.done() and not any(t.done() and t.exception() for t in tasks):
                _, left = await asyncio.wait({*left, stopped}, return_when=asyncio.FIRST_COMPLETED)
                left -= {stopped}
        finally:
            stopped.cancel()
        if tasks[0].done():
            return tasks[0].result()
        if len(tasks) == 1:  # a private PostgreSQL that is just being started is left again
            tasks[0].cancel()
            await asyncio.wait(tasks)
        return None

    async def _begin(self) -> Path | None:
        """What needs the database: maintenance and the first token, whose file it returns."""
        settings = self._settings
        if settings.maintain:
            await self._stack.enter_async_context(AsyncMaintenance(self._hg))
        if not (settings.auth and settings.first_token):
            return None
        file = settings.token_file or settings.home / "token"
        if await self._server.tokens.first_admin(file):
            log.info("made a token for administrators: it is in %s", file)
        return file

    async def _announce(self, listens: asyncio.Event, url: str, token_file: Path | None) -> None:
        """Says that it serves, once it does."""
        await listens.wait()
        if self._member is not None:
            self._member.start(self._server, self._server.figures)
            self._member.listening()
        if not self._hg.is_open:
            await self._server.availability.open_later(migrate=self._is_first)
            token_file = await self._begin()
        if self._member is not None:
            self._member.ready(self._hg.url, token_file)
        elif self._ready is not None:
            self._ready(Running(self._hg.url, url, token_file))


def main(argv: list[str] | None = None) -> None:
    """`python -m headgate.server.run URL PORT`: one replica, for tests and benchmarks of the server alone."""
    database, port, *rest = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.WARNING)
    options = dict(option.split("=", 1) for option in rest)
    settings = Settings(
        database,
        port=int(port),
        processes=int(options.get("processes", 1)),
        auth=options.get("auth", "on") == "on",
        batching=options.get("batching", "on") == "on",
        connections=int(options.get("connections", Settings.connections)),
        head_timeout=float(options.get("head_timeout", Settings.head_timeout)),
        timeout=float(options.get("timeout", Settings.timeout)),
        token_file=Path(options["token_file"]) if "token_file" in options else None,
        push=options.get("push", "on") == "on",
        push_private=options.get("push_private", "off") == "on",
        hide=tuple(filter(None, options.get("hide", "").split(","))),
        environment=options.get("environment", ""),
        webhook_rate_limit=int(options.get("webhook_rate_limit", Settings.webhook_rate_limit)),
    )
    serve(settings, lambda running: print(running.url, flush=True))  # noqa: T201 - what was asked for


if __name__ == "__main__":
    main()
