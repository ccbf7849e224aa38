"""The way over HTTP: what is repeated and what is not, what is said, and that the token is not."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import headgate
from support.clients import until
from support.traces import Spans, header

TOKEN = "hg_0123456789abcdef.a-secret-that-nobody-may-see"
SEQS = (200, {}, {"data": {"published": 1, "seqs": [7]}})
NONE = (200, {}, {"data": []})
CLOSE = (0, {}, None)


def problem(status: int, code: str, retry_after: str | None = "0") -> tuple[int, dict[str, str], Any]:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return status, headers, {"error": {"code": code, "message": f"it says {code}", "hint": "a hint"}}


class Scripted(ThreadingHTTPServer):
    """Answers what it is told, one after the other; a status of 0 is a connection that ends instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = 200, {}, {"data": {"status": "ready"}}
        if not self.path.endswith("/readyz") or self.server.answers:
            self.server.asked.append((self.command, self.path, dict(self.headers)))
            status, headers, body = self.server.answers.pop(0)
        if not status:
            self.close_connection = True
            return
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def hg(server: Scripted) -> Iterator[headgate.Headgate]:
    with headgate.connect(server.url, token=TOKEN, timeout=5) as hg:
        yield hg


def send(hg: headgate.Headgate) -> object:
    return headgate.Stream(hg, "s").send("x")


def send_with_id(hg: headgate.Headgate) -> object:
    return headgate.Stream(hg, "s").send("x", id="1")


def receive(hg: headgate.Headgate) -> object:
    return headgate.Consumer(hg, "s", "c", stream_id=0).receive()


def ack(hg: headgate.Headgate) -> object:
    return headgate.Consumer(hg, "s", "c", stream_id=0).ack(["1.1.1"])


PASSING = [CLOSE, problem(503, "database_away"), problem(503, "timeout"), (502, {}, b"<h1>Bad Gateway</h1>")]


@pytest.mark.parametrize("call", [send, send_with_id, receive, ack])
def test_what_was_refused_is_repeated(
    hg: headgate.Headgate, server: Scripted, call: Callable[[headgate.Headgate], object]
) -> None:
    """429 means that nothing was done: it does no harm, whatever it is."""
    done = {receive: NONE, ack: (200, {}, {"data": {"acked": 1, "stale": 0}})}.get(call, SEQS)
    server.answers = [problem(429, "busy"), problem(429, "rate_limited"), done]
    call(hg)
    assert len(server.asked) == 3


@pytest.mark.parametrize("failure", PASSING)
@pytest.mark.parametrize(("call", "done"), [(send_with_id, SEQS), (receive, NONE)])
def test_what_does_no_harm_is_repeated(
    hg: headgate.Headgate,
    server: Scripted,
    failure: tuple[int, dict[str, str], Any],
    call: Callable[[headgate.Headgate], object],
    done: tuple[int, dict[str, str], Any],
) -> None:
    server.answers = [failure, failure, done]
    call(hg)
    assert len(server.asked) == 3


@pytest.mark.parametrize("failure", PASSING)
@pytest.mark.parametrize("call", [send, ack])
def test_what_may_have_been_done_is_not_repeated(
    hg: headgate.Headgate,
    server: Scripted,
    failure: tuple[int, dict[str, str], Any],
    call: Callable[[headgate.Headgate], object],
) -> None:
    server.answers = [failure]
    with pytest.raises(headgate.errors.ConnectionFailed, match=r"hint: whether .* is not known") as found:
        call(hg)
    assert len(server.asked) == 1
    assert ("with an id for each" in str(found.value)) == (call is send)


def test_who_may_not_wait_at_the_server_waits_here(hg: headgate.Headgate, server: Scripted) -> None:
    """A consumer's max_waiting is no error: what is there is found all the same."""
    found = {"ack_id": "1.2.3", "message": {"seq": 3, "key": None, "data": "x", "headers": None, "channel": None,
             "created_at": "2026-01-31T12:00:00Z"}, "attempt": 1}  # fmt: skip
    server.answers = [problem(429, "too_many_waiting"), (200, {}, {"data": [found]})]
    [message] = headgate.Consumer(hg, "s", "c", stream_id=0).receive(wait=5)
    assert (message.data, len(server.asked)) == ("x", 2)


def test_a_long_list(hg: headgate.Headgate) -> None:
    with pytest.raises(headgate.errors.InvalidArgument, match=r"list of 1001[\s\S]*hint: .*1,000"):
        headgate.Stream(hg, "s").messages(1001)


def test_a_conflict_is_the_callers(hg: headgate.Headgate, server: Scripted) -> None:
    server.answers = [problem(503, "conflict")]
    with pytest.raises(headgate.errors.Conflict):
        receive(hg)


@pytest.mark.parametrize(("retry_after", "asked"), [("3600", {1}), ("0", {2, 3, 4})])
def test_patience_has_an_end(server: Scripted, retry_after: str, asked: set[int]) -> None:
    """A wait that is longer than the timeout is not begun."""
    with headgate.connect(server.url, token=TOKEN, timeout=0.3) as hg:
        server.answers = [problem(429, "busy", retry_after)] * 10
        with pytest.raises(headgate.errors.ServerBusy, match="it says busy"):
            send(hg)
    assert len(server.asked) in asked


def test_a_server_that_does_not_answer(hg: headgate.Headgate, server: Scripted) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(headgate.errors.ConnectionFailed, match=r"127\.0\.0\.1"):
            headgate.connect(url, timeout=0.3)
        assert time.monotonic() - began < 10
    with pytest.raises(headgate.errors.ConnectionFailed, match=r"refused[\s\S]*hint: "):
        headgate.connect(url)


