"""Sending: batches, ids, delays, sizes and the segments that messages go to."""

from __future__ import annotations

import itertools
import threading

import psycopg
import pytest

from support.calls import Db, ack, call, column, datas, facts, pass_time, receive, record, send, send_batch, seqs, value
from support.waiting import wait_until


@pytest.fixture
def orders(db: Db) -> str:
    call(db, "create_stream", "orders")
    return "orders"


def log(db: Db, stream: str) -> list[str]:
    return column(db, f'select data from headgate."log_{stream}" order by seq')


class TestOneAndMany:
    def test_a_message_is_stored_as_it_was_sent(self, db: Db, orders: str) -> None:
        seq = call(db, "send", orders, '{"n": 1}', "orders.a", {"trace": "t1", "n": [1]})
        call(db, "create_consumer", orders, "c")
        [m] = receive(db, orders, "c")
        assert (m.seq, m.key, m.data, m.headers, m.attempt) == (
            seq,
            "orders.a",
            '{"n": 1}',
            {"trace": "t1", "n": [1]},
            1,
        )
        assert m.channel is None
        assert value(db, "select abs(extract(epoch from clock_timestamp() - %s)) < 10", m.created_at)

    def test_only_data_is_needed(self, db: Db, orders: str) -> None:
        call(db, "send", orders, "")
        call(db, "create_consumer", orders, "c")
        [m] = receive(db, orders, "c")
        assert (m.key, m.data, m.headers) == (None, "", None)

    def test_a_batch_answers_with_the_seqs_in_its_order(self, db: Db, orders: str) -> None:
        got = send_batch(db, orders, ["a", "b", "c"], keys=["x", None, "z"])
        assert got == sorted(got)
        assert len(set(got)) == 3
        rows = db.execute('select seq, key, data from headgate."log_orders" order by seq').fetchall()
        assert rows == [(got[0], "x", "a"), (got[1], None, "b"), (got[2], "z", "c")]

    def test_an_empty_batch_sends_nothing(self, db: Db, orders: str) -> None:
        assert send_batch(db, orders, []) == []
        assert call(db, "send_batch", orders, None) == []

    def test_ten_thousand_in_a_call_and_no_more(self, db: Db, orders: str) -> None:
        assert len(set(send_batch(db, orders, ["x"] * 10_000))) == 10_000
        with pytest.raises(psycopg.Error) as error:
            send_batch(db, orders, ["x"] * 10_001)
        assert error.value.sqlstate == "HG010"
        assert len(log(db, orders)) == 10_000

    @pytest.mark.parametrize("arrays", [{"keys": ["a"]}, {"delays": [None] * 3}, {"ids": []}, {"headers": [None]}])
    def test_arrays_of_different_lengths_are_refused(
        self, db: Db, orders: str, arrays: dict[str, list[object]]
    ) -> None:
        if "headers" in arrays:
            with pytest.raises(psycopg.Error) as error:
                db.execute("select headgate.send_batch('orders', array['a', 'b'], headers => array[null]::jsonb[])")
        else:
            with pytest.raises(psycopg.Error) as error:
                send_batch(db, orders, ["a", "b"], **arrays)
        assert error.value.sqlstate == "HG010"

    def test_an_unknown_stream_is_said_so(self, db: Db) -> None:
        with pytest.raises(psycopg.Error) as error:
            send(db, "nowhere", "x")
        assert error.value.sqlstate == "HG001"
        assert error.value.diag.message_hint

    def test_channels_need_a_stream_that_has_them(self, db: Db, orders: str) -> None:
        with pytest.raises(psycopg.Error) as error:
            send(db, orders, "x", channel="tenant")
        assert error.value.sqlstate == "HG010"

    def test_messages_of_a_key_share_a_lane_and_the_rest_spread(self, db: Db, orders: str) -> None:
        send_batch(db, orders, ["x"] * 400, keys=["same"] * 200 + [None] * 200)
        lanes = dict(
            db.execute("select key is null, count(distinct lane) from headgate.log_orders group by 1").fetchall()
        )
        assert lanes[False] == 1
        assert lanes[True] > 8

    def test_rolled_back_messages_never_show(self, db: Db, orders: str) -> None:
        call(db, "create_consumer", orders, "c")
        with db.transaction(force_rollback=True):
            send(db, orders, "gone")
        with db.transaction():
            send(db, orders, "kept")
            with db.transaction(force_rollback=True):  # a savepoint
                send(db, orders, "gone too")
        assert datas(receive(db, orders, "c")) == ["kept"]


