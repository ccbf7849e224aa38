"""A send that gets its transaction id while a tick is being made must not fall behind the tick.

A tick says: a transaction with an id >= bound has only seqs above hi0. So hi0 must be read before the tick's own
transaction has an id, and locking the stream's row gives it one. (Found behind PgBouncer on a busy machine, where about
one message in ten thousand was never delivered.)
"""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import Connection

from support.engine import create, datas, drain, receive, scalar, send, tick
from support.waiting import wait_until


@pytest.mark.parametrize("committed", [False, True], ids=["open", "committed"])
def test_a_send_between_the_lock_and_the_rest_of_a_tick(database_url: str, db: Connection, committed: bool) -> None:
    """The tick is held up, with its row locked, where it looks whether the database was restored."""
    create(db, "c", lanes=1)
    send(db, "first")
    tick(db)
    assert datas(drain(db)) == ["first"]
    send(db, "second")  # so that there is something to make a tick for
    with psycopg.connect(database_url) as holder, psycopg.connect(database_url) as sender:
        holder.execute("lock table headgate.cluster_identity in access exclusive mode")
        with psycopg.connect(database_url, autocommit=True) as ticker:
            pid = ticker.info.backend_pid
            thread = threading.Thread(target=lambda: ticker.execute("select headgate.tick('s')"))
            thread.start()
            waiting = (
                "select count(*) from pg_locks where pid = %s and not granted "
                "and relation = 'headgate.cluster_identity'::regclass"
            )
            wait_until(lambda: scalar(db, waiting, pid) == 1)
            send(sender, "third")
            if committed:
                sender.commit()
            holder.rollback()
            thread.join(30)
            assert not thread.is_alive()
        found = datas(receive(db))  # moves the cursor to that tick
        sender.commit()
        assert sorted(found + datas(drain(db))) == ["second", "third"]
