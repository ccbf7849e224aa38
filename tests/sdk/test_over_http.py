"""The SDK over HTTP: its own tests, with a server between it and the database; and what is not to be had there."""

# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import headgate
from sdk.test_channels import *  # noqa: F403
from sdk.test_consumers import *  # noqa: F403
from sdk.test_messages import *  # noqa: F403
from support.over_http import behind, database_url, server, url  # noqa: F401
from support.servers import Replica

# What needs the database itself, or the words of an error that the server says in its own; and the slow ones.
for name in (
    "test_a_time_across_a_change_of_the_clocks", "test_ack_wait_of_one_receive",
    "test_discards_go_in_steps", "test_key_lanes_keep_order",
    "test_limits_change_one_by_one", "test_maintain", "test_start", "test_what_waits",
    "test_what_waits_behind_its_key_can_be_looked_at", "test_workers_on_channels",
):  # fmt: skip
    del globals()[name]


@pytest.fixture
def hg(server: Replica, database_url: str) -> Iterator[headgate.Headgate]:
    with headgate.connect(server.url, token=server.token) as hg:
        yield hg


NOT_OVER_HTTP = {
    "conn=": lambda hg: hg.stream("s", create=True).send("x", conn=object()),
    "ack(conn=)": lambda hg: hg.stream("s", create=True).consumer("c", create=True).ack(["1.1.1"], conn=object()),
    "transaction()": lambda hg: hg.stream("s", create=True).consumer("c", create=True).transaction().__enter__(),
    "run()": lambda hg: hg.run("select 1"),
    "pool": lambda hg: hg.pool,
    "migrate()": lambda hg: hg.migrate(),
    "maintenance()": lambda hg: hg.maintenance(),
    "maintain()": lambda hg: hg.maintain(),
    "segments()": lambda hg: hg.stream("s", create=True).segments(),
    "compact()": lambda hg: hg.stream("s", create=True).compact(),
    "tick()": lambda hg: hg.stream("s", create=True).tick(),
}


@pytest.mark.parametrize("what", NOT_OVER_HTTP)
def test_what_needs_the_database_says_so(hg: headgate.Headgate, what: str) -> None:
    with pytest.raises(headgate.errors.NotOverHttp, match=r"[\s\S]*hint: .*database") as found:
        NOT_OVER_HTTP[what](hg)
    assert isinstance(found.value, headgate.errors.NotAllowed)


def test_what_was_not_received_is_not_lost(hg: headgate.Headgate) -> None:
    """A transaction is refused before it has received anything."""
    stream = hg.stream("s", create=True)
    consumer = stream.consumer("c", create=True)
    stream.send("x")
    with pytest.raises(headgate.errors.NotOverHttp), consumer.transaction(wait=5):
        raise AssertionError
    assert [m.attempt for m in consumer.receive(wait=5)] == [1]


def test_scopes(hg: headgate.Headgate, server: Replica) -> None:
    """A token needs no more than what is done with it: neither to send nor to work must one be able to look."""
    hg.stream("s", create=True).consumer("c", create=True)
    with headgate.connect(server.url, token=server.new_token("produce")) as producer:
        producer.stream("s").send("x")
        with pytest.raises(headgate.errors.StreamNotFound):
            producer.stream("t")
        with pytest.raises(headgate.errors.NotAllowed, match="consume"):
            producer.stream("s").consumer("c").receive()
    with headgate.connect(server.url, token=server.new_token("consume")) as worker:
        [message] = worker.stream("s").consumer("c").receive(wait=5)
        assert message.ack()
        with pytest.raises(headgate.errors.NotAllowed, match=r"produce[\s\S]*hint: .*headgate token add"):
            worker.stream("s").send("x")
        with pytest.raises(headgate.errors.NotAllowed, match="admin"):
            worker.stream("t", create=True)
    with headgate.connect(server.url, token=server.new_token("admin", streams=["t.>"])) as other:
        with pytest.raises(headgate.errors.NotAllowed, match="other streams"):
            other.stream("s")
    for token in ("nonsense", server.token[:-1] + "-"):
        with headgate.connect(server.url, token=token) as nobody:
            with pytest.raises(headgate.errors.NotAllowed, match=r"hint: pass token="):
                nobody.stream("s")


def test_the_doctor(hg: headgate.Headgate, server: Replica, database_url: str) -> None:
    """The same as on the database; whoever may look at all streams may ask."""
    stream = hg.stream("s", create=True)
    stream.consumer("c", create=True).pause()
    stream.send("x")
    with headgate.connect(database_url) as direct:
        expected = direct.doctor()
    assert "consumer s/c" in {f.subject for f in expected}
    assert hg.doctor() == expected
    with headgate.connect(server.url, token=server.new_token("monitor", streams=["s"])) as narrow:
        with pytest.raises(headgate.errors.NotAllowed):
            narrow.doctor()


