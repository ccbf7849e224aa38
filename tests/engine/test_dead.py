"""Dead letters, and what people do with parked messages."""

from __future__ import annotations

import psycopg
import pytest

from support.calls import (
    Db,
    ack,
    call,
    column,
    datas,
    discard,
    facts,
    nack,
    pass_time,
    receive,
    record,
    same_lane_keys,
    send,
    send_batch,
    seqs,
    value,
)

S = "orders"


@pytest.fixture(autouse=True)
def orders(db: Db) -> None:
    call(db, "create_stream", S, lanes=2)
    call(db, "create_consumer", S, "c", max_deliver=2)


def kill(db: Db, consumer: str = "c", n: int = 100, error: str | None = "broken") -> list[int]:
    """Fails everything that can be received until it is dead."""
    dead: list[int] = []
    while got := receive(db, S, consumer, n):
        nack(db, S, consumer, got, "0", error)
        dead += [m.seq for m in got if m.attempt == 2]
    return sorted(dead)


class TestDying:
    def test_by_nack_with_the_facts_in_the_headers(self, db: Db) -> None:
        call(db, "send", S, "body", "orders.a", {"trace": "t"})
        [first] = receive(db, S, "c")
        nack(db, S, "c", [first], "0", "once")
        assert facts(db, S, "c")["dead"] == 0
        [second] = receive(db, S, "c")
        assert second.attempt == 2
        nack(db, S, "c", [second], "1 hour", "twice")
        [row] = db.execute('select key, data, headers from headgate."log_orders.dead"').fetchall()
        key, data, headers = row
        assert (key, data) == ("orders.a", "body")
        assert value(db, "select clock_timestamp() - %s::timestamptz < interval '1 minute'", headers.pop("failed_at"))
        sent = headers.pop("sent_at")
        assert value(
            db,
            "select created_at = %s::timestamptz from headgate.log_orders where seq = %s",
            sent,
            headers["source_seq"],
        )
        assert headers == {
            "trace": "t",
            "attempts": 2,
            "last_error": "twice",
            "source_stream": S,
            "source_consumer": "c",
            "source_seq": first.seq,
            "source_lane": 0,
        }
        pass_time(db, "2 hours")
        assert receive(db, S, "c") == []
        assert facts(db, S, "c")["lag"] == 0
        assert facts(db, S, "c")["dead"] == 1

    def test_by_expiry(self, db: Db) -> None:
        [seq] = send(db, S, "a")
        for _ in range(2):
            assert len(receive(db, S, "c")) == 1
            pass_time(db, "1 minute")
        assert receive(db, S, "c") == []
        [letter] = db.execute(
            "select source_seq, attempts, last_error from headgate.dead_letters(%s, 'c')", [S]
        ).fetchall()
        assert letter == (seq, 2, "expired")

    def test_by_expiry_found_by_maintenance(self, db: Db) -> None:
        send(db, S, "a")
        for _ in range(2):
            assert len(receive(db, S, "c")) == 1
            pass_time(db, "1 minute")
        db.execute("select headgate.maintain()")
        assert facts(db, S, "c")["dead"] == 1

    def test_the_move_is_one_transaction(self, db: Db, database_url: str) -> None:
        send(db, S, "a")
        nack(db, S, "c", receive(db, S, "c"), "0")
        got = receive(db, S, "c")
        with psycopg.connect(database_url) as mine:
            assert nack(mine, S, "c", got) == (1, 0)
            assert facts(mine, S, "c")["dead"] == 1
            assert (facts(db, S, "c")["dead"], facts(db, S, "c")["in_flight"]) == (0, 1)
            mine.rollback()
        assert nack(db, S, "c", got) == (1, 0)
        assert (facts(db, S, "c")["dead"], facts(db, S, "c")["in_flight"]) == (1, 0)

    def test_some_of_a_delivery_die_and_some_come_again(self, db: Db) -> None:
        key = same_lane_keys(db, 2, 1)
        send_batch(db, S, ["old"], keys=key)
        nack(db, S, "c", receive(db, S, "c"), "0")
        send_batch(db, S, ["new"], keys=key)
        got = receive(db, S, "c")
        nack(db, S, "c", got, "0")
        assert [(m.data, m.attempt) for m in receive(db, S, "c")] == [("new", 2)]
        assert facts(db, S, "c")["dead"] == 1

    def test_max_deliver_one(self, db: Db) -> None:
        call(db, "create_consumer", S, "once", max_deliver=1)
        send(db, S, "a")
        nack(db, S, "once", receive(db, S, "once"))
        assert facts(db, S, "once")["dead"] == 1

    def test_without_max_deliver_nothing_dies(self, db: Db) -> None:
        call(db, "create_consumer", S, "patient")
        send(db, S, "a")
        for attempt in range(1, 30):
            [m] = receive(db, S, "patient")
            assert m.attempt == attempt
            nack(db, S, "patient", [m])
        assert facts(db, S, "patient")["dead"] == 0

    def test_a_limit_given_later(self, db: Db) -> None:
        call(db, "create_stream", "plain")
        call(db, "create_consumer", "plain", "c")
        send(db, "plain", "a")
        nack(db, "plain", "c", receive(db, "plain", "c"))
        call(db, "alter_consumer", "plain", "c", max_deliver=2)
        nack(db, "plain", "c", receive(db, "plain", "c"))
        assert facts(db, "plain", "c")["dead"] == 1

    def test_size_limits_never_stop_it(self, db: Db) -> None:
        """The limit was raised after the dead-letter stream was made, or was lower when it was made."""
        call(db, "alter_stream", S, max_message_bytes=200_000_000)
        db.execute("select headgate.send('orders', repeat('x', 17000000))")
        kill(db, n=1)
        assert facts(db, S, "c")["dead"] == 1

    def test_odd_headers_never_stop_it(self, db: Db) -> None:
        db.execute("""select headgate.send('orders', 'x', headers => '["not", "an object"]')""")
        kill(db)
        assert facts(db, S, "c")["dead"] == 1

    def test_many_at_once(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 10_000)
        assert len(kill(db, n=10_000)) == 10_000
        assert facts(db, S, "c")["dead"] == 10_000

    def test_a_dead_letter_stream_has_no_dead_letters_of_its_own(self, db: Db) -> None:
        call(db, "create_consumer", "orders.dead", "reader")
        with pytest.raises(psycopg.Error) as error:
            call(db, "create_consumer", "orders.dead", "other", max_deliver=3)
        assert error.value.sqlstate == "HG010"
        send(db, S, "a")
        kill(db)
        assert datas(receive(db, "orders.dead", "reader")) == ["a"]

    @pytest.mark.parametrize("settings", [{}, {"lanes": 4, "max_message_bytes": 268435456}])
    def test_a_stream_of_somebody_else_under_that_name(self, db: Db, settings: dict[str, object]) -> None:
        """It is neither written to nor dropped with the stream."""
        call(db, "create_stream", "mine.dead", **settings)
        send(db, "mine.dead", "precious")
        call(db, "create_stream", "mine")
        call(db, "create_consumer", "mine", "c", max_deliver=1)
        send(db, "mine", "x")
        nack(db, "mine", "c", receive(db, "mine", "c"))
        assert column(db, "select data from headgate.dead_letters('mine', 'c')") == ["x"]
        assert column(db, "select name from headgate.streams where dead_of = 'mine'") == ["mine.dead-2"]
        assert value(db, "select dead_of is null from headgate.streams where name = 'mine.dead'")
        assert call(db, "redrive", "mine", "c", all=True) == 1
        assert datas(receive(db, "mine", "c")) == ["x"]
        call(db, "drop_stream", "mine")
        assert column(db, 'select data from headgate."log_mine.dead"') == ["precious"]
        assert column(db, "select name from headgate.streams where starts_with(name, 'mine')") == ["mine.dead"]

    def test_the_letters_of_one_consumer_are_not_anothers(self, db: Db) -> None:
        call(db, "create_consumer", S, "other", max_deliver=2)
        sent = send_batch(db, S, ["a", "b"])
        kill(db, "c")
        assert (facts(db, S, "c")["dead"], facts(db, S, "other")["dead"]) == (2, 0)
        assert call(db, "redrive", S, "other", all=True) == 0
        assert call(db, "purge_dead", S, "other", all=True) == 0
        assert kill(db, "other") == sent
        assert call(db, "purge_dead", S, "other", all=True) == 2
        assert (facts(db, S, "c")["dead"], facts(db, S, "other")["dead"]) == (2, 0)
        assert call(db, "redrive", S, "c", all=True) == 2
        assert sorted(seqs(receive(db, S, "c"))) == sent
        assert receive(db, S, "other") == []


