"""Lanes that get their cursor from one session at the moment in which another moves the gatherer: none stays asleep."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.torture.environment.server import databases_on
from headgate.torture.meetings import points
from headgate.torture.meetings.worlds import WORLDS
from support.calls import ack, call, column, datas, receive, send
from torture.mutants import Mutant

S, C = "s", "c"
RECEIVE = f"select data from headgate.receive('{S}', '{C}', 10, open => %s)"

KNOWN = "    -- point: the gatherer knows its lanes\n"
POINTS = ["the gatherer has read", "the gatherer knows its lanes", "known lanes are woken"]

# As it was once: a second look for lanes without a cursor passed over those that had got one since the first.
TWO_LOOKS = Mutant(
    "the gatherer looks twice",
    KNOWN,
    KNOWN + "    select coalesce(array_agg(u.lane), '{}'), array_agg(u.name) into strange, strange_names\n"
    "      from unnest(strange, strange_names) u (lane, name)\n"
    "     where u.lane <> all(headgate.with_cursor(c.id, strange));\n",
    (),
)


def meet(cluster: Cluster, script: str, point: str, alone: bool | None) -> list[str]:
    """What comes in the end when a lane's first reader commits while the gatherer, at this point, is on its way to a
    later tick, which has a second message of the lane."""
    with databases_on(cluster.url(), points.stopping_build(script)) as environments, ExitStack() as stack:
        url = stack.enter_context(environments(WORLDS["keys"])).url
        db, mover, reader = (stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(3))
        director = stack.enter_context(closing(points.Director(url)))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        call(db, "create_stream", S, lane_by="channel")
        call(db, "create_consumer", S, C)
        seen: list[str] = []
        send(db, S, "1", channel="x")
        with reader.transaction():
            reader.execute("select pg_current_xact_id()")
            got = receive(reader, S, C)  # gives the lane a cursor, and leaves the gatherer where it is
            seen += datas(got)
            send(db, S, "2", channel="x")
            call(db, "tick", S)
            mover.execute("select set_config('torture.stop_at', %s, false)", [f"1 {point}"])
            director.shut()
            moved = thread.submit(column, mover, RECEIVE, alone)
            assert director.see_stop(mover.info.backend_pid, moved.done)
        director.open()
        seen += moved.result()
        ack(db, S, C, got)
        for _ in range(20):
            seen += datas(receive(db, S, C))
        return seen


@pytest.mark.parametrize("alone", [False, None])
@pytest.mark.parametrize("point", POINTS)
def test_a_lane_whose_first_reader_commits_meanwhile(cluster: Cluster, point: str, alone: bool | None) -> None:
    assert meet(cluster, schema.install_sql(), point, alone) == ["1", "2"]


def test_planted(cluster: Cluster) -> None:
    assert TWO_LOOKS.places(schema.install_sql())[0]
    assert meet(cluster, TWO_LOOKS.sql(), POINTS[1], False) == ["1"]
