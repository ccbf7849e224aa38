"""The judge of histories in which connections, servers and disks failed: what nobody knows is no proof."""

from __future__ import annotations

import pytest

from headgate.torture.judge.uncertain import LOST_BRANCH, as_of, mark_uncertain
from headgate.torture.presets.preset import Preset, plan
from headgate.torture.record import (
    COMMITTED,
    FAILED,
    LOST,
    ROLLED_BACK,
    UNKNOWN,
    CallError,
    Event,
    Fault,
    TransactionRecord,
)
from torture.drafts import ACK_WAIT, ORDERED, PLAIN, Draft

GONE = CallError(LOST, "server closed the connection unexpectedly", None)
JUMPS = Preset("test", (plan("c", ack_wait=ACK_WAIT),), faults={"jump": 1.0})


@pytest.fixture
def draft() -> Draft:
    draft = Draft()
    draft.history.faults.append(Fault("cut", 0.0, 50.0))
    return draft


def lose(draft: Draft) -> Event:
    """The answer of the last call did not come."""
    event = draft.history.events[-1]
    event.problem, event.answer = GONE, None
    return event


def test_without_a_fault_a_lost_connection_is_a_raw_error(draft: Draft) -> None:
    draft.history.faults.clear()
    draft.send(0, 1)
    lose(draft)
    assert draft.found() == ["raw error"]


def test_a_send_without_an_answer_may_be_gone(draft: Draft) -> None:
    draft.send(0, 1)
    lose(draft)
    assert draft.found() == []


def test_a_send_without_an_answer_may_come(draft: Draft) -> None:
    draft.send(0, 1)
    lose(draft)
    draft.ack(2, draft.receive(1, 1))
    assert draft.found() == []


@pytest.mark.parametrize(("fault", "found"), [("crash", []), ("cut", ["other contents"])])
def test_a_crash_takes_a_sequence_back(draft: Draft, fault: str, found: list[str]) -> None:
    """Two are answered the same seq: one of them has not committed, and PostgreSQL crashed before the other."""
    draft.history.faults[:] = [Fault(fault, 1.0, 1.5)]
    draft.send(0.5, 1, tx=draft.transaction("sender", 0, 1, FAILED), data="lost")
    draft.send(2, 1, data="kept")
    draft.ack(4, draft.receive(3, 1, data="kept"))
    assert draft.found() == found


def test_nobody_sent_it_even_so(draft: Draft) -> None:
    draft.send(0, 1)
    lose(draft)
    draft.ack(2, draft.receive(1, 2))
    assert draft.found() == ["rolled back, and delivered"]


def test_sent_again_with_its_id_it_is_there_twice(draft: Draft) -> None:
    draft.send(0, 1, ids={1: "a"}, data="same")
    lose(draft)
    draft.send(1, 2, ids={2: "a"}, data="same")
    draft.send(2, 3, ids={3: "a"}, data="same")
    draft.ack(4, draft.receive(3, 2, 3, data="same"))
    assert draft.found() == ["an id used twice"]


