"""Durable batching: many small calls, few commits, each its own answer; and nothing that was answered is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from headgate.server.flow.batching import Grouper
from support.databases import new_database
from support.servers import Replica, data, error, replica
from support.waiting import wait_until


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url:
        yield url


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    # a busy machine may take long until 100 calls are in work at once
    with replica(url, tmp_path_factory.mktemp("server"), "timeout=120") as found, found.client() as http:
        data(http.post("/api/streams", json={"name": "s", "lanes": 4, "max_message_bytes": 1000}))
        data(http.post("/api/streams/s/consumers", json={"name": "c"}))
        yield found


@pytest.fixture
async def http(server: Replica) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server) as found:
        yield found


def client(server: Replica) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.url,
        headers={"Authorization": f"Bearer {server.token}"},
        timeout=120,
        limits=httpx.Limits(max_connections=None),
    )


def send(http: httpx.AsyncClient, **message: object) -> Any:
    return http.post("/api/streams/s/messages", json={"messages": [message]})


async def test_a_neighbour_whose_id_fits_into_no_index(http: httpx.AsyncClient) -> None:
    """It comes from PostgreSQL itself, and the others, who send ids as well, notice nothing."""
    for turn in range(5):
        sends = [send(http, data=1, id=f"{turn}-{i}") for i in range(30)]
        long = "".join(random.Random(turn).choices(string.ascii_letters, k=10_000))  # (the same letter would be packed)
        answers = await asyncio.gather(*sends[:15], send(http, data=1, id=long), *sends[15:])
        assert [a.status_code for a in answers] == [200] * 15 + [422] + [200] * 15, answers[15].text


async def test_a_neighbour_whom_the_database_stops(cluster: Cluster, tmp_path: Path) -> None:
    """Its id waits for somebody's open transaction until statement_timeout. The others are answered all the same."""
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(f"alter database {db.info.dbname} set statement_timeout = '500ms'")
        with replica(url, tmp_path) as server, server.client() as admin, psycopg.connect(url) as holder:
            data(admin.post("/api/streams", json={"name": "s"}))
            holder.execute("select headgate.send('s', 'x', id => 'held')")
            async with client(server) as http:
                sends = [send(http, data=1, id=f"{i}") for i in range(10)]
                answers = await asyncio.gather(*sends[:5], send(http, data=1, id="held"), *sends[5:])
    assert [a.status_code for a in answers] == [200] * 5 + [503] + [200] * 5
    assert answers[5].headers["retry-after"]


async def test_a_bad_neighbour(http: httpx.AsyncClient, url: str) -> None:
    """Requests that the engine refuses, among many that it does not: each is answered for itself."""
    bad = [{"data": "x" * 1001}, {"data": 1, "channel": "none"}, {"data": 1, "headers": {"a": "\x00"}}]
    wanted = [413, 422, 422]
    for _ in range(5):
        good = [send(http, data=n, key="good") for n in range(40)]
        answers = await asyncio.gather(*good, *(send(http, **b) for b in bad))
        assert [a.status_code for a in answers] == [200] * 40 + wanted
        seqs = [a.json()["data"]["seqs"][0] for a in answers[:40]]
        with psycopg.connect(url) as db:
            stored = dict(db.execute("select seq, data from headgate.log_s where seq = any(%s)", [seqs]).fetchall())
        assert [stored[s] for s in seqs] == [str(n) for n in range(40)], "each has the seq of its own message"


async def test_sends_share_commits(http: httpx.AsyncClient, url: str) -> None:
    """What arrives while commits are under way goes together, and nobody is answered before."""

    async def figures() -> tuple[float, float, float]:
        text = (await http.get("/metrics")).text
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines())
        groups, calls, in_work = (
            float(lines[f"headgate_{name}"]) for name in ("batch_groups_total", "batch_calls_total", "http_in_work")
        )
        return groups, calls, in_work

    async with await psycopg.AsyncConnection.connect(url) as conn:
        cursor = await conn.execute("select id from headgate.stream where name = 's'")
        [id] = await cursor.fetchone() or [0]
        for _ in range(10):  # sends wait for two seconds at most, in which they all have to arrive
            before = await figures()
            await conn.execute(f"lock table headgate.message_{id} in share row exclusive mode")  # nobody can insert
            sends = [asyncio.create_task(send(http, data=n)) for n in range(40)]
            while (await figures())[2] < 40 and not any(s.done() for s in sends):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)  # asking all the time would keep them from arriving
            await conn.rollback()
            answers = await asyncio.gather(*sends)
            if all(a.is_success for a in answers):
                break
    assert len({data(a)["seqs"][0] for a in answers}) == 40
    after = await figures()
    assert after[1] - before[1] == 40
    assert after[0] - before[0] <= 10