class TestDelay:
    def test_it_comes_when_it_is_due_and_others_do_not_wait_for_it(self, db: Db, orders: str) -> None:
        call(db, "create_consumer", orders, "c")
        send(db, orders, "later", key="k", delay="1 hour")
        send(db, orders, "now", key="k")
        now = receive(db, orders, "c")
        assert datas(now) == ["now"]
        ack(db, orders, "c", now)
        pass_time(db, "59 minutes")
        assert receive(db, orders, "c") == []
        pass_time(db, "2 minutes")
        [m] = receive(db, orders, "c")
        assert (m.data, m.attempt) == ("later", 1)

    def test_delays_of_a_batch_are_each_its_own(self, db: Db, orders: str) -> None:
        call(db, "create_consumer", orders, "c")
        send_batch(db, orders, ["hour", "now", "day"], delays=["1 hour", None, "1 day"])
        now = receive(db, orders, "c")
        assert datas(now) == ["now"]
        ack(db, orders, "c", now)
        pass_time(db, "2 hours")
        assert datas(receive(db, orders, "c")) == ["hour"]

    def test_a_consumer_made_after_it_was_due_gets_it_in_its_place(self, db: Db, orders: str) -> None:
        call(db, "create_stream", "one", lanes=1)
        send(db, "one", "delayed", delay="1 hour")
        send(db, "one", "second")
        pass_time(db, "2 hours")
        call(db, "create_consumer", "one", "c")
        assert datas(receive(db, "one", "c")) == ["delayed", "second"]


