"""An endpoint that a consumer pushes to: somebody else's service, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import random

BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 27\r\nretry-after: 1\r\n\r\nthe dispatch desk is asleep"
DONE = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """Answers each POST, now and then that it has no time."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/shipments"

    def stop(self) -> None:
        """Takes no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # (cancelled it is as the demo ends, while a server keeps the connection open)
        gone = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, ValueError)
        with contextlib.suppress(*gone):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
                await reader.readexactly(length)
                await asyncio.sleep(self._chance.uniform(0.01, 0.08))
                writer.write(BUSY if self._chance.random() < 0.02 else DONE)
                await writer.drain()
        writer.close()
