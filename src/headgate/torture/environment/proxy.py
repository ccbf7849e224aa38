"""A network that can be cut and slowed down: a proxy between the sessions and PostgreSQL, on unix sockets."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

CHUNK = 65536
NAME = ".s.PGSQL.5432"

T = TypeVar("T")


class Proxy:
    """Passes on bytes between whoever connects to its socket and the target, which may change."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.directory = directory  # what sessions give as their host
        self.target = target  # PostgreSQL's socket
        self.delay = 0.0  # of each chunk, at most
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        self.directory.mkdir(exist_ok=True)
        thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        thread.start()
        server = self._ask(asyncio.start_unix_server(self._serve, str(self.directory / NAME)))
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(server.close)
            self.cut(1.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    def cut(self, share: float) -> int:
        """End that part of the connections, whatever they are just doing; how many that were."""

        async def close() -> int:
            chosen = [pair for pair in self._pairs if random.random() < share]
            for pair in chosen:
                for writer in pair:
                    writer.transport.abort()
            return len(chosen)

        return self._ask(close())

    def _ask(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self.target))
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._pairs.append(pair)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._pairs.remove(pair)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(random.random() * self.delay)
                writer.write(chunk)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.close()