async def test_the_same_id_from_many(http: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(send(http, data=n, id="only once") for n in range(20)))
    assert len({a.json()["data"]["seqs"][0] for a in answers}) == 1


async def test_somebodys_open_transaction_with_the_same_id(http: httpx.AsyncClient, url: str) -> None:
    """It holds up nobody but those who send that id, and them not for long."""
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute("select headgate.send('s', 'x', id => 'held')")
        held = asyncio.create_task(send(http, data=1, id="held"))
        for n in range(20):
            assert (await send(http, data=n)).is_success
        assert not held.done()
        other = await asyncio.gather(*(send(http, data=n, id=f"free {n}") for n in range(3)))
        assert all(a.is_success for a in other)
        answer = await held
        assert error(answer, 503) == "conflict"
        assert "retry-after" in answer.headers
        await conn.rollback()
    assert (await send(http, data=1, id="held")).is_success


async def test_acks_of_one_delivery_from_many(http: httpx.AsyncClient) -> None:
    path = "/api/streams/s/consumers/c"
    data(await http.post(f"{path}/seek", json={"to": "end"}))
    await asyncio.gather(*(send(http, data=n) for n in range(100)))
    got: list[Any] = []
    while len(got) < 100:
        got += data(await http.get(f"{path}/receive", params={"batch_size": 100, "wait_ms": 2000}))
    ids = [g["ack_id"] for g in got]
    acks = [http.post(f"{path}/ack", json={"ack_ids": [id]}) for id in ids]
    stale = [http.post(f"{path}/ack", json={"ack_ids": ["0.0.0", "x"]}) for _ in range(10)]
    answers = [data(a) for a in await asyncio.gather(*acks, *stale)]
    assert answers == [{"acked": 1, "stale": 0}] * 100 + [{"acked": 0, "stale": 2}] * 10
    assert data(await http.get(path))["in_flight"] == 0


async def test_receives_of_the_same_moment(http: httpx.AsyncClient) -> None:
    """Each message goes to one of them, none gets more than it asked for, and each settles its own."""
    path = "/api/streams/s/consumers/c"
    data(await http.post(f"{path}/seek", json={"to": "end"}))
    sent = {"messages": [{"data": n} for n in range(300)]}
    seqs = data(await http.post("/api/streams/s/messages", json=sent))["seqs"]
    got: list[Any] = []
    acks: list[str] = []
    while len(got) < 300:
        body = {"ack_ids": acks}
        first = http.post(f"{path}/receive", params={"batch_size": 7, "wait_ms": 2000}, json=body)
        more = [http.get(f"{path}/receive", params={"batch_size": 7, "wait_ms": 200}) for _ in range(20)]
        batches = [data(a) for a in await asyncio.gather(first, *more)]
        assert max(map(len, batches)) <= 7
        acks = [g["ack_id"] for batch in batches[::2] for g in batch]
        for batch in batches[1::2]:
            if batch:
                answer = await http.post(f"{path}/ack", json={"ack_ids": [g["ack_id"] for g in batch]})
                assert data(answer) == {"acked": len(batch), "stale": 0}
        got += [g for batch in batches for g in batch]
    assert sorted(g["message"]["seq"] for g in got) == seqs
    if acks:
        data(await http.post(f"{path}/ack", json={"ack_ids": acks}))
    assert data(await http.get(path))["in_flight"] == 0


