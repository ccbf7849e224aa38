"""The judge of order and of upserts: each check finds a planted fault, and is silent without it."""

from __future__ import annotations

import pytest

from headgate.torture.record import (
    COMMITTED,
    ROLLED_BACK,
)
from torture.drafts import ORDERED, PLAIN, UPSERT, Draft


@pytest.fixture
def draft() -> Draft:
    return Draft()


# 4: order


def ordered(draft: Draft) -> None:
    draft.send(0, 1, key="k")
    draft.send(0.1, 2, key="k")


def test_out_of_order(draft: Draft) -> None:
    ordered(draft)
    first = draft.receive(1, 1, key="k")
    second = draft.receive(1.2, 2, by="w2", key="k")
    draft.ack(1.5, first)
    draft.ack(1.5, second, by="w2")
    assert draft.found(ORDERED) == ["out of order"]
    assert draft.found(PLAIN) == []


def test_in_order(draft: Draft) -> None:
    ordered(draft)
    draft.ack(1.1, draft.receive(1, 1, key="k"))
    draft.ack(1.5, draft.receive(1.2, 2, by="w2", key="k"), by="w2")
    assert draft.found(ORDERED) == []


@pytest.mark.parametrize(("seqs", "wrong"), [((1, 2), []), ((2, 1), ["out of order"])])
def test_order_within_a_batch(draft: Draft, seqs: tuple[int, ...], wrong: list[str]) -> None:
    ordered(draft)
    draft.ack(1.5, draft.receive(1, *seqs, key="k"))
    assert draft.found(ORDERED) == wrong


def test_an_ack_that_is_not_committed_frees_no_key(draft: Draft) -> None:
    ordered(draft)
    acks = draft.receive(1, 1, key="k")
    draft.ack(1.1, acks, tx=draft.transaction("w1", 1.05, 5))
    draft.ack(1.5, draft.receive(1.2, 2, by="w2", key="k"), by="w2")
    assert draft.found(ORDERED) == ["out of order"]


@pytest.mark.parametrize(("acked_at", "found"), [(1.5, ["delivered after its ack"]), (2.5, [])])
def test_inside_its_own_transaction_a_message_expires(draft: Draft, acked_at: float, found: list[str]) -> None:
    """An ack given to a receive does not say whether it was stale; past the deadline it may have been."""
    draft.send(0, 1)
    tx = draft.transaction("w1", 0.9, 3)
    acks = draft.receive(1, 1, tx=tx)
    draft.receive(acked_at, tx=tx, acks=acks)
    draft.ack(4.1, draft.receive(4, 1, by="w2", attempt=2), by="w2")
    assert draft.found() == found


# 5: upserts


def test_an_older_version_after_a_newer_one(draft: Draft) -> None:
    draft.send(0, 1, key="k")
    draft.send(0.1, 2, key="k")
    draft.ack(1.1, draft.receive(1, 2, key="k"))
    draft.ack(2.1, draft.receive(2, 1, key="k"))
    assert draft.found(UPSERT) == ["an older version after a newer one"]


def test_an_older_version_before_a_newer_one(draft: Draft) -> None:
    draft.send(0, 1, key="k")
    draft.ack(1.1, draft.receive(1, 1, key="k"))
    draft.send(1.5, 2, key="k")
    draft.ack(2.1, draft.receive(2, 2, key="k"))
    assert draft.found(UPSERT) == []


def test_the_newest_version_is_not_lost(draft: Draft) -> None:
    draft.send(0, 1, key="k")
    draft.ack(1.1, draft.receive(1, 1, key="k"))
    draft.send(1.5, 2, key="k")
    assert draft.found(UPSERT) == ["lost"]


def test_a_repeated_id_changes_nothing(draft: Draft) -> None:
    draft.send(0, 1, key="a.sender-0", ids={1: "x"}, data="A")
    draft.send(0.1, 2, key="a.sender-0", ids={2: "y"}, data="B")
    draft.send(0.2, 3, key="a.sender-0", ids={3: "x"}, data="A")  # appended, although x was there
    draft.ack(1.1, draft.receive(1, 3, key="a.sender-0", data="A"))
    assert draft.found(UPSERT) == ["wrongly appended", "not the last value"]


@pytest.mark.parametrize(
    ("ended", "outcome", "acked", "found"),
    [
        (1.3, ROLLED_BACK, 1, []),
        (1.7, ROLLED_BACK, 0, []),  # under way when the ack came, which left it alone
        (1.3, COMMITTED, 0, []),
        (None, ROLLED_BACK, None, ["lost", "not the last value"]),
    ],
)
def test_a_version_that_was_perhaps_acked_counts(
    draft: Draft, ended: float | None, outcome: str, acked: int | None, found: list[str]
) -> None:
    """It was nacked before the ack of the whole delivery."""
    draft.send(0, 1, key="a.sender-0", data="A")
    draft.ack(0.2, draft.receive(0.1, 1, key="a.sender-0", data="A"))
    draft.send(0.3, 2, key="a.sender-0", data="B")
    acks = draft.receive(1, 2, key="a.sender-0", data="B")
    if ended is not None:
        draft.event("w1", "nack", 1.2, (1, 0), draft.transaction("w1", 1.1, ended, outcome), acks=acks)
        draft.event("w1", "ack", 1.5, (acked, 0), acks=[acks[0].rpartition(".")[0]])
        if not acked:
            draft.ack(4, draft.receive(3, 2, key="a.sender-0", data="B", attempt=2))
    assert draft.found(UPSERT) == found


@pytest.mark.parametrize(("discarded", "found"), [(2, []), (1, ["lost", "not the last value"])])
def test_a_version_that_was_discarded_is_not_known(draft: Draft, discarded: int, found: list[str]) -> None:
    draft.send(0, 1, key="a.sender-0", data="A")
    draft.ack(0.2, draft.receive(0.1, 1, key="a.sender-0", data="A"))
    draft.send(0.3, 2, key="a.sender-0", data="B")
    draft.event("operator", "discard", 0.5, 1, seqs=[discarded])
    assert [f for f in draft.found(UPSERT) if f != "discarded too many"] == found


@pytest.mark.parametrize(
    ("id", "data", "seq", "wrong"), [("y", "B", 1, True), ("y", "B", 2, False), ("y", "A", 1, False)]
)
def test_changes_are_appended(draft: Draft, id: str, data: str, seq: int, wrong: bool) -> None:
    draft.send(0, 1, key="a.sender-0", ids={1: "x"}, data="A")
    draft.ack(0.2, draft.receive(0.1, 1, key="a.sender-0", data="A"))
    draft.send(1, seq, key="a.sender-0", ids={seq: id}, data=data)
    if seq == 2:
        draft.ack(1.2, draft.receive(1.1, 2, key="a.sender-0", data="B"))
    assert ("wrongly appended" in draft.found(UPSERT)) == wrong
