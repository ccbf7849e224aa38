"""What is no proper HTTP: the right 4xx or a closed connection, and the server lives on."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from headgate.postgres.cluster import Cluster
from headgate.server.settings import Settings
from support.databases import new_database
from support.servers import Replica, data, replica
from support.waiting import wait_until

SECONDS = 0.5  # what this server gives to heads, and to bodies


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    directory = tmp_path_factory.mktemp("server")
    with new_database(cluster) as url, replica(url, directory, f"head_timeout={SECONDS}", f"timeout={SECONDS}") as it:
        with it.client() as admin:
            data(admin.post("/api/streams", json={"name": "s"}))
        yield it


@pytest.fixture(autouse=True)
def lives_on(server: Replica) -> Iterator[None]:
    yield
    with server.client() as admin:
        assert admin.get("/readyz").is_success
    assert server.process.poll() is None


def connect(server: Replica) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got


def head(server: Replica, *more: str) -> bytes:
    lines = ("POST /api/streams/s/messages HTTP/1.1", "Host: x", f"Authorization: Bearer {server.token}")
    return "\r\n".join([*lines, "Content-Type: application/json", *more, "", ""]).encode()


BODY = b'{"messages":[{"data":{"a":1}}]}'


@pytest.mark.parametrize(
    "noise",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /api/streams HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/streams HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /api/streams HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",  # no Host
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_malformed_requests(server: Replica, noise: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(noise)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert b"connection: close" in answer


def test_random_bytes(server: Replica) -> None:
    dice = random.Random(4)
    whole = head(server, f"Content-Length: {len(BODY)}") + BODY
    for _ in range(150):
        if dice.random() < 0.5:
            noise = dice.randbytes(dice.randint(1, 2000))
        else:  # a good request, damaged
            noise = bytearray(whole)
            for _ in range(dice.randint(1, 8)):
                noise[dice.randrange(len(noise))] = dice.randrange(256)
        with connect(server) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            answer = rest(connection)
        assert not answer.startswith(b"HTTP/1.1 5"), (bytes(noise), answer)


def test_a_head_without_end(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for number in range(1000):
                connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        except (BrokenPipeError, ConnectionResetError):
            return  # it has hung up
        assert rest(connection).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /api/str", b"POST /api/streams HTTP/1.1\r\nHost: x\r\nA"])
def test_half_a_head(server: Replica, sent: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        answer = rest(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
    assert answer or len(sent) < 3


def test_half_a_head_after_a_request(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(head(server, f"Content-Length: {len(BODY)}") + BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HTT")
        assert rest(connection).startswith(b"HTTP/1.1 408")


def test_a_head_in_drops(server: Replica) -> None:
    """That something comes now and then does not help."""
    began = time.monotonic()
    with connect(server) as connection:
        try:
            while time.monotonic() < began + 10:
                connection.sendall(b"G" if time.monotonic() < began else b"A")
                time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert time.monotonic() - began < 5


def test_half_a_body(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(head(server, "Content-Length: 1000") + BODY)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"too_slow"' in answer


def test_a_good_request_in_pieces(server: Replica) -> None:
    whole = head(server, f"Content-Length: {len(BODY)}", "Connection: close") + BODY
    with connect(server) as connection:
        for at in range(0, len(whole), 20):
            connection.sendall(whole[at : at + 20])
        assert rest(connection).startswith(b"HTTP/1.1 200")


def test_requests_one_after_the_other_without_waiting(server: Replica) -> None:
    whole = head(server, f"Content-Length: {len(BODY)}") + BODY
    last = head(server, f"Content-Length: {len(BODY)}", "Connection: close") + BODY
    with connect(server) as connection:
        connection.sendall(whole * 3 + last)
        assert rest(connection).count(b"HTTP/1.1 200") == 4


def test_many_half_requests_keep_nobody_out(server: Replica) -> None:
    halves = [connect(server) for _ in range(200)]
    try:
        for half in halves:
            half.sendall(b"GET /api/streams HTTP/1.1\r\n")
        with server.client() as admin:
            assert admin.get("/api/streams").is_success
        for half in halves:
            assert rest(half).startswith(b"HTTP/1.1 408")
    finally:
        for half in halves:
            half.close()


def test_what_is_answered_before_it_has_come_is_read_to_its_end(server: Replica) -> None:
    """Or the answer would be lost: who closes with something unread cuts the connection."""
    size = 3_000_000
    refused = head(server, f"Content-Length: {size}").replace(server.token.encode(), b"hg_wrong")
    whole = head(server, f"Content-Length: {len(BODY)}") + BODY
    with connect(server) as connection:
        connection.sendall(refused)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        connection.sendall(b"x" * size)
        connection.sendall(whole)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_the_rest_of_what_is_answered_does_not_come(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(head(server, "Content-Length: 1000").replace(server.token.encode(), b"hg_wrong"))
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_body_that_waits_to_be_asked_for(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(head(server, f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_in_chunks(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(head(server, "Transfer-Encoding: chunked"))
        for at in range(0, len(BODY), 10):
            part = BODY[at : at + 10]
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_noise_instead_of_a_chunk(server: Replica) -> None:
    with connect(server) as connection:
        connection.sendall(head(server, "Transfer-Encoding: chunked"))
        connection.sendall(b"5\r\nabcde\r\nnonsense\r\n")
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_noise_after_a_request(server: Replica) -> None:
    """What was asked for is answered, whatever comes behind it."""
    with connect(server) as connection:
        connection.sendall(head(server, f"Content-Length: {len(BODY)}") + BODY + b"\x00nonsense\r\n\r\n")
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("GET /api/streams/s HTTP/1.0", ""),
        ("GET /api/streams/s HTTP/1.1", "Connection: close"),
        ("GET /api/streams/s HTTP/1.1", "Connection: Upgrade, close\r\nUpgrade: websocket"),
        ("GET http://x/api/streams/s HTTP/1.1", "Connection: close"),
        ("HEAD /api/streams/s HTTP/1.1", "Connection: close"),
    ],
)
def test_kinds_of_requests_that_are_the_last(server: Replica, line: str, more: str) -> None:
    sent = "\r\n".join([line, "Host: x", f"Authorization: Bearer {server.token}", *filter(None, [more]), "", ""])
    with connect(server) as connection:
        connection.sendall(sent.encode() * 2)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 405" if line.startswith("HEAD") else b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1, "nothing is answered after the last one"
    assert b"connection: close" in answer


UPGRADE = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


@pytest.mark.parametrize("cut", [0, 1, 10, 300, -1])
@pytest.mark.parametrize("framing", ["Content-Length: %d", "Transfer-Encoding: chunked"])
def test_who_would_like_another_protocol(server: Replica, framing: str, cut: int) -> None:
    """As Java's HttpClient asks for HTTP/2 with each first request: it is answered as if it had not, with its body."""
    if "%d" in framing:
        sent = head(server, framing % len(BODY), *UPGRADE) + BODY
    else:
        sent = head(server, framing, *UPGRADE) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with connect(server) as connection:
        connection.sendall(sent[:cut])
        time.sleep(0.02)
        connection.sendall(sent[cut:] + head(server, f"Content-Length: {len(BODY)}", "Connection: close") + BODY)
        answer = rest(connection)
    assert answer.count(b"HTTP/1.1 200") == answer.count(b'{"data":{"published":1') == 2, answer


