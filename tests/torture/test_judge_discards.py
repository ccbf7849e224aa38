"""The judge of discards, and of messages with two live deliveries: each check finds a planted fault."""

from __future__ import annotations

import pytest

from headgate.torture.presets.preset import Preset, plan
from headgate.torture.record import (
    COMMITTED,
    ROLLED_BACK,
)
from torture.drafts import ACK_WAIT, AGING, Draft


@pytest.fixture
def draft() -> Draft:
    return Draft()


# discards


@pytest.mark.parametrize(
    ("answer", "said"), [(1, ["delivered after its discard"]), (0, ["delivered after its discard"]), ([1, 1, None], [])]
)
def test_delivered_after_its_discard(draft: Draft, answer: object, said: list[str]) -> None:
    """Whatever it answered, unless somebody else had some of them in flight."""
    draft.send(0, 1)
    first = draft.receive(0.5, 1)
    draft.event("o", "discard", 1, answer, seqs=[1])
    draft.ack(3, draft.receive(2, 1))
    assert draft.found() == said
    assert first


def test_a_seek_brings_back_what_was_discarded(draft: Draft) -> None:
    draft.send(0, 1)
    draft.event("o", "discard", 1, 1, seqs=[1])
    draft.event("o", "seek", 1.5, target="beginning")
    draft.ack(3, draft.receive(2, 1))
    assert draft.found() == []


@pytest.mark.parametrize(("count", "said"), [(1, []), (2, ["discarded too many"]), (0, ["discarded too few"])])
def test_discards_are_counted(draft: Draft, count: int, said: list[str]) -> None:
    """Of three that are named, one was acked before, and one was discarded."""
    draft.send(0, 1, 2, 3)
    draft.ack(1, draft.receive(0.5, 1))
    draft.event("o", "discard", 2, 1, seqs=[2])
    draft.event("o", "discard", 3, count, seqs=[1, 2, 3])
    assert [s for s in draft.found() if s != "lost"] == said


@pytest.mark.parametrize(
    ("target", "tx", "said"),
    [("end", 0, []), ("beginning", 0, ["discarded too few"]), ("end", 1, ["discarded too few"])],
)
def test_a_discard_in_the_transaction_of_a_seek(draft: Draft, target: str, tx: int, said: list[str]) -> None:
    """What its own transaction has moved the consumer past is not unread; what another one that is open has, is."""
    draft.send(0, 1)
    transactions = [draft.transaction("o", 1, 2), draft.transaction("p", 1, 2)]
    draft.event("o", "seek", 1.1, tx=transactions[tx], target=target)
    draft.event("o", "discard", 1.2, 0, tx=transactions[0], seqs=[1])
    draft.ack(3.2, draft.receive(3, 1))
    assert draft.found() == said


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"channel": "tk"}, ["delivered after its discard"]),
        ({"channel": "t0"}, ["discarded too many"]),
        ({"channel": "tk", "age": 0.5}, ["delivered after its discard"]),
        ({"channel": "tk", "age": 1.5}, ["discarded too many"]),
    ],
    ids=str,
)
def test_discards_of_a_channel_or_an_age(draft: Draft, chosen: dict[str, object], said: list[str]) -> None:
    """What is of another channel, or too young, is not what was discarded."""
    draft.send(0, 1, key="k")
    draft.event("o", "discard", 1, 1, seqs=None, keys=None, **chosen)
    draft.ack(2.2, draft.receive(2, 1))
    assert draft.found() == said


@pytest.mark.parametrize(("discarded", "said"), [(True, []), (False, ["two live deliveries"])])
def test_a_replay_brings_back_what_was_discarded_in_flight(draft: Draft, discarded: bool, said: list[str]) -> None:
    draft.send(0, 1)
    draft.receive(1, 1)
    if discarded:
        draft.event("o", "discard", 1.1, 1, seqs=[1])
    draft.event("o", "replay", 1.2, 1, seqs=[1])
    draft.ack(1.4, draft.receive(1.3, 1, by="w2"), by="w2")
    assert draft.found() == said


