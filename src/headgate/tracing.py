"""Traces: spans of OpenTelemetry, and their W3C context (`traceparent`, `tracestate`) in the headers of messages.

Nothing here imports OpenTelemetry before the application has: without it there is no span to take part in, and each of
these functions costs a look into a dict. The headers are plain strings, so any consumer can read them, also in SQL.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MOST_LINKS = 128  # of one span: what the SDK keeps, too

_OFF: AbstractContextManager[None] = nullcontext()
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Carried = dict[str, str]  # the headers of a message that say of which trace it is


def is_on() -> bool:
    """Whether spans go anywhere: the application has set up OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "use_span"):  # it is being imported at this moment
        return False
    return type(trace.get_tracer_provider()) not in (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


def ids() -> tuple[str, str] | None:
    """The trace and the span that are active, as logs name them."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "use_span"):
        return None
    context = trace.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def carry(headers: dict[str, Any] | None, carried: Carried | None) -> dict[str, Any] | None:
    """Headers with the context added, unless the sender gave one."""
    if not carried or (headers and TRACEPARENT in headers):
        return headers
    return {**(headers or {}), **carried}


def current() -> Carried:
    """The context of the span that is active, as headers of an HTTP request."""
    return _inject() if is_on() else {}


def passed_on(traceparent: str | None, tracestate: str | None) -> Carried | None:
    """The context of a call as headers of what it sends, where no span is made in between; None if not valid."""
    if traceparent is None or not _PARENT.fullmatch(traceparent):
        return None
    if tracestate and len(tracestate) <= 512 and tracestate.isascii() and tracestate.isprintable():
        return {TRACEPARENT: traceparent, TRACESTATE: tracestate}
    return {TRACEPARENT: traceparent}


class Span:
    """A span that is active."""

    __slots__ = ("_span", "carried")

    def __init__(self, span: Any) -> None:
        self._span = span
        self.carried = _inject()

    def tell(self, attributes: Mapping[str, Any]) -> None:
        """Adds attributes."""
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        """What it turned out to be."""
        self._span.update_name(name)

    def fail(self, kind: str) -> None:
        """It failed, without an exception that passes through it."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def sent(self, seqs: list[int], *, batch: bool) -> None:
        """What was sent has these places in the stream."""
        if batch:
            self._span.set_attribute("messaging.batch.message_count", len(seqs))
        elif seqs:
            self._span.set_attribute("messaging.message.id", str(seqs[0]))


def link(headers: Iterable[Any]) -> None:
    """The active span has to do with the messages of these headers."""
    if is_on():
        from opentelemetry import trace

        span = trace.get_current_span()
        for context in _contexts(headers):
            span.add_link(context)


def sending(stream: str) -> AbstractContextManager[Span | None]:
    """The span of a send, active inside: its `carried` goes into the messages."""
    if not is_on() and ids() is None:
        return _OFF
    return _active(f"send {stream}", "PRODUCER", _about("send", "send", stream))


def settling(
    operation: str, stream: str, consumer: str, messages: Iterable[Any] | None
) -> AbstractContextManager[Span | None]:
    """The span of an ack, nack, release or extend, linked to what sent the messages. None: there is to be none."""
    if messages is None:
        return _OFF
    links = [m.headers for m in messages if hasattr(m, "headers")]
    return _active(f"{operation} {stream}", "CLIENT", _about(operation, "settle", stream, consumer), links=links)


def received(stream: str, consumer: str, messages: Iterable[Any], began: int) -> None:
    """The span of a receive that brought messages; it began then (nanoseconds), and is linked to what sent them."""
    from opentelemetry import trace

    headers = [m.headers for m in messages]
    span = _tracer().start_span(
        f"receive {stream}",
        kind=trace.SpanKind.CLIENT,
        attributes={
            **_about("receive", "receive", stream, consumer),
            "messaging.batch.message_count": len(headers),
        },
        links=[trace.Link(c) for c in _contexts(headers)],
        start_time=began,
    )
    span.end()


def serving(method: str, traceparent: str | None, tracestate: str | None) -> AbstractContextManager[Span | None]:
    """The span of a request to the HTTP server; it continues the caller's trace."""
    if not is_on():
        return _OFF
    given = passed_on(traceparent, tracestate)
    return _active(method, "SERVER", {"http.request.method": method}, parent=given or {})


def exports_keys() -> bool:
    """Whether spans say the keys and channels of messages, which may be somebody's name."""
    return os.environ.get("HEADGATE_TRACE_KEYS") == "1"


def handled(
    call: Callable[[Any], Any], stream: str, consumer: str, is_async: bool, expected: type[BaseException]
) -> Callable[[Any], Any]:
    """A worker's handler, with a span around each call that continues the sender's trace.

    An `expected` exception is no failure: the handler asks for another attempt. The message's key, which may say whose
    it is, leaves this process only when HEADGATE_TRACE_KEYS is 1.
    """
    with_keys = exports_keys()

    @contextmanager
    def around(m: Any) -> Iterator[None]:
        about = _about("process", "process", stream, consumer) | {
            "messaging.message.id": str(m.seq),
            "messaging.destination.partition.id": str(m.lane),
            "headgate.attempt": m.attempt,
        }
        if with_keys and m.key is not None:
            about["headgate.message.key"] = m.key
        with _active(f"process {stream}", "CONSUMER", about, parent=m.headers, expected=expected):
            yield

    if is_async:

        async def handle(m: Any) -> None:
            with around(m):
                await call(m)

        return handle

    def handle_in_thread(m: Any) -> None:
        with around(m):
            call(m)

    return handle_in_thread


@contextmanager
def _active(
    name: str,
    kind: str,
    attributes: dict[str, Any],
    *,
    parent: Any = None,
    links: Iterable[Any] = (),
    expected: type[BaseException] | None = None,
) -> Iterator[Span]:
    """A span around a block. With a `parent` (headers) it continues the trace that these name, or begins one."""
    from opentelemetry import context, trace

    span = _tracer().start_span(
        name,
        context=None if parent is None else _extract(parent, context.Context()),
        kind=trace.SpanKind[kind],
        attributes=attributes,
        links=[trace.Link(c) for c in _contexts(links)],
    )
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield Span(span)
        except BaseException as error:
            if expected is not None and isinstance(error, expected):
                span.set_attribute("headgate.retry", True)
            else:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)[:200]))
            raise