class TestIds:
    """The same id within the stream's window is the same message."""

    def test_the_second_send_answers_with_the_first_seq_and_appends_nothing(self, db: Db, orders: str) -> None:
        [first] = send(db, orders, "one", id="a")
        assert send(db, orders, "two", id="a") == [first]
        assert send(db, orders, "three", id="b") != [first]
        assert log(db, orders) == ["one", "three"]

    def test_twice_in_one_batch(self, db: Db, orders: str) -> None:
        a, b, again, none, none2 = send_batch(db, orders, ["a", "b", "a2", "n", "n"], ids=["a", "b", "a", None, None])
        assert a == again
        assert len({a, b, none, none2}) == 4
        assert log(db, orders) == ["a", "b", "n", "n"]

    def test_a_batch_keeps_its_order_whatever_its_ids(self, db: Db, orders: str) -> None:
        got = send_batch(db, orders, list("123456"), ids=["z", None, "a", "m", None, "b"])
        assert got == sorted(got)
        assert log(db, orders) == list("123456")
        assert send_batch(db, orders, ["x", "new", "x"], ids=["m", "n", "z"])[0::2] == [got[3], got[0]]
        assert log(db, orders) == [*"123456", "new"]

    def test_a_batch_of_known_ids_only(self, db: Db, orders: str) -> None:
        got = send_batch(db, orders, ["1", "2"], ids=["a", "b"])
        assert send_batch(db, orders, ["1", "2"], ids=["a", "b"]) == got
        assert log(db, orders) == ["1", "2"]

    def test_keys_headers_and_delays_stay_with_their_message(self, db: Db, orders: str) -> None:
        call(db, "create_consumer", orders, "c")
        db.execute(
            "select headgate.send_batch('orders', array['1', '2', '3'], array['k1', 'k2', 'k3'], "
            """array['{"h": 1}', null, '{"h": 3}']::jsonb[], """
            "delays => array[null, '1 hour', null]::interval[], ids => array['b', 'x', 'a'])"
        )
        got = {m.data: (m.key, m.headers) for m in receive(db, orders, "c")}
        assert got == {"1": ("k1", {"h": 1}), "3": ("k3", {"h": 3})}

    def test_after_the_window_it_is_new(self, db: Db) -> None:
        call(db, "create_stream", "short", dedup_window="1 minute")
        [first] = send(db, "short", "one", id="a")
        pass_time(db, "59 seconds")
        assert send(db, "short", "two", id="a") == [first]
        pass_time(db, "2 seconds")
        [second] = send(db, "short", "three", id="a")
        assert second > first
        assert send(db, "short", "four", id="a") == [second]
        assert log(db, "short") == ["one", "three"]

    def test_maintenance_forgets_only_what_is_past_the_window(self, db: Db, orders: str) -> None:
        send(db, orders, "old", id="old")
        pass_time(db, "6 minutes")
        [young] = send(db, orders, "young", id="young")
        db.execute("select headgate.maintain()")
        assert column(db, "select id from headgate.message_id") == ["young"]
        assert send(db, orders, "again", id="young") == [young]

    def test_ids_of_one_stream_mean_nothing_in_another(self, db: Db, orders: str) -> None:
        call(db, "create_stream", "other")
        send(db, orders, "x", id="a")
        send(db, "other", "y", id="a")
        assert log(db, "other") == ["y"]

    def test_a_rollback_frees_the_id(self, db: Db, orders: str) -> None:
        with db.transaction(force_rollback=True):
            send(db, orders, "gone", id="a")
        send(db, orders, "kept", id="a")
        assert log(db, orders) == ["kept"]

    @pytest.mark.parametrize("commit", [True, False])
    def test_two_sessions_at_once(self, db: Db, database_url: str, orders: str, commit: bool) -> None:
        got: list[int] = []
        with psycopg.connect(database_url) as first, psycopg.connect(database_url, autocommit=True) as second:
            [seq] = send(first, orders, "first", id="a")
            waiting = threading.Thread(target=lambda: got.extend(send(second, orders, "second", id="a")))
            waiting.start()
            wait_until(lambda: value(db, "select count(*) from pg_stat_activity where wait_event_type = 'Lock'") == 1)
            first.commit() if commit else first.rollback()
            waiting.join(30)
            assert not waiting.is_alive()
        assert log(db, orders) == (["first"] if commit else ["second"])
        assert (got == [seq]) is commit

    def test_many_sessions_send_the_same_ids(self, db: Db, database_url: str, orders: str) -> None:
        """Each batch names the same ids in another order: no deadlock, one message each, everybody hears its seq."""
        answers: list[dict[str, int]] = []

        def run(shift: int) -> None:
            with psycopg.connect(database_url, autocommit=True) as mine:
                for base in range(0, 200, 20):
                    names = [f"id{base + (i * 7 + shift) % 20}" for i in range(20)]
                    answers.append(dict(zip(names, send_batch(mine, orders, names, ids=names), strict=True)))

        workers = [threading.Thread(target=run, args=(i,)) for i in range(6)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(60)
        assert len(answers) == 60
        stored = dict(db.execute("select data, seq from headgate.log_orders").fetchall())
        assert value(db, "select count(*) from headgate.log_orders") == 200
        for answer in answers:
            assert answer.items() <= stored.items()


class TestSizes:
    def test_a_megabyte_is_fine(self, db: Db, orders: str) -> None:
        call(db, "create_consumer", orders, "c")
        big = "0123456789abcdef" * 65536
        send(db, orders, big)
        assert datas(receive(db, orders, "c")) == [big]

    @pytest.mark.parametrize("letter", ["x", "é"])
    def test_the_limit_is_in_bytes_and_exact(self, db: Db, letter: str) -> None:
        call(db, "create_stream", "small", max_message_bytes=1000)
        size = len(letter.encode())
        send(db, "small", letter * (1000 // size))
        with pytest.raises(psycopg.Error) as error:
            send_batch(db, "small", ["ok", letter * (1000 // size + 1)])
        assert error.value.sqlstate == "HG009"
        assert len(log(db, "small")) == 1

    def test_compressible_data_counts_with_its_own_size(self, db: Db) -> None:
        call(db, "create_stream", "small", max_message_bytes=1000)
        with pytest.raises(psycopg.Error) as error:
            db.execute("select headgate.send('small', data) from (select repeat('x', 100000) as data) x")
        assert error.value.sqlstate == "HG009"

    def test_many_small_ones_may_be_more_than_the_limit_together(self, db: Db) -> None:
        call(db, "create_stream", "small", max_message_bytes=100)
        assert len(send_batch(db, "small", ["x" * 100] * 50)) == 50

    def test_the_limit_can_be_changed(self, db: Db) -> None:
        call(db, "create_stream", "small", max_message_bytes=10)
        with pytest.raises(psycopg.Error):
            send(db, "small", "x" * 11)
        call(db, "alter_stream", "small", max_message_bytes=11)
        send(db, "small", "x" * 11)

    def test_the_default_limit(self, db: Db, orders: str) -> None:
        with pytest.raises(psycopg.Error) as error:
            db.execute("select headgate.send('orders', repeat('x', 16777217))")
        assert error.value.sqlstate == "HG009"
        db.execute("select headgate.send('orders', repeat('x', 16777216))")


class TestSegments:
    @pytest.fixture
    def tiny(self, db: Db) -> str:
        call(db, "create_stream", "tiny", segment_rows=1000, lanes=4)
        return "tiny"

    def received(self, db: Db) -> int:
        """Receives everything. A call gives up looking after a while, so an empty answer alone is not the end."""
        got = 0
        while (batch := receive(db, "tiny", "c", 10_000)) or facts(db, "tiny", "c")["unread"]:
            got += len(batch)
        return got

    def ends(self, db: Db) -> list[tuple[int, int]]:
        return db.execute(
            "select first_seq, end_seq from headgate.segments where stream = 'tiny' order by id"
        ).fetchall()

    def test_messages_cross_segments_and_room_is_made_ahead(self, db: Db, tiny: str) -> None:
        call(db, "create_consumer", tiny, "c")
        for _ in range(8):
            send_batch(db, tiny, ["x"] * 10_000)
        ends = self.ends(db)
        assert ends[0][0] == 1
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
        assert ends[-1][1] > 80_000 + 20_000
        assert self.received(db) == 80_000

    def test_a_changed_size_holds_from_the_next_segment_on(self, db: Db, tiny: str) -> None:
        before = self.ends(db)
        call(db, "alter_stream", tiny, segment_rows=5000)
        # not by a certain one: a send that a busy machine starts late looks like part of an open transaction
        wait_until(lambda: send_batch(db, tiny, ["x"] * 10_000) and len(self.ends(db)) > len(before))
        after = self.ends(db)
        assert after[: len(before)] == before
        assert {b - a for a, b in after[len(before) :]} == {5000}

    @pytest.mark.parametrize("maker", ["open transaction", "others"])
    def test_an_open_send_holds_nobody_up_while_segments_rotate(
        self, db: Db, database_url: str, tiny: str, maker: str
    ) -> None:
        """Others send far past the room that there was when the transaction began."""
        call(db, "create_consumer", tiny, "c")
        with psycopg.connect(database_url) as slow:
            if maker == "open transaction":  # it sends so much that somebody has to make room
                for _ in range(3):
                    send_batch(slow, tiny, ["slow"] * 10_000)
            else:
                send_batch(slow, tiny, ["slow"] * 3)
            db.execute("set lock_timeout = '3s'")
            for _ in range(8):
                send_batch(db, tiny, ["x"] * 10_000)
            assert self.received(db) == 80_000
            slow.commit()
        assert {m.data for m in receive(db, tiny, "c", 10_000)} == {"slow"}

    def test_many_senders_rotate_together(self, db: Db, database_url: str, tiny: str) -> None:
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with psycopg.connect(database_url, autocommit=True) as mine:
                    for _ in range(15):
                        send_batch(mine, tiny, ["x"] * 2_000)
            except psycopg.Error as e:
                failures.append(e)

        workers = [threading.Thread(target=run) for _ in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(100)
        assert failures == []
        assert value(db, "select count(*) from headgate.log_tiny") == 120_000

    @pytest.mark.parametrize("rows", [999, 1_000_000_001])
    def test_impossible_sizes_are_refused(self, db: Db, tiny: str, rows: int) -> None:
        for function in ("create_stream", "alter_stream"):
            with pytest.raises(psycopg.Error) as error:
                call(db, function, "tiny", segment_rows=rows)
            assert error.value.sqlstate == "HG010"


def test_the_streams_view_counts(db: Db, orders: str) -> None:
    sent = send_batch(db, orders, ["x"] * 5)
    row = record(db, "select * from headgate.streams where name = 'orders'")
    assert (row["messages"], row["exact"], row["last_seq"], row["consumers"]) == (5, True, sent[-1], 0)
    call(db, "create_consumer", orders, "c")
    assert sorted(seqs(receive(db, orders, "c"))) == sent
