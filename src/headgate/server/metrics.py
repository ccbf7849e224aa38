"""Prometheus text: what this process did, and how the database's streams and consumers stand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime

from ..types import ConsumerInfo, StreamInfo

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
MOST_SERIES = 10_000  # of messages: streams and consumers that come and go

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How long things took."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def note(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def render(self, name: str, labels: str) -> list[str]:
        """Its lines."""
        lines, running = [], 0
        for bound, n in zip((*BOUNDS, "+Inf"), self._counts, strict=True):
            running += n
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {running}')
        return [*lines, f"{name}_sum{{{labels}}} {self._total:.6f}", f"{name}_count{{{labels}}} {running}"]


class Metrics:
    """Counters and histograms of one process."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._times: dict[str, Histogram] = {}
        self._pushes: dict[tuple[str, str, str], int] = {}
        self._push_times: dict[tuple[str, str], Histogram] = {}
        self._messages: dict[tuple[str, str, str | None], int] = {}

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts an answer. The time a poll waited for messages is not in it."""
        key = (route, method, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._times.setdefault(f"{method} {route}", Histogram()).note(seconds)

    def push(self, stream: str, consumer: str, result: str, seconds: float) -> None:
        """Counts a message that was posted to a push consumer's URL, by what became of it."""
        key = (stream, consumer, result)
        if key in self._pushes or len(self._pushes) < MOST_SERIES:
            self._pushes[key] = self._pushes.get(key, 0) + 1
            self._push_times.setdefault((stream, consumer), Histogram()).note(seconds)

    def count(self, what: str, stream: str, consumer: str | None, messages: int) -> None:
        """Counts messages that went through this process."""
        key = (what, stream, consumer)
        if messages and (key in self._messages or len(self._messages) < MOST_SERIES):
            self._messages[key] = self._messages.get(key, 0) + messages

    def render(self, gauges: dict[str, tuple[str, float]]) -> list[str]:
        """The lines of this process; `gauges` by name, with what they are."""
        lines = [_head("headgate_http_requests_total", "counter", "Answers by route, method and status.")]
        for (route, method, status), n in self._requests.items():
            lines.append(f'headgate_http_requests_total{{route="{route}",method="{method}",status="{status}"}} {n}')
        name = "headgate_http_request_seconds"
        lines.append(_head(name, "histogram", "Time to an answer, without waiting for messages."))
        for label, times in self._times.items():
            method, _, route = label.partition(" ")
            lines += times.render(name, f'route="{route}",method="{method}"')
        name = "headgate_push_total"
        lines.append(_head(name, "counter", "Messages posted to the URLs of push consumers: done, failed or gone."))
        for (stream, pusher, result), n in self._pushes.items():
            lines.append(f"{name}{_labels(stream=stream, consumer=pusher, result=result)} {n}")
        name = "headgate_push_seconds"
        lines.append(_head(name, "histogram", "Time to an endpoint's answer."))
        for (stream, pusher), times in self._push_times.items():
            lines += times.render(name, _labels(stream=stream, consumer=pusher)[1:-1])
        name = "headgate_http_messages_total"
        lines.append(_head(name, "counter", "Messages published, delivered, acked and nacked through this process."))
        for (what, stream, consumer), n in self._messages.items():
            lines.append(f"{name}{_labels(what=what, stream=stream, consumer=consumer)} {n}")
        for name, (about, value) in gauges.items():
            lines += [_head(name, "gauge", about), f"{name} {value:g}"]
        return lines


STREAMS = {
    "last_seq": ("headgate_stream_last_seq", "counter", "The last sequence number drawn."),
    "messages": ("headgate_stream_messages", "gauge", "Messages in the stream; estimated when many."),
    "bytes": ("headgate_stream_bytes", "gauge", "Size of the stream."),
    "is_full": ("headgate_stream_full", "gauge", "1 while sending fails because max_storage is reached."),
}
CONSUMERS = {
    "delivered": ("headgate_consumer_delivered_total", "counter", "Messages handed out from the log."),
    "lag": ("headgate_consumer_lag", "gauge", "Messages not done: unread, in flight and parked."),
    "unread": ("headgate_consumer_unread", "gauge", "Messages still to come to."),
    "in_flight": ("headgate_consumer_in_flight", "gauge", "Messages that workers have."),
    "parked": ("headgate_consumer_parked", "gauge", "Messages that are delayed, failed or wait behind one."),
    "dead": ("headgate_consumer_dead", "gauge", "Dead letters."),
    "lost": ("headgate_consumer_lost_total", "counter", "Messages removed before they were done."),
    "paused": ("headgate_consumer_paused", "gauge", "1 while the consumer is paused."),
}


def render_insights(streams: Iterable[StreamInfo], consumers: Iterable[ConsumerInfo]) -> list[str]:
    """The lines of the database."""
    lines = []
    streams, consumers = list(streams), list(consumers)
    for field, (name, kind, about) in STREAMS.items():
        lines.append(_head(name, kind, about))
        lines += [f"{name}{_labels(stream=s.name)} {float(getattr(s, field) or 0):.17g}" for s in streams]
    for field, (name, kind, about) in CONSUMERS.items():
        lines.append(_head(name, kind, about))
        lines += [
            f"{name}{_labels(stream=c.stream, consumer=c.name)} {float(getattr(c, field) or 0):.17g}" for c in consumers
        ]
    name, now = "headgate_consumer_oldest_seconds", datetime.now(UTC)
    lines.append(_head(name, "gauge", "Age of the oldest message that is not done; 0 when there is none."))
    for c in consumers:
        age = max((now - c.oldest_unacked).total_seconds(), 0) if c.oldest_unacked else 0.0
        lines.append(f"{name}{_labels(stream=c.stream, consumer=c.name)} {age:.3f}")
    return lines


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}"


def _labels(**labels: str | None) -> str:
    return "{" + ",".join(f'{k}="{_quoted(v)}"' for k, v in labels.items() if v is not None) + "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
