"""Channels and key lanes through the SDK: limits, workers, leases, insights."""

from __future__ import annotations

import collections
import threading
import time
from datetime import timedelta

import pytest

import headgate
from headgate import Outgoing
from support.clients import running
from support.waiting import wait_until


def test_limits_and_insights(hg: headgate.Headgate) -> None:
    jobs = hg.stream("jobs", create=True, lane_by="channel")
    consumer = jobs.consumer("c", create=True, max_concurrency=2)
    jobs.send_batch([Outgoing({"n": n}, channel=f"tenant{n % 3}") for n in range(30)])
    jobs.send("for nobody")
    consumer.set_channel("tenant1", max_concurrency=3, release_interval=3600)
    consumer.set_channel("tenant2", max_concurrency=0)
    got = consumer.receive(20, wait=5)
    assert collections.Counter(m.channel for m in got) == {"tenant0": 2, "tenant1": 1, None: 1}
    by_name = {c.channel: c for c in consumer.channels()}
    assert by_name["tenant0"].state == "full"
    assert by_name["tenant0"].max_concurrency == 2
    assert by_name["tenant1"].release_interval == timedelta(hours=1)
    assert by_name["tenant2"].in_flight == 0
    assert consumer.channels("tenant0")[0].in_flight == 2
    assert consumer.info().in_flight == 4


def test_what_waits(hg: headgate.Headgate) -> None:
    jobs = hg.stream("jobs", create=True, lane_by="channel")
    consumer = jobs.consumer("c", create=True)
    jobs.send_batch([Outgoing(n, channel=f"t{n}") for n in range(10) for _ in range(n)])
    seen: list[str | None] = []
    page = consumer.channels(limit=4)
    assert [c.waiting for c in page] == [9, 8, 7, 6]
    assert all(c.exact and c.complete and c.oldest for c in page)
    while True:
        seen += [c.channel for c in page]
        if page.next is None:
            break
        page = consumer.channels(limit=4, after=page.next)
    assert seen == [f"t{n}" for n in range(9, 0, -1)]
    [one] = consumer.channels("t7")
    assert one.waiting == 7
    assert [c.channel for c in consumer.channels(sort="oldest", limit=2)] == ["t1", "t2"]
    with pytest.raises(headgate.errors.InvalidArgument, match="not a position"):
        consumer.channels(after="nonsense")
    with pytest.raises(headgate.errors.InvalidArgument, match="sorted"):
        consumer.channels(sort="colour")  # type: ignore[arg-type]


def test_limits_change_one_by_one(hg: headgate.Headgate) -> None:
    consumer = hg.stream("jobs", create=True, lane_by="channel").consumer("c", create=True, max_concurrency=9)

    def limits() -> tuple[int | None, timedelta | None]:
        [found] = consumer.channels("a") or [None]
        return (None, None) if found is None else (found.max_concurrency, found.release_interval)

    consumer.set_channel("a", max_concurrency=3)
    consumer.set_channel("a", release_interval=2)
    assert limits() == (3, timedelta(seconds=2))
    consumer.set_channel("a", max_concurrency=4)
    consumer.set_channel("a")
    assert limits() == (4, timedelta(seconds=2))
    consumer.set_channel("a", clear=["max_concurrency"])
    assert limits() == (9, timedelta(seconds=2))
    consumer.set_channel("a", clear=["release_interval"])
    assert limits() == (None, None), "nothing is known of it any more"
    with pytest.raises(headgate.errors.InvalidArgument, match="unknown limit"):
        consumer.set_channel("a", clear=["ack_wait"])


def test_bad_input(hg: headgate.Headgate) -> None:
    plain = hg.stream("plain", create=True).consumer("c", create=True)
    with pytest.raises(headgate.errors.InvalidArgument, match="no channels"):
        hg.stream("plain").send("x", channel="a")
    with pytest.raises(headgate.errors.InvalidArgument, match="no channels"):
        plain.set_channel("a", max_concurrency=1)
    with pytest.raises(headgate.errors.InvalidArgument, match="hashed lanes"):
        plain.alter(max_concurrency=1)
    with pytest.raises(headgate.errors.InvalidArgument, match="lane_by"):
        hg.stream("x", create=True, lane_by="colour")  # type: ignore[arg-type]
    with pytest.raises(headgate.errors.ConsumerNotFound):
        hg.insights.channels("plain", "nobody")


@pytest.mark.parametrize("leased", [False, True])
def test_workers_on_channels(hg: headgate.Headgate, leased: bool) -> None:
    """Two workers; what they have in flight of a channel never exceeds its cap, and with leases one of them has it."""
    jobs = hg.stream("jobs", create=True, lane_by="channel", lanes=8)
    consumer = jobs.consumer("c", create=True, max_concurrency=2, leased=leased, lease_time=1)
    jobs.send_batch([Outgoing(n, channel=f"t{n % 11}") for n in range(440)])
    flying: collections.Counter[str | None] = collections.Counter()
    most = 0
    done: list[int] = []
    lock = threading.Lock()

    def handle(m: headgate.Message) -> None:
        nonlocal most
        with lock:
            flying[m.channel] += 1
            most = max(most, flying[m.channel])
        time.sleep(0.001)
        with lock:
            flying[m.channel] -= 1
            done.append(m.seq)

    workers = [consumer.worker(handle, concurrency=4, batch_size=20) for _ in range(2)]
    with running(workers[0]), running(workers[1]):
        wait_until(lambda: len(done) >= 440, 60)
    assert len(set(done)) == len(done) == 440
    assert most <= 2


def test_key_lanes_keep_order(hg: headgate.Headgate) -> None:
    events = hg.stream("events", create=True, lane_by="key")
    consumer = events.consumer("c", create=True, order="key")
    events.send_batch([(f"k{n % 50}", n) for n in range(1000)])
    seen: dict[str | None, list[int]] = {}
    count = 0
    lock = threading.Lock()

    def handle(m: headgate.Message) -> None:
        nonlocal count
        if m.data % 97 == 0 and m.attempt == 1:
            raise headgate.Retry(after=0.01)
        with lock:
            seen.setdefault(m.key, []).append(m.data)
            count += 1

    with running(consumer.worker(handle, concurrency=8, batch_size=50)):
        wait_until(lambda: count >= 1000, 60)
    assert all(data == sorted(data) for data in seen.values())
