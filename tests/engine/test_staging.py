"""Sending in two steps: what tasks have staged is sent in one transaction, once, whoever repeats it."""

from __future__ import annotations

import threading

import psycopg
import pytest

from support.calls import Db, call, column, value
from support.waiting import wait_until


def stage(db: Db, *datas: str, writer: str = "w", batch: int = 0, channels: bool = False) -> str:
    name = str(value(db, "select headgate.stage('s', %s, %s, %s)", writer, batch, channels))
    for number, data in enumerate(datas):
        db.execute(
            f"insert into headgate.{name} values (%s, %s, %s, %s)",
            [f"k{number % 3}", data, '{"n": 1}', "c" if channels else None],
        )
    return name


def send_staged(db: Db, names: list[str], counts: list[int], writer: str = "w", batch: int = 0) -> int:
    return int(value(db, "select headgate.send_staged('s', %s, %s, %s, %s)", writer, batch, names, counts))


def sent(db: Db) -> list[str]:
    return column(db, "select data from headgate.log_s order by seq")


@pytest.fixture
def _stream(db: Db) -> None:
    call(db, "create_stream", "s", lanes=4)


@pytest.mark.usefixtures("_stream")
class TestSend:
    def test_a_task_that_comes_too_late_is_not_waited_for(self, db: Db, database_url: str) -> None:
        a, late = stage(db, "1"), stage(db)
        db.execute("set statement_timeout = '15s'")
        with psycopg.connect(database_url) as task:
            task.execute(f"insert into headgate.{late} (data) values ('1')")
            assert send_staged(db, [a], [1]) == 1
            assert column(db, "select name from headgate.staging") == [late]
        assert send_staged(db, [], [], batch=1) == 0
        assert column(db, "select name from headgate.staging") == []
        assert sent(db) == ["1"]

    def test_all_tasks_in_order(self, db: Db) -> None:
        a, b = stage(db, "1", "2", "3"), stage(db, "4", "5")
        assert send_staged(db, [a, b], [3, 2]) == 5
        assert sent(db) == ["1", "2", "3", "4", "5"]
        assert column(db, "select headers::text from headgate.log_s limit 1") == ['{"n": 1}']
        lanes = column(db, "select count(distinct lane) from headgate.log_s group by key")
        assert lanes == [1, 1, 1]
        assert value(db, "select count(*) from headgate.staging") == 0
        assert value(db, "select to_regclass('headgate.' || %s)", a) is None

    def test_the_order_is_that_of_writing_also_where_the_table_has_another(self, db: Db) -> None:
        """Rows of different sizes fill the gaps of earlier pages."""
        name = stage(db)
        texts = [f"{n} {'x' * (n * 37 % 1500)}" for n in range(20_000)]
        for first in range(0, 20_000, 1000):
            with db.cursor().copy(f"copy headgate.{name} (data) from stdin") as copy:
                for text in texts[first : first + 1000]:
                    copy.write_row([text])
        assert column(db, f"select data from headgate.{name} order by ctid") != texts
        send_staged(db, [name], [20_000])
        assert sent(db) == texts

    def test_keys_lie_where_other_sends_put_them(self, db: Db) -> None:
        name = stage(db, "1", "2", "3")
        send_staged(db, [name], [3])
        for key in ("k0", "k1", "k2"):
            call(db, "send", "s", "x", key)
        assert column(db, "select count(distinct lane) from headgate.log_s group by key") == [1, 1, 1]

    def test_a_repeated_batch(self, db: Db) -> None:
        send_staged(db, [stage(db, "1")], [1])
        assert send_staged(db, [stage(db, "1")], [1]) == 0
        assert sent(db) == ["1"]
        assert value(db, "select headgate.last_written('s', 'w')") == 0
        assert send_staged(db, [stage(db, "2", batch=1)], [1], batch=1) == 1
        assert send_staged(db, [stage(db, "1")], [1]) == 0, "an older one"
        assert send_staged(db, [stage(db, "3", writer="other")], [1], writer="other") == 1
        assert sent(db) == ["1", "2", "3"]
        assert value(db, "select count(*) from headgate.staging") == 0

    def test_two_at_once(self, db: Db, database_url: str) -> None:
        """A driver that was thought dead commits at the same moment: one of the two does."""
        a, b = stage(db, "1"), stage(db, "1")
        done: list[int] = []
        with psycopg.connect(database_url) as first:
            assert send_staged(first, [a], [1]) == 1

            def second() -> None:
                with psycopg.connect(database_url, autocommit=True) as other:
                    done.append(send_staged(other, [b], [1]))

            thread = threading.Thread(target=second)
            thread.start()
            wait_until(lambda: value(db, "select count(*) from pg_stat_activity where wait_event_type = 'Lock'") == 1)
            first.commit()
        thread.join()
        assert done == [0]
        assert sent(db) == ["1"]

    def test_what_failed_leaves_nothing(self, db: Db) -> None:
        name = stage(db, "1", "2")
        for names, counts, state in [([name], [3], "HG030"), (["staged_99"], [1], "HG030"), ([name], [1, 2], "HG010")]:
            with pytest.raises(psycopg.Error) as caught:
                send_staged(db, names, counts)
            assert caught.value.sqlstate == state
        assert sent(db) == []
        assert value(db, "select headgate.last_written('s', 'w')") is None
        assert send_staged(db, [name], [2]) == 2, "and it can be repeated"

    def test_staging_of_others_is_not_taken(self, db: Db) -> None:
        name = stage(db, "1", writer="other")
        with pytest.raises(psycopg.Error, match="is gone"):
            send_staged(db, [name], [1])

    def test_limits(self, db: Db) -> None:
        call(db, "alter_stream", "s", max_message_bytes=10)
        with pytest.raises(psycopg.Error) as caught:
            send_staged(db, [stage(db, "x" * 11)], [1])
        assert caught.value.sqlstate == "HG009"
        with pytest.raises(psycopg.Error, match="has no channels"):
            stage(db, "x", channels=True)
        with pytest.raises(psycopg.Error, match="needs a writer"):
            stage(db, "x", writer="")

    def test_more_than_a_segment(self, db: Db) -> None:
        call(db, "alter_stream", "s", segment_rows=1000)
        name = stage(db)
        db.execute(f"insert into headgate.{name} select 'k', i::text from generate_series(1, 60000) i")
        call(db, "make_room", "s", 60000)
        assert send_staged(db, [name], [60000]) == 60000
        assert value(
            db, "select array_agg(data::int order by seq) = array(select generate_series(1, 60000)) from headgate.log_s"
        )

    def test_a_dropped_stream(self, db: Db) -> None:
        name = stage(db, "1")
        call(db, "drop_stream", "s")
        assert value(db, "select to_regclass('headgate.' || %s)", name) is None

    def test_orphans(self, db: Db) -> None:
        old, young = stage(db, "1"), stage(db, "2", batch=1)
        db.execute("update headgate.staging set created_at = created_at - interval '2 days' where name = %s", [old])
        done = db.execute("select done from headgate.maintain() where task = 'collect staging'").fetchall()
        assert done == [(1,)]
        assert column(db, "select name from headgate.staging") == [young]


def test_channels(db: Db) -> None:
    call(db, "create_stream", "s", lane_by="channel")
    assert send_staged(db, [stage(db, "1", channels=True)], [1]) == 1
    assert column(db, "select channel from headgate.log_s") == ["c"]


def test_one_message_per_key(db: Db) -> None:
    call(db, "create_stream", "s", one_message_per_key=True)
    assert send_staged(db, [stage(db, "1", "2", "3", "4")], [4]) == 4
    assert sent(db) == ["2", "3", "4"]


def test_a_producers_rights(db: Db, database_url: str) -> None:
    """Enough to stage and to send, and to read nothing."""
    call(db, "create_stream", "s")
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("set role headgate_producer")
        name = stage(other, "1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(f"select * from headgate.{name}")
        assert send_staged(other, [name], [1]) == 1
    assert sent(db) == ["1"]
