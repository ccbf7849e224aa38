"""A receive that is cancelled hands back what it was given."""

from __future__ import annotations

import asyncio
import random

import pytest

import headgate
from headgate.database import forks


async def test_cancelled_receives_strand_nothing(ahg: headgate.AsyncHeadgate, aorders: headgate.AsyncStream) -> None:
    """Whatever the moment: what was not returned is due at once, as if never delivered."""
    consumer = await aorders.consumer("c", create=True, ack_wait=3600)
    await aorders.send_batch([{"n": n} for n in range(400)])
    draw = random.Random(6)
    got: list[headgate.AsyncMessage] = []
    cancelled = 0
    for _ in range(60):
        task = asyncio.create_task(consumer.receive(3, wait=1))
        await asyncio.sleep(draw.random() * 0.002)
        task.cancel()
        try:
            got += await task
        except asyncio.CancelledError:
            cancelled += 1
    assert cancelled
    assert (await consumer.info()).in_flight == len(got)
    await consumer.ack(got)
    while more := await consumer.receive(100, wait=0.2):
        assert {m.attempt for m in more} == {1}
        got += more
    assert sorted(m.data["n"] for m in got) == list(range(400))


async def test_a_statement_that_ends_in_spite_of_its_cancelling(
    ahg: headgate.AsyncHeadgate, aorders: headgate.AsyncStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case in question, made to happen: the cancel request comes too late for the server."""
    consumer = await aorders.consumer("c", create=True, ack_wait=3600)
    await aorders.send_batch([1, 2, 3])

    async def too_late(self: object, **_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("psycopg.AsyncConnection._try_cancel", too_late)
    await ahg.run("set headgate.unused = 'a connection is there'")
    task = asyncio.create_task(consumer.receive(10))
    while (await asyncio.sleep(0)) or not any(
        conn.pgconn.transaction_status == 1 for conn in forks.watched() if not conn.closed
    ):
        assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await consumer.info()).in_flight == 0
    got = []
    while len(got) < 3:
        got += await consumer.receive(10, wait=5)
    assert {m.attempt for m in got} == {1}