async def test_calls_can_be_cut_off() -> None:
    """As a connection to the database can: who waits for an answer that does not come fails at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hg = headgate.AsyncHeadgate(f"http://127.0.0.1:{silent.getsockname()[1]}", token=TOKEN)
        assert hg.http is not None
        opening = asyncio.create_task(hg.open())
        await until(lambda: hg.http and hg.http._under_way)
        hg.http.cut()
        with pytest.raises(headgate.errors.ConnectionFailed, match="ended before it was answered"):
            await asyncio.wait_for(opening, 5)
        assert not hg.is_open


ERRORS = [
    (problem(404, "stream_not_found"), headgate.errors.StreamNotFound, "a hint"),
    (problem(409, "stream_full"), headgate.errors.StreamFull, "a hint"),
    (problem(401, "unauthorized"), headgate.errors.NotAllowed, "pass token="),
    (problem(413, "body_too_large"), headgate.errors.MessageTooLarge, "fewer or smaller"),
    (problem(422, "invalid_body"), headgate.errors.InvalidArgument, "check the arguments"),
    (problem(404, "not_found"), headgate.Error, "older than this client"),
    (problem(500, "internal"), headgate.Error, "a hint"),
    (problem(499, "something_new"), headgate.errors.InvalidArgument, "a hint"),
    ((301, {"Location": "https://there/"}, b""), headgate.Error, "redirect to https://there/"),
    ((404, {}, b"<html>"), headgate.Error, "not Headgate: 404"),
    ((200, {}, b"<html>"), headgate.Error, "cannot be read"),
    ((200, {}, {"data": 1}), headgate.Error, "cannot be read"),
]


@pytest.mark.parametrize(("answer", "kind", "said"), ERRORS)
def test_errors(hg: headgate.Headgate, server: Scripted, answer: Any, kind: type[headgate.Error], said: str) -> None:
    server.answers = [answer]
    with pytest.raises(kind) as found:
        send(hg)
    assert type(found.value) is kind
    assert said in str(found.value)
    assert len(server.asked) == 1


def test_where_no_headgate_is(server: Scripted) -> None:
    server.answers = [(404, {}, b"<html>")]
    with pytest.raises(headgate.Error, match="no Headgate server at"):
        headgate.connect(server.url)
    server.answers = [problem(503, "database_away"), (200, {}, {"data": {"status": "ready"}})]
    headgate.connect(server.url).close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://", "cannot be read"),
        ("http://host:port", "cannot be read"),
        ("https://host/?a=1", "cannot be read"),
        ("https://me:hunter2@host", "holds a password"),
    ],
)
def test_bad_urls(url: str, said: str) -> None:
    with pytest.raises(headgate.errors.InvalidArgument, match=said) as found:
        headgate.Headgate(url)
    assert "hunter2" not in str(found.value)


def test_a_path_before_the_api(server: Scripted) -> None:
    with headgate.connect(server.url + "/queue/", token=TOKEN) as hg:
        server.answers = [SEQS]
        send(hg)
    assert server.asked[-1][:2] == ("POST", "/queue/api/streams/s/messages")


def test_the_proxy_of_the_environment(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    with headgate.connect("http://headgate.example:7376", token=TOKEN) as hg:
        server.answers = [SEQS]
        send(hg)
    assert server.asked[-1][1] == "http://headgate.example:7376/api/streams/s/messages"


def test_the_trace_goes_along(hg: headgate.Headgate, server: Scripted) -> None:
    with Spans() as spans:
        server.answers = [SEQS]
        send(hg)
        assert server.asked[-1][2]["traceparent"] == header(spans.one("send s"))


def test_closed_meanwhile(hg: headgate.Headgate) -> None:
    """As by a worker that begins anew, while another of its tasks still calls: that one is to begin anew, too."""
    hg.close()
    with pytest.raises(headgate.errors.ConnectionFailed, match="is not open"):
        hg.streams()


def test_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra: `pip install headgate` alone stays small."""
    monkeypatch.setitem(sys.modules, "httpcore", None)
    with pytest.raises(headgate.Error, match=r"pip install 'headgate\[http\]'"):
        headgate.connect("http://localhost:7376")


class TestTokens:
    def test_from_the_environment(self, server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADGATE_TOKEN", "of-the-environment")
        for given, used in ((None, "of-the-environment"), (f" {TOKEN}\n", TOKEN)):
            with headgate.connect(server.url, token=given) as hg:
                server.answers = [SEQS]
                send(hg)
            assert server.asked[-1][2]["Authorization"] == f"Bearer {used}"

    def test_is_never_shown(self, hg: headgate.Headgate, server: Scripted, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        server.answers = [problem(429, "busy"), SEQS, CLOSE]
        send(hg)
        with pytest.raises(headgate.errors.ConnectionFailed) as found:
            send(hg)
        secret = TOKEN.partition(".")[2]
        assert caplog.text
        assert secret not in caplog.text + repr(hg) + repr(hg.http) + hg.url + str(found.value) + repr(found.value)

    @pytest.mark.parametrize("token", ["two words", "line\nline", "ünsafe"])
    def test_bad_ones_are_not_repeated(self, token: str) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="this is not a token") as found:
            headgate.Headgate("http://localhost", token=token)
        assert token not in str(found.value)

    def test_a_database_takes_none(self) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="for an HTTP server"):
            headgate.Headgate("postgresql://localhost/x", token=TOKEN)
