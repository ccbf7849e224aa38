"""Prometheus text: what all processes of this server did, and how the database, streams and consumers stand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import add

import msgspec

from ...types import ConsumerInfo, PostgresSourceInfo, StreamInfo

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 86400.0)
MOST_SERIES = 10_000  # of messages: streams and consumers that come and go

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class Figures(msgspec.Struct, array_like=True):
    """What one process counted, to be added to what others did."""

    requests: list[tuple[tuple[str, str, int], int]]
    messages: list[tuple[tuple[str, str, str | None], int]]
    pushes: list[tuple[tuple[str, str, str], int]]
    histograms: list[list[tuple[Labels, list[int], float]]]
    refused: int
    gauges: dict[str, float]  # and counters, whose names end in _total

    def lasting(self) -> Figures:
        """What stays when the process has ended: its counters."""
        return msgspec.structs.replace(self, gauges={k: v for k, v in self.gauges.items() if k.endswith("_total")})


class Histogram:
    """How long something took, by labels."""

    def __init__(self, name: str, about: str, labels: Labels, bounds: tuple[float, ...] = SHORT) -> None:
        self._name = name
        self._about = about
        self._labels = labels
        self._bounds = bounds
        self._found: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, values: Labels, seconds: float) -> None:
        """Counts one."""
        found = self._found.get(values)
        if found is None:
            if len(self._found) >= MOST_SERIES:
                return
            found = self._found[values] = ([0] * (len(self._bounds) + 1), [0.0])
        counts, total = found
        counts[bisect_left(self._bounds, seconds)] += 1
        total[0] += seconds

    def found(self) -> list[tuple[Labels, list[int], float]]:
        """What it has counted: of each bound, and the sum."""
        return [(values, list(counts), total[0]) for values, (counts, total) in self._found.items()]

    def merge(self, others: list[tuple[Labels, list[int], float]]) -> None:
        """Adds what another one has counted."""
        for values, counts, total in others:
            mine = self._found.setdefault(values, ([0] * (len(self._bounds) + 1), [0.0]))
            mine[0][:] = map(add, mine[0], counts)
            mine[1][0] += total

    def render(self) -> list[str]:
        """Its lines."""
        lines = [_head(self._name, "histogram", self._about)]
        for values, (counts, total) in self._found.items():
            labels = dict(zip(self._labels, values, strict=True))
            running = 0
            for bound, n in zip((*self._bounds, "+Inf"), counts, strict=True):
                running += n
                lines.append(f"{self._name}_bucket{_labels(**labels, le=str(bound))} {running}")
            shared = _labels(**labels)
            lines += [f"{self._name}_sum{shared} {total[0]:.6f}", f"{self._name}_count{shared} {running}"]
        return lines


class Metrics:
    """Counters and histograms of one process."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._messages: dict[tuple[str, str, str | None], int] = {}
        self._times = Histogram(
            "headgate_http_request_seconds", "Time to an answer, without waiting for messages.", ("route", "method")
        )
        self._commits = Histogram(
            "headgate_commit_seconds",
            "Time of the calls of the database that sends, acks and receives share.",
            ("what",),
        )
        self._ages = Histogram(
            "headgate_http_delivery_age_seconds", "From sending a message to handing it out for the first time.",
            ("stream", "consumer"), LONG,
        )  # fmt: skip
        self._pushes: dict[tuple[str, str, str], int] = {}
        self._push_times = Histogram("headgate_push_seconds", "Time to an endpoint's answer.", ("stream", "consumer"))
        self._histograms = (self._times, self._commits, self._ages, self._push_times)
        self._gauges: dict[str, float] = {}  # of others
        self.refused = 0  # connections

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts an answer. The time a poll waited for messages is not in it."""
        key = (route, method, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._times.add((route, method), seconds)

    def commit(self, what: str, seconds: float) -> None:
        """Counts a call of the database that several requests may have shared."""
        self._commits.add((what,), seconds)

    def push(self, stream: str, consumer: str, result: str, seconds: float) -> None:
        """Counts a message that was posted to a push consumer's URL, by what became of it."""
        key = (stream, consumer, result)
        if key in self._pushes or len(self._pushes) < MOST_SERIES:
            self._pushes[key] = self._pushes.get(key, 0) + 1
            self._push_times.add((stream, consumer), seconds)

    def count(self, what: str, stream: str, consumer: str | None, messages: int) -> None:
        """Counts messages that went through this process."""
        key = (what, stream, consumer)
        if messages and (key in self._messages or len(self._messages) < MOST_SERIES):
            self._messages[key] = self._messages.get(key, 0) + messages

    def delivered(self, stream: str, consumer: str, sent_at: Iterable[datetime]) -> None:
        """Counts messages that are handed out for the first time, by when they were sent."""
        now = datetime.now(UTC)
        for at in sent_at:
            self._ages.add((stream, consumer), max((now - at).total_seconds(), 0.0))

    def figures(self, gauges: Mapping[str, float]) -> Figures:
        """All that was counted."""
        return Figures(
            list(self._requests.items()), list(self._messages.items()), list(self._pushes.items()),
            [h.found() for h in self._histograms], self.refused,
            {name: self._gauges.get(name, 0.0) + gauges.get(name, 0.0) for name in {**self._gauges, **gauges}},
        )  # fmt: skip

    def merge(self, others: Figures) -> None:
        """Adds what another process has counted."""
        for key, n in others.requests:
            self._requests[key] = self._requests.get(key, 0) + n
        for message, n in others.messages:
            self._messages[message] = self._messages.get(message, 0) + n
        for push, n in others.pushes:
            self._pushes[push] = self._pushes.get(push, 0) + n
        for mine, theirs in zip(self._histograms, others.histograms, strict=True):
            mine.merge(theirs)
        for name, value in others.gauges.items():
            self._gauges[name] = self._gauges.get(name, 0.0) + value
        self.refused += others.refused

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> list[str]:
        """The lines; `gauges` by name, with what they are. A name that ends in _total is a counter."""
        lines = [_head("headgate_http_requests_total", "counter", "Answers by route, method and status.")]
        for (route, method, status), n in self._requests.items():
            lines.append(f"headgate_http_requests_total{_labels(route=route, method=method, status=str(status))} {n}")
        name = "headgate_http_messages_total"
        lines.append(_head(name, "counter", "Messages published, delivered, acked and nacked through this server."))
        for (what, stream, consumer), n in self._messages.items():
            lines.append(f"{name}{_labels(what=what, stream=stream, consumer=consumer)} {n}")
        name = "headgate_push_total"
        lines.append(_head(name, "counter", "Messages posted to the URLs of push consumers: done, failed or gone."))
        for (stream, pusher, result), n in self._pushes.items():
            lines.append(f"{name}{_labels(stream=stream, consumer=pusher, result=result)} {n}")
        for histogram in self._histograms:
            lines += histogram.render()
        refused = ("Connections refused because there were too many.", float(self.refused))
        for name, (about, value) in {**gauges, "headgate_http_connections_refused_total": refused}.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [_head(name, kind, about), f"{name} {value:.17g}"]
        return lines


