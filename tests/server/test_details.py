"""What S10 of the review found: sizes of headers, numbers, acks that are counted, what the audit log says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.calls import Db, call, send, value
from support.databases import new_database
from support.exposition import families
from support.servers import Replica, data, error, replica

NUMBERS = ["[" + "7" * 5000 + "]", "[1e400]", '{"a":-1E-40,"b":1e999,"c":[0.1,1e300]}', "1e400", "9" * 5000]


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url:
        yield url


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(url, tmp_path_factory.mktemp("server")) as it:
        with it.client() as admin:
            data(admin.post("/api/streams", json={"name": "s", "max_message_bytes": 1_000_000}))
            data(admin.post("/api/streams/s/consumers", json={"name": "c", "max_deliver": 1}))
        yield it


@pytest.fixture
def http(server: Replica) -> Iterator[httpx.Client]:
    with server.client() as it:
        yield it


def test_headers_count_toward_the_size_of_a_message(server: Replica, http: httpx.Client, url: str) -> None:
    large = {"messages": [{"data": 1, "headers": {"x": "y" * 2_000_000}}]}
    assert error(http.post("/api/streams/s/messages", json=large), 413) == "message_too_large"
    with psycopg.connect(url, autocommit=True) as db, headgate.connect(url) as hg:
        with pytest.raises(psycopg.Error) as refused:
            send(db, "s", "x", headers={"x": "y" * 2_000_000})
        assert refused.value.sqlstate == "HG009"
        name = value(db, "select headgate.stage('s', 'w', 1)")
        db.execute(f"insert into headgate.{name} (data, headers) values ('x', %s)", ['{"x": "%s"}' % ("y" * 2_000_000)])
        with pytest.raises(psycopg.Error) as refused:
            db.execute("select headgate.send_staged('s', 'w', 1, %s, '{1}')", [[name]])
        assert refused.value.sqlstate == "HG009"
        with pytest.raises(headgate.errors.MessageTooLarge):
            hg.stream("s").send("x", headers={"x": "y" * 2_000_000})
        # many small ones are no large one
        many = "array_fill('x'::text, '{30}'), headers => array_fill(%s::jsonb, '{30}')"
        value(db, f"select headgate.send_batch('s', {many})", '{"x": "%s"}' % ("y" * 100_000))


@pytest.mark.parametrize("text", NUMBERS, ids=lambda t: t[:12])
def test_numbers_come_back_as_they_were_written(http: httpx.Client, url: str, text: str) -> None:
    """Whatever their size: over HTTP to the letter, in Python as Decimal where no int or float holds them."""
    http.post("/api/streams/s/consumers/c/seek", json={"to": "end"})
    body = b'{"messages":[{"data":%s}]}' % text.encode()
    kind = {"Content-Type": "application/json"}
    [seq] = data(http.post("/api/streams/s/messages", content=body, headers=kind))["seqs"]
    answers = [
        http.get("/api/streams/s/consumers/c/receive").text, http.get(f"/api/streams/s/messages/{seq}").text,
        http.get(f"/api/streams/s/messages?after={seq - 1}").text,
    ]  # fmt: skip
    received = re.search(r'"key":null,"data":(.*?),"headers"', answers[0])
    assert received
    assert received[1] == text
    for listed in answers[1:]:
        assert f'"{text[:20]}' not in listed, "not a string"
    with headgate.connect(url) as hg:
        [got] = hg.stream("s").messages(1, after=seq - 1)
        assert exactly(got.data) == exactly(text)


@pytest.mark.parametrize("number", ["1e400", "9" * 5000, "-1e999"])
def test_numbers_in_headers_fit_a_float(http: httpx.Client, number: str) -> None:
    """They are parsed, and PostgreSQL would write some of them out in a hundred thousand digits."""
    body = b'{"messages":[{"data":1,"headers":{"n":%s}}]}' % number.encode()
    answer = http.post("/api/streams/s/messages", content=body, headers={"Content-Type": "application/json"})
    assert error(answer, 422) == "invalid_body"
    assert "out of range" in answer.text


def test_large_keys_are_no_fault_of_the_server(http: httpx.Client) -> None:
    for what in ("key", "id"):
        large = {"messages": [{"data": 1, what: "x" * 1_500_000}]}
        assert http.post("/api/streams/s/messages", json=large).status_code < 500


def exactly(data: Any) -> Any:
    """Every number as a Decimal."""
    if isinstance(data, str):
        return exactly(json.loads(data, parse_int=Decimal, parse_float=Decimal))
    if isinstance(data, dict):
        return {k: exactly(v) for k, v in data.items()}
    if isinstance(data, list):
        return [exactly(v) for v in data]
    return Decimal(str(data)) if not isinstance(data, float) or data else Decimal(0)


def test_stale_acks_of_a_receive_do_not_count(http: httpx.Client) -> None:
    data(http.post("/api/streams", json={"name": "counted"}))
    data(http.post("/api/streams/counted/consumers", json={"name": "c"}))
    data(http.post("/api/streams/counted/messages", json={"messages": [{"data": n} for n in range(3)]}))
    path = "/api/streams/counted/consumers/c/receive"
    ids = [g["ack_id"] for g in data(http.get(path, params={"batch_size": 3}))]
    for _ in range(3):  # twice it is stale
        data(http.post(path, json={"ack_ids": [*ids, "1.1.1", "x"]}))
    counted = {
        s.labels["what"]: s.value
        for s in families(http.get("/metrics").text)["headgate_http_messages_total"].samples
        if s.labels["stream"] == "counted"
    }
    assert counted["acked"] == 3


def test_what_the_audit_log_says(server: Replica, http: httpx.Client) -> None:
    admin = server.token.partition(".")[0]
    made = data(http.post("/api/tokens", json={"name": "shop", "scopes": ["produce"], "streams": ["a.*"]}))
    data(http.post("/api/streams", json={"name": "noted", "lanes": 3}))
    push = {"url": "http://127.0.0.1:1/x?key=hush", "secret": "whsec_" + "aGFsbG8=" * 4, "headers": {"X": "hush"}}
    http.post("/api/streams/noted/consumers", json={"name": "pushed", "push": push})
    data(http.post("/api/streams/noted/consumers", json={"name": "c", "max_deliver": 1}))
    data(http.request("DELETE", "/api/streams/noted/consumers/c/dead", json={"seqs": list(range(1, 100))}))
    data(http.post("/api/streams/noted/consumers/c/dead/redrive", json={"all": True}))
    http.post("/api/streams/noted/consumers/c/seek", json={"to": "nowhere\x00"})
    data(http.delete(f"/api/tokens/{made['id']}"))
    answer = http.get("/api/audit", params={"limit": 8})
    assert not [secret for secret in ("hush", "whsec", made["token"]) if secret in answer.text]
    token, stream, pushed, consumer, purged, redriven, sought, revoked = reversed(data(answer))
    notes = (token, stream, pushed, consumer, purged, redriven, sought, revoked)
    assert {(n["token"], *n["scopes"]) for n in notes} == {(admin, "admin")}
    assert token["details"] == {"name": "shop", "scopes": ["produce"], "streams": ["a.*"], "token": made["id"]}
    assert (stream["stream"], stream["details"]) == ("noted", {"name": "noted", "lanes": 3})
    assert {n["stream"] for n in notes[1:7]} == {"noted"}
    assert consumer["details"] == {"name": "c", "max_deliver": 1}
    assert purged["details"]["seqs"] == [*range(1, 21), "and 79 more"]
    assert redriven["details"] == {"consumer": "c", "all": True}
    assert (revoked["stream"], revoked["details"]) == (None, {"token": made["id"]})


def test_the_doctor_knows_staging_tables(db: Db, hg: headgate.Headgate) -> None:
    call(db, "create_stream", "s")
    name = value(db, "select headgate.stage('s', 'w', 1)")
    assert not [f for f in hg.doctor() if name in f.finding]
    db.execute("alter table headgate.cursor set (autovacuum_enabled = off)")
    assert [f for f in hg.doctor() if "cursor" in f.finding], "but others' it does"


def test_forged_dead_letters_are_refused(server: Replica, http: httpx.Client, tmp_path: Path) -> None:
    with server.client(server.new_token("produce")) as producer:
        forged = {"messages": [{"data": 1, "headers": {"source_consumer": "c", "failed_at": "garbage"}}]}
        answer = producer.post("/api/streams/s.dead/messages", json=forged)
        assert error(answer, 422) == "invalid_argument"
        assert "message_" not in answer.text
    assert data(http.get("/api/streams/s/consumers/c/dead")) == []
