"""The judge of random histories: each of its checks finds a fault that was planted, and is silent without it."""

from __future__ import annotations

import pytest

from headgate.torture.record import (
    ROLLED_BACK,
    Ending,
)
from torture.drafts import ACK_WAIT, AGING, KEPT, MORTAL, PLAIN, Draft


@pytest.fixture
def draft() -> Draft:
    return Draft()


def test_a_peaceful_history_is_peaceful(draft: Draft) -> None:
    draft.send(0, 1, 2)
    draft.ack(2, draft.receive(1, 1, 2))
    assert draft.found() == []


# 1: delivered after an ack that had answered


def test_delivered_after_its_ack(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.ack(3.2, draft.receive(3, 1, by="w2"), by="w2")
    assert draft.found() == ["delivered after its ack"]


def test_delivered_after_an_ack_that_came_with_a_receive(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1.5, acks=[draft.receive(1, 1)[0].rpartition(".")[0]])
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == ["delivered after its ack"]


def test_an_ack_with_a_receive_may_have_come_too_late(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1 + ACK_WAIT, acks=draft.receive(1, 1))
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == []


def test_a_rolled_back_ack_did_not_happen(draft: Draft) -> None:
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    draft.ack(1.2, acks, tx=draft.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == []


def test_what_is_undone_by_a_savepoint_did_not_happen(draft: Draft) -> None:
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    draft.ack(1.2, acks, tx=draft.transaction("w1", 1.1, 1.5))
    draft.history.events[-1].undone = 1.3
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == []


def test_a_receive_that_was_under_way_may_have_come_first(draft: Draft) -> None:
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    draft.ack(2.5, acks, tx=draft.transaction("w1", 2.4, 3.0))
    draft.receive(3.005, 1, by="w2")
    draft.history.events[-2].answer = (0, 1)  # it had expired, and the ack said so: too soon, nobody else had got it
    draft.ack(3.5, ["0.2.1"], by="w2")
    assert draft.found() == ["called stale"]


def test_a_seek_explains_it(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.event("o", "seek", 2, target="beginning")
    draft.ack(3.2, draft.receive(3, 1))
    assert draft.found() == []


@pytest.mark.parametrize("explained", [False, True])
def test_a_redrive_explains_it_only_for_a_dead_letter(draft: Draft, explained: bool) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.event("o", "redrive", 2, 1)
    draft.ack(3.2, draft.receive(3, 1))
    assert draft.found(MORTAL if explained else PLAIN) == ([] if explained else ["delivered after its ack"])


@pytest.mark.parametrize(("seqs", "at", "explained"), [([1], 2, True), ([2], 2, False), ([1], 0.5, False)])
def test_a_replay_explains_it_for_its_messages(draft: Draft, seqs: list[int], at: float, explained: bool) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.event("o", "replay", at, 1, seqs=seqs)
    draft.ack(3.2, draft.receive(3, 1))
    assert draft.found() == ([] if explained else ["delivered after its ack"])


def test_an_ack_of_the_whole_delivery_is_not_about_what_was_acked_before(draft: Draft) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    draft.ack(1.2, acks[:1])
    draft.event("o", "replay", 1.4, 1, seqs=[1])
    draft.ack(1.6, [acks[0].rpartition(".")[0]], tx=draft.transaction("w1", 1.5, 1.9))
    draft.ack(1.8, draft.receive(1.7, 1, by="w2"), by="w2")
    assert draft.found() == []


# 2: lost


@pytest.mark.parametrize(("given", "wrong"), [(1, ["lost"]), (None, []), (2, [])])
def test_what_is_surely_replayed_has_to_come_again(draft: Draft, given: int | None, wrong: list[str]) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.event("o", "replay", 2, 1, seqs=[1], given=given)
    assert draft.found() == wrong


def test_lost(draft: Draft) -> None:
    draft.send(0, 1, 2)
    draft.ack(2, draft.receive(1, 1))
    assert draft.found() == ["lost"]


@pytest.mark.parametrize(("answered", "wrong"), [(3.5, []), (1.51, ["lost"])])
def test_a_poll_that_was_called_before_may_be_the_last(draft: Draft, answered: float, wrong: list[str]) -> None:
    """One of its two messages was stale, and nobody knows which: that finishes a message only if none had it later."""
    draft.send(1, 1, 2)
    acks = draft.receive(1.5, 1, 2, by="poller")
    draft.history.events[-1].answered = answered
    draft.event("w2", "nack", 3.1, (1, 0), acks=draft.receive(3, 1, by="w2"))
    draft.ack(3.6, acks, by="poller", stale=1)
    draft.ack(3.8, draft.receive(3.7, 2, by="w2"), by="w2")
    assert draft.found() == wrong


def test_lost_after_its_ack_was_rolled_back(draft: Draft) -> None:
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    draft.ack(1.2, acks, tx=draft.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    assert draft.found() == ["lost"]


def test_lost_after_a_seek(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.event("o", "seek", 2, target="beginning")
    assert draft.found() == ["lost"]


@pytest.mark.parametrize(("target", "missing"), [("end", []), ("2", []), ("1", ["lost"]), ("beginning", ["lost"])])
def test_a_seek_may_skip(draft: Draft, target: str, missing: list[str]) -> None:
    draft.send(0, 1)
    draft.event("o", "seek", 2, target=target)
    assert draft.found() == missing


@pytest.mark.parametrize(("age", "missing"), [(1.0, []), (3.0, ["lost"])])
def test_a_seek_to_a_time_skips_what_was_sent_before(draft: Draft, age: float, missing: list[str]) -> None:
    draft.send(0, 1)
    draft.event("o", "seek", 2, target="time", age=age)
    assert draft.found() == missing


def test_a_seek_to_the_end_skips_nothing_that_comes_later(draft: Draft) -> None:
    draft.event("o", "seek", 1, target="end")
    draft.send(2, 1)
    assert draft.found() == ["lost"]


@pytest.mark.parametrize(("removed_at", "missing"), [(1.8, []), (2.5, ["lost"])])
def test_what_a_seek_made_unread_may_not_be_removed(draft: Draft, removed_at: float, missing: list[str]) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.event("o", "compact", removed_at, 1)
    draft.event("o", "seek", 2, target="beginning")
    assert draft.found(KEPT) == missing


@pytest.mark.parametrize(("acked_at", "missing"), [(1.8, []), (2.5, ["lost"])])
def test_what_compaction_kept_is_gone_when_it_is_done(draft: Draft, acked_at: float, missing: list[str]) -> None:
    draft.send(0, 1)
    draft.event("w1", "nack", 1.1, (1, 0), acks=draft.receive(1, 1), delay=0.0)
    draft.event("o", "compact", 1.3, 1)
    acks = draft.receive(1.5, 1, attempt=2)
    if acked_at < 2:
        draft.ack(acked_at, acks)
    draft.event("o", "seek", 2, target="beginning")
    assert draft.found(KEPT) == missing


def test_dead_discarded_and_aged_messages_are_not_lost(draft: Draft) -> None:
    draft.send(0, 1, 2, 3)
    draft.event("o", "discard", 2, 1, seqs=[2])
    draft.history.endings["c"] = Ending(dead={1}, losses=[(3, 9, "retain_up_to")])
    assert draft.found(AGING) == []
    assert draft.found(PLAIN) == ["lost"]  # here nobody asked for removing 3


def test_only_what_had_committed_can_have_been_discarded(draft: Draft) -> None:
    draft.event("o", "discard", 0, 1, seqs=None, keys=["k"])
    draft.send(1, 1)
    assert "lost" in draft.found()