class TestRedrive:
    @pytest.fixture
    def dead(self, db: Db) -> list[int]:
        """Five dead letters; returns their seqs in orders.dead."""
        send_batch(db, S, list("abcde"), keys=["x.1", "x.2", "y.1", "y.2", None])
        kill(db)
        return column(db, "select d.seq from headgate.dead_letters('orders', 'c') d order by d.data")

    def test_all_of_them_as_if_never_delivered(self, db: Db, dead: list[int]) -> None:
        assert call(db, "redrive", S, "c", all=True) == 5
        assert facts(db, S, "c")["dead"] == 0
        assert sorted((m.data, m.attempt) for m in receive(db, S, "c")) == [(d, 1) for d in "abcde"]
        assert call(db, "redrive", S, "c", all=True) == 0

    def test_some(self, db: Db, dead: list[int]) -> None:
        assert call(db, "redrive", S, "c", seqs=[dead[1], dead[3], 999]) == 2
        assert sorted(datas(receive(db, S, "c"))) == ["b", "d"]
        assert facts(db, S, "c")["dead"] == 3

    def test_by_filter(self, db: Db, dead: list[int]) -> None:
        assert call(db, "redrive", S, "c", filter=["x.*"]) == 2
        assert sorted(datas(receive(db, S, "c"))) == ["a", "b"]

    def test_at_most_max_oldest_first(self, db: Db, dead: list[int]) -> None:
        oldest = column(db, "select data from headgate.dead_letters('orders', 'c', 2)")
        assert call(db, "redrive", S, "c", max=2) == 2
        assert sorted(datas(receive(db, S, "c"))) == sorted(oldest)

    def test_it_can_die_again(self, db: Db, dead: list[int]) -> None:
        call(db, "redrive", S, "c", all=True)
        assert len(kill(db)) == 5
        assert facts(db, S, "c")["dead"] == 5

    def test_rollback_keeps_the_letters(self, db: Db, dead: list[int]) -> None:
        with db.transaction(force_rollback=True):
            assert call(db, "redrive", S, "c", all=True) == 5
        assert (facts(db, S, "c")["dead"], facts(db, S, "c")["lag"]) == (5, 0)

    def test_what_a_seek_brings_back_comes_once(self, db: Db, dead: list[int]) -> None:
        call(db, "seek", S, "c", "beginning")
        first = receive(db, S, "c", 2)
        assert call(db, "redrive", S, "c", all=True) == 5
        rest = receive(db, S, "c")
        assert sorted(datas(first + rest)) == list("abcde")
        assert nack(db, S, "c", first + rest) == (5, 0)
        assert sorted(m.attempt for m in receive(db, S, "c")) == [2] * 5

    @pytest.mark.parametrize("function", ["redrive", "purge_dead"])
    def test_all_is_asked_for_by_name(self, db: Db, dead: list[int], function: str) -> None:
        for choice in ({}, {"all": False}, {"all": None}, {"seqs": dead, "all": True}, {"max": 9, "all": True}):
            with pytest.raises(psycopg.Error, match="which dead letters") as refused:
                call(db, function, S, "c", **choice)
            assert (refused.value.sqlstate, '"all" => true' in str(refused.value.diag.message_hint)) == ("HG010", True)
        assert call(db, function, S, "c", all=True) == 5

    def test_purge(self, db: Db, dead: list[int]) -> None:
        assert call(db, "purge_dead", S, "c", filter=["y.>"]) == 2
        assert call(db, "purge_dead", S, "c", seqs=[dead[0]]) == 1
        assert call(db, "purge_dead", S, "c", max=1) == 1
        assert call(db, "purge_dead", S, "c", all=True) == 1
        assert call(db, "redrive", S, "c", all=True) == 0
        assert receive(db, S, "c") == []

    def test_reading_them_page_by_page(self, db: Db, dead: list[int]) -> None:
        page = db.execute("select seq, headers from headgate.dead_letters('orders', 'c', 3)").fetchall()
        rest = db.execute(
            "select seq, headers from headgate.dead_letters('orders', 'c', 3, after => %s)", [page[-1][0]]
        ).fetchall()
        assert sorted(seq for seq, _ in page + rest) == sorted(dead)
        assert all(headers == {} for _, headers in page)


