"""A real answer of /metrics, read by Prometheus's own parser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.servers import data, eventually, replica
from support.waiting import wait_until

C = "/api/streams/orders/consumers/billing"


def families(text: str) -> dict[str, Metric]:
    """The metrics of an answer by name; a counter has its whole name again."""
    found = {}
    for metric in text_string_to_metric_families(text):
        name = metric.name + "_total" if metric.type == "counter" else metric.name
        assert name not in found, f"{name} is there twice"
        found[name] = metric
    return found


@contextmanager
def busy_server(cluster: Cluster, directory: Path) -> Iterator[str]:
    """What /metrics says of a server that has done a bit of everything."""
    with new_database(cluster) as url, replica(url, directory) as server, server.client() as http:
        data(http.post("/api/streams", json={"name": "orders"}))
        data(http.post("/api/streams/orders/consumers", json={"name": "billing", "max_deliver": 1}))
        data(http.post("/api/streams/orders/messages", json={"messages": [{"data": n} for n in range(5)]}))
        first, second, third, *_ = eventually(C + "/receive", http, 5)
        data(http.post(C + "/ack", json={"ack_ids": [first["ack_id"], second["ack_id"]]}))
        data(http.post(C + "/nack", json={"ack_ids": [third["ack_id"]]}))
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("create table customers (id int primary key)")
            db.execute("insert into customers select generate_series(1, 3)")
        data(http.post("/api/streams", json={"name": "changes"}))
        asked = {"name": "shop", "stream": "changes", "kind": "postgres", "url": url, "tables": ["customers"]}
        try:
            data(http.post("/api/sources", json={**asked, "backfill": True}))
            wait_until(lambda: data(http.get("/api/sources/shop"))["postgres"]["messages"] == 3)
            yield http.get("/metrics").text
        finally:
            http.delete("/api/sources/shop")  # a slot keeps its database
