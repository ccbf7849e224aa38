"""max_waiting: how many long polls may wait at a consumer, at one server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headgate
from support.calls import Db, call, value
from support.servers import data, error, replica
from support.waiting import wait_until

RECEIVE = "/api/streams/orders/consumers/c/receive"


def test_more_are_told_to_come_back(database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path) as server, server.client() as admin, ThreadPoolExecutor() as pool:
        data(admin.post("/api/streams", json={"name": "orders"}))
        made = data(admin.post("/api/streams/orders/consumers", json={"name": "c", "max_waiting": 2}))
        assert made["max_waiting"] == 2

        def waiting() -> int:
            text = admin.get("/metrics").text
            return int(float(text.partition("\nheadgate_http_polls_waiting ")[2].partition("\n")[0]))

        polls = [pool.submit(admin.get, RECEIVE, params={"wait_ms": 20_000}) for _ in range(2)]
        wait_until(lambda: waiting() == 2)
        refused = admin.get(RECEIVE, params={"wait_ms": 5_000})
        assert error(refused, 429) == "too_many_waiting"
        assert refused.headers["retry-after"] == "1"
        assert data(admin.get(RECEIVE)) == [], "who does not wait is not counted"

        data(admin.patch("/api/streams/orders/consumers/c", json={"max_waiting": None}))
        polls.append(pool.submit(admin.get, RECEIVE, params={"wait_ms": 20_000}))
        wait_until(lambda: waiting() == 3)
        data(admin.post("/api/streams/orders/messages", json={"messages": [{"data": n} for n in range(3)]}))
        assert sorted(m["message"]["data"] for p in polls for m in data(p.result())) == [0, 1, 2]
        wait_until(lambda: waiting() == 0)


def test_places_are_free_again(database_url: str, tmp_path: Path, hg: headgate.Headgate) -> None:
    hg.stream("orders", create=True).consumer("c", create=True, max_waiting=1)
    with replica(database_url, tmp_path) as server, server.client() as admin:
        began = time.monotonic()
        for _ in range(3):
            assert data(admin.get(RECEIVE, params={"wait_ms": 50})) == []
        assert time.monotonic() - began >= 0.15


def test_through_the_sdk_and_sql(hg: headgate.Headgate, db: Db) -> None:
    consumer = hg.stream("orders", create=True).consumer("c", create=True, max_waiting=7)
    assert (consumer.max_waiting, consumer.info().max_waiting) == (7, 7)
    consumer.alter(max_waiting=9)
    assert hg.stream("orders").consumer("c").max_waiting == 9
    call(db, "alter_consumer", "orders", "c", clear=["max_waiting"])
    assert value(db, "select max_waiting from headgate.consumers") is None
    with pytest.raises(headgate.errors.InvalidArgument, match="max_waiting"):
        consumer.alter(max_waiting=0)
