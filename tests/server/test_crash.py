"""A server is killed under load: what it had answered is there, and whoever asks another replica notices no more."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

import headgate
from support.clients import until
from support.servers import Replica, data, replica

BATCH = 10
PUBLISHERS, RECEIVERS = 20, 10  # receivers: of each consumer
CONSUMERS = ("c1", "c2", "c3")
ENOUGH = 1500  # messages that are answered for before somebody is killed
MESSAGES = "/api/streams/s/messages"


class Client:
    """A connection that is kept. It breaks with ConnectionError, and makes nothing of other errors."""

    def __init__(self, server: Replica) -> None:
        self.server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any) -> Any:
        """What the call answered."""
        if self._streams is None:
            host, port = self.server.url.removeprefix("http://").split(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        content = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.server.token}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            answer = await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError from error
        assert head.startswith(b"HTTP/1.1 200"), (head, answer)
        return json.loads(answer)["data"]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """Clients of one server (or of several, asked in turn when one is gone) and what they were told."""

    def __init__(self, *servers: Replica) -> None:
        self.servers = servers
        self.answered: dict[str, int] = {}  # seqs of the messages, by what is in them
        self.received: dict[str, set[str]] = {name: set() for name in CONSUMERS}
        self.broken = 0
        self.is_over = False

    async def run(self, until: Callable[[], bool], then: Callable[[], None]) -> None:
        """All of them, and what happens to the servers in the middle of it."""
        clients = [self.publish(f"{number}") for number in range(PUBLISHERS)]
        clients += [self.receive(name) for name in CONSUMERS for _ in range(RECEIVERS)]
        tasks = [asyncio.create_task(client) for client in clients]
        try:
            async with asyncio.timeout(30):
                while not until():
                    for task in tasks:
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.01)
                then()
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def call(self, client: Client, path: str, body: Any) -> Any:
        """The answer, from whichever server; None when there is none left."""
        for _ in range(len(self.servers)):
            try:
                return await client.post(path, body)
            except OSError:
                self.broken += 1
                client.close()
                at = self.servers.index(client.server)
                client.server = self.servers[(at + 1) % len(self.servers)]
        return None

    async def publish(self, name: str) -> None:
        client = Client(self.servers[0])
        for batch in itertools.count():
            texts = [f"{name}.{batch}.{n}" for n in range(BATCH)]
            done = await self.call(client, MESSAGES, {"messages": [{"data": {"t": t}, "id": t} for t in texts]})
            if done is not None:
                self.answered.update(zip(texts, done["seqs"], strict=True))
            if done is None or self.is_over:
                break
        client.close()

    async def receive(self, consumer: str) -> None:
        client = Client(self.servers[0])
        path = f"/api/streams/s/consumers/{consumer}/receive?batch_size={BATCH}&wait_ms=200"
        ids: list[str] = []
        while not self.is_over:
            got = await self.call(client, path, {"ack_ids": ids})
            if got is None:
                break
            ids = [d["ack_id"] for d in got]
            self.received[consumer].update(d["message"]["data"]["t"] for d in got)
        client.close()


def create(server: Replica) -> None:
    with server.client() as admin:
        data(admin.post("/api/streams", json={"name": "s"}))
        for name in CONSUMERS:
            data(admin.post("/api/streams/s/consumers", json={"name": name, "ack_wait_ms": 1000}))


def stored(database_url: str) -> list[tuple[str, int]]:
    with psycopg.connect(database_url) as db:
        return db.execute("select data::json->>'t', seq from headgate.message_1").fetchall()


def drain(server: Replica, load: Load, wanted: set[str]) -> None:
    """Receives until each consumer has had all; what was in flight comes again at its deadline."""
    with server.client() as client:
        for name, got in load.received.items():
            path = f"/api/streams/s/consumers/{name}/receive?batch_size=1000&wait_ms=500"
            for _ in range(100):
                if wanted <= got:
                    break
                came = data(client.post(path, json={}))
                got.update(d["message"]["data"]["t"] for d in came)
            assert wanted <= got, f"{len(wanted - got)} never came to {name}"


def test_the_server_is_killed(database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path) as server:
        create(server)
        load = Load(server)
        asyncio.run(load.run(lambda: len(load.answered) >= ENOUGH, server.process.kill))
        assert load.broken
        server.process.wait()
    assert len(load.answered) >= ENOUGH
    texts = stored(database_url)
    assert len(dict(texts)) == len(texts)
    assert load.answered.items() <= dict(texts).items(), "an answer without the message"
    with replica(database_url, tmp_path) as again:
        drain(again, load, set(dict(texts)))


def test_one_of_two_replicas_is_killed(database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path) as first, replica(database_url, tmp_path) as second:
        create(first)
        load = Load(first, second)
        before = 0

        async def run() -> None:
            nonlocal before

            def kill() -> None:
                nonlocal before
                before = len(load.answered)
                first.process.kill()
                watch.append(asyncio.create_task(finish()))

            async def finish() -> None:
                await until(lambda: len(load.answered) >= before + ENOUGH)
                load.is_over = True

            watch: list[asyncio.Task[None]] = []
            await load.run(lambda: len(load.answered) >= ENOUGH, kill)
            with suppress(asyncio.CancelledError):
                await watch[0]

        asyncio.run(run())
        first.process.wait()
        assert load.broken == PUBLISHERS + RECEIVERS * len(CONSUMERS), "each lost its connection, and nothing else"
        texts = stored(database_url)
        assert sorted(load.answered.items()) == sorted(texts), "a message is missing, or there twice"
        drain(second, load, set(load.answered))


def test_sent_again_after_the_answer_was_lost(database_url: str, tmp_path: Path) -> None:
    """The commit is there and the answer is not: who repeats the call gets the seqs of the first."""
    with replica(database_url, tmp_path) as first, replica(database_url, tmp_path) as second:
        create(first)
        body = {"messages": [{"data": {"t": "x"}, "id": "one"}]}

        async def send_and_go() -> None:
            client = Client(first)
            posting = asyncio.create_task(client.post(MESSAGES, body))
            with headgate.connect(database_url) as hg:
                await until(lambda: hg.insights.messages("s", 1))
            first.process.kill()
            with suppress(OSError):
                await posting
            client.close()

        asyncio.run(send_and_go())
        with second.client() as client:
            seqs = data(client.post(MESSAGES, json=body))["seqs"]
        assert stored(database_url) == [("x", seqs[0])]
