"""The reference of metrics, docs/metrics.md: what `/metrics` answers, from the server's own tables and text."""

from __future__ import annotations

import inspect
import re

from headgate.server import metrics, routes_service

HEAD = """\
# Metrics

Generated from the program by `make docs`: do not edit.

`GET /metrics` (scope `monitor`) answers in Prometheus' text format. Any replica tells the same of streams and
consumers, which it reads from the database when it is asked; what is `headgate_http_…` is of that process alone.

| metric | type | labels | meaning |
|---|---|---|---|
"""

ALERTS = """
What to be woken for: `headgate_database_up == 0`; `headgate_consumer_oldest_seconds` above what your users put up
with; `headgate_stream_full == 1`; `headgate_consumer_lost_total` that grows. `headgate_consumer_dead` that grows
can wait for the morning: dead letters stay until they are redriven or purged. `headgate doctor` says why.
"""


def gauges() -> dict[str, str]:
    """The gauges of the process, with what they are."""
    source = inspect.getsource(routes_service.get_metrics)
    return dict(re.findall(r'"(headgate_\w+)": \("([^"]+)"', source))


def page() -> str:
    """The reference."""
    rows = [(name, kind, "stream", about) for name, kind, about in metrics.STREAMS.values()]
    rows += [(name, kind, "stream, consumer", about) for name, kind, about in metrics.CONSUMERS.values()]
    source = inspect.getsource(metrics)
    for head, kind, about in re.findall(r'_head\(([\w"]+), "(\w+)", "([^"]+)"\)', source):
        before = source.partition(about)[0]
        name = head.strip('"') if head.startswith('"') else re.findall(r'name(?:, now)? = "(\w+)"', before)[-1]
        rows.append((name, kind, _labels(name), about))
    rows += [(name, "gauge", "", about) for name, about in gauges().items()]
    return HEAD + "".join(f"| `{n}` | {k} | {ls} | {about} |\n" for n, k, ls, about in rows) + ALERTS


def _labels(name: str) -> str:
    return {
        "headgate_http_requests_total": "route, method, status",
        "headgate_http_request_seconds": "route, method, le",
        "headgate_http_messages_total": "what, stream, consumer",
        "headgate_consumer_oldest_seconds": "stream, consumer",
    }[name]
