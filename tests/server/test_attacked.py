"""What an adversary without a token tried on the server: memory, time and slots of others, by raw sockets."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.postgres.cluster import Cluster
from headgate.server.http.protocol import HEAD_BYTES, MOST_HEADERS
from support.databases import new_database
from support.servers import Replica, data, eventually, replica
from support.waiting import wait_until

CALLERS = 60


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with new_database(cluster) as url, replica(url, tmp_path_factory.mktemp("server"), "head_timeout=5") as it:
        with it.client() as admin:
            data(admin.post("/api/streams", json={"name": "s"}))
            data(admin.post("/api/streams/s/consumers", json={"name": "c", "max_deliver": 1}))
            data(admin.post("/api/streams/s/messages", json={"messages": [{"data": 1}]}))
        # What a busy server keeps once, some 20 MB, whatever is done how often: the first attack is not measured.
        attacked(it, ATTACKS["pipelined requests whose answers nobody reads"])
        yield it


def connect(server: Replica) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def memory(server: Replica) -> int:
    """Bytes that the server's process has for itself."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def pour(server: Replica, sent: bytes, seconds: float = 0.5) -> bytes:
    """Sends as much as is taken; the beginning of the answer."""
    with connect(server) as connection, contextlib.suppress(OSError):
        connection.settimeout(seconds)
        connection.sendall(sent)
        return connection.recv(65536)
    return b""


def hold(server: Replica, stack: ExitStack, sent: bytes, count: int = CALLERS) -> None:
    """So many callers send that, as far as it is taken, and neither read nor go."""

    def begin(_: int) -> socket.socket:
        connection = connect(server)
        connection.settimeout(0.5)
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        return connection

    with ThreadPoolExecutor(10) as pool:
        for connection in pool.map(begin, range(count)):
            stack.enter_context(connection)


def attacked(server: Replica, sent: bytes) -> int:
    """How much memory the server has while many callers send that, and somebody else is served."""
    with ExitStack() as stack, server.client() as admin:
        hold(server, stack, sent)
        # it comes to the end of what had arrived: the answer waits behind it
        assert data(admin.post("/api/streams/s/messages", json={"messages": [{"data": 1}]}))
        return memory(server)