async def test_receives_with_deadlines_of_their_own(http: httpx.AsyncClient, url: str) -> None:
    """Calls of one moment with different ack_waits: each gets its own, and what it does with it is its own affair."""
    path = "/api/streams/s/consumers/timed"
    data(await http.post("/api/streams/s/consumers", json={"name": "timed", "start": "end", "ack_wait_ms": 60_000}))
    sent = {"messages": [{"data": n, "key": "one lane"} for n in range(120)]}
    data(await http.post("/api/streams/s/messages", json=sent))
    waits = [None, 600_000, 3_600_000]
    got: dict[int, int | None] = {}
    while len(got) < 120:
        gets = [
            http.get(f"{path}/receive", params={"batch_size": 3, "wait_ms": 200} | ({"ack_wait_ms": w} if w else {}))
            for w in waits * 7
        ]
        for wait, answer in zip(waits * 7, await asyncio.gather(*gets), strict=True):
            got |= {g["message"]["seq"]: wait for g in data(answer)}
    with psycopg.connect(url) as db:
        left = db.execute(
            "select s, extract(epoch from d.deadline - clock_timestamp())::float8 from headgate.deliveries d, "
            "unnest(d.seqs) s where d.consumer = 'timed'"
        ).fetchall()
    assert len(left) == 120
    for seq, seconds in left:
        wait = (got[seq] or 60_000) / 1000
        assert wait - 30 < seconds <= wait, (seq, got[seq])


async def test_an_extend_withholds_nothing_of_others(http: httpx.AsyncClient) -> None:
    """Clients that share a delivery: one extends by an hour, the others crash."""
    path = "/api/streams/s/consumers/shared"
    data(await http.post("/api/streams/s/consumers", json={"name": "shared", "start": "end", "ack_wait_ms": 2_000}))
    sent = {"messages": [{"data": n, "key": "one lane"} for n in range(20)]}
    seqs = data(await http.post("/api/streams/s/messages", json=sent))["seqs"]
    gets = [http.get(f"{path}/receive", params={"wait_ms": 5000}) for _ in range(20)]
    got = [g for answer in await asyncio.gather(*gets) for g in data(answer)]
    assert len(got) == 20
    mine = got[0]
    answer = await http.post(f"{path}/extend", json={"ack_ids": [mine["ack_id"]], "by_ms": 3_600_000})
    assert data(answer) == {"extended": 1, "stale": 0}
    whole = mine["ack_id"].rpartition(".")[0]  # in SQL this would name all that is in the delivery, whoever has it
    answer = await http.post(f"{path}/extend", json={"ack_ids": [whole], "by_ms": 3_600_000})
    assert data(answer) == {"extended": 0, "stale": 1}
    assert data(await http.post(f"{path}/ack", json={"ack_ids": [whole]})) == {"acked": 0, "stale": 1}
    again: list[int] = []
    while len(again) < 19:
        answer = await http.get(f"{path}/receive", params={"batch_size": 20, "wait_ms": 5000, "ack_wait_ms": 600_000})
        again += [g["message"]["seq"] for g in data(answer)]
    assert sorted([*again, mine["message"]["seq"]]) == seqs
    assert data(await http.post(f"{path}/ack", json={"ack_ids": [mine["ack_id"]]})) == {"acked": 1, "stale": 0}


async def test_order_is_kept_among_receives_of_the_same_moment(http: httpx.AsyncClient) -> None:
    path = "/api/streams/s/consumers/ordered"
    ordered = {"name": "ordered", "order": "key", "start": "end"}
    data(await http.post("/api/streams/s/consumers", json=ordered))
    sent = {"messages": [{"data": n, "key": f"k{n % 3}"} for n in range(30)]}
    data(await http.post("/api/streams/s/messages", json=sent))
    seen: dict[str, list[int]] = {}
    while sum(map(len, seen.values())) < 30:
        gets = [http.get(f"{path}/receive", params={"batch_size": 2, "wait_ms": 100}) for _ in range(10)]
        batches = [data(a) for a in await asyncio.gather(*gets)]
        owners = [{g["message"]["key"] for g in batch} for batch in batches if batch]
        assert sum(map(len, owners)) == len(set().union(*owners)), "a key is with one of them at a time"
        for g in (g for batch in batches for g in batch):
            seen.setdefault(g["message"]["key"], []).append(g["message"]["data"])
            data(await http.post(f"{path}/ack", json={"ack_ids": [g["ack_id"]]}))
    assert all(of_key == sorted(of_key) for of_key in seen.values())


async def test_what_nobody_claims_is_told() -> None:
    unclaimed: list[int] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def commit(key: str, items: list[int]) -> Sequence[int]:
        begun.set()
        await go.wait()
        return items

    grouper: Grouper[int, int] = Grouper(commit, lambda _: 1, most=5, unclaimed=lambda _, n: unclaimed.append(n))
    gone = asyncio.create_task(grouper.submit("k", 1))
    stays = asyncio.create_task(grouper.submit("k", 2))
    await begun.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    go.set()
    assert await stays == 2
    assert unclaimed == [1]