@pytest.mark.parametrize(
    "sent", [b"0\r\n" + b"x: y\r\n" * 300_000, b"0\r\nx: " + b"y" * 2_000_000, b"1;" + b"x" * 2_000_000]
)
def test_what_stands_around_a_body_is_not_kept(server: Replica, sent: bytes) -> None:
    with connect(server) as connection:
        try:
            connection.sendall(head(server, "Transfer-Encoding: chunked") + sent)
            answer = rest(connection)
        except (BrokenPipeError, ConnectionResetError):
            return  # it has hung up
    assert answer.startswith(b"HTTP/1.1 400"), answer


def test_trailers_are_no_headers(server: Replica) -> None:
    trailer = f"0\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    with connect(server) as connection:
        lines = ("POST /api/streams HTTP/1.1", "Host: x", "Connection: close", "Transfer-Encoding: chunked", "", "")
        connection.sendall("\r\n".join(lines).encode() + trailer.encode())
        assert rest(connection).startswith(b"HTTP/1.1 401")


def test_memory_comes_back(server: Replica) -> None:
    """30 MB of trailers without a token, from several at once; and half a body for a path that takes none."""

    def pour(sent: bytes) -> None:
        with connect(server) as connection, contextlib.suppress(OSError):
            connection.sendall(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
            for _ in range(30):
                connection.sendall(sent)
            rest(connection)

    pour(b"a: b\r\n")
    before = memory(server)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pour, [b"x: y\r\n" * 150_000, b"y" * 1_000_000] * 2))
    wait_until(lambda: memory(server) < before + 20e6)


def memory(server: Replica) -> int:
    """Bytes that the server's process has for itself."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def test_unfinished_bodies_without_a_token_keep_nobody_out(cluster: Cluster, tmp_path: Path) -> None:
    """As much as the server takes of all bodies at once; it waits for the rest of them for longer than this takes."""
    part, sockets = b"x" * (Settings.body_limit - 1000), Settings.bodies_limit // Settings.body_limit + 1

    def pour(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # nobody has to take it
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (len(part) + 1))
            connection.sendall(part)

    with ExitStack() as stack, ThreadPoolExecutor(sockets) as pool:
        server = stack.enter_context(replica(stack.enter_context(new_database(cluster)), tmp_path))
        list(pool.map(pour, [stack.enter_context(connect(server)) for _ in range(sockets)]))
        with server.client() as admin:
            data(admin.post("/api/streams", json={"name": "s"}))
            assert data(admin.post("/api/streams/s/messages", json={"messages": [{"data": "x" * 1_000_000}]}))


def test_somebody_who_does_not_read_the_answers(server: Replica) -> None:
    """Others are served, and no more is done for this one than fits into the connection."""
    with server.client() as admin:
        data(admin.post("/api/streams/s/messages", json={"messages": [{"data": ["x" * 100_000]}] * 10}))
        line = "GET /api/streams/s/messages?limit=1000 HTTP/1.1"
        asked = f"{line}\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n\r\n"
        with connect(server) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(2000):
                    connection.send(asked.encode())

            def is_at_rest() -> bool:
                before = answered(admin)
                time.sleep(0.5)
                return before > 0 and answered(admin) == before

            wait_until(is_at_rest)
            assert answered(admin) < 100
            assert admin.get("/api/streams/s").is_success


def answered(admin: httpx.Client) -> int:
    """How many lists of messages the server has made."""
    text = admin.get("/metrics").text
    found = re.search(
        r'headgate_http_requests_total\{route="/api/streams/\{stream\}/messages",method="GET"[^}]*\} (\d+)', text
    )
    return int(found[1]) if found else 0
