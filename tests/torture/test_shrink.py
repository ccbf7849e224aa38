"""A failing history made smaller: of the record, by hand-written and random drafts, and of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.torture.judge.check import judge
from headgate.torture.presets.catalogue import PRESETS
from headgate.torture.presets.preset import Preset
from headgate.torture.presets.settings import again, changed, differences
from headgate.torture.record import ROLLED_BACK, Ending, History, Wait
from headgate.torture.report.shrink import Smaller, Whole, about, fewest, is_same, shrink
from headgate.torture.report.simpler import FailingHistory, simplify
from torture.drafts import ORDERED, PLAIN, Draft


def shrunk(draft: Draft, check: str, preset: Preset = PLAIN, seconds: float = 10.0) -> Smaller:
    draft.history.endings.setdefault("c", Ending())
    finding = next(f for f in judge(draft.history, preset) if f.check == check)
    return shrink(draft.history, preset, finding, seconds)


def calls(history: History) -> list[tuple[str, str, float]]:
    return [(e.session, e.kind, e.called) for e in sorted(history.events, key=lambda e: e.called)]


def twice(draft: Draft) -> None:
    """Message 1 comes to w2 while it is with w1; 2 and 3 are peaceful."""
    draft.send(0, 1, 2)
    draft.send(0.1, 3)
    acks = draft.receive(1, 1, 2)
    again = draft.receive(1.5, 1, by="w2")
    draft.ack(1.6, draft.receive(1.55, 3, by="w3"), by="w3")
    draft.ack(1.7, again, by="w2")
    draft.ack(1.8, acks[1:])


def test_only_what_concerns_the_messages_stays() -> None:
    draft = Draft()
    twice(draft)
    small = shrunk(draft, "two live deliveries")
    assert small.finding.seqs == (1,)
    assert calls(small.history) == [
        ("sender", "send", 0),
        ("w1", "receive", 1),
        ("w2", "receive", 1.5),
        ("w2", "ack", 1.7),
    ]
    send, receive = small.history.events[:2]
    assert (send.answer, send.asked["others"]) == ([1], 1)
    assert ([m.seq for m in receive.answer], receive.asked["others"]) == ([1], 1)
    assert draft.history.events[0].answer == [1, 2]  # the whole history is as it was


def test_a_call_keeps_its_transaction_and_its_end() -> None:
    draft = Draft()
    twice(draft)
    tx = draft.transaction("w2", 1.4, 1.8)
    draft.history.events[3].transaction = tx
    draft.event("w2", "commit", 1.8, tx=tx)
    other = draft.transaction("w4", 1.4, 1.8, ROLLED_BACK)
    draft.receive(1.5, by="w4", tx=other)
    draft.event("w4", "rollback", 1.8, tx=other)
    small = shrunk(draft, "two live deliveries")
    assert small.history.transactions == [tx]
    assert ("w2", "commit", 1.8) in calls(small.history)
    assert not [e for e in small.history.events if e.session == "w4"]


def test_what_operators_did_meanwhile_stays() -> None:
    draft = Draft()
    draft.event("o", "seek", 0.5, target="end")  # before the message was there
    draft.send(1, 1)
    draft.ack(2.2, draft.receive(2, 1))
    draft.event("o", "compact", 2.5, 1)
    draft.event("o", "compact", 2.6, 0)  # has done nothing
    draft.event("o", "discard", 2.7, 1, seqs=[9])  # another message
    draft.receive(3, 1, by="w2")
    small = shrunk(draft, "delivered after its ack")
    assert [(k, at) for _, k, at in calls(small.history) if k not in ("send", "receive", "ack")] == [("compact", 2.5)]


def test_what_explains_something_else_about_the_messages_stays() -> None:
    """The nack of 1 gave 2, which is behind it, back: without it 2 would have been with two workers as well."""
    draft = Draft()
    draft.send(0, 1, 2, 3, key="k")
    acks = draft.receive(1, 1, 2, key="k")
    draft.receive(1.05)
    draft.event("w1", "nack", 1.1, (1, 0), acks=acks[:1], delay=0.0)
    tx = draft.transaction("w1", 1.2, 1.3)
    draft.receive(1.25, tx=tx)
    draft.event("w1", "commit", 1.3, tx=tx)
    draft.ack(1.6, draft.receive(1.5, 1, 2, 3, by="w2", key="k"), by="w2")
    draft.receive(2, 2, by="w3", key="k")
    small = shrunk(draft, "delivered after its ack", ORDERED)
    assert [f.check for f in judge(small.history, small.preset)] == ["delivered after its ack"]
    assert small.finding.seqs == (2,)
    assert calls(small.history) == [
        ("sender", "send", 0),
        ("w1", "receive", 1),
        ("w1", "nack", 1.1),
        ("w2", "receive", 1.5),
        ("w2", "ack", 1.6),
        ("w3", "receive", 2),
    ]
    assert [m.seq for e in small.history.events if e.kind == "receive" for m in e.answer] == [1, 2, 1, 2, 2]


def test_the_same_finding() -> None:
    draft = Draft()
    draft.send(0, 1)
    draft.receive(1, 1)
    draft.receive(1.2, 1)
    draft.receive(1.4, 1)
    one, other, _ = [f for f in judge(draft.history, PLAIN) if f.check == "two live deliveries"]
    assert is_same(one, one._replace(at=9.0, text="the same in other words"))
    assert about(one) == about(other)
    assert not is_same(one, other)


def test_stopped_needs_no_messages() -> None:
    draft = Draft()
    draft.send(0, 1, 2)
    draft.ack(0.9, draft.receive(0.5, 1, 2, by="w3"), by="w3")
    tx = draft.transaction("w1", 1, 3.5)
    draft.send(1, 3, tx=tx)
    draft.history.events[-1].session = "w1"
    draft.receive(1.5, by="w2")
    draft.history.events[-1].answered = 3.6
    draft.ack(4.1, draft.receive(4, 3))
    draft.history.waits.append(Wait(2, "w2", ("w1",)))
    small = shrunk(draft, "stopped")
    assert calls(small.history) == [("w1", "send", 1), ("w2", "receive", 1.5)]
    assert [f.check for f in judge(small.history, small.preset)] == ["stopped"]


def test_no_time_leaves_it_whole() -> None:
    draft = Draft()
    twice(draft)
    small = shrunk(draft, "two live deliveries", seconds=0.0)
    assert len(small.history.events) == len(draft.history.events)
    assert small.finding.check == "two live deliveries"


Step = tuple[str, int, int, float, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["receive", "ack", "nack", "seek", "compact", "extend"]),
        st.integers(1, 4),  # a message
        st.integers(1, 3),  # a worker
        st.floats(0.02, 0.7),  # after the step before
        st.booleans(),  # in a transaction
    ),
    min_size=3,
    max_size=25,
)


def random_draft(steps: list[Step], key: str | None = None) -> Draft:
    draft, at, held = Draft(), 1.0, dict[int, list[str]]()
    draft.send(0, 1, 2, key=key)
    draft.send(0.2, 3, key=key, tx=draft.transaction("sender", 0.1, 0.5, ROLLED_BACK))
    draft.send(0.3, 4, key=key)
    for kind, seq, worker, after, inside in steps:
        at, by = at + after, f"w{worker}"
        tx = draft.transaction(by, at - 0.01, at + 0.5) if inside else None
        if kind == "receive":
            for s in (seq, seq % 4 + 1):
                held.setdefault(s, [])
            acks = draft.receive(at, seq, seq % 4 + 1, by=by, tx=tx, key=key)
            held[seq].append(acks[0])
            held[seq % 4 + 1].append(acks[1])
        elif kind in ("seek", "compact"):
            draft.event("o", kind, at, 1, tx, **({"target": "beginning"} if kind == "seek" else {}))
        elif held.get(seq):
            acks = held[seq][-1:]
            more = {"nack": {"delay": 0.3}, "extend": {"by": 0.5}}.get(kind, {})
            draft.event(by, kind, at, (1, 0), tx, acks=acks, **more)
        if tx is not None:
            draft.event(by, "commit", at + 0.5, tx=tx)
    draft.history.endings["c"] = Ending()
    return draft


@pytest.mark.parametrize(("preset", "key"), [(PLAIN, None), (ORDERED, "k")])
@settings(deadline=None)
@given(STEPS)
def test_the_same_finding_and_nothing_to_spare(preset: Preset, key: str | None, steps: list[Step]) -> None:
    history = random_draft(steps, key).history
    findings = judge(history, preset)
    known = {about(f) for f in findings}
    for finding in {f.check: f for f in findings}.values():
        small = shrink(history, preset, finding)
        found = judge(small.history, small.preset)
        assert [f for f in found if is_same(f, finding)]
        assert {about(f) for f in found} <= known
        whole = Whole(small.history, small.finding)
        for spare in whole.messages + whole.calls:
            messages = [m for m in whole.messages if m is not spare]
            less = judge(whole.part(messages, [c for c in whole.calls if c is not spare]), small.preset)
            final_state = any(is_same(f, finding) for f in less) and {about(f) for f in less} <= known
            assert not final_state, f"{spare} can go"


def test_a_judge_of_random_drafts_has_something_to_find() -> None:
    """So that the property above is about something."""
    steps: list[Step] = [("receive", 1, 1, 0.1, False), ("receive", 1, 2, 0.1, True)]
    assert {f.check for f in judge(random_draft(steps).history, PLAIN)} >= {"two live deliveries", "lost"}


@given(st.sets(st.integers(0, 30), max_size=5))
def test_fewest(needed: set[int]) -> None:
    assert set(fewest(range(31), lambda some: needed <= set(some))) == needed


# settings


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.name)
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_differences_say_what_was_changed(preset: Preset, data: st.DataObject) -> None:
    other = replace(
        preset,
        workers=data.draw(st.integers(1, 9)),
        open=data.draw(st.sampled_from([preset.open, 0.0, 0.5])),
        sizes=data.draw(st.sampled_from([preset.sizes, (1,), (2, 7)])),
        consumers=data.draw(st.sampled_from([preset.consumers, preset.consumers[:1]])),
        weights=data.draw(st.sampled_from([preset.weights, {}, {"seek": 2.0, "tick": 0.5}])),
        stream=data.draw(
            st.sampled_from([preset.stream, {"lanes": 1}, {"lane_by": "key", "one_message_per_key": True}])
        ),
    )
    assert changed(preset, differences(preset, other)) == other


def test_again() -> None:
    preset = changed(PRESETS["seeks"], ["workers=2", "weights.seek=0", "sizes=1,3"])
    assert again(preset, 7, 1.5) == (
        "headgate torture seeks --seed 7 --seconds 1.5 --set workers=2 --set sizes=1,3 --set weights.seek=0"
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("workers", "NAME=VALUE"),
        ("wrkers=2", "is not a setting"),
        ("name=x", "is not a setting"),
        ("workers=two", "workers=two"),
        ("consumers=nobody", "no consumer nobody"),
        ("weights.sek=1", "do nothing of that name"),
        ("weights.seek=-1", "a number, 0 or more"),
    ],
)
def test_wrong_settings(setting: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        changed(PRESETS["seeks"], [setting])


# the run


class World:
    """Settings under which histories go wrong, with every second seed if `lucky` is 1. Each takes three seconds."""

    def __init__(self, is_wrong: Callable[[Preset, float], bool], lucky: int = 0) -> None:
        self.is_wrong, self.lucky, self.now, self.said = is_wrong, lucky, 0.0, list[str]()

    def again(self, preset: Preset, seed: int, seconds: float) -> FailingHistory:
        self.now += 3
        draft = Draft()
        if self.is_wrong(preset, seconds) and seed % 2 >= self.lucky:
            draft.send(0, 1)
        draft.history.endings = {c.name: Ending() for c in preset.consumers}
        return FailingHistory(preset, seed, seconds, draft.history, judge(draft.history, preset))

    def simplest(self, preset: str, minutes: float = 60.0) -> FailingHistory:
        first = self.again(PRESETS[preset], 1, 4.0)
        return simplify(first, self.again, self.said.append, minutes, lambda: self.now)


def test_the_simplest_setting_is_found() -> None:
    def is_wrong(preset: Preset, seconds: float) -> bool:
        seeking = preset.operators > 0 and "seek" in preset.weights
        return seconds >= 1 and preset.workers >= 2 and seeking and preset.nack > 0 and len(preset.sizes) > 1

    world = World(is_wrong, lucky=1)
    simple = world.simplest("seeks")
    preset = simple.preset
    assert (simple.seconds, preset.workers, preset.senders, preset.keys, preset.batch) == (1.0, 2, 1, 1, 1)
    assert (preset.weights, preset.nack, preset.open, preset.long_nack) == ({"seek": 1.0}, 0.15, 0.0, 0.0)
    assert (len(preset.consumers), preset.stream, preset.sizes) == (1, {"lanes": 1}, (1, 3, 10, 50))
    assert simple.findings
    assert any("not seen with 3 seeds" in line for line in world.said)


def test_it_ends_in_time() -> None:
    world = World(lambda preset, _: preset.workers == 5)
    simple = world.simplest("seeks", minutes=0.5)
    assert world.now < 30 + 3 * 3
    assert simple.findings
    assert world.said[-1] == "  simpler: 0.5 minutes are over"
