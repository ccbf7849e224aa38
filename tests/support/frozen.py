"""A PostgreSQL that stands still, and a network that loses everything."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from headgate.postgres.cluster import Cluster


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """Every process of PostgreSQL stands still: connections stay, nothing answers."""
    assert cluster.pid is not None
    postmaster = psutil.Process(cluster.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    for p in processes:
        with suppress(ProcessLookupError):
            os.kill(p.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for p in processes:
            with suppress(ProcessLookupError):
                os.kill(p.pid, signal.SIGCONT)


class Network:
    """A TCP proxy in front of PostgreSQL's socket, or a port: bytes may stop to arrive without any connection's end."""

    def __init__(self, target: Path | int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @contextmanager
    def running(self) -> Iterator[Network]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.thaw()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.port = server.result(30).sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(30)

    def freeze(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut(self) -> None:
        """Every connection ends at once."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self._writers])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self._target, int):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            else:
                far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
        except OSError:  # it is not there
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._writers -= both

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65536):
                await self._flows.wait()
                writer.write(chunk)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.close()