class TestParked:
    def test_retry_now(self, db: Db) -> None:
        sent = send_batch(db, S, list("abc"))
        nack(db, S, "c", receive(db, S, "c"), "1 hour")
        assert call(db, "retry_now", S, "c", [sent[1]]) == 1
        assert datas(receive(db, S, "c")) == ["b"]
        assert call(db, "retry_now", S, "c", all=True) == 2
        assert sorted(datas(receive(db, S, "c"))) == ["a", "c"]

    def test_retry_now_of_delayed_ones(self, db: Db) -> None:
        send(db, S, "a", delay="1 hour")
        assert receive(db, S, "c") == []
        call(db, "retry_now", S, "c", all=True)
        assert [m.attempt for m in receive(db, S, "c")] == [1]

    def test_discard(self, db: Db) -> None:
        sent = send_batch(db, S, list("abc"))
        nack(db, S, "c", receive(db, S, "c"), "1 hour")
        assert discard(db, S, "c", [sent[1], 999]).discarded == 1
        call(db, "retry_now", S, "c", all=True)
        assert sorted(datas(receive(db, S, "c"))) == ["a", "c"]

    def test_discard_all_is_done_for_this_consumer_only(self, db: Db) -> None:
        call(db, "create_consumer", S, "other")
        send_batch(db, S, list("abc"))
        for consumer in ("c", "other"):
            nack(db, S, consumer, receive(db, S, consumer), "1 hour")
        assert discard(db, S, "c", all=True).discarded == 3
        assert (facts(db, S, "c")["lag"], facts(db, S, "other")["lag"]) == (0, 3)

    def test_the_view_of_parked_messages(self, db: Db) -> None:
        send(db, S, "a", key="k")
        nack(db, S, "c", receive(db, S, "c"), "1 hour", "why")
        row = record(db, "select * from headgate.parked_messages")
        assert (row["stream"], row["consumer"], row["attempt"], row["reason"], row["last_error"]) == (
            S,
            "c",
            1,
            "nacked",
            "why",
        )


