"""Processes of a server are killed at random under load: nothing that was answered is lost, or there twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

import headgate
from support.clients import until
from support.servers import Replica, replica

PUBLISHERS, RECEIVERS, KILLS = 12, 6, 6
BATCH = 5
BETWEEN = 300  # messages that are answered for between two kills


class Caller:
    """A connection that is made again when it breaks. A call is repeated until it is answered."""

    def __init__(self, server: Replica) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.broken = 0

    async def post(self, path: str, body: Any, *, again: bool = True) -> Any:
        """What the call answered; None when the connection broke and it is not to be repeated."""
        while True:
            try:
                return await self._post(path, json.dumps(body).encode())
            except (OSError, asyncio.IncompleteReadError):
                self.broken += 1
                self.close()
                if not again:
                    return None

    async def _post(self, path: str, content: bytes) -> Any:
        if self._streams is None:
            host, port = self._server.url.removeprefix("http://").split(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._server.token}\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r")[0]))
        assert answer.startswith(b"HTTP/1.1 200"), (answer, body)
        return json.loads(body)["data"]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def attack(server: Replica) -> tuple[set[str], set[str], int]:
    """What was answered to publishers, what receivers got, and how many calls broke."""
    answered: set[str] = set()
    received: set[str] = set()
    callers: list[Caller] = []
    is_over = asyncio.Event()

    def caller() -> Caller:
        callers.append(Caller(server))
        return callers[-1]

    async def publish(name: int) -> None:
        mine = caller()
        for n in itertools.count():
            texts = [f"{name}.{n}.{i}" for i in range(BATCH)]
            await mine.post("/api/streams/s/messages", {"messages": [{"data": t, "id": t} for t in texts]})
            answered.update(texts)
            if is_over.is_set():
                return

    async def receive() -> None:
        mine = caller()
        path = "/api/streams/s/consumers/c"
        while not (is_over.is_set() and received >= answered):
            got = await mine.post(f"{path}/receive?batch_size=20&wait_ms=200", {}, again=False)
            if got:
                received.update(m["message"]["data"] for m in got)
                await mine.post(f"{path}/ack", {"ack_ids": [m["ack_id"] for m in got]}, again=False)

    async def kill() -> None:
        chance = random.Random(23)
        parent = psutil.Process(server.process.pid)
        for n in range(KILLS):
            await until(lambda n=n: len(answered) >= (n + 1) * BETWEEN)
            with suppress(IndexError, psutil.NoSuchProcess):
                chance.choice(parent.children()).kill()

    async with asyncio.timeout(90):
        receiving = [asyncio.create_task(receive()) for _ in range(RECEIVERS)]
        publishing = [asyncio.create_task(publish(n)) for n in range(PUBLISHERS)]
        await kill()
        is_over.set()
        await asyncio.gather(*publishing)
        await asyncio.gather(*receiving)  # what a killed process had handed out comes again
    for one in callers:
        one.close()
    return answered, received, sum(c.broken for c in callers)


async def test_kill_of_processes_under_load(
    database_url: str, hg: headgate.Headgate, db: psycopg.Connection, tmp_path: Path
) -> None:
    stream = hg.stream("s", create=True, dedup_window=3600)
    stream.consumer("c", create=True, ack_wait=1)
    with replica(database_url, tmp_path, "processes=2") as server:
        answered, _, broken = await attack(server)
        assert server.process.poll() is None
        with server.client() as http:
            assert f"headgate_process_restarts_total {KILLS}" in http.get("/metrics").text
    assert broken >= KILLS, "the kills were felt"
    assert len(answered) >= KILLS * BETWEEN
    there = db.execute("select data from headgate.message_1").fetchall()
    assert len(there) == len(set(there)), "nothing is there twice"
    assert answered <= {text for (text,) in there}, "nothing that was answered is lost"
