"""The server's protocol beside a second parser: whatever bytes arrive, in whatever pieces, it never understands another
request than h11 does. It may refuse more; what it takes has the same method, path, headers and body."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.server.http.limits import Deadlines
from headgate.server.http.protocol import HEAD_BYTES, Protocol
from headgate.server.siblings import Alone

MOST = int(os.environ.get("HEADGATE_TEST_EXAMPLES", "400"))


class Asked(NamedTuple):
    """A request that came whole."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Wire(asyncio.Transport):
    """Takes what is written, and never anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = self.is_paused = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_reading(self) -> bool:
        return not self.is_paused

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1)


async def read_by_us(parts: list[bytes]) -> tuple[list[Asked], bool]:
    """The requests that the application gets whole, and whether nothing is read any more."""
    asked: list[Asked] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body, more = body + event["body"], event["more_body"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = ((n, v.lower() if n == b"transfer-encoding" else v) for n, v in scope["headers"])  # as h11 does
        asked.append(Asked(scope["method"].encode(), target, tuple(headers), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    server = SimpleNamespace(heads=Deadlines(60), idle=Deadlines(60), most_connections=1, siblings=Alone())
    config = SimpleNamespace(loaded_app=app, app=SimpleNamespace(server=server))
    state = SimpleNamespace(connections=set(), tasks=set(), total_requests=0)
    protocol, wire = Protocol(config, state, {}), Wire()
    protocol.connection_made(wire)
    for part in parts:
        if wire.is_closed:
            break
        protocol.data_received(part)
        while state.tasks:
            running = set(state.tasks)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if running == state.tasks:  # it waits for more
                break
    is_over = wire.is_closed
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks)
    assert not state.tasks
    return asked, is_over


def read_by_h11(data: bytes) -> list[Asked]:
    """The requests that h11 reads whole. (Empty lines before a request mean nothing: RFC 9112, 2.2; between the words
    of its first line there may be more than one blank: 3.)"""
    asked: list[Asked] = []
    while data := re.sub(rb"^([A-Z]+) +(\S+) +(HTTP)", rb"\1 \2 \3", data.lstrip(b"\r\n")):
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        connection.receive_data(data)
        request, body = None, b""
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return asked
            assert request is not None
            headers = tuple((bytes(n), bytes(v)) for n, v in request.headers)
            target = bytes(request.target).partition(b"#")[0]  # the part behind it is nobody's here
            target = target[:-1] if target.find(b"?") == len(target) - 1 else target  # nor is an empty query
            asked.append(Asked(bytes(request.method), target, headers, body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
        except h11.RemoteProtocolError:
            return asked
        if connection.their_state is not h11.DONE or connection.our_state is not h11.DONE:
            return asked
        data = connection.trailing_data[0]
    return asked


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(n % (len(data) + 1) for n in at)})
    return [data[a:b] for a, b in pairwise(places)]


def compare(data: bytes, at: list[int]) -> int:
    """Reads both ways; how many requests we took."""
    ours, _ = asyncio.run(read_by_us(cut(data, at)))
    theirs = read_by_h11(data)
    assert ours == theirs[: len(ours)], (data, ours, theirs)
    return len(ours)


TOKENS = st.sampled_from(
    [
        b"POST / HTTP/1.1\r\n", b"GET /a?b=c HTTP/1.1\r\n", b"PUT /x HTTP/1.0\r\n", b"OPTIONS * HTTP/1.1\r\n",
        b"Host: x\r\n", b"host:y \r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"content-length: 05\r\n",
        b"Content-Length: +5\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length : 5\r\n",
        b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:\tchunked\r\n", b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n", b"Transfer-Encoding\r\n", b"Connection: close\r\n",
        b"Connection: Upgrade\r\n", b"Upgrade: h2c\r\n", b"Connection: keep-alive, Upgrade\r\n",
        b"Expect: 100-continue\r\n",
        b"X: a\r\n b\r\n", b"X: \x00\r\n", b"X: \xff\r\n", b": empty\r\n", b"X:\r\n", b"\r\n", b"\n", b"\r", b" ",
        b"hello",
        b"5\r\nhello\r\n", b"5;a=b\r\nhello\r\n", b'5;a="\r\n"\r\nhello\r\n', b"5 \r\nhello\r\n", b"0x5\r\nhello\r\n",
        b"-5\r\n", b"00000000000000005\r\nhello\r\n", b"fffffffffffffffff\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n",
        b"0\r\nContent-Length: 3\r\n\r\n", b"5\nhello\n", b"0\n\n", b"\x00", b"GET", b"/", b"HTTP/1.1",
    ]
)  # fmt: skip
HEADS = st.builds(
    lambda first, framing, rest: b"".join((first, b"Host: x\r\n", *framing, b"\r\n", *rest)),
    st.sampled_from([b"POST / HTTP/1.1\r\n", b"GET /a HTTP/1.1\r\n", b"PUT /b HTTP/1.0\r\n"]),
    st.lists(TOKENS, max_size=4),
    st.lists(TOKENS, max_size=4),
)
GOOD = [
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;e=1\r\nhello\r\n6\r\n there\r\n0\r\nT: 1\r\n\r\n",
    b"GET /c?d=e HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"GET /d HTTP/1.1\r\nHost: x\r\n\r\n",
]


@settings(max_examples=MOST, deadline=None)
@example(GOOD[1] + b"\r\n" + GOOD[0], [])
@given(st.one_of(HEADS, st.lists(TOKENS, max_size=12).map(b"".join)), st.lists(st.integers(0, 4000), max_size=6))
def test_requests_made_of_parts(data: bytes, at: list[int]) -> None:
    compare(data, at)


@settings(max_examples=MOST, deadline=None)
@given(
    st.lists(st.sampled_from(GOOD), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(0, 4000), max_size=6),
)
def test_good_requests_damaged(requests: list[bytes], damage: list[tuple[int, int]], at: list[int]) -> None:
    data = bytearray(b"".join(requests))
    for place, byte in damage:
        data[place % len(data)] = byte
    compare(bytes(data), at)


@pytest.mark.parametrize("which", range(len(GOOD)))
def test_cut_at_every_place(which: int) -> None:
    data = GOOD[which] + GOOD[0] + GOOD[3]
    for place in range(len(data) + 1):
        ours, _ = asyncio.run(read_by_us(cut(data, [place])))
        assert [a.target for a in ours][1:] == [b"/a", b"/d"]
        assert ours[1].body == b"hello"
    assert len(asyncio.run(read_by_us([bytes([byte]) for byte in data]))[0]) == 3


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
def test_a_body_behind_an_upgrade(framing: bytes) -> None:
    """h11 stops there; the body is what it would be without."""
    data = b"POST /u HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + framing + GOOD[0]
    for place in range(len(data) + 1):
        ours, _ = asyncio.run(read_by_us(cut(data, [place])))
        assert [(a.target, a.body) for a in ours] == [(b"/u", b"hello"), (b"/a", b"hello")]


def test_a_thousand_at_once() -> None:
    """Requests that ask for another protocol, in one piece: each is read once."""
    ours, _ = asyncio.run(read_by_us([GOOD[2] * 1000]))
    assert len(ours) == 1000


# Wider: what smuggles requests past other servers, in every order, cut anywhere, one behind the other. What we take,
# h11 takes in the same way, up to the first one that either refuses.

CHUNKS = st.lists(
    st.sampled_from(
        [
            b"5\r\nhello\r\n", b"5;\r\nhello\r\n", b'5;a="b;c"\r\nhello\r\n', b"5;a=b;c\r\nhello\r\n", b"G\r\n",
            b"05\r\nhello\r\n", b"5\r\nhello", b"5\r\nhello\n", b"5\r\nhelloX\r\n", b"6\r\nhello\r\n", b"\n",
            b"4\r\nhello\r\n", b"5\rhello\r\n", b" 5\r\nhello\r\n", b"5\t\r\nhello\r\n", b"+5\r\nhello\r\n", b"\r\n",
            b"5_0\r\n", b"a\r\n0\r\n\r\n12345\r\n", b"5;\n\r\nhello\r\n", b"5;x\rfoo\r\nhello\r\n",
            b"10000000000000000\r\n", b"ffffffffffffffff\r\n",
        ]
    ),
    max_size=4,
).map(b"".join)  # fmt: skip
TRAILERS = st.lists(
    st.sampled_from(
        [
            b"X: y\r\n", b"Host: z\r\n", b"Authorization: Bearer t\r\n", b"Transfer-Encoding: chunked\r\n", b"X\r\n",
            b"Content-Length: 40\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n", b" folded\r\n", b": y\r\n",
            b"X : y\r\n", b"X: \x00\r\n", b"X: y\n", b"Connection: Upgrade\r\n",
        ]
    ),
    max_size=3,
).map(b"".join)  # fmt: skip
FRAMING = st.lists(
    st.sampled_from(
        [
            b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n",
            b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
        ]
    ),
    max_size=2,
).map(b"".join)  # fmt: skip
CHUNKED_REQUESTS = st.builds(
    lambda first, more, chunks, last, trailers, end: first + more + b"\r\n" + chunks + last + trailers + end,
    st.sampled_from(
        [
            b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
            b"PUT /b HTTP/1.1\r\nhost:x\r\nTE: trailers\r\ntransfer-encoding: Chunked\r\n",
        ]
    ),
    FRAMING,
    CHUNKS,
    st.sampled_from([b"0\r\n", b"00\r\n", b"0;x\r\n", b"", b"0\n", b"0 \r\n"]),
    TRAILERS,
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"", b"\n", b"\r"]),
)
ONE = st.one_of(CHUNKED_REQUESTS, st.sampled_from(GOOD), HEADS)


@settings(max_examples=MOST, deadline=None)
@given(st.lists(ONE, min_size=1, max_size=4), st.lists(st.integers(0, 4000), max_size=8))
def test_one_behind_the_other(requests: list[bytes], at: list[int]) -> None:
    compare(b"".join(requests), at)


@settings(max_examples=MOST, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(GOOD), st.lists(st.integers(0, 4000), max_size=4))
def test_raw_bytes(noise: bytes, good: bytes, at: list[int]) -> None:
    compare(noise, at)
    compare(good + noise, at)
    compare(noise + good, at)


@settings(max_examples=MOST // 8, deadline=None)
@given(st.lists(ONE, min_size=1, max_size=3))
def test_however_it_is_cut_it_is_the_same(requests: list[bytes]) -> None:
    """At every place, and into single bytes. (Those that are refused may be refused a little sooner or later.)"""
    data = b"".join(requests)
    whole, _ = asyncio.run(read_by_us([data]))
    for place in range(1, len(data)):
        ours, _ = asyncio.run(read_by_us([data[:place], data[place:]]))
        assert ours == whole, (data, place)
    assert asyncio.run(read_by_us([bytes([byte]) for byte in data]))[0] == whole


@pytest.mark.slow
def test_for_a_long_time() -> None:
    """The same, twenty times as much."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", __file__]
    environment = os.environ | {"HEADGATE_TEST_EXAMPLES": str(20 * MOST)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout
