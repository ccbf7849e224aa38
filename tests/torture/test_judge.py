"""The judge of random histories: each of its checks finds a fault that was planted, and is silent without it."""

from __future__ import annotations

import pytest

from headgate.torture.presets.preset import Preset, plan
from headgate.torture.record import (
    COMMITTED,
    ROLLED_BACK,
    CallError,
    Ending,
)
from torture.drafts import ACK_WAIT, AGING, KEPT, MORTAL, ORDERED, PLAIN, UPSERT, Draft


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
