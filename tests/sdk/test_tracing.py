"""One trace from send to handler: the context travels in the headers of messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import headgate
from headgate import tracing
from headgate.server.http.app import App
from headgate.server.server import Server
from headgate.server.settings import Settings
from support.clients import running, running_async, take, until
from support.servers import data
from support.traces import Spans, header, is_child, linked
from support.waiting import wait_until

CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with Spans() as spans:
        yield spans


def test_from_send_to_handler(orders: headgate.Stream, spans: Spans) -> None:
    billing = orders.consumer("billing", create=True)
    inside: list[tuple[str, str] | None] = []

    @billing.worker(concurrency=2, signals=False)
    def handle(m: headgate.Message) -> None:
        inside.append(tracing.ids())

    with trace.get_tracer("test").start_as_current_span("shop"):
        seq = orders.send({"quantity": 4}, key="a")
    with running(handle):
        wait_until(lambda: spans.named("process orders"))
    shop, send, process = (spans.one(n) for n in ("shop", "send orders", "process orders"))
    assert is_child(send, shop)
    assert is_child(process, send)
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(send.attributes or {}) == {
        "messaging.system": "headgate",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": str(seq),
    }
    found = dict(process.attributes or {})
    assert found["messaging.consumer.group.name"] == "billing"
    assert found["messaging.operation.type"] == "process"
    assert found["messaging.message.id"] == str(seq)
    assert found["headgate.attempt"] == 1
    context = process.get_span_context()
    assert context is not None
    assert inside == [(f"{context.trace_id:032x}", f"{context.span_id:016x}")], "the span is active in the handler"
    assert not spans.named("receive orders"), "a worker's own calls make no noise"


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_keys_stay_here_unless_asked_for(
    orders: headgate.Stream, spans: Spans, monkeypatch: pytest.MonkeyPatch, is_asked_for: bool
) -> None:
    """They often say whose a message is."""
    if is_asked_for:
        monkeypatch.setenv("HEADGATE_TRACE_KEYS", "1")

    @orders.consumer("billing", create=True).worker(signals=False)
    def handle(m: headgate.Message) -> None:
        pass

    orders.send({}, key="cus.anna")
    with running(handle):
        wait_until(lambda: spans.named("process orders"))
    found = spans.one("process orders").attributes or {}
    assert found.get("headgate.message.key") == ("cus.anna" if is_asked_for else None)


async def test_from_send_to_handler_async(aorders: headgate.AsyncStream, spans: Spans) -> None:
    billing = await aorders.consumer("billing", create=True)
    attempts: list[int] = []

    async def handle(m: headgate.AsyncMessage) -> None:
        attempts.append(m.attempt)
        if m.attempt == 1:
            raise ValueError("no")
        if m.attempt == 2:
            raise headgate.Retry("later", delay=0)
        await aorders.hg.stream("orders")
        if m.key is None:
            await aorders.send({}, key="next")

    await aorders.send({})
    async with running_async(billing.worker(handle, retry_delay=0, signals=False)):
        await until(lambda: len(spans.named("process orders")) == 6)
    first, *_ = spans.named("send orders")
    failed, retried, done = [p for p in spans.named("process orders") if is_child(p, first)]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert [e.name for e in failed.events] == ["exception"]
    assert retried.status.status_code is not StatusCode.ERROR
    assert (retried.attributes or {})["headgate.retry"] is True
    following = [s for s in spans.named("send orders") if is_child(s, done)]
    assert len(following) == 1, "what a handler sends belongs to the same trace"


def test_a_batch_of_several_traces(orders: headgate.Stream, spans: Spans, db: psycopg.Connection) -> None:
    billing = orders.consumer("billing", create=True)
    tracer = trace.get_tracer("test")
    for name in ("one", "two"):
        with tracer.start_as_current_span(name):
            orders.send_batch([{"n": 1}, ("k", "text")])
    sends = spans.named("send orders")
    assert [(s.attributes or {})["messaging.batch.message_count"] for s in sends] == [2, 2]
    messages = take(billing, 4)
    receives = spans.named("receive orders")
    wanted = {s.get_span_context().span_id for s in sends if s.get_span_context()}  # type: ignore[union-attr]
    assert set().union(*(linked(r) for r in receives)) == wanted
    assert sum(int((r.attributes or {})["messaging.batch.message_count"]) for r in receives) == 4  # type: ignore[arg-type]
    billing.ack(m for m in messages)
    ack = spans.one("ack orders")
    assert linked(ack) == wanted
    assert (ack.attributes or {})["messaging.operation.type"] == "settle"
    # who reads with SQL finds it in the headers
    rows = db.execute("select headers ->> 'traceparent' from headgate.messages('orders', 10)").fetchall()
    assert [r[0] for r in rows] == [header(sends[0])] * 2 + [header(sends[1])] * 2


def test_headers_of_the_sender_stay(orders: headgate.Stream, spans: Spans) -> None:
    billing = orders.consumer("billing", create=True)
    orders.send({}, headers={"traceparent": CALLERS, "a": 1})
    orders.send({}, headers={"traceparent": 5, "tracestate": [1]})
    orders.send(b"bytes", headers={"a": 1})
    given, odd, plain = take(billing, 3)
    assert given.headers == {"traceparent": CALLERS, "a": 1}
    assert odd.headers == {"traceparent": 5, "tracestate": [1]}
    assert plain.data == b"bytes"
    assert plain.headers is not None
    assert plain.headers["traceparent"] == header(spans.named("send orders")[2])

    billing.seek("beginning")
    spans.clear()
    with running(billing.worker(lambda m: None, signals=False)):
        wait_until(lambda: len(spans.named("process orders")) == 3)
    parents = {(s.attributes or {})["messaging.message.id"]: s.parent for s in spans.named("process orders")}
    first, second = parents[str(given.seq)], parents[str(odd.seq)]
    assert first is not None
    assert f"{first.trace_id:032x}" in CALLERS
    assert second is None, "what is no context begins a new trace"


def test_a_failed_send(orders: headgate.Stream, spans: Spans) -> None:
    with pytest.raises(headgate.errors.StreamNotFound):
        headgate.Stream(orders.hg, "missing").send({})
    failed = spans.one("send missing")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "StreamNotFound"


def test_off_without_a_provider(orders: headgate.Stream) -> None:
    """OpenTelemetry may be there, as a dependency of something else: without a span nothing is added."""
    assert not tracing.is_on()
    orders.send({})
    orders.send("text", headers={"a": 1})
    billing = orders.consumer("billing", create=True)
    assert [m.headers for m in take(billing, 2)] == [None, {"a": 1}]


def test_without_opentelemetry(database_url: str) -> None:
    """In a process that cannot import it, and in one that never does, nothing is missing and nothing is imported."""
    code = f"""
