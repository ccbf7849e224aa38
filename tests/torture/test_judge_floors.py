"""The judge of what the engine says of itself: each check finds a fault that was planted, and is silent without it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.torture.presets.preset import Preset, plan
from headgate.torture.record import LOST, ROLLED_BACK, CallError, Ending, Fault
from headgate.torture.sessions.observers import Counts, FinalState
from torture.drafts import ACK_WAIT, AGING, KEPT, PLAIN, UPSERT, Draft

NAMED = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"lane_by": "key"})


class LookDraft(Draft):
    def count(self, at: float, floor: int, tx: Any = None) -> None:
        said = Counts(floor, 0, True, 0, 0, 0, 0)
        self.event("observer", "count", at, {"c": said}, tx).consumer = None

    def final_state(self, states: dict[int, str], *, unread: int = 0, in_flight: int = 0, parked: int = 0) -> None:
        said = Counts(0, unread, True, in_flight, parked, 0, 0)
        self.event("drain", "final_state", 50, FinalState(said, states))

    def said(self, preset: Preset = PLAIN) -> list[str]:
        return [f for f in self.found(preset) if f != "lost"]


@pytest.fixture
def draft() -> LookDraft:
    draft = LookDraft()
    draft.send(0, 1, 2)
    return draft


@pytest.mark.parametrize(("at", "found"), [(1.3, ["floor too high"]), (1.6, [])])
def test_floor_too_high(draft: LookDraft, at: float, found: list[str]) -> None:
    draft.ack(1.5, draft.receive(1, 1, 2))
    draft.count(at, 2)
    assert draft.said() == found


def test_an_ack_that_is_under_way_may_be_seen(draft: LookDraft) -> None:
    draft.ack(1.5, draft.receive(1, 1, 2))
    draft.count(1.495, 2)
    assert draft.said() == []


def test_a_floor_above_what_is_not_committed(draft: LookDraft) -> None:
    draft.send(1, 3, tx=draft.transaction("sender", 0.9, 3))
    draft.ack(1.5, draft.receive(1.1, 1, 2))
    draft.count(2, 3)
    assert draft.said() == ["floor too high"]


def test_a_floor_above_what_is_rolled_back(draft: LookDraft) -> None:
    draft.send(1, 3, tx=draft.transaction("sender", 0.9, 3, ROLLED_BACK))
    draft.ack(1.5, draft.receive(1.1, 1, 2))
    draft.count(2, 3)
    assert draft.said() == []


@pytest.mark.parametrize(("at", "found"), [(0.5, ["floor too high"]), (1.2, [])])
def test_a_floor_above_what_may_be_discarded(draft: LookDraft, at: float, found: list[str]) -> None:
    """What is handed out after a discard was not given up by it."""
    draft.event("o", "discard", at, 1, all=True)
    draft.receive(1, 1, 2)
    draft.count(1.3, 2)
    said = [f for f in draft.said() if f.startswith("floor")]
    assert said == found


def test_a_floor_above_what_is_discarded_and_comes_again_later(draft: LookDraft) -> None:
    draft.event("o", "discard", 0.5, 2, seqs=[1, 2])
    draft.count(1, 2)
    draft.event("o", "seek", 2, target="beginning")
    draft.ack(3.5, draft.receive(3, 1, 2))
    assert draft.said() == []


def test_a_floor_after_a_seek_back(draft: LookDraft) -> None:
    draft.ack(1.5, draft.receive(1, 1, 2))
    draft.event("o", "seek", 2, target="beginning")
    draft.count(3, 2)
    assert draft.said() == ["floor too high"]


@pytest.mark.parametrize(("moved", "preset", "found"), [(False, PLAIN, 1), (True, PLAIN, 0), (False, NAMED, 0)])
def test_floor_moved_back(draft: LookDraft, moved: bool, preset: Preset, found: int) -> None:
    draft.ack(1.5, draft.receive(1, 1, 2))
    draft.count(2, 2)
    if moved:
        draft.event("o", "seek", 2.5, target="beginning")
    draft.count(3, 0)
    assert draft.said(preset) == ["floor moved back"] * found


@pytest.mark.parametrize(("what", "found"), [("unread", 0), ("in_flight", 1), ("parked", 1)])
def test_miscounted(draft: LookDraft, what: str, found: int) -> None:
    draft.final_state({1: "available", 2: "available"}, **({"unread": 2} | ({} if what == "unread" else {what: 1})))
    assert draft.said() == ["miscounted"] * found


def test_too_few_unread(draft: LookDraft) -> None:
    draft.final_state({1: "available", 2: "available"}, unread=1)
    assert draft.said() == ["miscounted"]


def test_what_was_removed_may_be_in_hand_for_a_while(draft: LookDraft) -> None:
    draft.final_state({1: "available", 2: "available"}, unread=2, parked=1)
    assert draft.said(AGING) == []
    assert draft.said(PLAIN) == ["miscounted"]


def test_older_versions_are_counted_and_not_shown(draft: LookDraft) -> None:
    draft.final_state({1: "available", 2: "available"}, unread=2, in_flight=1)
    assert draft.said(UPSERT) == []


@pytest.mark.parametrize("state", ["done", "dead", "discarded"])
def test_shown_as_over(draft: LookDraft, state: str) -> None:
    draft.ack(1.5, draft.receive(1, 1))
    draft.final_state({1: "done", 2: state})
    assert draft.said() == ["shown in a wrong state"]


def test_a_seek_without_an_answer_may_not_have_happened(draft: LookDraft) -> None:
    draft.ack(1.5, draft.receive(1, 1, 2))
    seek = draft.event("o", "seek", 2, target="beginning")
    seek.problem = CallError(LOST, "terminating connection", None)
    draft.history.faults.append(Fault("terminate", 1.9, 2.1))
    draft.final_state({1: "done", 2: "done"})
    assert draft.said() == []
    seek.problem = None
    assert draft.said() == ["shown in a wrong state"] * 2


@pytest.mark.parametrize(("replayed", "found"), [([2], []), ([1], ["shown in a wrong state"])])
def test_a_replay_brings_back_what_was_discarded(draft: LookDraft, replayed: list[int], found: list[str]) -> None:
    draft.event("o", "discard", 1, 2, seqs=[1, 2])
    draft.event("o", "replay", 2, 1, seqs=replayed)
    draft.final_state({1: "discarded", 2: "parked"}, parked=1)
    assert draft.said() == found


def test_shown_as_waiting_although_it_is_acked(draft: LookDraft) -> None:
    draft.ack(1.5, draft.receive(1, 1, 2))
    draft.final_state({1: "done", 2: "available"}, unread=1)
    assert draft.said() == ["shown in a wrong state"]


def test_delivered_to_nobody(draft: LookDraft) -> None:
    draft.final_state({1: "available", 2: "delivered"}, unread=1, in_flight=1)
    assert draft.said() == ["shown in a wrong state"]


def test_dropped_before_it_was_done(draft: LookDraft) -> None:
    draft.ack(1.5, draft.receive(1, 1))
    draft.final_state({})
    assert draft.said(KEPT) == ["dropped before it was done"]


@pytest.mark.parametrize(("lost", "found"), [(1, []), (0, ["wrong loss"]), (2, ["wrong loss"])])
def test_wrong_loss(draft: LookDraft, lost: int, found: list[str]) -> None:
    draft.ack(1.5, draft.receive(1, 1))
    draft.history.endings["c"] = Ending(losses=[(1, 2, "retain_up_to")], lost=lost)
    assert draft.said(AGING) == found


@pytest.mark.parametrize(
    ("took", "queued", "found"), [(0.5, 0.0, []), (1.5, 0.0, ["slow look"]), (1.5, 0.4, ["slow look"]), (1.5, 0.6, [])]
)
def test_slow_look(draft: LookDraft, took: float, queued: float, found: list[str]) -> None:
    """Not one whose server process had to wait for a processor."""
    event = draft.event("observer", "look", 1, 3, what="peek")
    event.consumer, event.answered, event.queued = None, 1 + took, queued
    assert draft.said() == found


@pytest.mark.parametrize(("key", "found"), [("a.x", 0), ("b.x", 0), ("c.x", 1), (None, 1)])
def test_against_its_filter(key: str | None, found: int) -> None:
    draft = LookDraft()
    draft.send(0, 1, key=key)
    draft.ack(1.5, draft.receive(1, 1, key=key))
    some = Preset("test", (plan("c", ack_wait=ACK_WAIT, filter=["a.>"]),), widened=("b",))
    assert draft.said(some) == ["against its filter"] * found
