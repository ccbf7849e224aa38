"""Dropping a stream that others are using."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from calls import Db, call, column, send, value
from conftest import NewCluster, wait_until
from test_many_segments import add_segments

from headgate import schema

GONE = {"HG001", "HG003", "42P01", "42883", "XX000"}  # the stream, or, at this moment, a part of it


@pytest.mark.parametrize("segments", [0, 120], ids=["at once", "in steps"])
def test_while_others_maintain_send_and_receive(db: Db, database_url: str, segments: int) -> None:
    """Neither the drop nor any of them ends in a deadlock."""
    over = threading.Event()

    def repeat(query: str) -> int:
        calls = 0
        with psycopg.connect(database_url, autocommit=True) as other:
            while not over.is_set():
                try:
                    other.execute(query)
                except psycopg.Error as error:
                    if error.sqlstate not in GONE:
                        raise
                calls += 1
                over.wait(0.02)
        return calls

    work = ["select * from headgate.maintain()"] * 2 + [
        "select headgate.send('s', 'x')", "select * from headgate.receive('s', 'c', 5)",
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(repeat, query) for query in work]
        try:
            for _ in range(3 if segments else 12):
                stream = call(db, "create_stream", "s", lanes=2)
                call(db, "create_consumer", "s", "c")
                add_segments(db, stream, segments)
                send(db, "s", "a")
                call(db, "drop_stream", "s")
        finally:
            over.set()
        assert all(other.result() > 0 for other in others)
    assert column(db, "select name from headgate.stream") == []
    left = "select count(*) from pg_class where relname ~ '^(message|dropped)_[0-9_]+$' and relkind in ('r', 'p')"
    wait_until(lambda: db.execute("select * from headgate.maintain()") and value(db, left) == 0)


def test_an_open_transaction_is_waited_for(db: Db, database_url: str) -> None:
    call(db, "create_stream", "s")
    with psycopg.connect(database_url) as writer, psycopg.connect(database_url, autocommit=True) as other:
        send(writer, "s", "x")
        dropping = threading.Thread(target=lambda: call(other, "drop_stream", "s"))
        dropping.start()
        wait_until(lambda: value(db, "select count(*) from pg_locks where not granted and locktype = 'relation'"))
        send(db, "s", "others go on meanwhile")
        writer.commit()
        dropping.join()
    with pytest.raises(psycopg.Error, match="does not exist"):
        send(db, "s", "x")


def test_an_autovacuum_gives_way(new_cluster: NewCluster) -> None:
    """It ends by itself only for who waits for its lock as long as deadlock_timeout says."""
    cluster = new_cluster()
    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute("alter system set autovacuum_naptime = '1s'")
        db.execute("select pg_reload_conf()")
        db.execute(schema.install_sql().encode())
        stream = call(db, "create_stream", "s")
        for _ in range(2):
            db.execute("select headgate.send_batch('s', array_fill(repeat('x', 500), array[10000]))")
        db.execute(f"""alter table headgate.message_{stream}_1 set (
            autovacuum_vacuum_insert_threshold = 1, autovacuum_vacuum_insert_scale_factor = 0,
            autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)""")  # one that takes minutes
        vacuumed = f"select count(*) from pg_stat_progress_vacuum where relid = 'headgate.message_{stream}_1'::regclass"
        wait_until(lambda: value(db, vacuumed))
        call(db, "drop_stream", "s")
        assert column(db, "select name from headgate.stream") == []
