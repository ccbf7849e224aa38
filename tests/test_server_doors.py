"""Connections of callers: beyond the limit they are refused, and silent ones do not keep their place."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn
from clients import until
from conftest import wait_until
from servers import Replica, replica

from headgate.server.doors import RESERVED, door
from headgate.server.metrics import Metrics

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Replica]:
    with replica(database_url, tmp_path, "connections=5") as found:
        yield found


def call(connection: socket.socket) -> bytes:
    """An answer, read to its end."""
    connection.settimeout(10)
    connection.sendall(HEALTH)
    got = b""
    while not got.endswith(b"}}"):
        part = connection.recv(10_000)
        assert part, got
        got += part
    return got


def test_too_many_connections(server: Replica) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((host, int(port))))

        first = [connect() for _ in range(5)]
        for connection in first:
            assert call(connection).startswith(b"HTTP/1.1 200")
        refused = connect()
        refused.settimeout(10)
        answer = b"".join(iter(lambda: refused.recv(10_000), b""))
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b"too_many_connections" in answer
        assert call(first[0]).startswith(b"HTTP/1.1 200"), "those who are in are served"
        first[1].close()

        def is_let_in() -> bool:
            with socket.create_connection((host, int(port))) as again:
                try:
                    return call(again).startswith(b"HTTP/1.1 200")
                except OSError:  # closed while the request was on its way
                    return False

        wait_until(is_let_in)
        first[2].close()
        wait_until(is_let_in)
    with server.client() as http:
        wait_until(lambda: http.get("/readyz").is_success)
        text = http.get("/metrics").text
    refusals = next(line for line in text.splitlines() if line.startswith("headgate_http_connections_refused_total "))
    assert int(refusals.split()[1]) >= 1
    assert "headgate_http_connections 1\n" in text


async def app(scope: dict[str, object], receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


async def test_silent_connections_are_closed() -> None:
    config = uvicorn.Config(
        app, port=0, http=door(10, Metrics(), patience=0.2), lifespan="off", log_config=None, timeout_keep_alive=30
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    for begun in (b"", b"GET / HTTP/1.1\r\nhost:", HEALTH + b"GET / HT"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        got = await asyncio.wait_for(reader.read(), 10)
        assert got.startswith(b"HTTP/1.1 204") == begun.startswith(HEALTH)
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEALTH)
    await reader.readuntil(b"\r\n\r\n")
    with pytest.raises(TimeoutError):  # one that has made a request may keep still as long as uvicorn says
        await asyncio.wait_for(reader.read(1), 0.5)
    writer.close()
    server.should_exit = True
    await serving


def test_no_more_than_there_are_files() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert door(10, Metrics()).most == 10
    assert door(2**40, Metrics()).most == files - RESERVED