def _about(operation: str, kind: str, stream: str, consumer: str | None = None) -> dict[str, Any]:
    about = {
        "messaging.system": "headgate",
        "messaging.destination.name": stream,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    return about if consumer is None else {**about, "messaging.consumer.group.name": consumer}


_known: tuple[Any, Any] = (None, None)  # the provider, and our tracer of it: to make one costs more than a span


def _tracer() -> Any:
    global _known
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    known, tracer = _known
    if known is not provider:
        tracer = provider.get_tracer("headgate")
        _known = (provider, tracer)
    return tracer


@cache
def _propagator() -> Any:
    # this one, whatever OTEL_PROPAGATORS says: what is in the headers is part of our interface
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _inject() -> Carried:
    carrier: Carried = {}
    _propagator().inject(carrier)
    return carrier


def _extract(headers: Any, context: Any) -> Any:
    """Who sends with SQL can write anything into headers: what is no context is none."""
    texts = {}
    if isinstance(headers, dict):
        texts = {k: v for k, v in headers.items() if k in (TRACEPARENT, TRACESTATE) and isinstance(v, str)}
    return _propagator().extract(texts, context) if texts else context


def _contexts(headers: Iterable[Any]) -> list[Any]:
    """The different contexts that headers name."""
    from opentelemetry import context, trace

    found: dict[Any, Any] = {}
    for h in headers:
        if isinstance(h, dict) and TRACEPARENT in h:
            c = trace.get_current_span(_extract(h, context.Context())).get_span_context()
            if c.is_valid:
                found.setdefault((c.trace_id, c.span_id), c)
                if len(found) == MOST_LINKS:
                    break
    return list(found.values())
