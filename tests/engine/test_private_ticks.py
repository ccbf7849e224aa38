"""A private tick lists what late transactions left up to the lo of the public tick it builds on, and no further."""

from __future__ import annotations

import time

import psycopg

from support.calls import Db, call, datas, pass_time, receive, send, tick, value
from support.waiting import wait_until

S = "s"


def test_a_private_tick_made_while_a_newer_public_one_is_not_committed(db: Db, database_url: str) -> None:
    """(Found under load: a message of a late transaction was never delivered.)"""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, "c")
    with psycopg.connect(database_url) as late, psycopg.connect(database_url) as first:
        send(late, S, "late 1")
        send(db, S, "a")
        assert datas(receive(db, S, "c")) == ["a"]
        pass_time(db, "2 seconds")
        send(db, S, "b")
        tick(db, S)
        assert value(db, "select late_xids is not null from headgate.tick order by id desc limit 1")
        assert datas(receive(db, S, "c")) == ["b"]
        old = value(db, "select max(id) from headgate.tick")
        send(late, S, "late 2")
        send(db, S, "c")
        time.sleep(0.003)  # ticks are a millisecond apart
        first.execute("select * from headgate.receive_1('c', 10, null, null, false)")  # a public tick, not committed
        assert value(first, "select lo >= 5 from headgate.tick where base = id order by id desc limit 1")
        late.commit()

        def made() -> bool:
            call(db, "tick", S)
            return value(db, "select base = %s and id > base from headgate.tick order by id desc limit 1", old) is True

        wait_until(made)
        first.commit()
    stays = """select (headgate.next_span(k, t)).to_tick = k.to_tick from headgate.cursor k, headgate.tick t
                where t.base <> t.id order by t.id desc limit 1"""
    assert value(db, stays)
    assert datas(receive(db, S, "c")) == ["late 1", "late 2"]
