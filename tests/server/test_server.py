"""The HTTP server, route by route."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx
import psycopg
import pytest

from support.servers import Replica, data, error, eventually
from support.waiting import wait_until

_numbers = count(1)


@pytest.fixture(scope="module")
def http(server: Replica) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def stream(http: httpx.Client) -> str:
    """The path of a new stream with a consumer `c`."""
    name = f"s{next(_numbers)}"
    data(http.post("/api/streams", json={"name": name, "lanes": 4}))
    data(http.post(f"/api/streams/{name}/consumers", json={"name": "c", "max_deliver": 2}))
    return f"/api/streams/{name}"


def send(http: httpx.Client, stream: str, *datas: object, **more: object) -> list[int]:
    messages = [{"data": d, **more} for d in datas]
    return data(http.post(f"{stream}/messages", json={"messages": messages}))["seqs"]  # type: ignore[no-any-return]


class TestStreams:
    def test_life_of_a_stream(self, http: httpx.Client) -> None:
        body = {"name": "life", "lanes": 3, "retain_up_to_ms": 60_000, "max_message_bytes": 1000}
        made = http.post("/api/streams", json=body)
        assert made.status_code == 201
        assert data(made)["retain_up_to_ms"] == 60_000
        assert (data(made)["lane_by"], data(made)["compact_every_ms"]) == ("hash", 1_800_000)
        assert error(http.post("/api/streams", json=body), 409) == "stream_exists"
        assert data(http.post("/api/streams", json={**body, "if_not_exists": True}))["lanes"] == 3
        other = http.post("/api/streams", json={"name": "life", "lanes": 4, "if_not_exists": True})
        assert error(other, 409) == "settings_differ"
        assert "lanes is 3, not 4" in other.json()["error"]["message"]
        assert data(http.post("/api/streams", json={"name": "life", "if_not_exists": True}))["lanes"] == 3
        assert "life" in [s["name"] for s in data(http.get("/api/streams"))]
        changed = http.patch("/api/streams/life", json={"retain_up_to_ms": None, "max_message_bytes": 50})
        assert data(changed)["retain_up_to_ms"] is None
        assert data(http.get("/api/streams/life"))["max_message_bytes"] == 50
        big = {"messages": [{"data": "x" * 51}]}
        assert error(http.post("/api/streams/life/messages", json=big), 413) == "message_too_large"
        assert data(http.delete("/api/streams/life")) == {}
        assert error(http.get("/api/streams/life"), 404) == "stream_not_found"
        assert error(http.post("/api/streams/life/messages", json=big), 404) == "stream_not_found"


class TestMessages:
    @pytest.mark.parametrize(
        "value",
        [
            {"quantity": 4}, [1, [2]], "text", "", '{ "quantity": 4 }', "[not json", 4, 4.5, True, None,
            {"a": "\U0001f600"}, {"n": 123456789012345678901234567890}, {"nul": "\u0000"},
        ],
    )  # fmt: skip
    def test_data_comes_back_as_it_was_sent(self, http: httpx.Client, stream: str, value: object) -> None:
        [seq] = send(http, stream, value)
        [got] = eventually(f"{stream}/consumers/c/receive", http, 1)
        assert got["message"]["data"] == value
        assert data(http.get(f"{stream}/messages/{seq}"))["message"]["data"] == value

    def test_what_comes_with_a_message(self, http: httpx.Client, stream: str) -> None:
        [seq] = send(http, stream, {"a": 1}, key="k.1", headers={"trace": "x", "n": [1]})
        [got] = eventually(f"{stream}/consumers/c/receive", http, 1)
        assert got["attempt"] == 1
        message = got["message"]
        assert (message["seq"], message["key"], message["headers"]) == (seq, "k.1", {"trace": "x", "n": [1]})
        assert message["channel"] is None
        assert message["created_at"].endswith("Z")

    def test_an_id_is_appended_once(self, http: httpx.Client, stream: str) -> None:
        assert send(http, stream, 1, id="a") == send(http, stream, 2, id="a")
        assert len(set(send(http, stream, 3, 4, id="b"))) == 1

    def test_a_delay(self, http: httpx.Client, stream: str) -> None:
        send(http, stream, "later", delay_ms=300)
        assert data(http.get(f"{stream}/consumers/c/receive")) == []
        [got] = data(http.get(f"{stream}/consumers/c/receive", params={"wait_ms": 5000}))
        assert got["message"]["data"] == "later"

    def test_a_time(self, http: httpx.Client, stream: str) -> None:
        send(http, stream, "late", deliver_at="2999-01-31T12:00:00+01:00")
        send(http, stream, "long due", deliver_at="2020-01-31T12:00:00Z")
        got = data(http.get(f"{stream}/consumers/c/receive", params={"wait_ms": 5000, "batch_size": 10}))
        assert [m["message"]["data"] for m in got] == ["long due"]
        [late] = data(http.get(f"{stream}/messages", params={"limit": 1}))
        assert late["deliver_at"].startswith("2999-01-31T1")

    def test_looking(self, http: httpx.Client, stream: str) -> None:
        seqs = send(http, stream, 1, key="a.x") + send(http, stream, 2, 3, key="b.x")
        assert [m["seq"] for m in data(http.get(f"{stream}/messages"))] == seqs
        newest = data(http.get(f"{stream}/messages", params={"limit": 2, "sort": "seq_desc"}))
        assert [m["data"] for m in newest] == [3, 2]
        [found] = data(http.get(f"{stream}/messages", params={"key_pattern": "a.*"}))
        assert found["key"] == "a.x"
        one = data(http.get(f"{stream}/messages/{seqs[0]}"))
        assert [(c["consumer"], c["state"]) for c in one["consumers"]] == [("c", "available")]
        for seq in ("999999", "0", "-1", "x", str(2**63), "9" * 30):
            assert error(http.get(f"{stream}/messages/{seq}"), 404) == "message_not_found"

    def test_ten_thousand_at_once(self, http: httpx.Client, stream: str) -> None:
        assert send(http, stream, *range(10_000)) == list(range(1, 10_001))
        too_many = {"messages": [{"data": 1}] * 10_001}
        assert error(http.post(f"{stream}/messages", json=too_many), 422) == "invalid_body"

    def test_channels(self, http: httpx.Client) -> None:
        data(http.post("/api/streams", json={"name": "tenants", "lane_by": "channel"}))
        data(http.post("/api/streams/tenants/consumers", json={"name": "c", "max_concurrency": 5}))
        path = "/api/streams/tenants/consumers/c"
        send(http, "/api/streams/tenants", 1, 2, channel="a/b é")
        limits = {"max_concurrency": 1, "release_interval_ms": 10}
        assert data(http.put(f"{path}/channels/a%2Fb%20%C3%A9", json=limits))["max_concurrency"] == 1
        [got] = eventually(f"{path}/receive", http, 1)
        assert got["message"]["channel"] == "a/b é"
        found = data(http.get(f"{path}/channels/a%2Fb%20%C3%A9"))
        assert (found["in_flight"], found["release_interval_ms"]) == (1, 10)
        assert [c["channel"] for c in data(http.get(f"{path}/channels"))] == ["a/b é"]
        assert error(http.get(f"{path}/channels/none"), 404) == "channel_not_found"
        assert data(http.put(f"{path}/channels/none", json={}))["state"] == "idle"
        assert found["waiting"] == 1
        one = data(http.put(f"{path}/channels/x", json={"max_concurrency": 3}))
        assert (one["max_concurrency"], one["release_interval_ms"]) == (3, None)
        both = data(http.put(f"{path}/channels/x", json={"release_interval_ms": 50}))
        assert (both["max_concurrency"], both["release_interval_ms"]) == (3, 50)
        back = data(http.put(f"{path}/channels/x", json={"max_concurrency": None}))
        assert (back["max_concurrency"], back["release_interval_ms"]) == (5, 50), "the consumer's own"

    def test_what_waits_in_channels(self, http: httpx.Client) -> None:
        data(http.post("/api/streams", json={"name": "waiting", "lane_by": "channel"}))
        data(http.post("/api/streams/waiting/consumers", json={"name": "c"}))
        for n in range(5):
            send(http, "/api/streams/waiting", *range(n + 1), channel=f"t{n}")
        path = "/api/streams/waiting/consumers/c/channels"
        first = http.get(path, params={"limit": 2}).json()
        assert [(c["channel"], c["waiting"], c["exact"]) for c in first["data"]] == [("t4", 5, True), ("t3", 4, True)]
        second = http.get(path, params={"limit": 4, "after": first["next"]}).json()
        assert [c["channel"] for c in second["data"]] == ["t2", "t1", "t0"]
        assert "next" not in second
        assert [c["channel"] for c in data(http.get(path, params={"sort": "oldest"}))] == [f"t{n}" for n in range(5)]
        assert data(http.get(path, params={"sort": "name", "limit": 1}))[0]["oldest"] is not None
        assert error(http.get(path, params={"sort": "colour"}), 422)
        assert error(http.get(path, params={"after": "nonsense"}), 422) == "invalid_argument"


class TestConsumers:
    def test_life_of_a_consumer(self, http: httpx.Client, stream: str) -> None:
        body = {"name": "d", "filter": "a.>", "order": "key", "ack_wait_ms": 1500, "backoff": [1, 2], "start": "end"}
        made = http.post(f"{stream}/consumers", json=body)
        assert made.status_code == 201
        assert data(made)["ack_wait_ms"] == 1500
        assert error(http.post(f"{stream}/consumers", json=body), 409) == "consumer_exists"
        assert [c["name"] for c in data(http.get(f"{stream}/consumers"))] == ["c", "d"]
        changed = data(http.patch(f"{stream}/consumers/d", json={"filter": None, "max_deliver": 3, "backoff": 5}))
        assert (changed["filter"], changed["max_deliver"], changed["backoff"]) == (None, 3, 5)
        assert data(http.get(f"{stream}/consumers/d"))["order"] == "key"
        assert data(http.delete(f"{stream}/consumers/d")) == {}
        assert error(http.get(f"{stream}/consumers/d"), 404) == "consumer_not_found"
        assert error(http.get(f"{stream}/consumers/d/receive"), 404) == "consumer_not_found"
        data(http.post(f"{stream}/consumers", json=body))
        assert data(http.get(f"{stream}/consumers/d/receive")) == []

    def test_receive_and_settle(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, "a", "b", "c")
        got = eventually(f"{path}/receive", http, 3)
        first, second, third = (g["ack_id"] for g in got)
        assert data(http.post(f"{path}/ack", json={"ack_ids": [first]})) == {"acked": 1, "stale": 0}
        assert data(http.post(f"{path}/ack", json={"ack_ids": [first]})) == {"acked": 0, "stale": 1}
        assert data(http.post(f"{path}/extend", json={"ack_ids": [second], "by_ms": 60_000}))["extended"] >= 1
        nacked = http.post(f"{path}/nack", json={"ack_ids": [second], "delay_ms": 0, "error": "no"})
        assert data(nacked) == {"nacked": 1, "stale": 0}
        [again] = eventually(f"{path}/receive", http, 1)
        assert again["attempt"] == 2
        rest = http.post(f"{path}/receive", json={"ack_ids": [again["ack_id"], third]})
        assert data(rest) == []
        assert data(http.get(path))["lag"] == 0

    def test_deadlines_of_calls_and_messages(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, "a", "b", "c")
        got: list[Any] = []
        while len(got) < 3:
            params = {"batch_size": 3, "wait_ms": 5000, "ack_wait_ms": 600_000}
            got += data(http.get(f"{path}/receive", params=params))
        seen = data(http.get(f"{path}/messages", params={"states": "delivered"}))
        left = [datetime.fromisoformat(m["not_visible_until"]) - datetime.now(UTC) for m in seen]
        assert len(left) == 3
        assert min(left) > timedelta(minutes=9)
        first, second, third = (g["ack_id"] for g in got)
        assert data(http.post(f"{path}/extend", json={"ack_ids": [first], "by_ms": 0})) == {"extended": 1, "stale": 0}
        [again] = eventually(f"{path}/receive", http, 1)
        assert (again["message"], again["attempt"]) == (got[0]["message"], 2)
        assert data(http.post(f"{path}/extend", json={"ack_ids": [second], "by_ms": 0})) == {"extended": 1, "stale": 0}
        late = http.post(f"{path}/ack", json={"ack_ids": [first, second, third]})
        assert data(late) == {"acked": 2, "stale": 1}, "nobody else has the second one"
        for bad in (0, 7 * 86_400_000 + 1):
            for params in ({"ack_wait_ms": bad}, {"ack_wait_ms": bad, "wait_ms": 1000}):
                refused = http.get(f"{path}/receive", params=params)
                assert error(refused, 422) == "invalid_argument"
                assert refused.json()["error"]["hint"] == "choose more than 0 and at most 7 days"
        assert http.get(f"{path}/receive", params={"ack_wait_ms": -1}).status_code == 422

    def test_a_poll_wakes_for_what_is_visible_now(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, "a")
        [got] = eventually(f"{path}/receive", http, 1)
        with ThreadPoolExecutor(1) as pool:
            poll = pool.submit(http.get, f"{path}/receive", params={"wait_ms": 20_000})
            wait_until(lambda: data(http.get(path))["in_flight"] == 1)
            data(http.post(f"{path}/extend", json={"ack_ids": [got["ack_id"]], "by_ms": 0}))
            assert [g["attempt"] for g in data(poll.result(20))] == [2]

    def test_receive_by_post_without_a_body(self, http: httpx.Client, stream: str) -> None:
        send(http, stream, 1)
        assert len(data(http.post(f"{stream}/consumers/c/receive", params={"wait_ms": 1000}))) == 1

    def test_peek(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, 1, 2)
        [got] = data(http.get(f"{path}/receive", params={"wait_ms": 1000}))
        states = {m["message"]["data"]: m["state"] for m in data(http.get(f"{path}/messages"))}
        assert sorted(states.values()) == ["available", "delivered"]
        assert states[got["message"]["data"]] == "delivered"
        for visible, state in (("true", "available"), ("false", "delivered")):
            assert [m["state"] for m in data(http.get(f"{path}/messages", params={"visible": visible}))] == [state]
        assert [m["state"] for m in data(http.get(f"{path}/messages?states=parked,delivered"))] == ["delivered"]
        assert error(http.get(f"{path}/messages?states=parked,lost"), 422) == "invalid_argument"
        assert error(http.get(f"{path}/messages?states=parked&visible=true"), 422) == "invalid_argument"
        [delivered] = data(http.get(f"{path}/messages", params={"visible": "false"}))
        assert delivered["deliver_count"] == 1
        assert delivered["not_visible_until"]

    def test_pause_and_seek(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, 1, 2)
        data(http.post(f"{path}/pause"))
        assert data(http.get(f"{path}/receive", params={"wait_ms": 50})) == []
        data(http.post(f"{path}/resume"))
        assert len(eventually(f"{path}/receive", http, 2)) == 2
        for to in ("beginning", 1, "2020-01-01 00:00:00+00"):
            data(http.post(f"{path}/seek", json={"to": to}))
            assert len(eventually(f"{path}/receive", http, 2)) == 2
        data(http.post(f"{path}/seek", json={"to": "end"}))
        assert data(http.get(f"{path}/receive", params={"wait_ms": 50})) == []
        assert error(http.post(f"{path}/seek", json={"to": "nowhere"}), 422) == "invalid_position"

    def test_discards(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        seqs = send(http, stream, *({"n": n} for n in range(8)))
        [got, *_] = eventually(f"{path}/receive", http, 1)
        assert error(http.post(f"{path}/discard", json={}), 422) == "invalid_argument"
        assert error(http.post(f"{path}/discard", json={"all": True, "seqs": seqs}), 422) == "invalid_argument"
        assert error(http.post(f"{path}/discard", json={"seqs": []}), 422)
        assert error(http.post(f"{path}/discard", json={"older_than_ms": -1}), 422)
        assert error(http.post(f"{path}/discard", json={"all": True, "go_on": "there"}), 422) == "invalid_argument"
        assert error(http.post(f"{path}/discard", json={"channel": "a"}), 422) == "invalid_argument"
        done = http.post(f"{path}/discard", json={"seqs": [got["message"]["seq"]]})
        assert data(done) == {"discarded": 1, "held": 0, "more": None}
        assert data(http.post(f"{path}/ack", json={"ack_ids": [got["ack_id"]]})) == {"acked": 0, "stale": 1}
        assert data(http.post(f"{path}/discard", json={"older_than_ms": 3_600_000}))["discarded"] == 0
        assert data(http.post(f"{path}/discard", json={"all": True}))["discarded"] == 7
        assert data(http.get(f"{path}/receive", params={"wait_ms": 50})) == []
        states = data(http.get(f"{stream}/messages/{seqs[0]}"))["consumers"]
        assert [s["state"] for s in states if s["consumer"] == "c"] == ["discarded"]

    def test_dead_letters(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, {"n": 1}, {"n": 2}, {"n": 3})
        for _ in range(2):
            for got in eventually(f"{path}/receive", http, 3):
                data(http.post(f"{path}/nack", json={"ack_ids": [got["ack_id"]], "delay_ms": 0, "error": "bad"}))
        dead = data(http.get(f"{path}/dead"))
        assert sorted(d["data"]["n"] for d in dead) == [1, 2, 3]
        assert {d["last_error"] for d in dead} == {"bad"}
        assert len(data(http.get(f"{path}/dead", params={"after": dead[0]["seq"], "limit": 1}))) == 1
        redriven = http.post(f"{path}/dead/redrive", json={"seqs": [dead[0]["seq"]]})
        assert data(redriven) == {"redriven": 1}
        assert len(eventually(f"{path}/receive", http, 1)) == 1
        for method, route in (("DELETE", "dead"), ("POST", "dead/redrive")):  # all of them only by name
            for body in (b"", b"{}", b'{"all":false}', b'{"all":true,"limit":1}'):
                refused = http.request(
                    method, f"{path}/{route}", content=body, headers={"content-type": "application/json"}
                )
                assert refused.status_code in (400, 422), (method, body, refused.text)
        assert len(data(http.get(f"{path}/dead"))) == 2
        assert data(http.request("DELETE", f"{path}/dead", json={"all": True})) == {"purged": 2}
        assert data(http.get(f"{path}/dead")) == []

    def test_retry_replay_attempts_and_life(self, http: httpx.Client, stream: str) -> None:
        path = f"{stream}/consumers/c"
        send(http, stream, {"n": 1}, {"n": 2}, {"n": 3})
        got = eventually(f"{path}/receive", http, 3)
        seqs = [g["message"]["seq"] for g in got]
        nack = {"ack_ids": [got[0]["ack_id"]], "delay_ms": 3_600_000, "error": "bad"}
        data(http.post(f"{path}/nack", json=nack))
        data(http.post(f"{path}/ack", json={"ack_ids": [g["ack_id"] for g in got[1:]]}))
        assert data(http.post(f"{path}/retry", json={"seqs": seqs[1:]})) == {"retried": 0}
        assert data(http.post(f"{path}/retry", json={"all": True})) == {"retried": 1}
        [again] = eventually(f"{path}/receive", http, 1)
        assert (again["message"]["seq"], again["attempt"]) == (seqs[0], 2)
        data(http.post(f"{path}/ack", json={"ack_ids": [again["ack_id"]]}))
        [attempt] = data(http.get(f"{stream}/attempts"))
        assert (attempt["seq"], attempt["attempt"], attempt["outcome"], attempt["error"]) == (
            seqs[0],
            1,
            "nacked",
            "bad",
        )
        assert data(http.get(f"{stream}/attempts", params={"seq": seqs[1]})) == []
        assert data(http.get(f"{stream}/attempts", params={"seq": seqs[0], "consumer": "c"})) == [attempt]
        replayed = data(http.post(f"{path}/replay", json={"seqs": [seqs[0], 999]}))
        assert replayed == {"replayed": 1, "not_found": 1, "passed_over": 0, "next_seq": None}
        hour = {"from_time": "2020-01-01T00:00:00Z", "to_time": "2999-01-01T00:00:00+01:00"}
        assert data(http.post(f"{path}/replay", json=hour))["replayed"] == 2
        assert {g["message"]["seq"] for g in eventually(f"{path}/receive", http, 3)} == set(seqs)
        life = data(http.get(f"{stream}/messages/{seqs[0]}/life"))
        assert [e["event"] for e in life] == ["sent", "delivered", "failed", "replayed", "delivered"]
        assert (life[2]["consumer"], life[2]["error"]) == ("c", "bad")
        assert life[-1]["until"] > life[-1]["at"]


# As they stand in the description of the system that we follow (its quotes, of which some are missing, put right).
CURL_LINES = [
    """curl -X 'POST' -d '{"messages":[{"data":"{ \\"quantity\\": 4 }","key":"orders.cus_a.ord_1jNsd"}, \
{"data":"{ \\"quantity\\": 4 }","key":"orders.cus_a.ord_1jNsd"}]}' \
-H 'Content-Type: application/json' \
-H 'Authorization: Bearer {token}' \
'https://[sequin-base-url]/api/streams/68658e3e-de48-4005-a5de-2a7cd6868d80/messages'""",
    "curl -X 'GET' 'https://[sequin-base-url]/api/streams/mystream/consumers/mycon/receive?batch_size=10'",
    """curl -X 'POST' -d '{"ack_ids":["ack_1jdiQuj"]}' -H 'Content-Type: application/json' 'https://[sequin-base-url]/api/streams/mystream/consumers/mycon/ack'""",
    """curl -X 'POST' -d '{"ack_ids":["ack_1jdiQuj"]}' -H 'Content-Type: application/json' 'https://[sequin-base-url]/api/streams/mystream/consumers/mycon/nack'""",
    "curl -X 'GET' 'https://<sequin-base-url>/api/streams/mystream/consumers/mycon/messages?limit=10&sort=seq_desc&visible=true'",
]  # fmt: skip


def test_curl_lines(server: Replica, http: httpx.Client, url: str) -> None:
    for name in ("68658e3e-de48-4005-a5de-2a7cd6868d80", "mystream"):
        data(http.post("/api/streams", json={"name": name}))
        data(http.post(f"/api/streams/{name}/consumers", json={"name": "mycon"}))
    send(http, "/api/streams/mystream", {"quantity": 4}, key="orders.cus_a.ord_1")
    answers = []
    for line in CURL_LINES:
        for base in ("https://[sequin-base-url]", "https://<sequin-base-url>"):
            line = line.replace(base, server.url)
        if "Authorization" not in line:
            line += " -H 'Authorization: Bearer {token}'"
        arguments = shlex.split(line.replace("{token}", server.token))
        done = subprocess.run([*arguments, "--silent", "--fail-with-body"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        answers.append(httpx.Response(200, text=done.stdout).json()["data"])
    sent, received, acked, nacked, peeked = answers
    assert sent == {"published": 2, "seqs": [1, 2]}
    assert [d["message"]["data"] for d in received] == [{"quantity": 4}]
    assert acked == {"acked": 0, "stale": 1}, "an id of nobody's"
    assert nacked == {"nacked": 0, "stale": 1}
    assert peeked == [], "it is delivered"
    path = "/api/streams/68658e3e-de48-4005-a5de-2a7cd6868d80/consumers/mycon/receive"
    assert [d["message"]["data"] for d in eventually(path, http, 2)] == ['{ "quantity": 4 }'] * 2
    with psycopg.connect(url) as db:
        assert db.execute('select count(*) from headgate."log_68658e3e-de48-4005-a5de-2a7cd6868d80"').fetchone() == (2,)
