"""The judge of streams that are dropped and created again."""

from __future__ import annotations

from torture.tales import Tale


def story() -> Tale:
    """Message 1 of the old stream was never finished; that of the new one is."""
    tale = Tale()
    tale.send(0, 1, data="old")
    tale.receive(0.5, 1, data="old")
    tale.event("o", "recreate_stream", 1).consumer = None
    tale.send(2, 1, data="new")
    return tale


def end(tale: Tale, *there: str) -> list[str]:
    tale.event("drain", "log", 50, set(there)).consumer = None
    return tale.found()


def test_what_was_sent_before_is_of_the_old_one() -> None:
    tale = story()
    tale.ack(3.2, tale.receive(3, 1, data="new"))
    assert end(tale, "new") == []


def test_lost_in_the_new_one() -> None:
    assert end(story(), "new") == ["lost"]


def test_old_contents_in_the_new_one() -> None:
    tale = story()
    tale.ack(3.2, tale.receive(3, 1, data="old"))
    assert end(tale, "new") == ["other contents"]


def test_a_send_that_was_under_way_met_the_new_one() -> None:
    tale = story()
    tale.ack(3.2, tale.receive(3, 1, data="new"))
    tale.send(0.995, 2, data="slow")
    tale.history.events[-1].answered = 2.5
    assert end(tale, "new", "slow") == ["lost"]