STREAMS = {
    "last_seq": ("headgate_stream_last_seq", "gauge", "The last sequence number drawn."),
    "messages": ("headgate_stream_messages", "gauge", "Messages in the stream; estimated when many."),
    "bytes": ("headgate_stream_bytes", "gauge", "Size of the stream."),
    "rate": ("headgate_stream_published_rate", "gauge", "Messages published a second by anybody, in the last seconds."),
    "is_full": ("headgate_stream_full", "gauge", "1 while sending fails because max_storage is reached."),
}
CONSUMERS = {
    "delivered": (
        "headgate_consumer_delivered_total",
        "counter",
        "Messages handed out for the first time, to anybody.",
    ),
    "redelivered": ("headgate_consumer_redelivered_total", "counter", "Messages handed out again, to anybody."),
    "rate": ("headgate_consumer_delivered_rate", "gauge", "The same a second, in the last seconds."),
    "lag": ("headgate_consumer_lag", "gauge", "Messages not done: unread, in flight and parked."),
    "unread": ("headgate_consumer_unread", "gauge", "Messages still to come to."),
    "in_flight": ("headgate_consumer_in_flight", "gauge", "Messages that workers have."),
    "parked": ("headgate_consumer_parked", "gauge", "Messages that are delayed, failed or wait behind one."),
    "due": ("headgate_consumer_due", "gauge", "Parked messages that could be handed out now."),
    "most_failures": (
        "headgate_consumer_most_failures",
        "gauge",
        "How often a message that is not done has failed, at most.",
    ),
    "dead": ("headgate_consumer_dead", "gauge", "Dead letters."),
    "lost": ("headgate_consumer_lost_total", "counter", "Messages removed before they were done."),
    "paused": ("headgate_consumer_paused", "gauge", "1 while the consumer is paused."),
}
AGES = {
    "oldest_unacked": ("headgate_consumer_oldest_seconds", "Age of the oldest message that is not done, or 0."),
    "oldest_delivery": ("headgate_consumer_oldest_delivery_seconds", "How long a worker has had a message, or 0."),
}
SOURCES = {
    "lag_bytes": ("headgate_source_lag_bytes", "gauge", "How far behind its database a source is, in bytes of WAL."),
    "lag": ("headgate_source_lag_seconds", "gauge", "The same in time; 0 when it is not behind."),
    "messages": ("headgate_source_messages_total", "counter", "Messages that a source has sent."),
    "rate": ("headgate_source_rate", "gauge", "The same a second, in the last seconds."),
    "retained_bytes": ("headgate_source_retained_bytes", "gauge", "WAL that its slot keeps in its database."),
    "warn_bytes": ("headgate_source_warn_bytes", "gauge", "So much may be kept before it is worth a word."),
    "backfill_rows": ("headgate_source_backfill_rows", "gauge", "Rows read by the backfills under way."),
    "backfill_of": ("headgate_source_backfill_of", "gauge", "Rows that they have to read, about."),
    "problems": ("headgate_source_problems", "gauge", "Tables that something is wrong with."),
}
STATES = ("starting", "waiting", "reading", "paused", "failing", "lost")
LONGEST_ERROR = 200  # characters
VITALS = {
    "sessions": ("headgate_database_sessions", "Sessions of clients on the whole server."),
    "max_connections": ("headgate_database_max_connections", "How many sessions the server allows."),
    "oldest_transaction_seconds": (
        "headgate_database_oldest_transaction_seconds", "Age of the oldest open transaction of the database.",
    ),
    "oldest_snapshot_transactions": (
        "headgate_database_oldest_snapshot_transactions", "Transactions begun since the oldest snapshot in use.",
    ),
    "wraparound_transactions": (
        "headgate_database_wraparound_transactions", "Transactions since a database was frozen; 2 billion stop it.",
    ),
    "wraparound_multixacts": (
        "headgate_database_wraparound_multixacts", "Multixacts since a database was frozen; 2 billion stop the server.",
    ),
    "freeze_max_age": (
        "headgate_database_freeze_max_age", "Transactions after which autovacuum freezes.",
    ),
    "multixact_freeze_max_age": (
        "headgate_database_multixact_freeze_max_age", "Multixacts after which autovacuum freezes.",
    ),
    "maintenance_seconds": ("headgate_maintenance_age_seconds", "How long ago maintenance last ran."),
    "table_bytes": ("headgate_table_bytes", "Size of a table that changes all the time."),
    "table_dead_rows": ("headgate_table_dead_rows", "Rows of such a table that wait for vacuum."),
}  # fmt: skip


