"""Reads a replication slot: frames as they come, and word of what is kept. psycopg has no replication of its own.

The server is told every few seconds how far everything is kept, whether or not frames are being read: so it does not
take a reader for dead whose stream is slow, and it answers, so that a dead connection is noticed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from .connections import SILENCE, connect
from .timelines import check_timeline
from .wire import Keepalive, lsn_text, write_status

MOST_FRAMES = 500  # handed over at once
TELL_EVERY = 2.0  # seconds


class Feed:
    """The frames of a slot. `open` it, `read` it, `confirm` what is kept, `close` it."""

    def __init__(self, conn: AsyncConnection[tuple[Any, ...]], start: int, timeline: int) -> None:
        self._conn = conn
        self.timeline = timeline
        self._pgconn = conn.pgconn
        self._flushed = start
        self._heard = monotonic()
        self._reading = False
        self._telling = asyncio.create_task(self._tell())

    @classmethod
    async def open(cls, url: str, slot: str, publication: str, start: int, timeline: int | None = None) -> Feed:
        """Begins to read a slot behind `start`, which was on `timeline`."""
        conn = await connect(url, replication=True)
        try:
            now = await check_timeline(conn, timeline, start)
            # A publication's name is a list's element in a string: quoted as both.
            names = '"' + publication.replace('"', '""') + '"'
            await conn.execute(
                sql.SQL(
                    "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}, messages 'true')"
                ).format(sql.Identifier(slot), sql.SQL(lsn_text(start)), sql.Literal(names))
            )
        except BaseException:
            await conn.close()
            raise
        return cls(conn, start, now)

    async def read(self) -> list[bytes]:
        """The next frames: all that are here, up to a number; waits for one. Raises when the connection is gone."""
        self._reading = True
        try:
            while True:
                if found := self._take():
                    self._pgconn.consume_input()  # one call reads few kilobytes
                    while len(found) < MOST_FRAMES and (more := self._take()):
                        found += more
                        self._pgconn.consume_input()
                    return found
                if self._telling.done():
                    self._telling.result()
                await self._readable()
                self._pgconn.consume_input()
        finally:
            self._reading = False

    def _take(self) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < MOST_FRAMES:
            size, data = self._pgconn.get_copy_data(1)
            if size > 0:
                found.append(bytes(data))
            elif size == 0:
                break
            else:
                raise psycopg.OperationalError("the server has ended the replication")
        if found:
            self._heard = monotonic()
        return found

    def confirm(self, lsn: int) -> None:
        """Everything up to there is kept here: the server need not."""
        self._flushed = max(self._flushed, lsn)

    @property
    def flushed(self) -> int:
        """What the server was, or will be, told."""
        return self._flushed

    def answer(self, keepalive: Keepalive) -> None:
        """Answers a server that asks."""
        if keepalive.wants_answer:
            self._send(wants_answer=False)

    async def close(self) -> None:
        """Ends it. The slot stays."""
        self._telling.cancel()
        await asyncio.wait({self._telling})
        await self._conn.close()

    async def _tell(self) -> None:
        while True:
            self._send(wants_answer=True)
            await asyncio.sleep(TELL_EVERY)
            if self._reading and monotonic() - self._heard > SILENCE:
                raise psycopg.OperationalError(f"the server has not answered for {SILENCE:g} seconds")

    def _send(self, *, wants_answer: bool) -> None:
        """Hands it to the driver. What the socket has no room for now goes with the next one."""
        self._pgconn.put_copy_data(write_status(self._flushed, datetime.now(UTC), wants_answer=wants_answer))
        self._pgconn.flush()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._pgconn.socket, ready.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_EVERY):  # (wait_for of Python 3.11 loses cancellations)
                    await ready.wait()
        finally:
            loop.remove_reader(self._pgconn.socket)