class TestDropping:
    def test_a_dropped_consumer_leaves_its_letters(self, db: Db) -> None:
        send(db, S, "a")
        kill(db)
        call(db, "drop_consumer", S, "c")
        assert value(db, 'select count(*) from headgate."log_orders.dead"') == 1

    def test_a_dropped_stream_takes_everything_with_it(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 10, ids=[str(i) for i in range(10)])
        kill(db, n=3)
        receive(db, S, "c", 3)
        call(db, "drop_stream", S)
        for table in ("stream", "consumer", "cursor", "delivery", "parked", "wake", "tick", "segment", "message_id"):
            assert value(db, f"select count(*) from headgate.{table}") == 0, table
        assert (
            column(
                db,
                "select relname from pg_class where relnamespace = 'headgate'::regnamespace "
                r"and relname ~ '(message|seq)_\d|^log_'",
            )
            == []
        )
        assert (
            column(
                db, r"select proname from pg_proc where pronamespace = 'headgate'::regnamespace and proname ~ '_\d+$'"
            )
            == []
        )
        call(db, "create_stream", S)
        assert send(db, S, "a") == [1]

    def test_acks_after_the_consumer_was_dropped(self, db: Db) -> None:
        send(db, S, "a")
        got = receive(db, S, "c")
        call(db, "drop_consumer", S, "c")
        call(db, "create_consumer", S, "c")
        assert ack(db, S, "c", got) == (0, 1)
