"""Spans, caught in memory."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once


class Spans:
    """The spans that have ended since it was made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __enter__(self) -> Spans:
        trace.set_tracer_provider(self._provider)
        return self

    def __exit__(self, *exception: object) -> None:
        self._provider.shutdown()
        # a provider can be set once a process; the other tests are to find none
        trace._TRACER_PROVIDER_SET_ONCE = Once()
        trace._TRACER_PROVIDER = None

    def named(self, name: str) -> list[ReadableSpan]:
        return [s for s in self._exporter.get_finished_spans() if s.name == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.named(name)
        return found

    def clear(self) -> None:
        self._exporter.clear()


def header(span: ReadableSpan) -> str:
    """What a message of this span carries."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    one, other = span.parent, parent.get_span_context()
    return one is not None and other is not None and (one.trace_id, one.span_id) == (other.trace_id, other.span_id)


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}
