"""Running the server: the database, maintenance, and HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from ..aio import AsyncHeadgate
from ..errors import Error
from ..maintenance import AsyncMaintenance
from .app import App
from .exporting import export_traces
from .protocol import Protocol
from .service import Service
from .settings import Settings

log = logging.getLogger("headgate.server")

LAST_REQUESTS = 30  # seconds that requests in work have when the server is stopped


def serve(settings: Settings, ready: Callable[[Running], None] | None = None) -> None:
    """Runs the server until SIGINT or SIGTERM; what is in flight is finished. `ready` is told once it listens."""
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # it is not made for every platform
        import uvloop

        loop = uvloop.new_event_loop
    last_spans = export_traces()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(_serve(settings, ready))
    finally:
        last_spans()


class Running:
    """A server that listens."""

    def __init__(self, service: Service, server: _Server, token_file: Path | None) -> None:
        self._service = service
        self._server = server
        self.token_file = token_file  # where a token for administrators is; None: none is needed, or it is not ours

    @property
    def database_url(self) -> str:
        """The database."""
        return self._service.hg.url

    @property
    def port(self) -> int:
        """The port, chosen by the system when 0 was asked for."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Where to send requests."""
        host = self._service.settings.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class _Server(uvicorn.Server):
    """uvicorn, with the signals left to us, and polls answered when it stops instead of waited for."""

    def __init__(self, config: uvicorn.Config, service: Service, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # it cannot listen; ending the process is not its business
            self.should_exit = True
        if self.started:
            self._listening()

    async def shutdown(self, sockets: Any = None) -> None:
        self._service.drain()
        await super().shutdown(sockets)


async def _serve(settings: Settings, ready: Callable[[Running], None] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):  # before a private PostgreSQL is started, which must be left again
        with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stop.set)
    hg = AsyncHeadgate(
        settings.database,
        directory=settings.directory,
        max_connections=settings.max_connections,
        timeout=settings.timeout,
        pooler=settings.pooler,
    )
    await hg.open(migrate=True)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if settings.maintain:
                await stack.enter_async_context(AsyncMaintenance(hg))
            await _listen(hg, settings, stop, ready)
    finally:
        await hg.close()


async def _listen(
    hg: AsyncHeadgate, settings: Settings, stop: asyncio.Event, ready: Callable[[Running], None] | None
) -> None:
    service = Service(hg, settings)
    token_file = (settings.token_file or settings.home / "token") if settings.auth and settings.first_token else None
    if token_file is not None and await service.tokens.first_admin(token_file):
        log.info("made a token for administrators: it is in %s", token_file)
    config = uvicorn.Config(
        App(service),
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # who calls is who connects: nobody can write another address into the audit log
        server_header=False,
        date_header=False,
        backlog=4096,
        timeout_graceful_shutdown=LAST_REQUESTS,
    )

    # What is loaded by now stays: without this the collector would look through it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)

    def listening() -> None:
        if ready is not None:
            ready(Running(service, server, token_file))

    server = _Server(config, service, listening)
    service.connections = lambda: len(server.server_state.connections)
    serving = asyncio.create_task(server.serve())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    server.should_exit = True
    await serving
    if not server.started:
        raise Error(
            f"the server cannot listen on {settings.host} port {settings.port}",
            hint="is the port in use? choose another one: --port",
        )


def main(argv: list[str] | None = None) -> None:
    """`python -m headgate.server.run URL PORT`: one replica, for tests and benchmarks of the server alone."""
    database, port, *rest = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.WARNING)
    options = dict(option.split("=", 1) for option in rest)
    settings = Settings(
        database,
        port=int(port),
        auth=options.get("auth", "on") == "on",
        batching=options.get("batching", "on") == "on",
        connections=int(options.get("connections", Settings.connections)),
        head_timeout=float(options.get("head_timeout", Settings.head_timeout)),
        timeout=float(options.get("timeout", Settings.timeout)),
        token_file=Path(options["token_file"]) if "token_file" in options else None,
        push=options.get("push", "on") == "on",
        push_private=options.get("push_private", "off") == "on",
        webhook_rate_limit=int(options.get("webhook_rate_limit", Settings.webhook_rate_limit)),
    )
    serve(settings, lambda running: print(running.url, flush=True))  # noqa: T201 - what was asked for


if __name__ == "__main__":
    main()
