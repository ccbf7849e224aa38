"""Where the server posts to: public addresses, unless it is told otherwise; and to the address that was checked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.aio import AsyncMessage
from headgate.server.push.addresses import Guard, Refused, is_public
from headgate.server.push.posting import Answer, Poster, Target, retry_after
from support.receivers import SECRET, receiver
from support.servers import data, error, replica
from support.waiting import wait_until

CLOSED = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16", "::1", "::",
    "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "fec0::1", "2001:db8::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::a00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::1",
]  # fmt: skip
OPEN = ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]


@pytest.mark.parametrize("address", CLOSED)
def test_closed(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(Refused):
        Guard().check_literal(address)
    Guard(private=True).check_literal(address)


@pytest.mark.parametrize("address", OPEN)
def test_open(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    Guard().check_literal(address)


def test_what_is_allowed() -> None:
    guard = Guard(allowed=["10.1.0.0/16", "hooks.internal", "127.0.0.1"])
    for host, address, may in [
        ("x", "10.1.2.3", True), ("x", "::ffff:10.1.2.3", True), ("x", "10.2.0.1", False),
        ("HOOKS.internal.", "192.168.0.1", True), ("other.internal", "192.168.0.1", False), ("x", "127.0.0.1", True),
        ("x", "127.0.0.2", False),
    ]:  # fmt: skip
        assert guard.permits(host, ipaddress.ip_address(address)) is may, (host, address)


MESSAGE = AsyncMessage(None, ("0.1.1", 1, "k", "x", None, None, 1, datetime.now(UTC)))  # type: ignore[arg-type]


def target(url: str, **more: Any) -> Target:
    return Target("s", "c", 1, url, [SECRET], 1, more.pop("timeout", 5.0), None)


async def post(guard: Guard, url: str, **more: Any) -> Answer:
    poster = Poster(guard)
    try:
        return await poster.post(target(url, **more), MESSAGE)
    finally:
        await poster.close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0", "0"]
)
async def test_every_way_to_write_loopback(host: str) -> None:
    with receiver() as there:
        port = there.url.split(":")[2].partition("/")[0]
        answer = await post(Guard(), f"http://{host}:{port}/")
        assert answer.status is None
        assert there.posts == []
        if host in ("127.0.0.1", "127.1"):
            assert answer.error == "refused: the host has no public address"
            assert (await post(Guard(private=True), f"http://{host}:{port}/")).status == 204


async def test_a_name_that_changes_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look gives a public address, every later one this machine: there is no later one."""
    loop = asyncio.get_running_loop()
    looks: list[str] = []

    async def fake(host: str, port: int, **more: Any) -> list[Any]:
        looks.append(host)
        address = "192.0.2.1" if len(looks) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    with receiver() as there:
        port = int(there.url.split(":")[2].partition("/")[0])
        monkeypatch.setattr(loop, "getaddrinfo", fake)
        # 192.0.2.1 stands for a public one: it is allowed here, and nobody answers there
        answer = await post(Guard(allowed=["192.0.2.0/24"]), f"http://changes.example:{port}/", timeout=0.5)
    assert answer.status is None
    assert looks[0] == "changes.example"
    assert "127.0.0.1" not in looks
    assert there.posts == []


@asynccontextmanager
async def tls_server(certificate: Path, key: Path, asked: list[str | None]) -> AsyncIterator[int]:
    """Answers one request over TLS; notes which name was asked for, and the Host header."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.sni_callback = lambda _, name, __: asked.append(name)  # type: ignore[assignment]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.extend(line[6:].decode() for line in head.split(b"\r\n") if line.lower().startswith(b"host: "))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_tls_asks_for_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The connection goes to an address, the certificate is that of the name."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example",
        "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    loop = asyncio.get_running_loop()

    async def fake(host: str, port: int, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", fake)
    asked: list[str | None] = []
    guard = Guard(private=True)
    async with tls_server(certificate, key, asked) as port:
        assert (await post(guard, f"https://hooks.example:{port}/")).status is None, "nobody trusts it"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        asked.clear()
        assert (await post(guard, f"https://hooks.example:{port}/x")).status == 204
        assert asked == ["hooks.example", f"hooks.example:{port}"]
        assert (await post(guard, f"https://other.example:{port}/x")).status is None, "not its certificate"


def test_the_server_refuses(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("s", create=True)
    with receiver() as there, replica(database_url, tmp_path) as server, server.client() as admin:
        for url in (there.url, "http://localhost/", "https://169.254.169.254/latest", "http://[fd00::1]:80/x"):
            body = {"name": "c", "push": {"url": url, "secret": SECRET}}
            assert error(admin.post("/api/streams/s/consumers", json=body), 422) == "invalid_argument"
        # whoever writes with SQL gets no further
        consumer = hg.stream("s").consumer("c", create=True, max_deliver=1, push={"url": there.url, "secret": SECRET})
        hg.stream("s").send("x")
        wait_until(lambda: consumer.info().dead == 1)
        [dead] = data(admin.get("/api/streams/s/consumers/c/dead"))
        assert dead["last_error"] == "refused: the host has no public address"
    assert there.posts == []


async def test_an_endless_answer_is_not_read() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        except OSError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answered = await post(Guard(private=True), f"http://127.0.0.1:{port}/")
        assert answered.status == 200


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"7", 7.0), (b" 0 ", 0.0), (b"99999999999999", 86400.0), (b"-1", None), (b"soon", None), (b"", None),
        (None, None), (b"Thu, 01 Jan 2026 00:00:30 GMT", 30.0), (b"Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after(value: bytes | None, seconds: float | None) -> None:
    assert retry_after(value, datetime(2026, 1, 1, tzinfo=UTC)) == seconds
