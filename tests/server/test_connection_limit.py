"""Connections of callers: beyond the limit they are refused."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.server.http.protocol import RESERVED, most_connections
from support.servers import Replica, replica
from support.waiting import wait_until

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


def test_no_more_than_there_are_files() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections(10) == 10
    assert most_connections(2**40) == files - RESERVED