def render_insights(
    streams: Iterable[StreamInfo],
    consumers: Iterable[ConsumerInfo],
    vitals: Iterable[tuple[str, str | None, float]] = (),
    sources: Iterable[PostgresSourceInfo] = (),
) -> list[str]:
    """The lines of the database."""
    lines = []
    streams, consumers, vitals = list(streams), list(consumers), list(vitals)
    for field, (name, kind, about) in STREAMS.items():
        lines.append(_head(name, kind, about))
        lines += [f"{name}{_labels(stream=s.name)} {float(getattr(s, field) or 0):.17g}" for s in streams]
    for field, (name, kind, about) in CONSUMERS.items():
        lines.append(_head(name, kind, about))
        lines += [
            f"{name}{_labels(stream=c.stream, consumer=c.name)} {float(getattr(c, field) or 0):.17g}" for c in consumers
        ]
    now = datetime.now(UTC)
    for field, (name, about) in AGES.items():
        lines.append(_head(name, "gauge", about))
        for c in consumers:
            since = getattr(c, field)
            age = max((now - since).total_seconds(), 0) if since else 0.0
            lines.append(f"{name}{_labels(stream=c.stream, consumer=c.name)} {age:.3f}")
    for vital, (name, about) in VITALS.items():
        lines.append(_head(name, "gauge", about))
        lines += [f"{name}{_labels(table=subject)} {value:.17g}" for found, subject, value in vitals if found == vital]
    return [*lines, *_render_sources(list(sources))]


def _render_sources(sources: list[PostgresSourceInfo]) -> list[str]:
    """The lines of sources that read tables."""
    lines = []
    for field, (name, kind, about) in SOURCES.items():
        lines.append(_head(name, kind, about))
        lines += [f"{name}{_labels(source=s.name)} {_number(getattr(s, field)):.17g}" for s in sources]
    name = "headgate_source_state"
    lines.append(_head(name, "gauge", "1 for the state that a source is in."))
    lines += [f"{name}{_labels(source=s.name, state=x)} {float(s.state == x):g}" for s in sources for x in STATES]
    name = "headgate_source_error"
    lines.append(_head(name, "gauge", "1 with what keeps a source from being read, while something does."))
    lines += [f"{name}{_labels(source=s.name, error=s.error[:LONGEST_ERROR])} 1" for s in sources if s.error]
    return lines


def _number(value: float | timedelta | list[str] | None) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(len(value) if isinstance(value, list) else value or 0)


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}"


def _labels(**labels: str | None) -> str:
    given = ",".join(f'{k}="{_quoted(v)}"' for k, v in labels.items() if v is not None)
    return f"{{{given}}}" if given else ""


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
