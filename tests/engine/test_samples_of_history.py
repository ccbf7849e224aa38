"""How it was: what maintenance notes for charts; and what a seek would do."""

from __future__ import annotations

import psycopg
import pytest

import headgate
from support.calls import Db, ack, call, column, drain, receive, record, send, send_batch, tick, value

S, C = "orders", "c"


@pytest.fixture
def stream(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)


def noted(db: Db, seconds_ago: float) -> None:
    """Notes how it is, so many seconds ago."""
    db.execute("update headgate.history set at = at - make_interval(secs => %s)", [seconds_ago])
    assert value(db, "select headgate.note_history()")
    assert not value(db, "select headgate.note_history()"), "it was just noted"


@pytest.mark.usefixtures("stream")
class TestHistory:
    def test_rates_and_lags(self, db: Db) -> None:
        noted(db, 0)
        send_batch(db, S, ["x"] * 100)
        tick(db, S)
        ack(db, S, C, receive(db, S, C, 30))
        noted(db, 20)
        [first, last] = db.execute("select sent, delivered, lag, dead from headgate.history(%s, %s)", [S, C]).fetchall()
        assert first == (None, None, 0, 0)
        assert last[0] is None  # that is the stream's
        assert 30 / 40 < last[1] <= 30 / 20
        assert last[2:] == (70, 0)
        [_, (sent, size, lag)] = db.execute("select sent, bytes, lag from headgate.history(%s)", [S]).fetchall()
        assert 100 / 40 < sent <= 100 / 20
        assert size > 0
        assert lag is None
        [_, (sent, delivered, lag)] = db.execute("select sent, delivered, lag from headgate.history()").fetchall()
        assert sent > delivered > 0
        assert lag == 70

    def test_what_is_locked_is_not_waited_for(self, db: Db, database_url: str) -> None:
        """As by somebody who removes a segment in a transaction that stays open."""
        send_batch(db, S, ["x"] * 10)
        with psycopg.connect(database_url) as other:
            other.execute("lock table headgate.message_1 in access exclusive mode")
            db.execute("set statement_timeout = '20s'")
            assert not value(db, "select headgate.note_history()")
        assert value(db, "select headgate.note_history()")

    def test_maintenance_notes_it(self, db: Db) -> None:
        call(db, "maintain")
        call(db, "maintain")
        assert value(db, "select count(*) from headgate.history()") == 1

    def test_an_hour_is_kept_and_of_a_day_a_row_in_five_minutes(self, db: Db) -> None:
        db.execute(
            "insert into headgate.history select clock_timestamp() - make_interval(mins => 10 * n), n % 2 = 0, "
            "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}' from generate_series(1, 200) n"
        )
        assert value(db, "select headgate.note_history()")
        kept = column(db, "select is_kept from headgate.history where at < clock_timestamp() - interval '70 minutes'")
        assert len(kept) == (25 * 6 - 7) // 2
        assert all(kept)
        assert value(db, "select count(*) from headgate.history()") == 6  # five of the hour, and now
        assert value(db, "select count(*) from headgate.history(since => '1 day')") > 60

    def test_many_are_noted_once_a_minute_in_one_row(self, db: Db) -> None:
        for n in range(100):
            call(db, "create_consumer", S, f"c{n}")
        noted(db, 0)
        db.execute("update headgate.history set at = at - interval '15 seconds'")
        assert not value(db, "select headgate.note_history()")
        noted(db, 46)
        assert value(db, "select count(*) from headgate.history") == 2

    def test_a_clock_that_was_put_back_does_not_stop_it(self, db: Db) -> None:
        noted(db, 0)
        noted(db, -7200)
        assert value(db, "select count(*) from headgate.history") == 1

    def test_what_is_not_there(self, db: Db, hg: headgate.Headgate) -> None:
        with pytest.raises(headgate.errors.StreamNotFound):
            hg.run("select * from headgate.history(%s)", ("nothing",))
        with pytest.raises(headgate.errors.ConsumerNotFound):
            hg.run("select * from headgate.history(%s, %s)", (S, "nobody"))


@pytest.mark.usefixtures("stream")
class TestSeekPreview:
    def preview(self, db: Db, target: str) -> tuple[int, int, int]:
        r = record(db, "select * from headgate.seek_preview(%s, %s, %s)", S, C, target)
        assert r["exact"]
        return r["seq"], r["again"], r["passed_over"]

    def test_it_says_what_the_seek_then_does(self, db: Db) -> None:
        send(db, S, *"abcde")
        tick(db, S)
        ack(db, S, C, receive(db, S, C, 3))
        assert self.preview(db, "beginning") == (1, 3, 0)
        assert self.preview(db, "3") == (3, 1, 0)
        assert self.preview(db, "5") == (5, 0, 1)
        assert self.preview(db, "end") == (6, 0, 2)
        call(db, "seek", S, C, "3")
        assert drain(db, S, C) == ["c", "d", "e"]

    def test_a_filter_counts(self, db: Db) -> None:
        call(db, "create_consumer", S, "some", filter=["a.>"])
        for key in ("a.1", "b.1", "a.2"):
            send(db, S, "x", key=key)
        tick(db, S)
        r = record(db, "select * from headgate.seek_preview(%s, %s, %s)", S, "some", "end")
        assert (r["again"], r["passed_over"]) == (0, 2)

    def test_a_time(self, db: Db) -> None:
        send(db, S, "a")
        moment = value(db, "select clock_timestamp()::text")
        [seq] = send(db, S, "b")
        tick(db, S)
        assert value(db, "select headgate.seq_at(%s, %s)", S, moment) == seq
        assert value(db, "select headgate.seq_at(%s, 'end')", S) == seq + 1
        assert self.preview(db, moment)[0] == seq