def test_an_ack_without_an_answer_is_no_proof(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    lose(draft)
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == []


def test_an_ack_without_an_answer_may_have_finished_it(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    lose(draft)
    assert draft.found() == []


@pytest.mark.parametrize(("outcome", "found"), [(UNKNOWN, []), (COMMITTED, ["lost"])])
def test_an_ack_counts_if_the_message_only_may_have_come_again(draft: Draft, outcome: str, found: list[str]) -> None:
    """One of two messages was stale when the first worker acked them: not this one, if nobody else had it."""
    draft.send(0, 1, 2)
    acks = draft.receive(1, 1, 2)
    draft.ack(2.4, draft.receive(2.3, 2, by="w3", attempt=2), by="w3")
    draft.receive(2.5, 1, by="w2", attempt=2, tx=draft.transaction("w2", 2.5, 2.6, outcome))
    draft.ack(3, acks, stale=1)
    assert draft.found() == found


def test_an_ack_that_was_answered_is_proof_whatever_failed_afterwards(draft: Draft) -> None:
    draft.send(0, 1)
    draft.ack(1.2, draft.receive(1, 1))
    draft.ack(3.2, draft.receive(3, 1, attempt=2))
    assert draft.found() == ["delivered after its ack"]


def test_what_was_committed_is_lost_whatever_failed_afterwards(draft: Draft) -> None:
    draft.send(0, 1)
    assert draft.found() == ["lost"]


def test_a_commit_without_an_answer(draft: Draft) -> None:
    draft.send(0, 1, tx=draft.transaction("sender", 0, 1, UNKNOWN))
    assert draft.found() == []
    draft.ack(3, draft.receive(2, 1))
    assert draft.found() == []


def test_an_ack_whose_commit_was_not_answered_may_free_its_key(draft: Draft) -> None:
    draft.send(0, 1, 2, key="k")
    acks = draft.receive(1, 1, key="k")
    draft.ack(1.2, acks, tx=draft.transaction("w1", 1.1, 1.5, UNKNOWN))
    draft.ack(4, draft.receive(3, 2, key="k"))
    assert draft.found(ORDERED) == []


def test_an_ack_that_was_rolled_back_does_not(draft: Draft) -> None:
    draft.send(0, 1, 2, key="k")
    acks = draft.receive(1, 1, key="k")
    draft.ack(1.2, acks, tx=draft.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    draft.ack(4, draft.receive(3, 2, key="k"))
    draft.ack(6, draft.receive(5, 1, key="k", attempt=2))
    assert draft.found(ORDERED) == ["out of order"]


def test_a_transaction_that_was_cut_off_ended_at_the_fault(draft: Draft) -> None:
    draft.history.faults[:] = [Fault("terminate", 1.3, 1.4)]
    draft.send(0, 1)
    cut = draft.transaction("w1", 1.0, 2.5, FAILED)
    draft.receive(1.1, 1, tx=cut)
    draft.ack(2, draft.receive(1.6, 1, by="w2"), by="w2")
    assert draft.found() == ["two live deliveries"]
    mark_uncertain(draft.history)
    assert draft.found() == []


def test_a_relaxed_receive_right_before_a_crash_may_be_gone(draft: Draft) -> None:
    draft.history.faults[:] = [Fault("crash", 1.3, 1.4)]
    draft.send(0, 1)
    draft.receive(1.1, 1, open=False)
    draft.ack(1.8, draft.receive(1.6, 1, by="w2"), by="w2")
    assert draft.found() == ["two live deliveries"]
    mark_uncertain(draft.history)
    assert draft.found() == []


def test_a_clock_that_jumps_proves_nothing_about_deadlines(draft: Draft) -> None:
    draft.send(0, 1)
    draft.receive(1.1, 1)
    draft.ack(1.8, draft.receive(1.6, 1, by="w2"), by="w2")
    assert draft.found(PLAIN) == ["two live deliveries"]
    assert draft.found(JUMPS) == []


class TestFailover:
    """An asynchronous standby takes over that has all until 1.0, and perhaps more."""

    @pytest.fixture(autouse=True)
    def late(self, draft: Draft) -> None:
        draft.history.faults[:] = [Fault("fail_over_late", 1.0, 2.0)]

    def test_what_it_had_may_not_be_lost(self, draft: Draft) -> None:
        draft.send(0.5, 1)
        mark_uncertain(draft.history)
        assert draft.found() == ["lost"]

    def test_what_came_later_may(self, draft: Draft) -> None:
        draft.send(1.5, 1)
        draft.send(1.5, 2, tx=draft.transaction("sender", 1.4, 1.6))
        mark_uncertain(draft.history)
        assert draft.found() == []

    def test_what_comes_after_it_may_not(self, draft: Draft) -> None:
        draft.send(2.5, 1)
        mark_uncertain(draft.history)
        assert draft.found() == ["lost"]

    def test_a_seq_is_given_again(self, draft: Draft) -> None:
        draft.send(1.2, 7, data="gone")
        draft.receive(1.5, 7, data="gone")
        draft.send(2.5, 7, data="new")
        draft.ack(4, draft.receive(3, 7, data="new", by="w2"), by="w2")
        mark_uncertain(draft.history)
        assert draft.history.events[0].answer == [7 + LOST_BRANCH]
        assert draft.found() == []


class TestDump:
    """A dump is made between 1 and 2, and restored: what is judged is what the restored database says."""

    dump = Fault("dump", 1.0, 2.0)

    def found(self, draft: Draft, *restored: int) -> list[str]:
        draft.history = as_of(draft.history, self.dump)
        if restored:
            draft.ack(11, draft.receive(10, *restored, by="drain", attempt=2), by="drain")
        return draft.found()

    def test_what_was_acked_before_does_not_come(self, draft: Draft) -> None:
        draft.send(0, 1)
        draft.ack(0.6, draft.receive(0.5, 1))
        assert self.found(draft, 1) == ["delivered after its ack"]

    @pytest.mark.parametrize("comes", [True, False])
    def test_what_was_acked_meanwhile_may_come(self, draft: Draft, comes: bool) -> None:
        draft.send(0, 1)
        draft.ack(1.5, draft.receive(0.5, 1))
        assert self.found(draft, *([1] if comes else [])) == []

    def test_what_was_acked_afterwards_comes(self, draft: Draft) -> None:
        draft.send(0, 1)
        draft.ack(3, draft.receive(2.5, 1))
        assert self.found(draft) == ["lost"]

    def test_what_was_sent_afterwards_does_not(self, draft: Draft) -> None:
        draft.send(3, 1)
        assert self.found(draft) == []
        assert not draft.history.events

    def test_a_transaction_that_ended_afterwards_is_not_there(self, draft: Draft) -> None:
        draft.send(0.5, 1, tx=draft.transaction("sender", 0.4, 3.0))
        assert self.found(draft, 1) == ["rolled back, and delivered"]


def test_outcomes() -> None:
    sent = Event("s", "send", None, {"messages": []}, 0.0)
    assert (sent.happened, sent.unknown, sent.possible) == (True, False, True)
    sent.problem = GONE
    assert (sent.happened, sent.unknown, sent.possible) == (False, True, True)
    sent.transaction = TransactionRecord(1, "s", "read committed", 0.0, outcome=FAILED)
    assert (sent.happened, sent.unknown, sent.possible) == (False, False, False)
    sent.problem, sent.transaction.outcome = None, UNKNOWN
    assert (sent.happened, sent.unknown, sent.possible) == (False, True, True)
    sent.transaction.outcome = COMMITTED
    assert (sent.happened, sent.unknown, sent.possible) == (True, False, True)
    sent.doubted = True
    assert (sent.happened, sent.unknown, sent.possible) == (False, True, True)