def test_an_ack_of_what_was_discarded_is_stale(draft: Draft) -> None:
    draft.send(0, 1)
    mine = draft.receive(0.5, 1)
    draft.event("o", "discard", 0.6, 1, seqs=[1])
    draft.ack(0.7, mine, stale=1)
    assert draft.found() == []


@pytest.mark.parametrize(("removed_at", "missing"), [(1.5, []), (2.5, ["lost"]), (0.5, ["lost"])])
def test_a_seek_does_not_bring_back_what_was_too_old(draft: Draft, removed_at: float, missing: list[str]) -> None:
    draft.send(0, 1)
    draft.event("o", "maintain", removed_at, [("remove segments", "s", 1)])
    draft.event("o", "seek", 2, target="beginning")
    assert draft.found(AGING) == missing  # what the seek made unread is lost only if that is recorded


def test_filtered_messages_are_not_lost(draft: Draft) -> None:
    draft.send(0, 1, key="b.1")
    assert draft.found(Preset("test", (plan("c", filter=["a.>"]),))) == []


# 3: two live deliveries


def test_two_live_deliveries(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1, 1)
    draft.ack(1.8, draft.receive(1.5, 1, by="w2"), by="w2")
    assert draft.found() == ["two live deliveries"]


def test_a_delivery_expires(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1, 1)
    draft.ack(2.2, draft.receive(1 + ACK_WAIT, 1, by="w2"), by="w2")
    assert draft.found() == []


@pytest.mark.parametrize(("stale", "wrong"), [(0, ["two live deliveries"]), (1, [])])
def test_an_extended_delivery_is_live(draft: Draft, stale: int, wrong: list[str]) -> None:
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    draft.event("w1", "extend", 1.5, (1 - stale, stale), acks=acks, by=2.0)
    draft.ack(3.2, draft.receive(3, 1, by="w2"), by="w2")
    assert draft.found() == wrong


@pytest.mark.parametrize("kind", ["nack", "release"])
def test_what_is_given_back_comes_again(draft: Draft, kind: str) -> None:
    draft.send(0, 1)
    draft.event("w1", kind, 1.2, (1, 0), acks=draft.receive(1, 1))
    draft.ack(1.8, draft.receive(1.5, 1, by="w2"), by="w2")
    assert draft.found() == []


def test_a_rolled_back_nack_gives_nothing_back(draft: Draft) -> None:
    draft.send(0, 1)
    tx = draft.transaction("w1", 1.1, 1.4, ROLLED_BACK)
    draft.event("w1", "nack", 1.2, (1, 0), tx, acks=draft.receive(1, 1))
    draft.ack(1.8, draft.receive(1.5, 1, by="w2"), by="w2")
    assert draft.found() == ["two live deliveries"]


def test_an_open_receive_keeps_its_messages_past_the_deadline(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1, 1, tx=draft.transaction("w1", 1, 5))
    draft.ack(3.2, draft.receive(3, 1, by="w2"), by="w2")
    assert draft.found() == ["two live deliveries"]


@pytest.mark.parametrize(("at", "wrong"), [(1.5, ["two live deliveries"]), (1 + ACK_WAIT, [])])
def test_a_delivery_expires_inside_its_own_transaction(draft: Draft, at: float, wrong: list[str]) -> None:
    draft.send(0, 1)
    tx = draft.transaction("w1", 1, 5)
    draft.receive(1, 1, tx=tx)
    draft.ack(2.5, draft.receive(at, 1, tx=tx), tx=tx)
    assert draft.found() == wrong


def test_what_a_rolled_back_receive_had_comes_at_once(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1, 1, tx=draft.transaction("w1", 1, 1.2, ROLLED_BACK))
    draft.ack(1.8, draft.receive(1.5, 1, by="w2"), by="w2")
    assert draft.found() == []


@pytest.mark.parametrize("outcome", [COMMITTED, ROLLED_BACK])
def test_delivered_beside_an_open_ack(draft: Draft, outcome: str) -> None:
    draft.send(0, 1)
    acks = draft.receive(1, 1)
    draft.ack(1.2, acks, tx=draft.transaction("w1", 1.1, 5, outcome))
    draft.ack(3.2, draft.receive(3, 1, by="w2"), by="w2")
    assert draft.found() == ["delivered beside an open ack"]
