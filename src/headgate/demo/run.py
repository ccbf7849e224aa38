"""The demo from its start to its end: a database, a server, and the shop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from ..aio import AsyncHeadgate
from ..errors import Error
from .receiver import Receiver
from .shop import open_shop
from .staff import Staff
from .traffic import Customers

STARTING = 60.0  # seconds that the server may take
STOPPING = 30.0


@dataclass(frozen=True)
class Started:
    """Where to look at it."""

    url: str
    token: str
    database_url: str

    @property
    def console(self) -> str:
        """The console's address, with which a browser is logged in. (What follows # is not sent anywhere.)"""
        return f"{self.url}/#/login?token={self.token}"


def run(
    database: str | None = None,
    *,
    port: int = 0,
    rate: float = 1.0,
    seconds: float | None = None,
    ready: Callable[[Started], None] | None = None,
) -> None:
    """Runs until SIGINT or SIGTERM, or for so many seconds. Without a database it has its own, gone at the end."""
    asyncio.run(_run(database, port, rate, seconds, ready))


async def _run(
    database: str | None, port: int, rate: float, seconds: float | None, ready: Callable[[Started], None] | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    logging.getLogger("headgate.worker").setLevel(logging.CRITICAL)  # the staff's failures are part of the show
    chance = random.Random()
    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as directory:
        async with AsyncHeadgate(database, directory=f"{directory}/data") as hg:
            if stop.is_set():
                return
            if database is not None:
                await hg.migrate()
            receiver = Receiver(chance)
            await receiver.start()
            try:
                await open_shop(hg, receiver.url)
                async with _serving(hg.url, Path(directory), port, stop) as url:
                    if url:
                        if ready is not None:
                            ready(Started(url, (Path(directory) / "token").read_text().strip(), hg.url))
                        await _move(hg, rate, chance, stop)
            finally:
                receiver.stop()


async def _move(hg: AsyncHeadgate, rate: float, chance: random.Random, stop: asyncio.Event) -> None:
    """Customers and staff, until it is to stop or one of them fails."""
    customers = Customers(hg, rate, chance)
    workers = await Staff(chance).workers(hg)
    serving = [asyncio.create_task(worker.run()) for worker in workers]
    buying = [asyncio.create_task(customers.run()), asyncio.create_task(customers.sell())]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopped, *serving, *buying], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *buying):
            task.cancel()
        for worker in workers:
            worker.stop()
        ended = await asyncio.gather(*serving, *buying, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, Exception):
            raise failure


@contextlib.asynccontextmanager
async def _serving(database: str, directory: Path, port: int, stop: asyncio.Event) -> AsyncIterator[str]:
    """`headgate up` for this database, which may push to this machine; its address, or "" when it is to stop before."""
    arguments = ("up", "--port", str(port), "--processes", "1", "--push-allow", "127.0.0.1")
    log = directory / "server.log"
    # (in a session of its own: Ctrl-C is for the demo, which then stops it)
    with log.open("wb") as said:
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headgate", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=said, start_new_session=True,
            env={**os.environ, "HEADGATE_DATABASE_URL": database, "HEADGATE_EMBEDDED_DIR": str(directory)},
        )  # fmt: skip
    told = asyncio.create_task(_second_line(server))  # the database's URL is the first
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([told, stopped], timeout=STARTING, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            if not told.done():
                raise Error(f"the demo's server did not start in {STARTING:g} s", hint="see how busy the machine is")
            if not told.result():
                why = log.read_text(errors="replace").strip().splitlines()
                raise Error("the demo's server did not start: " + " ".join(why[-2:]), hint="try --port 0: a free one")
        yield told.result() if told.done() else ""
    finally:
        told.cancel()
        stopped.cancel()
        with contextlib.suppress(ProcessLookupError):
            server.terminate()
        try:
            await asyncio.wait_for(server.wait(), STOPPING)
        except TimeoutError:
            server.kill()
            await server.wait()


async def _second_line(server: asyncio.subprocess.Process) -> str:
    assert server.stdout is not None
    await server.stdout.readline()
    return (await server.stdout.readline()).decode().strip()
