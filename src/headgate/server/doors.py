"""Connections of callers: not too many at once, and none that keeps a place without asking for anything."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .metrics import Metrics

RESERVED = 100  # files that the process needs for other things: the database, the log, Python itself
PATIENCE = 30.0  # seconds for the first line and the headers of a request

_BODY = b'{"error":{"code":"too_many_connections","message":"the server has too many connections","hint":"try again"}}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n" % len(_BODY)
) + _BODY


class Door(HttpToolsProtocol):
    """One connection. `door` makes the class of a server."""

    most: int
    patience: float
    metrics: Metrics

    _refused = False
    _begun = False  # a request whose headers are not complete
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refused = True
            self.metrics.refused += 1
            transport.write(_REFUSAL)
            transport.close()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if not self._begun:
            self._stop_waiting()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._begun = False
        super().on_headers_complete()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.patience, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def door(most: int, metrics: Metrics, patience: float = PATIENCE) -> type[Door]:
    """The class of a server's connections: at most so many, and no more than it has files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        most = min(most, max(files - RESERVED, 1))
    about: dict[str, Any] = {"most": most, "metrics": metrics, "patience": patience}
    return type("Door", (Door,), about)
