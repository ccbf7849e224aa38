"""Sessions that are made to meet at the points of the engine: see `headgate torture --meetings`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.torture.environment.server import Environments, databases_on
from headgate.torture.meetings import points
from headgate.torture.meetings.meetings import (
    ALONE,
    COMMITS,
    MODES,
    Meeting,
    Stage,
    Stop,
    all_meetings,
    stage,
    stood_still,
)
from headgate.torture.meetings.worlds import OPERATIONS, WORLDS
from headgate.torture.report.explain import explain_all
from torture.drafts import Draft
from torture.mutants import MUTANTS, Mutant

SEED = 2  # of the sample

# Operations that pass all the points between them.
SAMPLE = {
    "hash": (
        "send",
        "send ids",
        "release",
        "extend all",
        "extend and ack",
        "expire and ack",
        "retry_now",
        "replay",
        "discard all",
        "pass discarded",
        "alter",
    ),
    "hash-ordered": ("set_lanes", "seek", "extend and receive"),
    "layouts": ("receive with acks",),
    "blocked": ("receive with acks",),
    "channels-ordered": ("receive with acks",),
    "discovered": ("receive",),
    "keys": ("discard all",),
    "dead": ("nack", "redrive"),
    "upsert": ("send", "receive with acks"),
    "expired-keys": ("receive with acks",),
    "leased": ("join_workers",),
    "pending": ("receive",),
    "storage": ("maintain on",),
    "removal": ("maintain on",),
}

# Faults that random histories hardly find, and the meeting that does.
LOOK = "    flying := headgate.keys_in_flight(c.id, l.lane);\n"
POINT = "    -- point: the keys in flight are known\n"
LOOK_AFTER = "    any_parked := exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane);\n"
PLANTED = [
    (
        next(m for m in MUTANTS if m.name == "a lane that is held is not woken"),
        Meeting("discovered", Stop("receive", "a rotation knows what is in flight", 1), "send and receive", ALONE),
    ),
    (
        Mutant("what is parked is looked at first", LOOK + POINT + LOOK_AFTER, LOOK_AFTER + POINT + LOOK, ()),
        Meeting("hash-ordered", Stop("receive", "the keys in flight are known", 1), "nack all", ALONE),
    ),
    (
        next(m for m in MUTANTS if m.name == "a segment goes whoever needs it"),
        Meeting("storage", Stop("compact", "a segment is to be emptied", 1), "seek", ALONE),
    ),
    (
        next(m for m in MUTANTS if m.name.startswith("maintenance has an id")),
        Meeting("hash", Stop("maintain and receive", "streams are to get ticks", 1), "send", COMMITS),
    ),
    (
        Mutant("spans do not go back to late messages", "  if not isempty(below) then\n", "  if false then\n", ()),
        Meeting("late", Stop("receive", "a tick has its snapshot", 1), "commit the late one", ALONE),
    ),
]


@pytest.fixture(scope="module")
def environments(cluster: Cluster) -> Iterator[Environments]:
    """Grounds with the test build."""
    with databases_on(cluster.url(), points.stopping_build()) as made:
        yield made


@contextmanager
def on(environments: Environments, world: str) -> Iterator[Stage]:
    with environments(WORLDS[world]) as environment, stage(environment.url, WORLDS[world]) as opened:
        yield opened


def hold(place: Stage, meeting: Meeting) -> bool:
    """Whether the first session did stop; what came of it must be right."""
    met = place.meet(meeting)
    assert not met.findings, f"{meeting}\n" + explain_all(met.history, place.preset, met.findings, str(meeting))
    return met.was_there


def test_names() -> None:
    names = points.names()
    assert len(names) == len(set(names))
    assert not [name for name in names if "'" in name or name != name.strip()]
    assert "at_point" not in schema.install_sql()
    assert points.stopping_build().count("assert headgate.at_point(") == len(names)
    assert {o for world in WORLDS.values() for o in world.weights} == set(OPERATIONS)


def test_one_waits_for_the_other(environments: Environments) -> None:
    """A seek does not pass a receive that has read a lane; a send passes it. Which shows that it did stop there."""
    with on(environments, "hash") as place:
        stop = Stop("receive", "a lane is read", 1)
        for other, waits in (("seek", True), ("send", False)):
            met = place.meet(Meeting("hash", stop, other, ALONE), patience=20)
            assert met.was_there
            first = next(e for e in reversed(met.history.events) if e.session == "A" and e.kind == "receive")
            second = next(e for e in reversed(met.history.events) if e.session == "B")
            assert first.called < second.called
            assert (second.answered > first.answered) == waits


def test_sample(environments: Environments) -> None:
    """A meeting at each point."""
    chance, left = random.Random(SEED), set(points.names())
    for world, operations in SAMPLE.items():
        with on(environments, world) as place:
            for stop in place.stops(operations):
                for _ in range(12):  # a tick, for instance, is due in one of three
                    if stop.point in left:
                        other = chance.choice(list(WORLDS[world].weights))
                        if hold(place, Meeting(world, stop, other, chance.choice(MODES))):
                            left.remove(stop.point)
    assert not left, f"nobody has stopped at {left}"


@pytest.mark.parametrize(("mutant", "meeting"), PLANTED, ids=[m.name for m, _ in PLANTED])
def test_planted(cluster: Cluster, mutant: Mutant, meeting: Meeting) -> None:
    """Found in a few meetings. (In some of them a lane that has to be another one is the same.)"""
    assert mutant.places(schema.install_sql())[0]
    with databases_on(cluster.url(), points.stopping_build(mutant.sql())) as made, on(made, meeting.world) as place:
        assert any(place.meet(meeting).findings for _ in range(10))


@pytest.mark.parametrize(
    "meeting",
    [
        # the nack was stale, and took the later message of the key out of its delivery all the same
        pytest.param(
            Meeting("hash-ordered", Stop("ack a part", "keys are to be noted", 1), "nack", COMMITS), id="nack"
        ),
        # the nack forgot, with the delivery of which nothing was left, that the later message had been released
        pytest.param(Meeting("keys", Stop("nack", "messages are to depart", 1), "release", ALONE), id="released"),
        # PostgreSQL's own 55P03: it was alone when it looked, and waited for longer than it may
        pytest.param(Meeting("hash", Stop("ack a part", "messages are to depart", 1), "ack a part", COMMITS), id="ack"),
    ],
)
def test_mended(environments: Environments, meeting: Meeting) -> None:
    """Faults of the engine that meetings have found."""
    with on(environments, meeting.world) as place:
        assert hold(place, meeting)


def test_a_fresh_tick_is_not_one_that_was_only_written_late(environments: Environments) -> None:
    """A tick had its snapshot, then a message was committed, then somebody asked for a fresh one. When the old one is
    written at last, and another session holds the stream's row, it is not taken for fresh because of its time."""
    with environments(WORLDS["hash"]) as environment, ExitStack() as stack:
        first, holder, reader = (
            stack.enter_context(psycopg.connect(environment.url, autocommit=True)) for _ in range(3)
        )
        director = stack.enter_context(closing(points.Director(environment.url)))
        threads = stack.enter_context(ThreadPoolExecutor(3))
        first.execute("select headgate.create_stream('s')")
        first.execute("select headgate.send('s', '1')")
        first.execute("select set_config('torture.stop_at', '1 a tick has its snapshot', false)")
        director.shut()
        old = threads.submit(first.execute, "select headgate.tick('s')")
        assert director.see_stop(first.info.backend_pid, old.done)
        reader.execute("select headgate.send('s', '2')")
        mark = threads.submit(reader.execute, "select headgate.mark('s')")
        assert not director.see_end(reader.info.backend_pid, mark.done, 1)  # it naps, for the first one has the row
        with holder.transaction():
            held = threads.submit(holder.execute, "select from headgate.stream for no key update")
            assert not director.see_end(holder.info.backend_pid, held.done, 1)
            director.open()
            held.result()
            director.see_end(reader.info.backend_pid, mark.done, 0.1)  # it has looked at the old one meanwhile
        unseen = "select count(*) from headgate.message_1 m where not pg_visible_in_snapshot(m.xid, %s::pg_snapshot)"
        assert reader.execute(unseen, [mark.result().fetchall()[0][0]["snap"]]).fetchall() == [(0,)]


@pytest.mark.parametrize(("queued", "found"), [(0.0, 1), (0.3, 1), (0.6, 0)])
def test_standing_still_is_not_what_the_machine_was_busy_with(queued: float, found: int) -> None:
    draft = Draft()
    draft.event("A", "maintain", 1).answered = 2.5
    draft.event("B", "seek", 1).queued = 9.0  # over before the first was let go
    draft.history.events[0].queued = queued
    assert len(list(stood_still(draft.history, 1.1))) == found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_all_meetings(environments: Environments, world: str, seed: int) -> None:
    with on(environments, world) as place:
        there = [hold(place, meeting) for meeting in all_meetings(WORLDS[world], place.stops(), seed)]
    assert sum(there) > len(there) * 0.8
