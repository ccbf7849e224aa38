"""The judge of random histories, of time and measure: who waited, what came too early, too much or too fast."""

from __future__ import annotations

import pytest

from headgate.torture.presets.preset import Preset, plan
from headgate.torture.record import (
    OPEN,
    Event,
    Sent,
    Wait,
)
from torture.drafts import ACK_WAIT, ORDERED, PLAIN, Draft


@pytest.fixture
def draft() -> Draft:
    return Draft()


# 8: stopped


def stopping(draft: Draft) -> Event:
    """A receive of w2 that takes two seconds, while w1 has a transaction open."""
    draft.event("w1", "receive", 1, [], draft.transaction("w1", 1, 3.5, OPEN), n=1)
    event = draft.event("w2", "receive", 1.5, [], n=1)
    event.answered = 3.6
    return event


def test_stopped(draft: Draft) -> None:
    stopping(draft)
    draft.history.waits.append(Wait(2, "w2", ("w1",)))
    assert draft.found() == ["stopped"]


def test_slow_without_anybody_in_the_way(draft: Draft) -> None:
    stopping(draft)
    assert draft.found() == []


def test_slow_on_a_starved_machine(draft: Draft) -> None:
    stopping(draft)
    draft.history.waits.append(Wait(2, "w2", ("w1",)))
    draft.history.starved.append((1.6, 3.5))
    assert draft.found() == []


@pytest.mark.parametrize(("queued", "found"), [(0.5, ["stopped"]), (1.5, [])])
def test_slow_for_want_of_a_processor(draft: Draft, queued: float, found: list[str]) -> None:
    stopping(draft).queued = queued
    draft.history.waits.append(Wait(2, "w2", ("w1",)))
    assert draft.found() == found


def test_a_nack_takes_the_later_ones_of_its_key_along(draft: Draft) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(0.5, 1, 2)
    draft.event("w1", "nack", 1, (1, 0), draft.transaction("w1", 1, 3.5), acks=acks[:1], delay=0.0)
    draft.ack(1.2, acks[1:], by="w2", stale=1)
    draft.history.events[-1].answered = 3.6
    draft.history.waits.append(Wait(2, "w2", ("w1",)))
    again = draft.receive(3.9, 1, 2)
    draft.ack(4, again)
    assert "stopped" not in draft.found(ORDERED)


@pytest.mark.parametrize(("same", "wrong"), [(True, []), (False, ["stopped"])])
def test_two_who_settle_the_same_message_wait_for_each_other(draft: Draft, same: bool, wrong: list[str]) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(0.5, 1, 2)
    draft.event("w1", "extend", 1, (1, 0), draft.transaction("w1", 1, 3.5), acks=acks[:1], by=1.0)
    draft.ack(1.2, acks if same else acks[1:], by="w2")
    draft.history.events[-1].answered = 3.6
    draft.history.waits.append(Wait(2, "w2", ("w1",)))
    if not same:
        draft.ack(4, draft.receive(3.9, 1))
    assert draft.found() == wrong


# 9: stalled


def stalling(draft: Draft, lane_is_held: bool = False) -> None:
    """A message that w2 looks for in vain while w1 has a transaction open, and gets when that is over."""
    draft.send(0, 1, 2)
    tx = draft.transaction("w1", 0.45, 5)
    draft.event("w1", "tick", 0.45, tx=tx)
    draft.ack(4.9, draft.receive(0.5, 1, tx=tx), tx=tx)
    if not lane_is_held:
        got = draft.history.events[-2].answer
        draft.history.events[-2].answer = [m._replace(ack_id="7" + m.ack_id) for m in got]
        draft.history.events[-1].asked["acks"] = [m.ack_id for m in draft.history.events[-2].answer]
    for at in range(1, 5):
        draft.receive(at, by="w2")
    draft.ack(5.2, draft.receive(5.1, 2, by="w2"), by="w2")


def test_stalled(draft: Draft) -> None:
    stalling(draft)
    assert draft.found() == ["stalled"]


def test_nobody_asked_for_long(draft: Draft) -> None:
    """The sessions had ended: then nobody was there to get it."""
    stalling(draft)
    for event in draft.history.events:
        if event.kind == "receive" and not event.answer:
            event.called, event.answered = event.called / 10, event.called / 10 + 0.01
    assert draft.found() == []


@pytest.mark.parametrize(("preset", "wrong"), [(ORDERED, []), (PLAIN, ["stalled"])])
def test_in_order_a_lane_waits_for_a_moment(draft: Draft, preset: Preset, wrong: list[str]) -> None:
    """All who asked did so in the same tenth of a second."""
    stalling(draft)
    for event in draft.history.events:
        if event.kind == "receive" and not event.answer:
            event.called = 4.8 + event.called / 100
            event.answered = event.called + 0.01
    assert draft.found(preset) == wrong


@pytest.mark.parametrize(("target", "wrong"), [("end", []), ("beginning", ["stalled"])])
def test_what_a_seek_has_skipped_does_not_come(draft: Draft, target: str, wrong: list[str]) -> None:
    draft.event("o", "seek", 1.0, target=target)
    stalling(draft)
    assert draft.found() == wrong


