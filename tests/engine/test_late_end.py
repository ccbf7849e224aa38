"""A late transaction that ends while a tick is being made leaves its messages to be found.

A tick looks in pg_locks which late transactions have written in the stream, and need not be searched for when they have
not. One that ended after the tick's snapshot holds no lock any more, whatever it wrote. (Found by
`tests/engine/test_set_lanes_traffic.py`, now and then: a message was never delivered to anybody.)
"""

from __future__ import annotations

import threading

import psycopg
import pytest

from support.calls import Db, call, datas, pass_time, receive, send, value
from support.waiting import wait_until

S = "s"
NEWEST = "from headgate.tick where base = id order by id desc limit 1"


def public_tick(db: Db) -> None:
    """On a busy machine a call may take long to begin: it is taken for a user's open transaction, and makes a private
    tick."""
    before = value(db, f"select id {NEWEST}")

    def made() -> bool:
        call(db, "tick", S)
        return bool(value(db, f"select id {NEWEST}") != before)

    wait_until(made)


@pytest.mark.parametrize("known", [False, True], ids=["found late by this tick", "late before"])
def test_a_late_transaction_ends_between_the_snapshot_and_the_look_at_its_locks(
    db: Db, database_url: str, known: bool
) -> None:
    """The tick is held up, with its snapshot taken, where it draws its number."""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, "c")
    with psycopg.connect(database_url) as late, psycopg.connect(database_url) as holder:
        send(late, S, "late")
        send(db, S, "a")
        public_tick(db)
        assert datas(receive(db, S, "c")) == ["a"]
        pass_time(db, "2 seconds")
        if known:
            send(db, S, "b")
            public_tick(db)
            assert datas(receive(db, S, "c")) == ["b"]
            assert value(db, f"select cardinality(late_xids) {NEWEST}") == 1
            pass_time(db, "2 seconds")  # the look is due again
        send(db, S, "d")
        holder.execute("alter sequence headgate.tick_id increment 1")
        with psycopg.connect(database_url, autocommit=True) as worker:
            pid = worker.info.backend_pid
            found: list[str] = []
            # it makes the tick, and moves the cursor there
            thread = threading.Thread(
                target=lambda: found.extend(
                    m[0] for m in worker.execute("select data from headgate.receive(%s, 'c', open => false)", [S])
                )
            )
            thread.start()
            waiting = "select count(*) from pg_locks where pid = %s and not granted and relation = %s::regclass"
            wait_until(lambda: value(db, waiting, pid, "headgate.tick_id") == 1)
            late.commit()
            holder.rollback()
            thread.join(30)
            assert not thread.is_alive()
        assert found == ["d"]
    assert value(db, f"select cardinality(late_xids) {NEWEST}") == 1, "it was running in the snapshot of that tick"
    assert value(db, "select to_tick from headgate.cursor") == value(db, f"select id {NEWEST}")
    public_tick(db)
    assert datas(receive(db, S, "c")) == ["late"]


def test_the_owner_of_a_lock_is_not_known(db: Db, database_url: str) -> None:
    """As while a transaction is being prepared: then nobody is taken for one that has not written."""
    call(db, "create_stream", S, lanes=1)
    with psycopg.connect(database_url) as other_work, psycopg.connect(database_url) as without_id:
        other_work.execute("create table unrelated ()")
        send(db, S, "a")
        public_tick(db)
        without_id.execute("lock table headgate.message_1 in row exclusive mode")
        for is_known in (False, True):
            pass_time(db, "2 seconds")
            seq = send(db, S, "b")[0]
            public_tick(db)
            assert (value(db, f"select late_from[1] {NEWEST}") == seq) is is_known
            without_id.rollback()
