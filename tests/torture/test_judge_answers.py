"""The judge of contents, errors and of what settling answers: each check finds a planted fault."""

from __future__ import annotations

import pytest

from headgate.torture.record import (
    ROLLED_BACK,
    CallError,
)
from torture.drafts import ORDERED, PLAIN, Draft


@pytest.fixture
def draft() -> Draft:
    return Draft()


# 6: rolled back, not yet committed, never sent, changed, doubled


def test_a_rolled_back_send_is_never_seen(draft: Draft) -> None:
    draft.send(0, 1, tx=draft.transaction("sender", 0, 0.5, ROLLED_BACK))
    draft.ack(1.1, draft.receive(1, 1))
    assert draft.found() == ["rolled back, and delivered"]


def test_nothing_comes_that_nobody_sent(draft: Draft) -> None:
    draft.ack(1.1, draft.receive(1, 1))
    assert draft.found() == ["rolled back, and delivered"]


def test_delivered_before_its_commit(draft: Draft) -> None:
    draft.send(0, 1, tx=draft.transaction("sender", 0, 5))
    draft.ack(1.1, draft.receive(1, 1))
    assert draft.found() == ["delivered before its commit"]


def test_other_contents(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.1, draft.receive(1, 1, data="something else"))
    assert draft.found() == ["other contents"]


def test_an_id_used_twice(draft: Draft) -> None:
    draft.send(0, 1, ids={1: "x"})
    draft.send(0.1, 2, ids={2: "x"})
    draft.ack(1.1, draft.receive(1, 1, 2))
    assert draft.found() == ["an id used twice"]


# 7: errors


@pytest.mark.parametrize(
    ("state", "hint", "wrong"),
    [
        ("40P01", "See server log", True),
        ("42P01", None, True),
        ("55P03", None, True),
        ("55P03", "repeat the call", False),
        ("40001", None, False),
        ("HG012", "join first", False),
    ],
)
def test_raw_errors(draft: Draft, state: str, hint: str | None, wrong: bool) -> None:
    draft.event("w1", "receive", 1).problem = CallError(state, "text", hint)
    assert draft.found() == (["raw error"] if wrong else [])


def test_called_stale(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1), stale=1)
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == ["called stale"]


@pytest.mark.parametrize(("held", "wrong"), [(None, ["called stale"]), (2.5, [])])
def test_a_late_ack_called_stale(draft: Draft, held: float | None, wrong: list[str]) -> None:
    """After the deadline it counts, unless another one has got the message, or may have it in flight."""
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    if held:
        draft.receive(held, by="w3", tx=draft.transaction("w3", held, 3.8))
    draft.ack(3, acks, stale=1)
    draft.ack(4.2, draft.receive(4, 1, attempt=2))
    assert draft.found() == wrong


def test_deadlines_of_calls_and_messages(draft: Draft) -> None:
    """Another ack_wait, or an extend of the message alone, also to 0, says until when it is its worker's."""
    draft.send(0, 1, 2, 3)
    draft.history.events[-1].answered = 0.01
    acks = draft.receive(1, 1, 2, 3)
    draft.event("w1", "extend", 1.1, (1, 0), acks=acks[:1], by=0.0)
    draft.event("w1", "extend", 1.1, (1, 0), acks=acks[1:2], by=0.2)
    draft.ack(1.25, draft.receive(1.2, 1, attempt=2))
    draft.ack(1.55, draft.receive(1.5, 2, attempt=2))
    assert [f for f in draft.found() if f == "two live deliveries"] == []
    draft.ack(1.65, draft.receive(1.6, 3, attempt=2))
    assert "two live deliveries" in draft.found()


# what settling answers


def test_numbers_that_do_not_add_up(draft: Draft) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    draft.event("w1", "nack", 1.2, (1, 0), acks=acks, delay=0.0)
    draft.ack(2.2, draft.receive(2, 1, 2, attempt=2))
    assert draft.found() == ["wrong count"]


def test_a_whole_delivery_counts_what_was_settled_before(draft: Draft) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    draft.ack(1.2, acks[:1])
    draft.event("w1", "ack", 1.4, (2, 0), acks=[acks[0].rpartition(".")[0]])
    assert draft.found() == ["wrong count"]


def test_a_whole_delivery_counts_what_is_left(draft: Draft) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    draft.ack(1.2, acks[:1])
    draft.event("w1", "ack", 1.4, (1, 0), acks=[acks[0].rpartition(".")[0]])
    assert draft.found() == []


def test_a_whole_delivery_may_count_what_another_transaction_has_not_settled_yet(draft: Draft) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    draft.ack(1.2, acks[:1], tx=draft.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    draft.event("w2", "ack", 1.6, (2, 0), acks=[acks[0].rpartition(".")[0]])
    assert draft.found() == []


def test_acked_behind_a_failed_one(draft: Draft) -> None:
    draft.send(0, 1, 2, key="k")
    acks = draft.receive(1, 1, 2, key="k")
    draft.event("w1", "nack", 1.2, (1, 0), acks=acks[:1], delay=0.0)
    draft.ack(1.4, acks[1:])
    draft.ack(2.2, draft.receive(2, 1, key="k", attempt=2))
    assert draft.found(ORDERED) == ["acked behind a failed one"]


def test_acked_late_behind_a_failed_one(draft: Draft) -> None:
    """It had expired before the other one failed, and was in the delivery no more."""
    draft.send(0, 1, 2, key="k")
    acks = draft.receive(1, 1, 2, key="k")
    draft.event("w2", "extend", 1.1, (1, 0), acks=acks[1:], by=0.0)
    draft.event("w1", "nack", 1.2, (1, 0), acks=acks[:1], delay=0.0)
    draft.ack(1.4, acks[1:])
    draft.ack(2.2, draft.receive(2, 1, key="k", attempt=2))
    assert draft.found(ORDERED) == []
    assert draft.found(PLAIN) == []


def test_what_another_is_settling_does_not_come_along(draft: Draft) -> None:
    """It stays where it was when that is undone, and may be acked."""
    draft.send(0, 1, 2, key="k")
    acks = draft.receive(1, 1, 2, key="k")
    draft.ack(1.1, acks[1:], by="w2", tx=draft.transaction("w2", 1.05, 1.3, ROLLED_BACK))
    draft.event("w1", "nack", 1.2, (1, 0), acks=acks[:1], delay=0.0)
    draft.ack(1.4, acks[1:])
    draft.ack(2.2, draft.receive(2, 1, key="k", attempt=2))
    assert draft.found(ORDERED) == []


def test_what_was_acked_before_is_not_given_back(draft: Draft) -> None:
    draft.send(0, 1, 2, key="k")
    acks = draft.receive(1, 1, 2, key="k")
    draft.ack(1.2, acks[1:])
    draft.event("w1", "nack", 1.4, (1, 0), acks=acks[:1], delay=0.0)
    draft.ack(2.2, draft.receive(2, 1, key="k", attempt=2))
    assert draft.found(ORDERED) == []


@pytest.mark.parametrize(("settled", "wrong"), [(False, ["called stale"]), (True, [])])
def test_a_whole_delivery_is_called_stale(draft: Draft, settled: bool, wrong: list[str]) -> None:
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    if settled:
        draft.ack(1.1, acks[1:], by="w2", tx=draft.transaction("w2", 1.05, 1.6, ROLLED_BACK))
    draft.event("w1", "ack", 1.2, (0, 1), acks=[acks[0].rpartition(".")[0]])
    draft.ack(3.2, draft.receive(3, 1, 2, attempt=2))
    assert draft.found() == wrong