def test_an_open_receive_may_hold_its_own_lane(draft: Draft) -> None:
    stalling(draft, lane_is_held=True)
    assert draft.found() == []


def test_nothing_comes_from_a_paused_consumer(draft: Draft) -> None:
    stalling(draft)
    draft.event("o", "pause", 0.3)
    draft.event("o", "resume", 5.05)
    assert draft.found() == []


def test_a_busy_receive_does_not_count(draft: Draft) -> None:
    stalling(draft)
    for event in draft.history.events:
        if event.session == "w2" and event.kind == "receive":
            event.asked["n"] = len(event.answer)
    assert draft.found() == []


LEASED = Preset("test", (plan("c", ack_wait=5.0, leased=True, lease_time=1.0),))


@pytest.mark.parametrize(("beats", "is_wrong"), [((0.0, 0.8, 1.6), True), ((0.0, 1.6), False)])
def test_a_worker_that_was_gone_has_lost_what_it_had(draft: Draft, beats: tuple[float, ...], is_wrong: bool) -> None:
    """Coming back does not bring it back: what it then acks by a receive, which says nothing of it, may come again."""
    draft.send(0.1, 1)
    for at in beats:
        draft.event("w1", "heartbeat", at)
    acks = draft.receive(0.2, 1)
    if not is_wrong:
        again = draft.receive(1.3, 1, by="w2", attempt=2)
        draft.event("w2", "nack", 1.4, (1, 0), acks=again, delay=0.5)
    draft.event("w1", "receive", 1.8, [], n=10, acks=acks)
    draft.ack(2.6, draft.receive(2.5, 1, by="w2", attempt=3), by="w2")
    assert draft.found(LEASED) == (["delivered after its ack"] if is_wrong else [])


@pytest.mark.parametrize(("at", "is_wrong"), [(0.5, True), (0.7, False)])
def test_too_early(draft: Draft, at: float, is_wrong: bool) -> None:
    draft.event("sender", "send", 0.1, [1], messages=[Sent(None, "data 1", delay=0.5)])
    draft.ack(at + 0.1, draft.receive(at, 1))
    assert draft.found() == (["too early"] if is_wrong else [])


@pytest.mark.parametrize(("meanwhile", "is_wrong"), [("ack", True), ("retry_now", False)])
def test_too_early_after_a_nack(draft: Draft, meanwhile: str, is_wrong: bool) -> None:
    draft.send(0.1, 1)
    draft.event("w1", "nack", 0.3, (1, 0), acks=draft.receive(0.2, 1), delay=0.5)
    draft.event("operator", meanwhile, 0.4, (0, 0) if meanwhile == "ack" else 1, acks=[])
    draft.ack(0.6, draft.receive(0.5, 1, attempt=2))
    assert draft.found() == (["too early"] if is_wrong else [])


CAPPED = Preset("test", (plan("c", ack_wait=ACK_WAIT, max_concurrency=2),))
PACED = Preset("test", (plan("c", ack_wait=ACK_WAIT, release_interval=0.1),))


@pytest.mark.parametrize(("acked_at", "is_wrong"), [(0.5, True), (0.3, False)])
def test_over_max_concurrency(draft: Draft, acked_at: float, is_wrong: bool) -> None:
    draft.send(0.1, 1, 2, 3)
    first, second = draft.receive(0.2, 1), draft.receive(0.25, 2, by="w2")
    draft.ack(acked_at, first)
    draft.ack(0.6, [*second, *draft.receive(0.4, 3)])
    assert draft.found(CAPPED) == (["over max_concurrency"] if is_wrong else [])


@pytest.mark.parametrize(("at", "is_wrong"), [(0.25, True), (0.35, False)])
def test_over_release_interval(draft: Draft, at: float, is_wrong: bool) -> None:
    draft.send(0.1, 1, 2)
    acks = draft.receive(0.2, 1) + draft.receive(at, 2)
    draft.ack(0.5, acks)
    assert draft.found(PACED) == (["over release_interval"] if is_wrong else [])


@pytest.mark.parametrize("stale", [0, 1])
def test_acked_twice(draft: Draft, stale: int) -> None:
    draft.send(0.1, 1)
    acks = draft.receive(0.2, 1)
    draft.ack(0.3, acks)
    draft.ack(0.4, acks, stale=stale)
    assert draft.found() == ([] if stale else ["acked twice"])


@pytest.mark.parametrize(("seq", "is_wrong"), [(1, False), (2, True)])
def test_another_messages_seq(draft: Draft, seq: int, is_wrong: bool) -> None:
    draft.send(0.1, 1, 2, ids={1: "x", 2: "y"})
    draft.event("sender", "send", 0.2, [seq], messages=[Sent(None, "data 1", id="x")])
    draft.ack(0.4, draft.receive(0.3, 1, 2))
    assert [c for c in draft.found() if c != "an id used twice"] == (["another message's seq"] if is_wrong else [])
