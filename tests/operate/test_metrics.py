"""Every figure that is promised is in /metrics, with its value, and readable for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from prometheus_client import Metric

from headgate.postgres.cluster import Cluster
from headgate.server.operate.metrics import MOST_SERIES, Histogram, Metrics, render_insights
from support.exposition import busy_server, families

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def metrics(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Metric]]:
    with busy_server(cluster, tmp_path_factory.mktemp("server")) as text:
        yield families(text)


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    family = re.sub("_(bucket|sum|count)$", "", name)
    found = metrics.get(name) or metrics[family]
    [sample] = [s for s in found.samples if s.name == name and labels.items() <= s.labels.items()]
    return float(sample.value)


def test_streams_and_consumers(metrics: dict[str, Metric]) -> None:
    of = {"stream": "orders", "consumer": "billing"}
    assert value(metrics, "headgate_stream_messages", stream="orders") == 5
    assert value(metrics, "headgate_stream_last_seq", stream="orders") == 5
    assert value(metrics, "headgate_stream_bytes", stream="orders") > 0
    assert value(metrics, "headgate_stream_full", stream="orders") == 0
    assert value(metrics, "headgate_stream_published_rate", stream="orders") >= 0
    assert value(metrics, "headgate_consumer_delivered_total", **of) == 5
    assert value(metrics, "headgate_consumer_delivered_rate", **of) >= 0
    assert value(metrics, "headgate_consumer_lag", **of) == 2
    assert value(metrics, "headgate_consumer_in_flight", **of) == 2
    assert value(metrics, "headgate_consumer_parked", **of) == 0
    assert value(metrics, "headgate_consumer_dead", **of) == 1
    assert value(metrics, "headgate_consumer_unread", **of) == 0
    assert value(metrics, "headgate_consumer_lost_total", **of) == 0
    assert value(metrics, "headgate_consumer_paused", **of) == 0
    assert 0 < value(metrics, "headgate_consumer_oldest_seconds", **of) < 60
    assert 0 < value(metrics, "headgate_consumer_oldest_delivery_seconds", **of) < 60
    counted = {s.labels["what"]: s.value for s in metrics["headgate_http_messages_total"].samples}
    assert counted == {"published": 5, "delivered": 5, "acked": 2, "nacked": 1}


def test_latencies_are_histograms(metrics: dict[str, Metric]) -> None:
    route = {"route": "/api/streams/{stream}/messages", "method": "POST"}
    assert value(metrics, "headgate_http_request_seconds_count", **route) == 1
    assert value(metrics, "headgate_http_request_seconds_sum", **route) > 0
    assert value(metrics, "headgate_http_delivery_age_seconds_count", stream="orders", consumer="billing") == 5
    for what in ("send", "ack", "receive"):
        assert value(metrics, "headgate_commit_seconds_count", what=what) >= 1
    for name in ("headgate_http_request_seconds", "headgate_http_delivery_age_seconds", "headgate_commit_seconds"):
        assert metrics[name].type == "histogram"
        buckets: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for s in metrics[name].samples:
            if s.name.endswith("_bucket"):
                labels = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
                buckets.setdefault(labels, []).append(s.value)
        assert buckets
        assert all(b == sorted(b) for b in buckets.values()), "buckets are cumulative"


def test_the_database(metrics: dict[str, Metric]) -> None:
    assert value(metrics, "headgate_database_up") == 1
    assert 1 <= value(metrics, "headgate_database_connections") <= 8
    assert 1 <= value(metrics, "headgate_database_sessions") <= value(metrics, "headgate_database_max_connections")
    assert value(metrics, "headgate_database_oldest_transaction_seconds") < 60
    assert value(metrics, "headgate_database_wraparound_transactions") > 0
    assert value(metrics, "headgate_maintenance_age_seconds") < 600
    tables = {s.labels["table"] for s in metrics["headgate_table_bytes"].samples}
    assert {"cursor", "delivery", "parked", "tick"} <= tables
    assert value(metrics, "headgate_table_bytes", table="cursor") >= 8192
    assert value(metrics, "headgate_table_dead_rows", table="cursor") >= 0


def test_sources_of_tables(metrics: dict[str, Metric]) -> None:
    of = {"source": "shop"}
    assert value(metrics, "headgate_source_messages_total", **of) == 3
    assert value(metrics, "headgate_source_state", **of, state="reading") == 1
    assert sum(s.value for s in metrics["headgate_source_state"].samples) == 1
    assert metrics["headgate_source_error"].samples == []
    assert value(metrics, "headgate_source_lag_bytes", **of) >= 0
    assert 0 <= value(metrics, "headgate_source_lag_seconds", **of) < 60
    assert value(metrics, "headgate_source_rate", **of) >= 0
    assert value(metrics, "headgate_source_retained_bytes", **of) > 0
    assert value(metrics, "headgate_source_warn_bytes", **of) == 2**30
    assert value(metrics, "headgate_source_backfill_rows", **of) <= value(metrics, "headgate_source_backfill_of", **of)
    assert value(metrics, "headgate_source_problems", **of) == 0


def test_an_open_transaction_shows(db: psycopg.Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("create table x ()")  # it has an id now
        found = {n: v for n, s, v in db.execute("select * from headgate.vitals()").fetchall() if s is None}
    assert found["oldest_transaction_seconds"] > 0


def test_every_metric_is_documented(metrics: dict[str, Metric]) -> None:
    page = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(headgate_\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {name: metric.type for name, metric in metrics.items()}


def test_names_that_need_quoting() -> None:
    made = Metrics()
    made.count("published", 'a"b\\c\nd', None, 2)
    made.delivered('a"b\\c\nd', "c", [])
    lines = made.render({})
    found = families("\n".join([*lines, *render_insights([], []), ""]))
    assert found["headgate_http_messages_total"].samples[0].labels["stream"] == 'a"b\\c\nd'


def test_series_are_bounded() -> None:
    histogram = Histogram("x", "y", ("a",))
    for n in range(MOST_SERIES + 10):
        histogram.add((str(n),), 0.1)
    assert sum(line.startswith("x_count") for line in histogram.render()) == MOST_SERIES
