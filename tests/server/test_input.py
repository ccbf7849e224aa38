"""Bad input is answered with the right 4xx, whatever it is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.servers import Replica, data, error, replica

S = "/api/streams/s"
C = f"{S}/consumers/c"


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with new_database(cluster) as url, replica(url, tmp_path_factory.mktemp("server")) as found:
        with found.client() as admin:
            data(admin.post("/api/streams", json={"name": "s"}))
            data(admin.post(f"{S}/consumers", json={"name": "c"}))
        yield found


@pytest.fixture(scope="module")
def http(server: Replica) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


DEEP = b'{"messages":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"

BODIES: dict[str, tuple[str, bytes, int]] = {
    "nothing": (f"{S}/messages", b"", 400),
    "not json": (f"{S}/messages", b"{", 400),
    "more than json": (f"{S}/messages", b'{"messages":[{"data":1}]} x', 400),
    "not utf-8": (f"{S}/messages", b'{"messages":[{"data":"\xff"}]}', 400),
    "key not utf-8": (f"{S}/messages", b'{"messages":[{"data":1,"key":"\xff"}]}', 400),
    "utf-16": (f"{S}/messages", '{"messages":[{"data":1}]}'.encode("utf-16"), 400),
    "half a pair": (f"{S}/messages", b'{"messages":[{"data":1,"key":"\\ud800"}]}', 400),
    "deep": (f"{S}/messages", DEEP, 400),
    "deep headers": (
        f"{S}/messages",
        DEEP.replace(b'"data":', b'"data":1,"headers":{"a":').replace(b"}]}", b"}}]}"),
        400,
    ),
    "an array": (f"{S}/messages", b"[]", 422),
    "null": (f"{S}/messages", b"null", 422),
    "missing": (f"{S}/messages", b"{}", 422),
    "empty": (f"{S}/messages", b'{"messages":[]}', 422),
    "no data": (f"{S}/messages", b'{"messages":[{"key":"k"}]}', 422),
    "unknown field": (f"{S}/messages", b'{"messages":[{"data":1,"topic":"x"}]}', 422),
    "key of a number": (f"{S}/messages", b'{"messages":[{"data":1,"key":5}]}', 422),
    "nul in key": (f"{S}/messages", b'{"messages":[{"data":1,"key":"a\\u0000"}]}', 422),
    "nul in data": (f"{S}/messages", b'{"messages":[{"data":"a\\u0000"}]}', 422),
    "nul in headers": (f"{S}/messages", b'{"messages":[{"data":1,"headers":{"a":"\\u0000"}}]}', 422),
    "nul in id": (f"{S}/messages", b'{"messages":[{"data":1,"id":"\\u0000"}]}', 422),
    "headers of a list": (f"{S}/messages", b'{"messages":[{"data":1,"headers":[]}]}', 422),
    "long key": (f"{S}/messages", b'{"messages":[{"data":1,"key":"' + b"k" * 10_001 + b'"}]}', 422),
    "delay and time": (
        f"{S}/messages",
        b'{"messages":[{"data":1,"delay_ms":1,"deliver_at":"2999-01-01T00:00Z"}]}',
        422,
    ),
    "time without a zone": (f"{S}/messages", b'{"messages":[{"data":1,"deliver_at":"2999-01-01T00:00:00"}]}', 422),
    "negative delay": (f"{S}/messages", b'{"messages":[{"data":1,"delay_ms":-1}]}', 422),
    "huge delay": (f"{S}/messages", b'{"messages":[{"data":1,"delay_ms":1e300}]}', 422),
    "huger delay": (f"{S}/messages", b'{"messages":[{"data":1,"delay_ms":' + b"9" * 400 + b"}]}", 422),
    "no channels": (f"{S}/messages", b'{"messages":[{"data":1,"channel":"x"}]}', 422),
    "stream name": ("/api/streams", b'{"name":"a b"}', 422),
    "dotted name": ("/api/streams", b'{"name":".."}', 422),
    "long name": ("/api/streams", b'{"name":"' + b"x" * 51 + b'"}', 422),
    "no lanes": ("/api/streams", b'{"name":"x","lanes":0}', 422),
    "many lanes": ("/api/streams", b'{"name":"x","lanes":99999999999}', 422),
    "lane_by": ("/api/streams", b'{"name":"x","lane_by":"moon"}', 422),
    "storage": ("/api/streams", b'{"name":"x","max_storage":1}', 422),
    "consumer name": (f"{S}/consumers", b'{"name":"a/b"}', 422),
    "filter": (f"{S}/consumers", b'{"name":"x","filter":"a..b"}', 422),
    "empty filter": (f"{S}/consumers", b'{"name":"x","filter":[]}', 422),
    "start": (f"{S}/consumers", b'{"name":"x","start":"whenever"}', 422),
    "nul start": (f"{S}/consumers", b'{"name":"x","start":"\\u0000"}', 422),
    "backoff": (f"{S}/consumers", b'{"name":"x","backoff":{"first":-1}}', 422),
    "infinite backoff": (f"{S}/consumers", b'{"name":"x","backoff":1e999}', 422),
    "ack_wait": (f"{S}/consumers", b'{"name":"x","ack_wait_ms":0}', 422),
    "limits": (f"{S}/consumers", b'{"name":"x","max_concurrency":1}', 422),
    "no ack_ids": (f"{C}/ack", b'{"ack_ids":[]}', 422),
    "ack_ids of a str": (f"{C}/ack", b'{"ack_ids":"0.1.1"}', 422),
    "ack_id with a space": (f"{C}/ack", b'{"ack_ids":["0.1.1 0.1.2"]}', 422),
    "ack_id with nul": (f"{C}/nack", b'{"ack_ids":["\\u0000"]}', 422),
    "ack_id in receive": (f"{C}/receive", b'{"ack_ids":["\'"]}', 422),
    "extend by nothing": (f"{C}/extend", b'{"ack_ids":["0.1.1"]}', 422),
    "seek": (f"{C}/seek", b'{"to":"9999999999999999999999"}', 422),
    "seek to a time without a zone": (f"{C}/seek", b'{"to":"2026-01-01T00:00:00"}', 422),
    "seek to nul": (f"{C}/seek", b'{"to":"\\u0000"}', 422),
    "seek to a list": (f"{C}/seek", b'{"to":[]}', 422),
    "redrive": (f"{C}/dead/redrive", b'{"seqs":[-1]}', 422),
    "retry nothing": (f"{C}/retry", b"{}", 422),
    "retry without a body": (f"{C}/retry", b"", 400),
    "retry not all": (f"{C}/retry", b'{"all":false}', 422),
    "retry some and all": (f"{C}/retry", b'{"all":true,"seqs":[1]}', 422),
    "replay nothing": (f"{C}/replay", b"{}", 422),
    "replay without a body": (f"{C}/replay", b"", 400),
    "replay a negative seq": (f"{C}/replay", b'{"seqs":[-1]}', 422),
    "replay backwards": (f"{C}/replay", b'{"from_seq":2,"to_seq":1}', 422),
    "replay at noon": (f"{C}/replay", b'{"from_time":"noon"}', 422),
    "replay at a time without a zone": (f"{C}/replay", b'{"from_time":"2026-01-01T00:00:00"}', 422),
    "replay at the end of time": (f"{C}/replay", b'{"to_time":"9999-12-31T23:59:59-23:59","filter":"a..b"}', 422),
    "replay with a bad filter": (f"{C}/replay", b'{"filter":"a..b"}', 422),
    "replay for nobody": (f"{S}/consumers/none/replay", b'{"from_seq":1}', 404),
    "token": ("/api/tokens", b'{"name":"x","scopes":["root"]}', 422),
    "token name": ("/api/tokens", b'{"name":"\\u0000","scopes":["admin"]}', 422),
    "no stream": ("/api/streams/none/messages", b'{"messages":[{"data":1}]}', 404),
    "no consumer": (f"{S}/consumers/none/ack", b'{"ack_ids":["0.1.1"]}', 404),
    "no consumer to nack": (f"{S}/consumers/none/nack", b'{"ack_ids":["x"]}', 404),
    "no consumer to ack nothing": (f"{S}/consumers/none/ack", b'{"ack_ids":["x"]}', 404),
    "nul in path": ("/api/streams/a%00b/messages", b'{"messages":[{"data":1}]}', 422),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(http: httpx.Client, name: str) -> None:
    path, body, status = BODIES[name]
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert error(answer, status)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api", 404), ("/api/", 404), ("/api/streams/", 404), ("//api//streams", 404),
        (f"{S}/nothing", 404), ("/api/streams/none", 404), ("/api/streams/%FF", 400),
        ("/api/streams/%00", 422), ("/api/streams/..%2f..", 404),
        ("/api/streams?x=1", 422), (f"{S}/messages?limit=0", 422), (f"{S}/messages?limit=1001", 422),
        (f"{S}/messages?limit=ten", 422), (f"{S}/messages?limit=1&limit=2", 422), (f"{S}/messages?sort=up", 422),
        (f"{S}/messages?key_pattern=a..b", 422), (f"{S}/messages?key_pattern=%00", 422),
        (f"{S}/messages?limit=%FF", 400),
        (f"{S}/messages?before={2**63}", 422), (f"{S}/messages?before=" + "9" * 5000, 422),
        (f"{C}/receive?batch_size=1001", 422), (f"{C}/receive?wait_ms=60001", 422), (f"{C}/receive?wait_ms=-1", 422),
        (f"{C}/messages?visible=maybe", 422), (f"{C}/dead?after=-1", 422), (f"{C}/channels/%00", 422),
        (f"{C}/channels?sort=size", 422), (f"{C}/channels?after=x", 422), (f"{C}/channels?limit=0", 422),
        (f"{S}/messages/0/life", 404), (f"{S}/messages/x/life", 404), (f"{S}/messages/{2**63}/life", 404),
        ("/api/streams/none/messages/1/life", 404), ("/api/streams/none/attempts", 404),
        (f"{S}/attempts?consumer=none", 404), (f"{S}/attempts?limit=0", 422), (f"{S}/attempts?seq=x", 422),
        (f"{S}/consumers/none/receive", 404), (f"{S}/consumers/none/dead", 404), (f"{S}/consumers/none/messages", 404),
        (f"{S}/consumers/%00/receive", 422), (f"{C}/receive?worker=%00", 422),
    ],
)  # fmt: skip
def test_paths_and_queries(http: httpx.Client, path: str, status: int) -> None:
    error(http.get(path), status)


def test_methods(http: httpx.Client) -> None:
    for method in ("PUT", "TRACE", "PROPFIND"):
        answer = http.request(method, "/api/streams")
        assert error(answer, 405) == "method_not_allowed"
        assert answer.headers["allow"] == "POST, GET"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/xml"])
def test_content_types(http: httpx.Client, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = http.post(f"{S}/messages", content=b'{"messages":[{"data":1}]}', headers=headers)
    assert error(answer, 415) == "unsupported_media_type"


def test_json_with_a_charset(http: httpx.Client) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert http.post(f"{S}/messages", content=b'{"messages":[{"data":1}]}', headers=headers).is_success


def test_bodies_that_are_too_large(http: httpx.Client, server: Replica) -> None:
    body = b'{"messages":[{"data":"' + b"x" * (32 * 1024 * 1024) + b'"}]}'
    headers = {"Content-Type": "application/json"}
    assert error(http.post(f"{S}/messages", content=body, headers=headers), 413) == "body_too_large"

    def pieces() -> Iterator[bytes]:  # without a length said before
        for _ in range(33):
            yield b" " * 1024 * 1024

    with server.client() as own:
        with suppress(httpx.WriteError):  # it was refused, and closed, before all of it was sent
            assert error(own.post(f"{S}/messages", content=pieces(), headers=headers), 413) == "body_too_large"
    assert http.get(S).is_success


def test_what_is_no_http(server: Replica, http: httpx.Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for noise in (b"\x00" * 100, b"GET\r\n\r\n", b"\xff\xfe" * 50, b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=5) as plain:
            plain.sendall(noise)
            plain.shutdown(socket.SHUT_WR)
            plain.settimeout(5)
            while plain.recv(1000):
                pass
    assert http.get(S).is_success


def test_errors_leak_nothing(http: httpx.Client) -> None:
    answer = http.post(f"{S}/messages", json={"messages": [{"data": 1, "headers": {"a": "\x00"}}]})
    assert "headgate." not in json.dumps(answer.json()), "no names of functions or tables"