async def test_groups() -> None:
    """While a commit is under way, what arrives gathers; a refused group is tried one by one."""
    commits: list[list[int]] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def commit(key: str, items: list[int]) -> Sequence[int]:
        commits.append(items)
        begun.set()
        await go.wait()
        if 13 in items:
            raise headgate.errors.InvalidArgument("13")
        return [i * 2 for i in items]

    grouper: Grouper[int, int] = Grouper(commit, lambda _: 1, most=5, parallel=1)
    first = asyncio.create_task(grouper.submit("k", 0))
    await begun.wait()
    rest = [asyncio.create_task(grouper.submit("k", n)) for n in (1, 2, 13, 4, 5, 6)]
    leaver = asyncio.create_task(grouper.submit("k", 7))
    await asyncio.sleep(0)
    assert not first.done()
    leaver.cancel()
    go.set()
    assert await first == 0
    answers = await asyncio.gather(*rest, return_exceptions=True)
    assert answers[:2] + answers[3:] == [2, 4, 8, 10, 12]
    assert isinstance(answers[2], headgate.errors.InvalidArgument)
    assert commits == [[0], [1, 2, 13, 4, 5], [1], [2], [13], [4], [5], [6]]


async def test_a_lost_connection_is_not_tried_again() -> None:
    calls = 0

    async def commit(key: str, items: list[int]) -> Sequence[int]:
        nonlocal calls
        calls += 1
        raise headgate.errors.ConnectionFailed("gone")

    grouper: Grouper[int, int] = Grouper(commit, lambda _: 1, most=5)
    answers = await asyncio.gather(*(grouper.submit("k", n) for n in range(5)), return_exceptions=True)
    assert all(isinstance(a, headgate.errors.ConnectionFailed) for a in answers)
    assert calls == 1


def test_clients_that_retry(url: str, tmp_path: Path, server: Replica) -> None:
    """One of two replicas is killed: who repeats a call with its id at the other one sees no error, no duplicate."""
    seqs: dict[str, int] = {}

    async def load(victim: Replica) -> None:
        async def one(sender: int, first: httpx.AsyncClient, second: httpx.AsyncClient) -> None:
            http = first
            for n in range(60):
                id = f"{sender}.{n}"
                try:
                    answer = await send(http, data=id, id=id)
                except httpx.TransportError:
                    http = second
                    answer = await send(http, data=id, id=id)
                [seqs[id]] = data(answer)["seqs"]
                if len(seqs) == 300:
                    victim.process.kill()

        async with client(victim) as first, client(server) as second:
            await asyncio.wait_for(asyncio.gather(*(one(n, first, second) for n in range(10))), 60)

    with replica(url, tmp_path) as victim:
        asyncio.run(load(victim))
        assert victim.process.wait(10) != 0
    assert len(seqs) == 600
    with psycopg.connect(url) as db:
        stored = db.execute("select data, seq from headgate.log_s where data = any(%s)", [list(seqs)]).fetchall()
    assert len(stored) == 600
    assert dict(stored) == seqs


def test_killed_under_load(url: str, tmp_path: Path, server: Replica) -> None:
    """kill -9: what was answered is there, and the other replica goes on."""
    answered: dict[int, str] = {}

    async def load(victim: Replica) -> None:
        async def one(sender: int, http: httpx.AsyncClient) -> None:
            with contextlib.suppress(httpx.TransportError):
                for n in range(100_000):
                    text = f"{sender}.{n}"
                    [seq] = data(await send(http, data=text, key=f"k{sender}"))["seqs"]
                    answered[seq] = text
                    if len(answered) == 1000:
                        victim.process.kill()

        async with client(victim) as http:
            await asyncio.wait_for(asyncio.gather(*(one(n, http) for n in range(20))), 60)

    with replica(url, tmp_path) as victim:
        asyncio.run(load(victim))
        victim.process.wait(10)
    assert len(answered) >= 1000
    with psycopg.connect(url) as db:
        stored = dict(
            db.execute("select seq, data from headgate.log_s where seq = any(%s)", [list(answered)]).fetchall()
        )
    assert stored == answered
    with server.client() as http:
        wait_until(lambda: http.get("/readyz").is_success)
        assert http.post("/api/streams/s/messages", json={"messages": [{"data": 1}]}).is_success