import sys
if {{blocked}}:
    sys.modules["opentelemetry"] = None
import headgate
from headgate import tracing
with headgate.connect({database_url!r}) as hg:
    s = hg.stream("s{{blocked}}", create=True)
    s.send({{{{"a": 1}}}})
    c = s.consumer("c", create=True)
    got = []
    @c.worker(signals=False)
    def handle(m):
        got.append(m.headers)
        handle.stop()
    handle.run()
    assert got == [None], got
assert not tracing.is_on() and tracing.ids() is None
assert not [m for m in sys.modules if m.startswith("opentelemetry.")]
"""
    for blocked in (0, 1):
        done = subprocess.run([sys.executable, "-c", code.format(blocked=blocked)], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()


async def test_through_http_to_a_worker(ahg: headgate.AsyncHeadgate, spans: Spans) -> None:
    stream = await ahg.stream("orders", create=True, lanes=1)
    billing = await stream.consumer("billing", create=True)
    service = Server(ahg, Settings(auth=False))
    service.start()
    path = "/api/streams/orders"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
        body = {"messages": [{"data": {"a": 1}}, {"data": 1, "headers": {"traceparent": CALLERS}}]}
        headers = {"traceparent": CALLERS, "tracestate": "shop=1"}
        data(await http.post(path + "/messages", json=body, headers=headers))
        got = data(await http.get(path + "/consumers/billing/receive", params={"batch_size": 10, "wait_ms": 5000}))
        assert (await http.get("/healthz")).is_success
        missing = await http.get("/api/streams/none")
    await service.stop()
    assert missing.status_code == 404
    server, poll = (
        spans.one("POST /api/streams/{stream}/messages"),
        spans.one("GET /api/streams/{stream}/consumers/{consumer}/receive"),
    )
    assert server.kind is SpanKind.SERVER
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" in CALLERS
    assert (server.attributes or {})["http.response.status_code"] == 200
    assert (server.attributes or {})["messaging.destination.name"] == "orders"
    assert got[0]["message"]["headers"] == {"traceparent": header(server), "tracestate": "shop=1"}
    assert got[1]["message"]["headers"] == {"traceparent": CALLERS, "content-type": "application/json"}
    assert len(linked(poll)) == 2
    assert not spans.named("GET")
    assert not spans.named("GET /healthz")

    await billing.seek("beginning")
    async with running_async(billing.worker(_nothing, signals=False)):
        await until(lambda: len(spans.named("process orders")) == 2)
    assert any(is_child(p, server) for p in spans.named("process orders"))


async def _nothing(m: headgate.AsyncMessage) -> None:
    pass


async def test_a_server_without_spans_passes_the_trace_on(ahg: headgate.AsyncHeadgate) -> None:
    await ahg.stream("orders", create=True, lanes=1)
    service = Server(ahg, Settings(auth=False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
        for given in ({"traceparent": CALLERS}, {"traceparent": "00-zz"}, {"traceparent": CALLERS[:-2] + "0é"}, {}):
            raw = {k: v.encode() for k, v in given.items()}
            data(await http.post("/api/streams/orders/messages", json={"messages": [{"data": {}}]}, headers=raw))  # type: ignore[arg-type]
    kept = [m.headers for m in await ahg.insights.messages("orders", 10)]
    assert kept == [{"traceparent": CALLERS}, None, None, None]


def test_headgate_up_exports(database_url: str, tmp_path: Path) -> None:
    """The standard variables say where spans go; `console` is stdout."""
    code = (
        "import sys, os, signal, threading, httpx\n"
        "from headgate.server.run import serve\n"
        "from headgate.server.settings import Settings\n"
        "def ready(running):\n"
        "    def call():\n"
        "        httpx.get(running.url + '/api/streams')\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Thread(target=call).start()\n"
        "serve(Settings(sys.argv[1], port=0, auth=False), ready)\n"
    )
    environment = {"OTEL_TRACES_EXPORTER": "console", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, database_url], env=environment, capture_output=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()
    span = json.loads(done.stdout)
    assert span["name"] == "GET /api/streams"
    assert span["resource"]["attributes"]["service.name"] == "headgate"
    environment["OTEL_TRACES_EXPORTER"] = "nowhere"
    done = subprocess.run(
        [sys.executable, "-c", code, database_url], env=environment, capture_output=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, "a server that cannot trace still serves"
    assert b"spans are not exported to nowhere" in done.stderr