CHUNKED = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ATTACKS = {
    "pipelined requests whose answers nobody reads": b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000,
    "headers without number": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * (HEAD_BYTES // 4 - 100),
    "a path without end": b"GET /" + b"a" * (HEAD_BYTES - 100),
    "a body for nobody": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 8_000_000,
    "chunks of one byte": CHUNKED.replace(b"/healthz", b"/api/streams") + b"1\r\nx\r\n" * 200_000,
    "trailers": CHUNKED + b"0\r\n" + b"x: y\r\n" * 200_000,
    "extensions": CHUNKED + b"1;" + b"x" * 2_000_000,
    "upgrades": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" * 20_000,
    "what is no HTTP": bytes(range(256)) * 8_000,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_memory(server: Replica, attack: str) -> None:
    """Neither while it lasts nor afterwards, and others are served meanwhile."""
    before = memory(server)
    during = attacked(server, ATTACKS[attack])
    assert during - before < 60e6, f"{(during - before) / 1e6 / CALLERS:.1f} MB a caller"
    wait_until(lambda: memory(server) < before + 20e6)


LARGE = {
    "refused by the database": {"messages": [{"data": "x" * 25_000_000}]},
    "refused here": {"messages": [{"data": "x" * 25_000_000}], "other": 1},
    "taken": {"messages": [{"data": "x" * 2500} for _ in range(10_000)]},
}


@pytest.mark.parametrize("what", LARGE)
def test_large_requests_are_not_remembered(server: Replica, what: str) -> None:
    """Nor what they took: by a traceback, by the connections to the database, by the allocator."""
    before = memory(server)
    with server.client() as admin:
        for _ in range(3):
            assert admin.post("/api/streams/s/messages", json=LARGE[what]).status_code in (200, 413, 422)
        wait_until(lambda: memory(server) < before + 20e6)


def test_too_many_headers(server: Replica) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    assert pour(server, head + b"a: b\r\n" * (MOST_HEADERS - 1) + b"\r\n").startswith(b"HTTP/1.1 200")
    assert pour(server, head + b"a: b\r\n" * MOST_HEADERS + b"\r\n").startswith(b"HTTP/1.1 431")


def test_many_requests_without_waiting_are_all_answered(server: Replica) -> None:
    """In their order, whatever is done to hold them back."""
    paths = [b"/healthz", b"/nowhere"] * 3000
    sent = b"".join(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in paths)
    with connect(server) as connection, ThreadPoolExecutor(1) as pool:
        pool.submit(connection.sendall, sent)
        got = b""
        while got.count(b"HTTP/1.1 ") < len(paths) or not got.endswith(b"}"):
            got += (part := connection.recv(1 << 20))
            assert part
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"404"] * 3000


@pytest.mark.alone
@pytest.mark.parametrize("path", ["/readyz", "/healthz", "/openapi.json", "/api/webhooks/x", "/api/streams"])
def test_a_flood_costs_nobody_else_an_answer(server: Replica, path: str) -> None:
    """Of what needs no token, or of what is refused, as fast as it goes over many connections."""
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hg_{'0' * 16}.{'x' * 30}\r\n\r\n".encode()
    is_over = threading.Event()

    def flood(_: int) -> None:
        with connect(server) as connection, contextlib.suppress(OSError):
            while not is_over.is_set():
                connection.sendall(request * 10)
                connection.recv(1 << 20)

    with ThreadPoolExecutor(CALLERS) as pool, server.client() as admin:
        for n in range(CALLERS):
            pool.submit(flood, n)
        try:
            for _ in range(5):  # each within the client's time, which is long: this machine may be busy otherwise, too
                assert data(admin.post("/api/streams/s/messages", json={"messages": [{"data": 1}]}))
        finally:
            is_over.set()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_that_would_like_http2(server: Replica, tmp_path: Path) -> None:
    """It publishes what it was told to, and purges exactly what it asked for."""

    def curl(method: str, path: str, body: str) -> str:
        config = tmp_path / "headers"
        config.write_text(
            f'header = "Authorization: Bearer {server.token}"\nheader = "Content-Type: application/json"\n'
        )
        command = ["curl", "-sS", "--http2", "-K", str(config), "-X", method, "-d", body, f"{server.url}{path}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout

    with server.client() as admin:
        data(admin.post("/api/streams", json={"name": "h2"}))
        data(admin.post("/api/streams/h2/consumers", json={"name": "c", "max_deliver": 1}))
        sent = curl("POST", "/api/streams/h2/messages", '{"messages":[{"data":1},{"data":2},{"data":3}]}')
        assert '"published":3' in sent
        got = data(admin.get("/api/streams/h2/consumers/c/receive?batch_size=10&wait_ms=5000"))
        data(admin.post("/api/streams/h2/consumers/c/nack", json={"ack_ids": [g["ack_id"] for g in got]}))
        dead = "/api/streams/h2/consumers/c/dead"
        first, *others = data(admin.get(dead))
        assert '"purged":1' in curl("DELETE", dead, f'{{"seqs":[{first["seq"]}]}}')
        assert "which dead letters" in curl("DELETE", dead, "{}")
        assert data(admin.get(dead)) == others


JAVA = """
import java.net.URI;
import java.net.http.*;

class Caller {
    public static void main(String[] given) throws Exception {
        HttpClient client = HttpClient.newHttpClient();  // it asks to go on in HTTP/2
        for (int n = 1; n < given.length; n += 3) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(given[n + 1]))
                .header("Authorization", "Bearer " + System.getenv("TOKEN")).header("Content-Type", "application/json")
                .method(given[n], HttpRequest.BodyPublishers.ofString(given[n + 2])).build();
            System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java")
def test_java_as_it_comes(server: Replica, tmp_path: Path) -> None:
    """Its HttpClient publishes what it was told to, and purges exactly what it asked for."""
    (tmp_path / "Caller.java").write_text(JAVA)

    def java(*calls: str) -> list[str]:
        given = [server.url + part if part.startswith("/") else part for part in calls]
        command = ["java", str(tmp_path / "Caller.java"), "-", *given]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120, env=os.environ | {"TOKEN": server.token}
        )
        return done.stdout.splitlines()

    with server.client() as admin:
        data(admin.post("/api/streams", json={"name": "java"}))
        data(admin.post("/api/streams/java/consumers", json={"name": "c", "max_deliver": 1}))
        for _ in range(3):
            data(admin.post("/api/streams/java/messages", json={"messages": [{"data": 1}]}))
        got = eventually("/api/streams/java/consumers/c/receive", admin, 3)
        data(admin.post("/api/streams/java/consumers/c/nack", json={"ack_ids": [g["ack_id"] for g in got]}))
        dead = "/api/streams/java/consumers/c/dead"
        first, second, *others = data(admin.get(dead))
        purged, refused, redriven, sent = java(
            "DELETE", dead, f'{{"seqs":[{first["seq"]}]}}', "DELETE", dead, "{}",
            "POST", f"{dead}/redrive", f'{{"seqs":[{second["seq"]}]}}',
            "POST", "/api/streams/java/messages", '{"messages":[{"data":"a"},{"data":"b"}]}',
        )  # fmt: skip
        assert '"purged":1' in purged
        assert "which dead letters" in refused
        assert '"redriven":1' in redriven
        assert '"published":2' in sent
        assert data(admin.get(dead)) == others
        assert [m["data"] for m in data(admin.get("/api/streams/java/messages?sort=seq_desc&limit=2"))] == ["b", "a"]
