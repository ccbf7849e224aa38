"""The async SDK, from which the sync one is generated: the usual day once, and what only async code can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

import headgate


@pytest.fixture
async def hg(database_url: str) -> AsyncIterator[headgate.AsyncHeadgate]:
    async with await headgate.connect_async(database_url) as hg:
        yield hg


async def test_a_usual_day(hg: headgate.AsyncHeadgate) -> None:
    stream = await hg.stream("orders", create=True, lanes=4)
    consumer = await stream.consumer("billing", create=True, filter="orders.>", order="key", max_deliver=2)
    await stream.send({"quantity": 4}, key="orders.a", headers={"h": 1})
    await stream.send_batch(
        [("orders.b", b"\x00"), ("refunds.a", "skipped"), headgate.Outgoing("c", "orders.c", id="1")]
    )
    messages: list[headgate.AsyncMessage] = []
    while len(messages) < 3:
        messages += await consumer.receive(10, wait=5)
    messages.sort(key=lambda m: m.seq)
    assert [m.data for m in messages] == [{"quantity": 4}, b"\x00", "c"]
    assert await messages[0].ack()
    assert not await messages[0].ack()
    assert await messages[1].extend(60)
    assert await messages[1].extend(30)
    with pytest.raises(headgate.errors.InvalidArgument):
        await consumer.receive(ack_wait=-1)
    assert await consumer.ack([messages[1].delivery]) == headgate.types.Settled(1, 0)
    assert await messages[2].nack(delay=0, error="no")
    [again] = await consumer.receive(10, wait=5)
    assert again.attempt == 2
    assert await consumer.nack([again], error="never") == headgate.types.Settled(1, 0)
    [dead] = await consumer.dead_letters()
    assert (dead.data, dead.last_error) == ("c", "never")
    info = await consumer.info()
    assert (info.lag, info.dead) == (0, 1)
    assert await consumer.redrive(all=True) == 1
    await consumer.pause()
    assert await consumer.receive(10, wait=0.05) == []
    await consumer.resume()
    async with consumer.transaction(10, wait=5) as (tx, batch):
        assert [m.data for m in batch] == ["c"]
        await tx.execute("create table done as select 1")
    assert (await consumer.info()).lag == 0
    await consumer.seek("beginning")
    assert [p.state for p in await consumer.peek(states=["available"])] == ["available"] * 3
    await consumer.alter(clear=["max_deliver"])
    await stream.alter(max_message_bytes=10)
    assert (await stream.info()).max_message_bytes == 10
    assert await hg.streams() == ["orders", "orders.dead"]
    assert await stream.consumers() == ["billing"]
    assert len(await stream.messages(2)) == 2
    await stream.tick()
    await hg.maintain()
    await consumer.drop()
    await stream.drop()
    with pytest.raises(headgate.errors.StreamNotFound):
        await hg.stream("orders")


async def test_embedded(tmp_path: Path) -> None:
    async with await headgate.connect_async(directory=str(tmp_path / "here")) as hg:
        stream = await hg.stream("orders", create=True)
        await stream.send("x")
        assert [m.data for m in await (await stream.consumer("c", create=True)).receive(wait=5)] == ["x"]


async def test_open_and_close(database_url: str) -> None:
    hg = headgate.AsyncHeadgate(database_url)
    with pytest.raises(headgate.Error, match="not open"):
        await hg.streams()
    async with hg:
        assert await hg.streams() == []
    with pytest.raises(headgate.Error, match="not open"):
        await hg.streams()
    with pytest.raises(headgate.errors.ConnectionFailed):
        await headgate.connect_async("postgresql://127.0.0.1:1/x", timeout=2)


async def test_waiting_blocks_nobody(hg: headgate.AsyncHeadgate) -> None:
    """Fifty consumers wait in one loop, with a pool of sixteen connections, and each gets its message."""
    stream = await hg.stream("orders", create=True, lanes=2)
    consumers = [await stream.consumer(f"c{n}", create=True) for n in range(50)]
    waiting = [asyncio.create_task(c.receive(10, wait=30)) for c in consumers]
    await asyncio.sleep(0.2)
    assert not any(t.done() for t in waiting)
    await stream.send("x")
    async with asyncio.timeout(20):
        assert [[m.data for m in await t] for t in waiting] == [["x"]] * 50


async def test_cancelled_while_waiting(hg: headgate.AsyncHeadgate) -> None:
    """The client goes on; what was not received comes to the next."""
    stream = await hg.stream("orders", create=True)
    consumer = await stream.consumer("c", create=True)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.receive(10, wait=30)
    await stream.send("x")
    assert [m.data for m in await consumer.receive(10, wait=5)] == ["x"]


async def test_cancelled_in_a_transaction(hg: headgate.AsyncHeadgate, database_url: str) -> None:
    """It is rolled back and nacked."""
    stream = await hg.stream("orders", create=True)
    consumer = await stream.consumer("c", create=True)
    await stream.send("x")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3), consumer.transaction(wait=5) as (tx, _):
            await tx.execute("create table done (n int)")
            await asyncio.sleep(30)
    with psycopg.connect(database_url) as db:
        assert db.execute("select to_regclass('done')").fetchone() == (None,)
    [peeked] = await consumer.peek()
    assert (peeked.state, peeked.last_error) == ("parked", "CancelledError: ")


async def test_too_late(hg: headgate.AsyncHeadgate) -> None:
    stream = await hg.stream("orders", create=True)
    consumer = await stream.consumer("c", create=True, ack_wait=0.05)
    await stream.send("x")
    with pytest.raises(headgate.errors.StaleDelivery):
        async with consumer.transaction(wait=5):
            assert await consumer.receive(wait=5)


async def test_many_tasks_share_one_client(hg: headgate.AsyncHeadgate) -> None:
    stream = await hg.stream("orders", create=True, lanes=4)
    consumer = await stream.consumer("c", create=True)
    seen: list[int] = []

    async def work() -> None:
        await stream.send_batch(list(range(20)))
        while len(seen) < 400:
            messages = await consumer.receive(7, wait=0.05)
            assert await consumer.ack(messages) == headgate.types.Settled(len(messages), 0)
            seen.extend(m.seq for m in messages)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(work())
    assert len(seen) == len(set(seen)) == 400
