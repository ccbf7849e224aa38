"""Leased consumers over HTTP: workers join, stay alive and leave; each lane is one worker's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

import headgate
from headgate.server.http.app import App
from headgate.server.server import Server
from headgate.server.settings import Settings
from support.command_line import CommandLine
from support.servers import data, error

C = "/api/streams/s/consumers/c"


@pytest.fixture
async def http(ahg: headgate.AsyncHeadgate) -> AsyncIterator[httpx.AsyncClient]:
    service = Server(ahg, Settings(auth=False))
    service.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
        data(await http.post("/api/streams", json={"name": "s", "lanes": 4}))
        data(await http.post("/api/streams/s/consumers", json={"name": "c", "leased": True, "lease_time_ms": 60_000}))
        data(await http.post("/api/streams/s/consumers", json={"name": "shared"}))
        yield http
    await service.stop()


async def test_join_heartbeat_leave(http: httpx.AsyncClient) -> None:
    assert data(await http.get(C + "/workers")) == []
    one = data(await http.post(C + "/workers", json={"worker": "one"}))
    assert one == {"worker": "one", "lanes": [0, 1, 2, 3], "lease_time_ms": 60_000}
    assert data(await http.post(C + "/workers", json={"worker": "two/of 2"}))["lanes"] == []
    assert data(await http.post(C + "/workers/one/heartbeat"))["lanes"] == [0, 1]
    assert data(await http.post(C + "/workers/two%2Fof%202/heartbeat"))["lanes"] == [2, 3]
    listed = data(await http.get(C + "/workers"))
    assert [(w["name"], w["lanes"], w["in_flight"]) for w in listed] == [("one", [0, 1], 0), ("two/of 2", [2, 3], 0)]

    keys = [{"key": f"k{n}", "data": n} for n in range(40)]
    data(await http.post("/api/streams/s/messages", json={"messages": keys}))
    for worker, lanes in (("one", {"0", "1"}), ("two/of 2", {"2", "3"})):
        query: dict[str, str | int] = {"batch_size": 100, "wait_ms": 5000, "worker": worker}
        got = data(await http.get(C + "/receive", params=query))
        assert {d["ack_id"].partition(".")[0] for d in got} <= lanes
        assert got
        data(await http.post(C + "/ack", json={"ack_ids": [d["ack_id"] for d in got]}))

    assert data(await http.delete(C + "/workers/one")) == {"freed": 2}
    assert data(await http.post(C + "/workers/two%2Fof%202/heartbeat"))["lanes"] == [0, 1, 2, 3]
    assert error(await http.get(C + "/receive", params={"worker": "one"}), 409) == "not_joined"


async def test_bad_input(http: httpx.AsyncClient) -> None:
    shared = "/api/streams/s/consumers/shared/workers"
    assert error(await http.post(shared, json={"worker": "w"}), 422) == "invalid_argument"
    assert error(await http.post(C + "/workers", json={"worker": ""}), 422) == "invalid_body"
    assert error(await http.post(C + "/workers", json={"worker": "w" * 201}), 422) == "invalid_body"
    assert error(await http.post(C + "/workers", json={}), 422) == "invalid_body"
    assert error(await http.post(f"{C}/workers/{'w' * 201}/heartbeat"), 422) == "invalid_argument"
    assert error(await http.post(C + "/workers/a%00b/heartbeat"), 422) == "invalid_text"
    assert error(await http.get("/api/streams/s/consumers/none/workers"), 404) == "consumer_not_found"
    assert error(await http.post("/api/streams/none/consumers/c/workers", json={"worker": "w"}), 404)
    assert data(await http.delete(C + "/workers/unknown")) == {"freed": 0}


def test_command_line(run: CommandLine, hg: headgate.Headgate) -> None:
    consumer = hg.stream("s", create=True, lanes=2).consumer("c", create=True, leased=True)
    assert run("consumer", "workers", "s", "c").err == "it has no workers\n"
    consumer.join(worker="mine")
    assert "mine" in run("consumer", "workers", "s", "c").out
    [worker] = run("consumer", "workers", "s", "c", "--json").json
    assert (worker["name"], worker["lanes"]) == ("mine", [0, 1])
    assert run("consumer", "workers", "s", "none").code == 3
