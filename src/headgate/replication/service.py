"""Reads all sources of a database that nobody else reads, for as long as it runs.

Any number of these may run, in any number of processes: the row of a source names its reader. One that dies is
followed by another when its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection

from ..database import statements
from ..errors import SourceTaken
from ..service import Pace, TaskService, cancel_and_wait, is_set_within
from .connections import connect_stream
from .reader import Reader, take
from .troubles import explain, with_name
from .watching import watch

log = logging.getLogger("headgate.sources")

LOOK_EVERY = 1.0  # seconds
RETRY = Pace(1.0, 30.0)  # seconds until a source that could not be read is tried again


class SourceReaders(TaskService):
    """Reads sources. `run` runs a statement in the database that they are in, `url` says where that is."""

    task_name = "headgate-sources"

    def __init__(
        self, run: Callable[..., Awaitable[list[Any]]], url: Callable[[], str], *, pooler: bool = False
    ) -> None:
        super().__init__()
        self._execute = run
        self._url = url
        self._pooler = pooler
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._running: dict[str, tuple[int, asyncio.Task[None]]] = {}  # by source: its version, and who reads it
        self._resting: dict[tuple[str, int], tuple[float, float]] = {}  # until when, and how long the last time
        self._look = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to read."""
        super().start()
        self._watching = asyncio.create_task(watch(self._execute), name="headgate-source-slots")

    def changed(self) -> None:
        """A source was made or changed through this process: look at once."""
        self._resting.clear()
        self._look.set()

    async def stop(self) -> None:
        """Ends it. What was sent and not committed comes again, to whoever reads next."""
        await super().stop()
        await cancel_and_wait(task for _, task in self._running.values())
        if self._watching is not None:
            await cancel_and_wait([self._watching])

    async def _run(self) -> None:
        while True:
            self._look.clear()
            try:
                self._arrange(await self._execute(statements.SOURCES_TO_READ))
            except Exception as error:  # only stop() ends it
                log.debug("cannot look for sources: %s", error)
            await is_set_within(self._look, LOOK_EVERY)

    async def _connect(self) -> AsyncConnection[tuple[Any, ...]]:
        return await connect_stream(self._url(), pooler=self._pooler)

    def _arrange(self, rows: list[Any]) -> None:
        """Has a task for each source that is to be read and is not read elsewhere."""
        versions = {name: version for name, version, _, _ in rows}
        for name, (version, task) in list(self._running.items()):
            if task.done():
                del self._running[name]
            elif versions.get(name) != version:  # paused, changed or gone
                task.cancel()
        for name, version, _, is_free in rows:
            rested = self._resting.get((name, version), (0.0, 0.0))[0] <= monotonic()
            if name not in self._running and is_free and rested:
                task = asyncio.create_task(self._read(name, version), name=f"headgate-source-{name}")
                self._running[name] = (version, task)

    async def _read(self, name: str, version: int) -> None:
        began = monotonic()
        try:
            async with await self._connect() as conn:
                try:
                    if (reading := await take(conn, name, self._name)) is None:
                        return
                    log.info("reading the source %s", name)
                    await Reader(reading, self._url(), pooler=self._pooler).run()
                except SourceTaken:
                    log.info("the source %s is read by another process now", name)
                except Exception as error:
                    state, message, hint = explain(error)
                    self._rest(name, version, began)
                    log.warning("the source %s cannot be read: %s", name, message)
                    params = (name, self._name, state, message, with_name(hint, name))
                    await conn.execute(statements.NOTE_SOURCE_STATE, params)
                finally:
                    with suppress(psycopg.Error):
                        await asyncio.shield(conn.execute(statements.LEAVE_SOURCE, (name, self._name)))
        except Exception as error:  # the next look tries again
            self._rest(name, version, began)
            log.warning("the source %s cannot be read: %s", name, explain(error)[1])

    def _rest(self, name: str, version: int, began: float) -> None:
        """Leaves it alone for a while: longer each time, unless it was read for a while in between."""
        last = 0.0 if monotonic() - began > RETRY.longest else self._resting.get((name, version), (0.0, 0.0))[1]
        pause = RETRY.after(last)
        self._resting = {of: rest for of, rest in self._resting.items() if of[0] != name}
        self._resting[name, version] = (monotonic() + pause, pause)
