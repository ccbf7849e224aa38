"""The judge of random histories, of time and measure: who waited, what came too early, too much or too fast."""

from __future__ import annotations

import pytest

from headgate.torture.presets import Preset, plan
from headgate.torture.record import (
    OPEN,
    Event,
    Sent,
    Wait,
)
from torture.tales import ACK_WAIT, ORDERED, PLAIN, Tale


@pytest.fixture
def tale() -> Tale:
    return Tale()


# 8: stopped


def stopping(tale: Tale) -> Event:
    """A receive of w2 that takes two seconds, while w1 has a transaction open."""
    tale.event("w1", "receive", 1, [], tale.transaction("w1", 1, 3.5, OPEN), n=1)
    event = tale.event("w2", "receive", 1.5, [], n=1)
    event.answered = 3.6
    return event


def test_stopped(tale: Tale) -> None:
    stopping(tale)
    tale.history.waits.append(Wait(2, "w2", ("w1",)))
    assert tale.found() == ["stopped"]


def test_slow_without_anybody_in_the_way(tale: Tale) -> None:
    stopping(tale)
    assert tale.found() == []


def test_slow_on_a_starved_machine(tale: Tale) -> None:
    stopping(tale)
    tale.history.waits.append(Wait(2, "w2", ("w1",)))
    tale.history.starved.append((1.6, 3.5))
    assert tale.found() == []


@pytest.mark.parametrize(("queued", "found"), [(0.5, ["stopped"]), (1.5, [])])
def test_slow_for_want_of_a_processor(tale: Tale, queued: float, found: list[str]) -> None:
    stopping(tale).queued = queued
    tale.history.waits.append(Wait(2, "w2", ("w1",)))
    assert tale.found() == found


def test_a_nack_takes_the_later_ones_of_its_key_along(tale: Tale) -> None:
    tale.send(0, 1, 2)
    acks = tale.receive(0.5, 1, 2)
    tale.event("w1", "nack", 1, (1, 0), tale.transaction("w1", 1, 3.5), acks=acks[:1], delay=0.0)
    tale.ack(1.2, acks[1:], by="w2", stale=1)
    tale.history.events[-1].answered = 3.6
    tale.history.waits.append(Wait(2, "w2", ("w1",)))
    again = tale.receive(3.9, 1, 2)
    tale.ack(4, again)
    assert "stopped" not in tale.found(ORDERED)


@pytest.mark.parametrize(("same", "wrong"), [(True, []), (False, ["stopped"])])
def test_two_who_settle_the_same_message_wait_for_each_other(tale: Tale, same: bool, wrong: list[str]) -> None:
    tale.send(0, 1, 2)
    acks = tale.receive(0.5, 1, 2)
    tale.event("w1", "extend", 1, (1, 0), tale.transaction("w1", 1, 3.5), acks=acks[:1], by=1.0)
    tale.ack(1.2, acks if same else acks[1:], by="w2")
    tale.history.events[-1].answered = 3.6
    tale.history.waits.append(Wait(2, "w2", ("w1",)))
    if not same:
        tale.ack(4, tale.receive(3.9, 1))
    assert tale.found() == wrong


# 9: stalled


def stalling(tale: Tale, lane_is_held: bool = False) -> None:
    """A message that w2 looks for in vain while w1 has a transaction open, and gets when that is over."""
    tale.send(0, 1, 2)
    tx = tale.transaction("w1", 0.45, 5)
    tale.event("w1", "tick", 0.45, tx=tx)
    tale.ack(4.9, tale.receive(0.5, 1, tx=tx), tx=tx)
    if not lane_is_held:
        got = tale.history.events[-2].answer
        tale.history.events[-2].answer = [m._replace(ack_id="7" + m.ack_id) for m in got]
        tale.history.events[-1].asked["acks"] = [m.ack_id for m in tale.history.events[-2].answer]
    for at in range(1, 5):
        tale.receive(at, by="w2")
    tale.ack(5.2, tale.receive(5.1, 2, by="w2"), by="w2")


def test_stalled(tale: Tale) -> None:
    stalling(tale)
    assert tale.found() == ["stalled"]


def test_nobody_asked_for_long(tale: Tale) -> None:
    """The sessions had ended: then nobody was there to get it."""
    stalling(tale)
    for event in tale.history.events:
        if event.kind == "receive" and not event.answer:
            event.called, event.answered = event.called / 10, event.called / 10 + 0.01
    assert tale.found() == []


@pytest.mark.parametrize(("preset", "wrong"), [(ORDERED, []), (PLAIN, ["stalled"])])
def test_in_order_a_lane_waits_for_a_moment(tale: Tale, preset: Preset, wrong: list[str]) -> None:
    """All who asked did so in the same tenth of a second."""
    stalling(tale)
    for event in tale.history.events:
        if event.kind == "receive" and not event.answer:
            event.called = 4.8 + event.called / 100
            event.answered = event.called + 0.01
    assert tale.found(preset) == wrong


