"""The judge of random histories: each of its checks finds a fault that was planted, and is silent without it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.torture.check import judge
from headgate.torture.presets import Preset, plan
from headgate.torture.record import (
    COMMITTED,
    OPEN,
    ROLLED_BACK,
    Ending,
    Event,
    History,
    Message,
    Problem,
    Sent,
    Transaction,
    Wait,
)

ACK_WAIT = 1.0
PLAIN = Preset("test", (plan("c", ack_wait=ACK_WAIT),))
ORDERED = Preset("test", (plan("c", ack_wait=ACK_WAIT, order="key"),))
MORTAL = Preset("test", (plan("c", ack_wait=ACK_WAIT, max_deliver=1),))
UPSERT = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"one_message_per_key": True})
KEPT = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"retain": "until_acked"})
AGING = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"retain_up_to": 1.0})


class Tale:
    """Writes a small history by hand. Each call is made at a time and answered a hundredth of a second later."""

    def __init__(self) -> None:
        self.history = History("test", 1)
        self.history.drained_at = 100.0
        self.deliveries = 0

    def event(self, session: str, kind: str, at: float, answer: Any = None, tx: Any = None, **asked: Any) -> Event:
        consumer = None if kind in ("send", "maintain", "compact", "tick") else "c"
        event = Event(session, kind, consumer, asked, at, tx, at + 0.01, answer)
        self.history.events.append(event)
        return event

    def transaction(self, session: str, began: float, ended: float, outcome: str = COMMITTED) -> Transaction:
        number = len(self.history.transactions) + 1
        tx = Transaction(number, session, "read committed", began, ended, ended + 0.01, outcome)
        self.history.transactions.append(tx)
        return tx

    def send(
        self, at: float, *seqs: int, key: str | None = None, tx: Any = None, ids: Any = None, data: str = ""
    ) -> None:
        messages = [Sent(key, data or f"data {seq}", id=(ids or {}).get(seq)) for seq in seqs]
        self.event("sender", "send", at, list(seqs), tx, messages=messages)

    def receive(
        self,
        at: float,
        *seqs: int,
        by: str = "w1",
        tx: Any = None,
        attempt: int = 1,
        key: str | None = None,
        **asked: Any,
    ) -> list[str]:
        self.deliveries += 1
        got = [Message(f"0.{self.deliveries}.{s}", s, key, asked.get("data", f"data {s}"), attempt) for s in seqs]
        asked.pop("data", None)
        self.event(by, "receive", at, got, tx, n=10, **asked)
        return [m.ack_id for m in got]

    def ack(self, at: float, acks: list[str], by: str = "w1", tx: Any = None, stale: int = 0) -> None:
        self.event(by, "ack", at, (len(acks) - stale, stale), tx, acks=acks)

    def found(self, preset: Preset = PLAIN) -> list[str]:
        self.history.endings.setdefault("c", Ending())
        return [f.check for f in judge(self.history, preset)]


@pytest.fixture
def tale() -> Tale:
    return Tale()


def test_a_peaceful_history_is_peaceful(tale: Tale) -> None:
    tale.send(0, 1, 2)
    tale.ack(2, tale.receive(1, 1, 2))
    assert tale.found() == []


# 1: delivered after an ack that had answered


def test_delivered_after_its_ack(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    tale.ack(3.2, tale.receive(3, 1, by="w2"), by="w2")
    assert tale.found() == ["delivered after its ack"]


def test_delivered_after_an_ack_that_came_with_a_receive(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1.5, acks=[tale.receive(1, 1)[0].rpartition(".")[0]])
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == ["delivered after its ack"]


def test_an_ack_with_a_receive_may_have_come_too_late(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1 + ACK_WAIT, acks=tale.receive(1, 1))
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == []


def test_a_rolled_back_ack_did_not_happen(tale: Tale) -> None:
    tale.send(0, 1)
    acks = tale.receive(1, 1)
    tale.ack(1.2, acks, tx=tale.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == []


def test_what_is_undone_by_a_savepoint_did_not_happen(tale: Tale) -> None:
    tale.send(0, 1)
    acks = tale.receive(1, 1)
    tale.ack(1.2, acks, tx=tale.transaction("w1", 1.1, 1.5))
    tale.history.events[-1].undone = 1.3
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == []


def test_a_receive_that_was_under_way_may_have_come_first(tale: Tale) -> None:
    tale.send(0, 1)
    acks = tale.receive(1, 1)
    tale.ack(2.5, acks, tx=tale.transaction("w1", 2.4, 3.0))
    tale.receive(3.005, 1, by="w2")
    tale.history.events[-2].answer = (0, 1)  # it had expired, and the ack said so
    tale.ack(3.5, ["0.2.1"], by="w2")
    assert tale.found() == []


def test_a_seek_explains_it(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    tale.event("o", "seek", 2, target="beginning")
    tale.ack(3.2, tale.receive(3, 1))
    assert tale.found() == []


@pytest.mark.parametrize("explained", [False, True])
def test_a_redrive_explains_it_only_for_a_dead_letter(tale: Tale, explained: bool) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    tale.event("o", "redrive", 2, 1)
    tale.ack(3.2, tale.receive(3, 1))
    assert tale.found(MORTAL if explained else PLAIN) == ([] if explained else ["delivered after its ack"])


# 2: lost


def test_lost(tale: Tale) -> None:
    tale.send(0, 1, 2)
    tale.ack(2, tale.receive(1, 1))
    assert tale.found() == ["lost"]


def test_lost_after_its_ack_was_rolled_back(tale: Tale) -> None:
    tale.send(0, 1)
    acks = tale.receive(1, 1)
    tale.ack(1.2, acks, tx=tale.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    assert tale.found() == ["lost"]


def test_lost_after_a_seek(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    tale.event("o", "seek", 2, target="beginning")
    assert tale.found() == ["lost"]


@pytest.mark.parametrize(("target", "missing"), [("end", []), ("2", []), ("1", ["lost"]), ("beginning", ["lost"])])
def test_a_seek_may_skip(tale: Tale, target: str, missing: list[str]) -> None:
    tale.send(0, 1)
    tale.event("o", "seek", 2, target=target)
    assert tale.found() == missing


def test_a_seek_to_the_end_skips_nothing_that_comes_later(tale: Tale) -> None:
    tale.event("o", "seek", 1, target="end")
    tale.send(2, 1)
    assert tale.found() == ["lost"]


@pytest.mark.parametrize(("removed_at", "missing"), [(1.8, []), (2.5, ["lost"])])
def test_what_a_seek_made_unread_may_not_be_removed(tale: Tale, removed_at: float, missing: list[str]) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    tale.event("o", "compact", removed_at, 1)
    tale.event("o", "seek", 2, target="beginning")
    assert tale.found(KEPT) == missing


def test_dead_discarded_and_aged_messages_are_not_lost(tale: Tale) -> None:
    tale.send(0, 1, 2, 3)
    tale.event("o", "discard", 2, 1, seqs=[2])
    tale.history.endings["c"] = Ending(dead={1}, losses=[(3, 9, "retain_up_to")])
    assert tale.found(AGING) == []
    assert tale.found(PLAIN) == ["lost"]  # here nobody asked for removing 3


@pytest.mark.parametrize(("removed_at", "missing"), [(1.5, []), (2.5, ["lost"]), (0.5, ["lost"])])
def test_a_seek_does_not_bring_back_what_was_too_old(tale: Tale, removed_at: float, missing: list[str]) -> None:
    tale.send(0, 1)
    tale.event("o", "maintain", removed_at, [("remove segments", "s", 1)])
    tale.event("o", "seek", 2, target="beginning")
    assert tale.found(AGING) == missing  # what the seek made unread is lost only if that is recorded


def test_filtered_messages_are_not_lost(tale: Tale) -> None:
    tale.send(0, 1, key="b.1")
    assert tale.found(Preset("test", (plan("c", filter=["a.>"]),))) == []


# 3: two live deliveries


def test_two_live_deliveries(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1, 1)
    tale.ack(1.8, tale.receive(1.5, 1, by="w2"), by="w2")
    assert tale.found() == ["two live deliveries"]


def test_a_delivery_expires(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1, 1)
    tale.ack(2.2, tale.receive(1 + ACK_WAIT, 1, by="w2"), by="w2")
    assert tale.found() == []


@pytest.mark.parametrize(("stale", "wrong"), [(0, ["two live deliveries"]), (1, [])])
def test_an_extended_delivery_is_live(tale: Tale, stale: int, wrong: list[str]) -> None:
    tale.send(0, 1)
    acks = tale.receive(1, 1)
    tale.event("w1", "extend", 1.5, (1 - stale, stale), acks=acks, by=2.0)
    tale.ack(3.2, tale.receive(3, 1, by="w2"), by="w2")
    assert tale.found() == wrong


@pytest.mark.parametrize("kind", ["nack", "release"])
def test_what_is_given_back_comes_again(tale: Tale, kind: str) -> None:
    tale.send(0, 1)
    tale.event("w1", kind, 1.2, (1, 0), acks=tale.receive(1, 1))
    tale.ack(1.8, tale.receive(1.5, 1, by="w2"), by="w2")
    assert tale.found() == []


def test_a_rolled_back_nack_gives_nothing_back(tale: Tale) -> None:
    tale.send(0, 1)
    tx = tale.transaction("w1", 1.1, 1.4, ROLLED_BACK)
    tale.event("w1", "nack", 1.2, (1, 0), tx, acks=tale.receive(1, 1))
    tale.ack(1.8, tale.receive(1.5, 1, by="w2"), by="w2")
    assert tale.found() == ["two live deliveries"]


def test_an_open_receive_keeps_its_messages_past_the_deadline(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1, 1, tx=tale.transaction("w1", 1, 5))
    tale.ack(3.2, tale.receive(3, 1, by="w2"), by="w2")
    assert tale.found() == ["two live deliveries"]


@pytest.mark.parametrize(("at", "wrong"), [(1.5, ["two live deliveries"]), (1 + ACK_WAIT, [])])
def test_a_delivery_expires_inside_its_own_transaction(tale: Tale, at: float, wrong: list[str]) -> None:
    tale.send(0, 1)
    tx = tale.transaction("w1", 1, 5)
    tale.receive(1, 1, tx=tx)
    tale.ack(2.5, tale.receive(at, 1, tx=tx), tx=tx)
    assert tale.found() == wrong


def test_what_a_rolled_back_receive_had_comes_at_once(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1, 1, tx=tale.transaction("w1", 1, 1.2, ROLLED_BACK))
    tale.ack(1.8, tale.receive(1.5, 1, by="w2"), by="w2")
    assert tale.found() == []


@pytest.mark.parametrize("outcome", [COMMITTED, ROLLED_BACK])
def test_delivered_beside_an_open_ack(tale: Tale, outcome: str) -> None:
    tale.send(0, 1)
    acks = tale.receive(1, 1)
    tale.ack(1.2, acks, tx=tale.transaction("w1", 1.1, 5, outcome))
    tale.ack(3.2, tale.receive(3, 1, by="w2"), by="w2")
    assert tale.found() == ["delivered beside an open ack"]


# 4: order


def ordered(tale: Tale) -> None:
    tale.send(0, 1, key="k")
    tale.send(0.1, 2, key="k")


def test_out_of_order(tale: Tale) -> None:
    ordered(tale)
    first = tale.receive(1, 1, key="k")
    second = tale.receive(1.2, 2, by="w2", key="k")
    tale.ack(1.5, first)
    tale.ack(1.5, second, by="w2")
    assert tale.found(ORDERED) == ["out of order"]
    assert tale.found(PLAIN) == []


def test_in_order(tale: Tale) -> None:
    ordered(tale)
    tale.ack(1.1, tale.receive(1, 1, key="k"))
    tale.ack(1.5, tale.receive(1.2, 2, by="w2", key="k"), by="w2")
    assert tale.found(ORDERED) == []


@pytest.mark.parametrize(("seqs", "wrong"), [((1, 2), []), ((2, 1), ["out of order"])])
def test_order_within_a_batch(tale: Tale, seqs: tuple[int, ...], wrong: list[str]) -> None:
    ordered(tale)
    tale.ack(1.5, tale.receive(1, *seqs, key="k"))
    assert tale.found(ORDERED) == wrong


def test_an_ack_that_is_not_committed_frees_no_key(tale: Tale) -> None:
    ordered(tale)
    acks = tale.receive(1, 1, key="k")
    tale.ack(1.1, acks, tx=tale.transaction("w1", 1.05, 5))
    tale.ack(1.5, tale.receive(1.2, 2, by="w2", key="k"), by="w2")
    assert tale.found(ORDERED) == ["out of order"]


# 5: upserts


def test_an_older_version_after_a_newer_one(tale: Tale) -> None:
    tale.send(0, 1, key="k")
    tale.send(0.1, 2, key="k")
    tale.ack(1.1, tale.receive(1, 2, key="k"))
    tale.ack(2.1, tale.receive(2, 1, key="k"))
    assert tale.found(UPSERT) == ["an older version after a newer one"]


def test_an_older_version_before_a_newer_one(tale: Tale) -> None:
    tale.send(0, 1, key="k")
    tale.ack(1.1, tale.receive(1, 1, key="k"))
    tale.send(1.5, 2, key="k")
    tale.ack(2.1, tale.receive(2, 2, key="k"))
    assert tale.found(UPSERT) == []


def test_the_newest_version_is_not_lost(tale: Tale) -> None:
    tale.send(0, 1, key="k")
    tale.ack(1.1, tale.receive(1, 1, key="k"))
    tale.send(1.5, 2, key="k")
    assert tale.found(UPSERT) == ["lost"]


def test_a_repeated_id_changes_nothing(tale: Tale) -> None:
    tale.send(0, 1, key="a.sender-0", ids={1: "x"}, data="A")
    tale.send(0.1, 2, key="a.sender-0", ids={2: "y"}, data="B")
    tale.send(0.2, 3, key="a.sender-0", ids={3: "x"}, data="A")  # appended, although x was there
    tale.ack(1.1, tale.receive(1, 3, key="a.sender-0", data="A"))
    assert tale.found(UPSERT) == ["wrongly appended", "not the last value"]


@pytest.mark.parametrize(
    ("id", "data", "seq", "wrong"), [("y", "B", 1, True), ("y", "B", 2, False), ("y", "A", 1, False)]
)
def test_changes_are_appended(tale: Tale, id: str, data: str, seq: int, wrong: bool) -> None:
    tale.send(0, 1, key="a.sender-0", ids={1: "x"}, data="A")
    tale.ack(0.2, tale.receive(0.1, 1, key="a.sender-0", data="A"))
    tale.send(1, seq, key="a.sender-0", ids={seq: id}, data=data)
    if seq == 2:
        tale.ack(1.2, tale.receive(1.1, 2, key="a.sender-0", data="B"))
    assert ("wrongly appended" in tale.found(UPSERT)) == wrong


# 6: rolled back, not yet committed, never sent, changed, doubled


def test_a_rolled_back_send_is_never_seen(tale: Tale) -> None:
    tale.send(0, 1, tx=tale.transaction("sender", 0, 0.5, ROLLED_BACK))
    tale.ack(1.1, tale.receive(1, 1))
    assert tale.found() == ["rolled back, and delivered"]


def test_nothing_comes_that_nobody_sent(tale: Tale) -> None:
    tale.ack(1.1, tale.receive(1, 1))
    assert tale.found() == ["rolled back, and delivered"]


def test_delivered_before_its_commit(tale: Tale) -> None:
    tale.send(0, 1, tx=tale.transaction("sender", 0, 5))
    tale.ack(1.1, tale.receive(1, 1))
    assert tale.found() == ["delivered before its commit"]


def test_other_contents(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.1, tale.receive(1, 1, data="something else"))
    assert tale.found() == ["other contents"]


def test_an_id_used_twice(tale: Tale) -> None:
    tale.send(0, 1, ids={1: "x"})
    tale.send(0.1, 2, ids={2: "x"})
    tale.ack(1.1, tale.receive(1, 1, 2))
    assert tale.found() == ["an id used twice"]


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
def test_raw_errors(tale: Tale, state: str, hint: str | None, wrong: bool) -> None:
    tale.event("w1", "receive", 1).problem = Problem(state, "text", hint)
    assert tale.found() == (["raw error"] if wrong else [])


def test_called_stale(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1), stale=1)
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == ["called stale"]


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
