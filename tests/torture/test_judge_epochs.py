"""The judge of streams that are dropped and created again."""

from __future__ import annotations

from torture.drafts import Draft


def two_streams() -> Draft:
    """Message 1 of the old stream was never finished; that of the new one is."""
    draft = Draft()
    draft.send(0, 1, data="old")
    draft.receive(0.5, 1, data="old")
    draft.event("o", "recreate_stream", 1).consumer = None
    draft.send(2, 1, data="new")
    return draft


def end(draft: Draft, *there: str) -> list[str]:
    draft.event("drain", "log", 50, set(there)).consumer = None
    return draft.found()


def test_what_was_sent_before_is_of_the_old_one() -> None:
    draft = two_streams()
    draft.ack(3.2, draft.receive(3, 1, data="new"))
    assert end(draft, "new") == []


def test_lost_in_the_new_one() -> None:
    assert end(two_streams(), "new") == ["lost"]


def test_old_contents_in_the_new_one() -> None:
    draft = two_streams()
    draft.ack(3.2, draft.receive(3, 1, data="old"))
    assert end(draft, "new") == ["other contents"]


def test_a_send_that_was_under_way_met_the_new_one() -> None:
    draft = two_streams()
    draft.ack(3.2, draft.receive(3, 1, data="new"))
    draft.send(0.995, 2, data="slow")
    draft.history.events[-1].answered = 2.5
    assert end(draft, "new", "slow") == ["lost"]