def test_a_batch_that_is_too_large(hg: headgate.Headgate) -> None:
    """It would have to be whole or not at all: so it is not split, and nothing of it was sent."""
    stream = hg.stream("s", create=True)
    with pytest.raises(headgate.errors.MessageTooLarge, match=r"hint: send fewer"):
        stream.send_batch(["x" * 500_000] * 70)
    stream.send("x" * 500_000)
    assert stream.info().messages == 1


def test_many_acks_go_in_parts(hg: headgate.Headgate) -> None:
    stream = hg.stream("s", create=True)
    consumer = stream.consumer("c", create=True)
    stream.send("x")
    [message] = consumer.receive(5000, wait=5)
    ids = [f"1.1.{n}" for n in range(25_000)]
    assert consumer.ack([*ids, message.ack_id]) == headgate.types.Settled(1, 25_000)
    stream.send("y")
    assert [m.data for m in consumer.receive(1, acks=ids, wait=5)] == ["y"]


def test_a_long_wait_and_a_short_one(hg: headgate.Headgate) -> None:
    stream = hg.stream("s", create=True)
    consumer = stream.consumer("c", create=True)
    began = time.monotonic()
    assert consumer.receive(wait=0.3) == []
    assert time.monotonic() - began >= 0.3
    later = threading.Timer(0.2, stream.send, ["x"])
    later.start()
    [message] = consumer.receive(wait=30)
    assert message.ack()
    later.join()


def test_threads_share_one_client(hg: headgate.Headgate) -> None:
    stream = hg.stream("s", create=True)
    consumer = stream.consumer("c", create=True)

    def work(number: int) -> list[int]:
        seqs = [stream.send({"thread": number, "n": n}, id=f"{number} {n}") for n in range(10)]
        found = []
        for _ in range(10):
            found += consumer.receive(1, acks=found[-1:], wait=5)
        consumer.ack(found[-1:])
        assert len(seqs) == len(set(seqs)) == 10
        return [m.seq for m in found]

    with ThreadPoolExecutor(8) as threads:
        seen = [seq for found in threads.map(work, range(8)) for seq in found]
    assert len(seen) == len(set(seen)) == 80
    assert consumer.info().lag == 0


def test_forks_have_connections_of_their_own(hg: headgate.Headgate) -> None:
    """Nobody reads the answer to another process's question."""
    stream = hg.stream("s", create=True)
    stream.send("so that there is a connection to share")
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                seqs = [stream.send(number, key=str(number)) for _ in range(20)]
                found = {m.seq: m.key for m in stream.messages(1000)}
                os._exit(0 if all(found[seq] == str(number) for seq in seqs) else 3)
            except BaseException:
                os._exit(4)
        children.append(pid)
    for _ in range(20):
        stream.send("parent")
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    assert stream.info().messages == 101


async def test_async(server: Replica, database_url: str) -> None:
    """The async twin; a poll that is cancelled takes no message along."""
    async with headgate.AsyncHeadgate(server.url, token=server.token) as hg:
        stream = await hg.stream("s", create=True)
        consumer = await stream.consumer("c", create=True)
        poll = asyncio.create_task(consumer.receive(wait=30))
        await asyncio.sleep(0.1)
        poll.cancel()
        await asyncio.wait([poll])
        await asyncio.gather(*(stream.send(n) for n in range(40)))
        found: list[headgate.AsyncMessage] = []
        while len(found) < 40:
            found += await consumer.receive(40, wait=10)
        assert {(m.data, m.attempt) for m in found} == {(n, 1) for n in range(40)}
        assert (await consumer.ack(found)).settled == 40
        assert (await consumer.info()).lag == 0


async def test_receives_that_are_cancelled_as_their_answer_comes(server: Replica, database_url: str) -> None:
    """What they were given is handed back at once, and not counted as an attempt."""
    async with headgate.AsyncHeadgate(server.url, token=server.token) as hg:
        stream = await hg.stream("s", create=True)
        consumer = await stream.consumer("c", create=True, ack_wait=600)
        for n in range(20):
            poll = asyncio.create_task(consumer.receive(wait=20))
            await asyncio.sleep(0.02)
            await stream.send(n)
            await asyncio.sleep(n / 1000)
            poll.cancel()
            try:
                [m] = await poll
            except asyncio.CancelledError:
                [m] = await consumer.receive(wait=20)
            assert (m.data, m.attempt) == (n, 1)
            await m.ack()
