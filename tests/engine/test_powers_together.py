"""Powers over single messages that meet in one message: its own deadline, a discard, a replay, a late ack."""

from __future__ import annotations

import pytest

from support.calls import Db, ack, call, discard, drain, pass_time, receive, record, seqs, tick, value
from support.calls import send_batch as send

S, C = "s", "c"


@pytest.fixture(params=[{"lanes": 2}, {"lane_by": "key"}, {"lane_by": "channel"}], ids=["hash", "key", "channel"])
def stream(db: Db, request: pytest.FixtureRequest) -> str:
    call(db, "create_stream", S, **request.param)
    call(db, "create_consumer", S, C, ack_wait="10 seconds")
    return S


def fill(db: Db, *found: str) -> list[int]:
    sent = send(
        db, S, list(found), keys=["k"] * len(found), channels=["k"] * len(found) if by(db) == "channel" else None
    )
    tick(db, S)
    return sent


def by(db: Db) -> str:
    return str(value(db, "select lane_by from headgate.stream where name = %s", S))


def replay(db: Db, *chosen: int) -> int:
    return int(record(db, "select * from headgate.replay(%s, %s, seqs => %s)", S, C, list(chosen))["replayed"])


@pytest.mark.usefixtures("stream")
class TestTogether:
    def test_one_with_a_deadline_of_its_own_is_discarded(self, db: Db) -> None:
        sent = fill(db, *"abc")
        got = receive(db, S, C)
        call(db, "extend", S, C, [got[0].ack_id], "1 hour")
        assert discard(db, S, C, [sent[0]]).discarded == 1
        assert ack(db, S, C, got[:1]) == (0, 1)
        assert ack(db, S, C, got[1:]) == (2, 0)
        assert drain(db, S, C) == []

    def test_an_expired_one_is_discarded_and_its_late_ack_is_stale(self, db: Db) -> None:
        sent = fill(db, *"ab")
        got = receive(db, S, C)
        call(db, "extend", S, C, [got[0].ack_id], "0")
        assert discard(db, S, C, [sent[0]]).discarded == 1
        assert ack(db, S, C, got) == (1, 1)
        assert drain(db, S, C) == []

    def test_a_discarded_one_is_replayed_once(self, db: Db) -> None:
        """Once its reader has passed it over: before, it would overtake those in front of it."""
        sent = fill(db, *"abc")
        assert discard(db, S, C, sent[:2]).discarded == 2
        assert replay(db, *sent) == 0
        assert drain(db, S, C) == ["c"]
        assert replay(db, *sent[:2]) == 2
        assert replay(db, *sent[:2]) == 0
        assert drain(db, S, C) == ["a", "b"]
        assert drain(db, S, C) == []
        assert value(db, "select unread from headgate.consumers where name = %s", C) == 0

    def test_a_replayed_one_is_discarded(self, db: Db) -> None:
        sent = fill(db, *"ab")
        drain(db, S, C)
        assert replay(db, *sent) == 2
        assert discard(db, S, C, [sent[0]]).discarded == 1
        assert drain(db, S, C) == ["b"]

    def test_a_late_ack_does_not_settle_a_replay(self, db: Db) -> None:
        sent = fill(db, "a")
        first = receive(db, S, C)
        assert ack(db, S, C, first) == (1, 0)
        assert replay(db, *sent) == 1
        assert ack(db, S, C, first) == (0, 1)
        assert drain(db, S, C) == ["a"]

    def test_one_that_expired_is_not_replayed_twice(self, db: Db) -> None:
        sent = fill(db, "a")
        got = receive(db, S, C)
        pass_time(db, "1 minute")
        assert replay(db, *sent) == 0  # in flight, or parked: it comes anyway
        again = receive(db, S, C)
        assert seqs(again) == sent
        assert ack(db, S, C, got) == (0, 1)
        assert ack(db, S, C, again) == (1, 0)
        assert drain(db, S, C) == []
