"""The judge of histories in which connections, servers and disks failed: what nobody knows is no proof."""

from __future__ import annotations

import pytest

from headgate.torture.doubts import LOST_BRANCH, as_of, doubt
from headgate.torture.presets import Preset, plan
from headgate.torture.record import COMMITTED, FAILED, LOST, ROLLED_BACK, UNKNOWN, Event, Fault, Problem, Transaction
from torture.tales import ACK_WAIT, ORDERED, PLAIN, Tale

GONE = Problem(LOST, "server closed the connection unexpectedly", None)
JUMPS = Preset("test", (plan("c", ack_wait=ACK_WAIT),), faults={"jump": 1.0})


@pytest.fixture
def tale() -> Tale:
    tale = Tale()
    tale.history.faults.append(Fault("cut", 0.0, 50.0))
    return tale


def lose(tale: Tale) -> Event:
    """The answer of the last call did not come."""
    event = tale.history.events[-1]
    event.problem, event.answer = GONE, None
    return event


def test_without_a_fault_a_lost_connection_is_a_raw_error(tale: Tale) -> None:
    tale.history.faults.clear()
    tale.send(0, 1)
    lose(tale)
    assert tale.found() == ["raw error"]


def test_a_send_without_an_answer_may_be_gone(tale: Tale) -> None:
    tale.send(0, 1)
    lose(tale)
    assert tale.found() == []


def test_a_send_without_an_answer_may_come(tale: Tale) -> None:
    tale.send(0, 1)
    lose(tale)
    tale.ack(2, tale.receive(1, 1))
    assert tale.found() == []


@pytest.mark.parametrize(("fault", "found"), [("crash", []), ("cut", ["other contents"])])
def test_a_crash_takes_a_sequence_back(tale: Tale, fault: str, found: list[str]) -> None:
    """Two are answered the same seq: one of them has not committed, and PostgreSQL crashed before the other."""
    tale.history.faults[:] = [Fault(fault, 1.0, 1.5)]
    tale.send(0.5, 1, tx=tale.transaction("sender", 0, 1, FAILED), data="lost")
    tale.send(2, 1, data="kept")
    tale.ack(4, tale.receive(3, 1, data="kept"))
    assert tale.found() == found


def test_nobody_sent_it_even_so(tale: Tale) -> None:
    tale.send(0, 1)
    lose(tale)
    tale.ack(2, tale.receive(1, 2))
    assert tale.found() == ["rolled back, and delivered"]


def test_sent_again_with_its_id_it_is_there_twice(tale: Tale) -> None:
    tale.send(0, 1, ids={1: "a"}, data="same")
    lose(tale)
    tale.send(1, 2, ids={2: "a"}, data="same")
    tale.send(2, 3, ids={3: "a"}, data="same")
    tale.ack(4, tale.receive(3, 2, 3, data="same"))
    assert tale.found() == ["an id used twice"]


