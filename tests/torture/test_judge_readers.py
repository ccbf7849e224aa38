"""The judge of readers with marks: each of its checks finds a fault that was planted, and is silent without it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.torture.presets.preset import Preset
from headgate.torture.record import ROLLED_BACK
from headgate.torture.sessions.readers import Mark, ReadSpan
from torture.drafts import AGING, PLAIN, UPSERT, Draft


def mark(tick: int, lo: int = 0, **more: Any) -> Mark:
    return Mark(tick=tick, snap="", lo=lo, hi=lo, floor=lo, **more)


class ReaderDraft(Draft):
    """A history with a reader, whose chain begins with everything."""

    chain = ("reader", 1)

    def event(self, session: str, kind: str, at: float, answer: Any = None, tx: Any = None, **asked: Any) -> Any:
        event = super().event(session, kind, at, answer, tx, **asked)
        if kind in ("mark", "next_mark", "read"):
            event.consumer = None
        return event

    def begin(self, at: float, answer: Mark | None = None, position: str = "beginning") -> None:
        self.event("reader", "mark", at, answer or mark(0), position=position, chain=self.chain)

    def read(self, at: float, start: Mark, end: Mark, *seqs: int, again: bool = False, **options: Any) -> None:
        span = ReadSpan({s: options.get("data", f"data {s}") for s in seqs})
        span.removed = options.get("removed", ())
        twice = options.get("twice", [])
        asked = {"chain": self.chain, "start": start, "end": end, "again": again}
        self.event("reader", "read", at, (span, twice), options.get("tx"), **asked)

    def next_mark(self, at: float, start: Mark, end: Mark, by: str = "reader", tx: Any = None) -> None:
        self.event(by, "next_mark", at, end, tx, chain=self.chain, start=start, until=None)

    def misread(self, preset: Preset = PLAIN) -> list[str]:
        return [f for f in self.found(preset) if f != "lost"]


@pytest.fixture
def draft() -> ReaderDraft:
    draft = ReaderDraft()
    draft.send(0, 1, 2)
    draft.begin(0.5)
    return draft


def test_everything_once(draft: ReaderDraft) -> None:
    draft.read(1, mark(0), mark(1), 1, 2)
    draft.read(2, mark(0), mark(1), 2, 1, again=True)
    draft.send(2.5, 3)
    draft.read(3, mark(1), mark(2), 3)
    draft.next_mark(4, mark(2), mark(2), by="drain")
    assert draft.misread() == []


def test_missed(draft: ReaderDraft) -> None:
    draft.send(0.6, 3)
    draft.read(1, mark(0), mark(1), 1, 2)
    draft.next_mark(4, mark(1), mark(1), by="drain")
    assert draft.misread() == ["missed"]


def test_what_was_removed_is_not_missed(draft: ReaderDraft) -> None:
    draft.send(0.6, 3)
    draft.read(1, mark(0), mark(1), 1, 2, removed=((3, 4),))
    draft.next_mark(4, mark(1), mark(1), by="drain")
    assert draft.misread(AGING) == []


def test_what_a_newer_version_has_superseded_is_not_missed(draft: ReaderDraft) -> None:
    draft.send(0.6, 3, key="k")
    draft.send(0.7, 4, key="k")
    draft.read(1, mark(0), mark(1), 1, 2, 4)
    draft.next_mark(4, mark(1), mark(1), by="drain")
    assert draft.misread(UPSERT) == []
    assert draft.misread() == ["missed"]


def test_a_chain_that_was_not_read_to_its_end_misses_nothing(draft: ReaderDraft) -> None:
    draft.read(1, mark(0), mark(1), 1, 2)
    draft.send(2, 3)
    assert draft.misread() == []


@pytest.mark.parametrize("way", ["two spans", "one span"])
def test_read_twice(draft: ReaderDraft, way: str) -> None:
    if way == "two spans":
        draft.read(1, mark(0), mark(1), 1, 2)
        draft.read(2, mark(1), mark(2), 2)
    else:
        draft.read(1, mark(0), mark(1), 1, 2, twice=[2])
    assert draft.misread() == ["read twice"]


def test_a_reader_that_was_set_back_reads_again(draft: ReaderDraft) -> None:
    draft.read(1, mark(0), mark(1), 1, 2)
    draft.read(2, mark(0), mark(2), 1, 2)
    assert draft.misread() == []


@pytest.mark.parametrize("opened", [False, True])
def test_read_although_the_chain_began_behind_it(draft: ReaderDraft, opened: bool) -> None:
    draft.chain = ("reader", 2)
    draft.event("reader", "mark", 1, mark(5), position="latest", chain=draft.chain)
    if opened:  # a transaction that has written cannot make a tick
        draft.history.events[-1].transaction = draft.transaction("reader", 0.9, 1.5)
    draft.read(2, mark(5), mark(6), 1, 2)
    assert draft.misread() == ([] if opened else ["read twice", "read twice"])


def test_rolled_back_and_read(draft: ReaderDraft) -> None:
    draft.send(0.6, 3, tx=draft.transaction("sender", 0.6, 0.7, ROLLED_BACK))
    draft.read(1, mark(0), mark(1), 1, 2, 3, 4)
    assert draft.misread() == ["rolled back, and read", "rolled back, and read"]


def test_read_before_its_commit(draft: ReaderDraft) -> None:
    draft.send(0.6, 3, tx=draft.transaction("sender", 0.6, 2))
    draft.read(1, mark(0), mark(1), 1, 2, 3)
    assert draft.misread() == ["read before its commit"]


def test_other_contents(draft: ReaderDraft) -> None:
    draft.read(1, mark(0), mark(1), 1, 2, data="?")
    assert draft.misread() == ["other contents read", "other contents read"]


@pytest.mark.parametrize(
    ("seqs", "removed", "found"),
    [((1,), (), ["read otherwise"]), ((1,), ((2, 3),), []), ((1, 2), (), [])],
)
def test_read_otherwise(draft: ReaderDraft, seqs: Any, removed: Any, found: list[str]) -> None:
    draft.read(1, mark(0), mark(1), 1, 2)
    draft.read(2, mark(0), mark(1), *seqs, again=True, removed=removed)
    assert draft.misread(AGING) == found


def test_more_than_before(draft: ReaderDraft) -> None:
    draft.send(0.6, 3, tx=draft.transaction("sender", 0.6, 2))
    draft.read(1, mark(0), mark(1), 1, 2)
    draft.read(3, mark(0), mark(1), 1, 2, 3, again=True)
    assert draft.misread() == ["read otherwise"]


@pytest.mark.parametrize(("second", "found"), [(mark(2), ["partly visible"]), (mark(1), [])])
def test_partly_visible(draft: ReaderDraft, second: Mark, found: list[str]) -> None:
    """A long span may be read in parts, which all end at one tick."""
    part = mark(1, pos=1, since=mark(0))
    draft.read(1, mark(0), part, 1)
    draft.read(2, part, second, 2)
    assert draft.misread() == found


def test_partly_visible_behind_the_latest(draft: ReaderDraft) -> None:
    tx = draft.transaction("sender", 0.6, 2)
    draft.send(0.7, 3, tx=tx)
    draft.send(0.8, 4, tx=tx)
    draft.chain = ("reader", 2)
    draft.begin(2.005, mark(5), "latest")
    draft.read(3, mark(5), mark(6), 4)
    draft.next_mark(4, mark(6), mark(6), by="drain")
    assert draft.misread() == ["partly visible"]


@pytest.mark.parametrize("opened", [False, True])
def test_not_in_the_latest(draft: ReaderDraft, opened: bool) -> None:
    tx = draft.transaction("reader", 0.7, 2) if opened else None
    draft.next_mark(1, mark(0), mark(0), tx=tx)
    draft.read(2, mark(0), mark(1), 1, 2)
    assert draft.misread() == ([] if opened else ["not in the latest", "not in the latest"])


@pytest.mark.parametrize("archive", [False, True])
def test_removed_before_it_was_archived(draft: ReaderDraft, archive: bool) -> None:
    """Others are told, and that is all."""
    if archive:
        draft.event("reader", "note_archive", 0.6, 1, mark=mark(0)).consumer = None
    draft.read(1, mark(0), mark(1), 2, removed=((1, 2),))
    assert draft.misread(AGING) == ["removed before it was archived"] * archive