@pytest.mark.parametrize(("target", "wrong"), [("end", []), ("beginning", ["stalled"])])
def test_what_a_seek_has_skipped_does_not_come(tale: Tale, target: str, wrong: list[str]) -> None:
    tale.event("o", "seek", 1.0, target=target)
    stalling(tale)
    assert tale.found() == wrong


def test_an_open_receive_may_hold_its_own_lane(tale: Tale) -> None:
    stalling(tale, lane_is_held=True)
    assert tale.found() == []


def test_nothing_comes_from_a_paused_consumer(tale: Tale) -> None:
    stalling(tale)
    tale.event("o", "pause", 0.3)
    tale.event("o", "resume", 5.05)
    assert tale.found() == []


def test_a_busy_receive_does_not_count(tale: Tale) -> None:
    stalling(tale)
    for event in tale.history.events:
        if event.session == "w2" and event.kind == "receive":
            event.asked["n"] = len(event.answer)
    assert tale.found() == []


LEASED = Preset("test", (plan("c", ack_wait=5.0, leased=True, lease_time=1.0),))


@pytest.mark.parametrize(("beats", "is_wrong"), [((0.0, 0.8, 1.6), True), ((0.0, 1.6), False)])
def test_a_worker_that_was_gone_has_lost_what_it_had(tale: Tale, beats: tuple[float, ...], is_wrong: bool) -> None:
    """Coming back does not bring it back: what it then acks by a receive, which says nothing of it, may come again."""
    tale.send(0.1, 1)
    for at in beats:
        tale.event("w1", "heartbeat", at)
    acks = tale.receive(0.2, 1)
    if not is_wrong:
        again = tale.receive(1.3, 1, by="w2", attempt=2)
        tale.event("w2", "nack", 1.4, (1, 0), acks=again, delay=0.5)
    tale.event("w1", "receive", 1.8, [], n=10, acks=acks)
    tale.ack(2.6, tale.receive(2.5, 1, by="w2", attempt=3), by="w2")
    assert tale.found(LEASED) == (["delivered after its ack"] if is_wrong else [])


@pytest.mark.parametrize(("at", "is_wrong"), [(0.5, True), (0.7, False)])
def test_too_early(tale: Tale, at: float, is_wrong: bool) -> None:
    tale.event("sender", "send", 0.1, [1], messages=[Sent(None, "data 1", delay=0.5)])
    tale.ack(at + 0.1, tale.receive(at, 1))
    assert tale.found() == (["too early"] if is_wrong else [])


@pytest.mark.parametrize(("meanwhile", "is_wrong"), [("ack", True), ("retry_now", False)])
def test_too_early_after_a_nack(tale: Tale, meanwhile: str, is_wrong: bool) -> None:
    tale.send(0.1, 1)
    tale.event("w1", "nack", 0.3, (1, 0), acks=tale.receive(0.2, 1), delay=0.5)
    tale.event("operator", meanwhile, 0.4, (0, 0) if meanwhile == "ack" else 1, acks=[])
    tale.ack(0.6, tale.receive(0.5, 1, attempt=2))
    assert tale.found() == (["too early"] if is_wrong else [])


CAPPED = Preset("test", (plan("c", ack_wait=ACK_WAIT, max_concurrency=2),))
PACED = Preset("test", (plan("c", ack_wait=ACK_WAIT, release_interval=0.1),))


@pytest.mark.parametrize(("acked_at", "is_wrong"), [(0.5, True), (0.3, False)])
def test_over_max_concurrency(tale: Tale, acked_at: float, is_wrong: bool) -> None:
    tale.send(0.1, 1, 2, 3)
    first, second = tale.receive(0.2, 1), tale.receive(0.25, 2, by="w2")
    tale.ack(acked_at, first)
    tale.ack(0.6, [*second, *tale.receive(0.4, 3)])
    assert tale.found(CAPPED) == (["over max_concurrency"] if is_wrong else [])


@pytest.mark.parametrize(("at", "is_wrong"), [(0.25, True), (0.35, False)])
def test_over_release_interval(tale: Tale, at: float, is_wrong: bool) -> None:
    tale.send(0.1, 1, 2)
    acks = tale.receive(0.2, 1) + tale.receive(at, 2)
    tale.ack(0.5, acks)
    assert tale.found(PACED) == (["over release_interval"] if is_wrong else [])


@pytest.mark.parametrize("stale", [0, 1])
def test_acked_twice(tale: Tale, stale: int) -> None:
    tale.send(0.1, 1)
    acks = tale.receive(0.2, 1)
    tale.ack(0.3, acks)
    tale.ack(0.4, acks, stale=stale)
    assert tale.found() == ([] if stale else ["acked twice"])


@pytest.mark.parametrize(("seq", "is_wrong"), [(1, False), (2, True)])
def test_another_messages_seq(tale: Tale, seq: int, is_wrong: bool) -> None:
    tale.send(0.1, 1, 2, ids={1: "x", 2: "y"})
    tale.event("sender", "send", 0.2, [seq], messages=[Sent(None, "data 1", id="x")])
    tale.ack(0.4, tale.receive(0.3, 1, 2))
    assert [c for c in tale.found() if c != "an id used twice"] == (["another message's seq"] if is_wrong else [])
