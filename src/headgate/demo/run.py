"""The demo from its start to its end: a database, a server, and the shop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from ..aio import AsyncHeadgate
from ..errors import Error
from .receiver import Receiver
from .serving import serving
from .shop import close_shop, open_shop, remove_shop
from .staff import Staff
from .traffic import Customers


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
    beside: Started | None = None,
    directory: Path | None = None,
    port: int = 0,
    rate: float = 1.0,
    seconds: float | None = None,
    ready: Callable[[Started], None] | None = None,
) -> None:
    """Runs until SIGINT or SIGTERM, or for so many seconds. Without a database it has its own, gone at the end.

    `beside` is a server that runs already, for this database or that of this directory: then no other is started.
    """
    asyncio.run(_run(database, beside, directory, port, rate, seconds, ready))


def remove(database: str | None, directory: Path | None) -> list[str]:
    """Removes the shop from a database, or from that of a directory; the streams that were there."""

    async def go() -> list[str]:
        async with AsyncHeadgate(database, directory=None if directory is None else str(directory)) as hg:
            return await remove_shop(hg)

    return asyncio.run(go())


async def _run(
    database: str | None, beside: Started | None, home: Path | None, port: int, rate: float, seconds: float | None,
    ready: Callable[[Started], None] | None,
) -> None:  # fmt: skip
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    logging.getLogger("headgate.worker").setLevel(logging.CRITICAL)  # the staff's failures are part of the show
    chance = random.Random()
    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as made:
        async with AsyncHeadgate(database, directory=str(home or Path(made) / "data")) as hg:
            if stop.is_set():
                return
            if database is not None:
                await hg.migrate()
            receiver = Receiver(chance)
            await receiver.start()
            stays = database is not None or beside is not None
            try:
                await open_shop(hg, receiver.url)
                async with _place(hg, beside, Path(made), port, stop) as (place, ended):
                    if place is not None:
                        if ready is not None:
                            ready(place)
                        await _move(hg, rate, chance, stop, ended)
            finally:
                receiver.stop()
                if stays:
                    await close_shop(hg)


@contextlib.asynccontextmanager
async def _place(
    hg: AsyncHeadgate, beside: Started | None, directory: Path, port: int, stop: asyncio.Event
) -> AsyncIterator[tuple[Started | None, asyncio.Task[int] | None]]:
    """The server to look at, and when it has ended; nothing, when the demo is to stop before."""
    if beside is not None:
        yield beside, None
        return
    async with serving(hg.url, directory, port, stop) as (url, server):
        ended = asyncio.create_task(server.wait())
        try:
            yield Started(url, (directory / "token").read_text().strip(), hg.url) if url else None, ended
        finally:
            ended.cancel()


async def _move(
    hg: AsyncHeadgate, rate: float, chance: random.Random, stop: asyncio.Event, ended: asyncio.Task[int] | None
) -> None:
    """Customers and staff, until it is to stop, one of them fails, or the server has ended."""
    customers = Customers(hg, rate, chance)
    workers = await Staff(chance).workers(hg)
    working = [asyncio.create_task(worker.run()) for worker in workers]
    buying = [asyncio.create_task(customers.run()), asyncio.create_task(customers.sell())]
    stopped = asyncio.create_task(stop.wait())
    try:
        first = [stopped, *working, *buying, *([] if ended is None else [ended])]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *buying):
            task.cancel()
        for worker in workers:
            worker.stop()
        ends = await asyncio.gather(*working, *buying, return_exceptions=True)
    if ended is not None and ended.done() and not stop.is_set():
        raise Error(f"the demo's server has ended, with code {ended.result()}", hint="start the demo again")
    for failure in ends:
        if isinstance(failure, Exception):
            raise failure