def test_an_ack_without_an_answer_is_no_proof(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    lose(tale)
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == []


def test_an_ack_without_an_answer_may_have_finished_it(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    lose(tale)
    assert tale.found() == []


@pytest.mark.parametrize(("outcome", "found"), [(UNKNOWN, []), (COMMITTED, ["lost"])])
def test_an_ack_counts_if_the_message_only_may_have_come_again(tale: Tale, outcome: str, found: list[str]) -> None:
    """One of two messages was stale when the first worker acked them: not this one, if nobody else had it."""
    tale.send(0, 1, 2)
    acks = tale.receive(1, 1, 2)
    tale.ack(2.4, tale.receive(2.3, 2, by="w3", attempt=2), by="w3")
    tale.receive(2.5, 1, by="w2", attempt=2, tx=tale.transaction("w2", 2.5, 2.6, outcome))
    tale.ack(3, acks, stale=1)
    assert tale.found() == found


def test_an_ack_that_was_answered_is_proof_whatever_failed_afterwards(tale: Tale) -> None:
    tale.send(0, 1)
    tale.ack(1.2, tale.receive(1, 1))
    tale.ack(3.2, tale.receive(3, 1, attempt=2))
    assert tale.found() == ["delivered after its ack"]


def test_what_was_committed_is_lost_whatever_failed_afterwards(tale: Tale) -> None:
    tale.send(0, 1)
    assert tale.found() == ["lost"]


def test_a_commit_without_an_answer(tale: Tale) -> None:
    tale.send(0, 1, tx=tale.transaction("sender", 0, 1, UNKNOWN))
    assert tale.found() == []
    tale.ack(3, tale.receive(2, 1))
    assert tale.found() == []


def test_an_ack_whose_commit_was_not_answered_may_free_its_key(tale: Tale) -> None:
    tale.send(0, 1, 2, key="k")
    acks = tale.receive(1, 1, key="k")
    tale.ack(1.2, acks, tx=tale.transaction("w1", 1.1, 1.5, UNKNOWN))
    tale.ack(4, tale.receive(3, 2, key="k"))
    assert tale.found(ORDERED) == []


def test_an_ack_that_was_rolled_back_does_not(tale: Tale) -> None:
    tale.send(0, 1, 2, key="k")
    acks = tale.receive(1, 1, key="k")
    tale.ack(1.2, acks, tx=tale.transaction("w1", 1.1, 1.5, ROLLED_BACK))
    tale.ack(4, tale.receive(3, 2, key="k"))
    tale.ack(6, tale.receive(5, 1, key="k", attempt=2))
    assert tale.found(ORDERED) == ["out of order"]


def test_a_transaction_that_was_cut_off_ended_at_the_fault(tale: Tale) -> None:
    tale.history.faults[:] = [Fault("terminate", 1.3, 1.4)]
    tale.send(0, 1)
    cut = tale.transaction("w1", 1.0, 2.5, FAILED)
    tale.receive(1.1, 1, tx=cut)
    tale.ack(2, tale.receive(1.6, 1, by="w2"), by="w2")
    assert tale.found() == ["two live deliveries"]
    doubt(tale.history)
    assert tale.found() == []


def test_a_relaxed_receive_right_before_a_crash_may_be_gone(tale: Tale) -> None:
    tale.history.faults[:] = [Fault("crash", 1.3, 1.4)]
    tale.send(0, 1)
    tale.receive(1.1, 1, open=False)
    tale.ack(1.8, tale.receive(1.6, 1, by="w2"), by="w2")
    assert tale.found() == ["two live deliveries"]
    doubt(tale.history)
    assert tale.found() == []


def test_a_clock_that_jumps_proves_nothing_about_deadlines(tale: Tale) -> None:
    tale.send(0, 1)
    tale.receive(1.1, 1)
    tale.ack(1.8, tale.receive(1.6, 1, by="w2"), by="w2")
    assert tale.found(PLAIN) == ["two live deliveries"]
    assert tale.found(JUMPS) == []


class TestFailover:
    """An asynchronous standby takes over that has all until 1.0, and perhaps more."""

    @pytest.fixture(autouse=True)
    def late(self, tale: Tale) -> None:
        tale.history.faults[:] = [Fault("fail_over_late", 1.0, 2.0)]

    def test_what_it_had_may_not_be_lost(self, tale: Tale) -> None:
        tale.send(0.5, 1)
        doubt(tale.history)
        assert tale.found() == ["lost"]

    def test_what_came_later_may(self, tale: Tale) -> None:
        tale.send(1.5, 1)
        tale.send(1.5, 2, tx=tale.transaction("sender", 1.4, 1.6))
        doubt(tale.history)
        assert tale.found() == []

    def test_what_comes_after_it_may_not(self, tale: Tale) -> None:
        tale.send(2.5, 1)
        doubt(tale.history)
        assert tale.found() == ["lost"]

    def test_a_seq_is_given_again(self, tale: Tale) -> None:
        tale.send(1.2, 7, data="gone")
        tale.receive(1.5, 7, data="gone")
        tale.send(2.5, 7, data="new")
        tale.ack(4, tale.receive(3, 7, data="new", by="w2"), by="w2")
        doubt(tale.history)
        assert tale.history.events[0].answer == [7 + LOST_BRANCH]
        assert tale.found() == []


class TestDump:
    """A dump is made between 1 and 2, and restored: what is judged is what the restored database says."""

    dump = Fault("dump", 1.0, 2.0)

    def found(self, tale: Tale, *restored: int) -> list[str]:
        tale.history = as_of(tale.history, self.dump)
        if restored:
            tale.ack(11, tale.receive(10, *restored, by="drain", attempt=2), by="drain")
        return tale.found()

    def test_what_was_acked_before_does_not_come(self, tale: Tale) -> None:
        tale.send(0, 1)
        tale.ack(0.6, tale.receive(0.5, 1))
        assert self.found(tale, 1) == ["delivered after its ack"]

    @pytest.mark.parametrize("comes", [True, False])
    def test_what_was_acked_meanwhile_may_come(self, tale: Tale, comes: bool) -> None:
        tale.send(0, 1)
        tale.ack(1.5, tale.receive(0.5, 1))
        assert self.found(tale, *([1] if comes else [])) == []

    def test_what_was_acked_afterwards_comes(self, tale: Tale) -> None:
        tale.send(0, 1)
        tale.ack(3, tale.receive(2.5, 1))
        assert self.found(tale) == ["lost"]

    def test_what_was_sent_afterwards_does_not(self, tale: Tale) -> None:
        tale.send(3, 1)
        assert self.found(tale) == []
        assert not tale.history.events

    def test_a_transaction_that_ended_afterwards_is_not_there(self, tale: Tale) -> None:
        tale.send(0.5, 1, tx=tale.transaction("sender", 0.4, 3.0))
        assert self.found(tale, 1) == ["rolled back, and delivered"]


def test_outcomes() -> None:
    sent = Event("s", "send", None, {"messages": []}, 0.0)
    assert (sent.happened, sent.unknown, sent.possible) == (True, False, True)
    sent.problem = GONE
    assert (sent.happened, sent.unknown, sent.possible) == (False, True, True)
    sent.transaction = Transaction(1, "s", "read committed", 0.0, outcome=FAILED)
    assert (sent.happened, sent.unknown, sent.possible) == (False, False, False)
    sent.problem, sent.transaction.outcome = None, UNKNOWN
    assert (sent.happened, sent.unknown, sent.possible) == (False, True, True)
    sent.transaction.outcome = COMMITTED
    assert (sent.happened, sent.unknown, sent.possible) == (True, False, True)
    sent.doubted = True
    assert (sent.happened, sent.unknown, sent.possible) == (False, True, True)
