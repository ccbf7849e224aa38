"""The judge of what the engine says of itself: each check finds a fault that was planted, and is silent without it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.torture.lookers import Counts, Still
from headgate.torture.presets import Preset, plan
from headgate.torture.record import LOST, ROLLED_BACK, Ending, Fault, Problem
from torture.tales import ACK_WAIT, AGING, KEPT, PLAIN, UPSERT, Tale

NAMED = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"lane_by": "key"})


class LookTale(Tale):
    def count(self, at: float, floor: int, tx: Any = None) -> None:
        said = Counts(floor, 0, True, 0, 0, 0, 0)
        self.event("looker", "count", at, {"c": said}, tx).consumer = None

    def still(self, states: dict[int, str], *, unread: int = 0, in_flight: int = 0, parked: int = 0) -> None:
        said = Counts(0, unread, True, in_flight, parked, 0, 0)
        self.event("drain", "still", 50, Still(said, states))

    def said(self, preset: Preset = PLAIN) -> list[str]:
        return [f for f in self.found(preset) if f != "lost"]


@pytest.fixture
def tale() -> LookTale:
    tale = LookTale()
    tale.send(0, 1, 2)
    return tale


@pytest.mark.parametrize(("at", "found"), [(1.3, ["floor too high"]), (1.6, [])])
def test_floor_too_high(tale: LookTale, at: float, found: list[str]) -> None:
    tale.ack(1.5, tale.receive(1, 1, 2))
    tale.count(at, 2)
    assert tale.said() == found


def test_an_ack_that_is_under_way_may_be_seen(tale: LookTale) -> None:
    tale.ack(1.5, tale.receive(1, 1, 2))
    tale.count(1.495, 2)
    assert tale.said() == []


def test_a_floor_above_what_is_not_committed(tale: LookTale) -> None:
    tale.send(1, 3, tx=tale.transaction("sender", 0.9, 3))
    tale.ack(1.5, tale.receive(1.1, 1, 2))
    tale.count(2, 3)
    assert tale.said() == ["floor too high"]


def test_a_floor_above_what_is_rolled_back(tale: LookTale) -> None:
    tale.send(1, 3, tx=tale.transaction("sender", 0.9, 3, ROLLED_BACK))
    tale.ack(1.5, tale.receive(1.1, 1, 2))
    tale.count(2, 3)
    assert tale.said() == []


@pytest.mark.parametrize(("at", "found"), [(0.5, ["floor too high"]), (1.2, [])])
def test_a_floor_above_what_may_be_discarded(tale: LookTale, at: float, found: list[str]) -> None:
    """What is handed out after a discard was not given up by it."""
    tale.event("o", "discard", at, 1, all=True)
    tale.receive(1, 1, 2)
    tale.count(1.3, 2)
    said = [f for f in tale.said() if f.startswith("floor")]
    assert said == found


def test_a_floor_above_what_is_discarded_and_comes_again_later(tale: LookTale) -> None:
    tale.event("o", "discard", 0.5, 2, seqs=[1, 2])
    tale.count(1, 2)
    tale.event("o", "seek", 2, target="beginning")
    tale.ack(3.5, tale.receive(3, 1, 2))
    assert tale.said() == []


def test_a_floor_after_a_seek_back(tale: LookTale) -> None:
    tale.ack(1.5, tale.receive(1, 1, 2))
    tale.event("o", "seek", 2, target="beginning")
    tale.count(3, 2)
    assert tale.said() == ["floor too high"]


@pytest.mark.parametrize(("moved", "preset", "found"), [(False, PLAIN, 1), (True, PLAIN, 0), (False, NAMED, 0)])
def test_floor_moved_back(tale: LookTale, moved: bool, preset: Preset, found: int) -> None:
    tale.ack(1.5, tale.receive(1, 1, 2))
    tale.count(2, 2)
    if moved:
        tale.event("o", "seek", 2.5, target="beginning")
    tale.count(3, 0)
    assert tale.said(preset) == ["floor moved back"] * found


@pytest.mark.parametrize(("what", "found"), [("unread", 0), ("in_flight", 1), ("parked", 1)])
def test_miscounted(tale: LookTale, what: str, found: int) -> None:
    tale.still({1: "available", 2: "available"}, **({"unread": 2} | ({} if what == "unread" else {what: 1})))
    assert tale.said() == ["miscounted"] * found


def test_too_few_unread(tale: LookTale) -> None:
    tale.still({1: "available", 2: "available"}, unread=1)
    assert tale.said() == ["miscounted"]


def test_what_was_removed_may_be_in_hand_for_a_while(tale: LookTale) -> None:
    tale.still({1: "available", 2: "available"}, unread=2, parked=1)
    assert tale.said(AGING) == []
    assert tale.said(PLAIN) == ["miscounted"]


def test_older_versions_are_counted_and_not_shown(tale: LookTale) -> None:
    tale.still({1: "available", 2: "available"}, unread=2, in_flight=1)
    assert tale.said(UPSERT) == []


@pytest.mark.parametrize("state", ["done", "dead", "discarded"])
def test_shown_as_over(tale: LookTale, state: str) -> None:
    tale.ack(1.5, tale.receive(1, 1))
    tale.still({1: "done", 2: state})
    assert tale.said() == ["shown in a wrong state"]


def test_a_seek_without_an_answer_may_not_have_happened(tale: LookTale) -> None:
    tale.ack(1.5, tale.receive(1, 1, 2))
    seek = tale.event("o", "seek", 2, target="beginning")
    seek.problem = Problem(LOST, "terminating connection", None)
    tale.history.faults.append(Fault("terminate", 1.9, 2.1))
    tale.still({1: "done", 2: "done"})
    assert tale.said() == []
    seek.problem = None
    assert tale.said() == ["shown in a wrong state"] * 2


@pytest.mark.parametrize(("replayed", "found"), [([2], []), ([1], ["shown in a wrong state"])])
def test_a_replay_brings_back_what_was_discarded(tale: LookTale, replayed: list[int], found: list[str]) -> None:
    tale.event("o", "discard", 1, 2, seqs=[1, 2])
    tale.event("o", "replay", 2, 1, seqs=replayed)
    tale.still({1: "discarded", 2: "parked"}, parked=1)
    assert tale.said() == found


def test_shown_as_waiting_although_it_is_acked(tale: LookTale) -> None:
    tale.ack(1.5, tale.receive(1, 1, 2))
    tale.still({1: "done", 2: "available"}, unread=1)
    assert tale.said() == ["shown in a wrong state"]


def test_delivered_to_nobody(tale: LookTale) -> None:
    tale.still({1: "available", 2: "delivered"}, unread=1, in_flight=1)
    assert tale.said() == ["shown in a wrong state"]


def test_dropped_before_it_was_done(tale: LookTale) -> None:
    tale.ack(1.5, tale.receive(1, 1))
    tale.still({})
    assert tale.said(KEPT) == ["dropped before it was done"]


@pytest.mark.parametrize(("lost", "found"), [(1, []), (0, ["wrong loss"]), (2, ["wrong loss"])])
def test_wrong_loss(tale: LookTale, lost: int, found: list[str]) -> None:
    tale.ack(1.5, tale.receive(1, 1))
    tale.history.endings["c"] = Ending(losses=[(1, 2, "retain_up_to")], lost=lost)
    assert tale.said(AGING) == found


@pytest.mark.parametrize(
    ("took", "queued", "found"), [(0.5, 0.0, []), (1.5, 0.0, ["slow look"]), (1.5, 0.4, ["slow look"]), (1.5, 0.6, [])]
)
def test_slow_look(tale: LookTale, took: float, queued: float, found: list[str]) -> None:
    """Not one whose server process had to wait for a processor."""
    event = tale.event("looker", "look", 1, 3, what="peek")
    event.consumer, event.answered, event.queued = None, 1 + took, queued
    assert tale.said() == found


@pytest.mark.parametrize(("key", "found"), [("a.x", 0), ("b.x", 0), ("c.x", 1), (None, 1)])
def test_against_its_filter(key: str | None, found: int) -> None:
    tale = LookTale()
    tale.send(0, 1, key=key)
    tale.ack(1.5, tale.receive(1, 1, key=key))
    some = Preset("test", (plan("c", ack_wait=ACK_WAIT, filter=["a.>"]),), widened=("b",))
    assert tale.said(some) == ["against its filter"] * found
