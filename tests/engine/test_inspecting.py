"""Looking at messages by their state: what peek shows, how much it reads, and what became of messages that are over."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.calls import (
    Db,
    ack,
    call,
    column,
    discard,
    drain,
    facts,
    forge_dead,
    nack,
    pass_time,
    receive,
    same_lane_keys,
    send,
    send_batch,
    tick,
    value,
)
from support.databases import new_database
from support.plans import Explained, Statement

S, C = "s", "c"
STATES = ("available", "delivered", "parked", "done", "dead", "discarded")
LONG = 60_000  # acked messages


def peek(db: Db, consumer: str = C, max: int | None = 10, **named: object) -> list[tuple[int, str]]:
    parameters = ", ".join(f"{name} => %s" for name in named)
    query = f"select seq, state from headgate.peek('s', %s, %s{', ' if named else ''}{parameters})"
    return db.execute(query, (consumer, max, *named.values())).fetchall()


def state(db: Db, seq: int, consumer: str = C) -> str:
    found = "select state from headgate.message_states('s', %s) where consumer = %s"
    return str(value(db, found, seq, consumer))


class TestAgainstTheStateOfEachMessage:
    """Whatever happened to a consumer, peek says what message_states says of each message, one by one."""

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
    def test_histories(self, db: Db, database_url: str, lane_by: str, seed: int) -> None:
        chance = random.Random(f"{lane_by} {seed}")
        call(db, "create_stream", S, lanes=4, lane_by=lane_by, segment_rows=1000)
        order = chance.choice(["none", "key"])
        call(db, "create_consumer", S, C, chance.choice([None, ["k.*"]]), order, max_deliver=2)
        with psycopg.connect(database_url) as slow:
            for step in range(30):
                self.step(db, slow, chance, lane_by)
                if step % 10 == 9:
                    self.compare(db, chance)
            slow.rollback()

    def step(self, db: Db, slow: Db, chance: random.Random, lane_by: str) -> None:
        what = chance.choice(["send"] * 4 + ["receive"] * 4 + ["late", "commit", "discard", "redrive", "seek", "lanes"])
        if what in ("send", "late"):
            n = chance.randint(1, 30)
            keys = [chance.choice(["k.", "x."]) + str(chance.randint(1, 9)) for _ in range(n)]
            channels = [f"c{chance.randint(1, 9)}" for _ in range(n)] if lane_by == "channel" else None
            send_batch(slow if what == "late" else db, S, ["d"] * n, keys=keys, channels=channels)
        elif what == "commit":
            slow.commit()
        elif what == "receive":
            tick(db, S)
            for m in receive(db, S, C, chance.randint(1, 40)):
                settle = chance.choice([ack, ack, ack, nack, None])
                if settle is ack:
                    ack(db, S, C, [m])
                elif settle is nack:
                    nack(db, S, C, [m], chance.choice(["0", "1 hour"]), "why")
        elif what == "discard":
            discard(db, S, C, [m for m, _ in peek(db, states=chance.sample(list(STATES[:3]), 2))][:3])
        elif what == "redrive":
            call(db, "redrive", S, C, all=True)
        elif what == "seek":
            call(db, "seek", S, C, str(chance.randint(1, 50)))
        elif what == "lanes" and lane_by == "hash":
            with suppress(psycopg.errors.LockNotAvailable):  # the slow transaction may write in the lanes before
                call(db, "set_lanes", S, chance.randint(1, 8))

    def compare(self, db: Db, chance: random.Random) -> None:
        truth = [
            (seq, state)
            for seq, state in db.execute(
                "select m.seq, x.state from headgate.messages('s', 10000) m, headgate.message_states('s', m.seq) x"
            )
            if state != "skipped"
        ]
        for some in itertools.chain([None], (chance.sample(STATES, chance.randint(1, 5)) for _ in range(4))):
            wanted = [(q, s) for q, s in truth if some is None or s in some]
            for newest_first in (False, True):
                ordered = wanted[::-1] if newest_first else wanted
                assert peek(db, max=10_000, states=some, newest_first=newest_first) == ordered, some
                few = chance.randint(15, 40)
                assert self.paged(db, few, some, newest_first) == ordered, (some, few)
        after, before = sorted(chance.sample(range(400), 2))
        between = [(q, s) for q, s in truth if after < q < before and s in ("available", "parked")]
        assert peek(db, max=10_000, states=["available", "parked"], after=after, before=before) == between

    def paged(self, db: Db, few: int, states: object, newest_first: bool) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        while True:
            edge = {} if not found else {"before" if newest_first else "after": found[-1][0]}
            more = peek(db, max=few, states=states, newest_first=newest_first, **edge)
            found += more
            if not more:
                return found


@pytest.fixture(scope="module", params=["hash", "channel"])
def long(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A consumer that is done with a long log, but for a few messages at its end; and one that no key passes."""
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        call(db, "create_stream", S, lane_by=request.param)
        call(db, "create_consumer", S, C)
        call(db, "create_consumer", S, "nothing", ["nothing"])
        channels = [f"c{n % 50}" for n in range(10_000)] if request.param == "channel" else None
        for _ in range(LONG // 10_000):
            send_batch(db, S, ["d"] * 10_000, keys=[f"k{n}" for n in range(10_000)], channels=channels)
        tick(db, S)
        done: list[str] = []
        while got := db.execute("select ack_id from headgate.receive('s', 'c', 1000, acks => %s)", [done]).fetchall():
            done = sorted({row[0].rpartition(".")[0] for row in got})
        for data in ("parked", "delivered"):
            send(db, S, data, channel="c1" if channels else None)
        tick(db, S)
        got2 = {m.data: m for m in receive(db, S, C, 10)}
        nack(db, S, C, [got2["parked"]], "1 hour")
        send(db, S, "available", channel="c2" if channels else None)
        yield url


class TestWhatItReads:
    @pytest.fixture
    def explained(self, long: str) -> Iterator[Explained]:
        with psycopg.connect(long, autocommit=True) as db:
            yield Explained(db)

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("state", ["available", "delivered", "parked", "dead", "discarded", "done", None])
    def test_not_the_log(self, explained: Explained, state: str | None, newest_first: bool) -> None:
        rows, found = explained.run(
            "select state, data from headgate.peek('s', 'c', 10, %s, %s)",
            newest_first,
            None if state is None else [state],
        )
        assert all(row[0] == state for row in rows) or state is None
        if state in ("available", "delivered", "parked"):
            assert [row[1] for row in rows] == [state]
        else:
            assert len(rows) == (0 if state in ("dead", "discarded") else 10)
        assert read(found) < 6000, state
        assert found[-1].buffers < 8000

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("states", [["available"], ["available", "done"], None])
    def test_a_filter_that_nothing_passes(
        self, long: str, explained: Explained, states: list[str] | None, newest_first: bool
    ) -> None:
        """The look ends somewhere, and says where to go on."""
        _, found = explained.run("select * from headgate.peek('s', 'nothing', 10, %s, %s)", newest_first, states)
        assert read(found) < 300_000
        with headgate.connect(long) as hg:
            consumer, edge, looks = hg.stream(S).consumer("nothing"), None, 0
            while True:
                page = consumer.peek(
                    states=states, newest_first=newest_first,  # type: ignore[arg-type]
                    **{"before" if newest_first else "after": edge},
                )  # fmt: skip
                looks += 1
                assert page == []
                if page.next is None:
                    break
                assert edge is None or (page.next < edge if newest_first else page.next > edge)
                edge = page.next
            assert looks < 20

    def test_what_it_does_not_know(self, db: Db) -> None:
        call(db, "create_stream", S)
        call(db, "create_consumer", S, C)
        for wrong in ({"states": ["gone"]}, {"states": [None]}, {"max": -1}):
            with pytest.raises(psycopg.Error) as told:
                peek(db, **wrong)  # type: ignore[arg-type]
            assert told.value.sqlstate == "HG010"
        assert peek(db, max=None) == []


def read(found: list[Statement]) -> float:
    """Rows of the log that a call read, whether it used them or not."""
    return sum(n.rows + n.removed for s in found for n in s.on("message_") if n.kind != "ModifyTable")


class TestHowItEnded:
    @pytest.fixture
    def failing(self, db: Db) -> int:
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, C, max_deliver=1)
        return send(db, S, "bad")[0]

    def test_dead(self, db: Db, failing: int, hg: headgate.Headgate) -> None:
        nack(db, S, C, receive(db, S, C), error="no luck")
        assert state(db, failing) == "dead"
        [seen] = hg.stream(S).consumer(C).peek(states=["dead"])
        assert (seen.state, seen.attempt, seen.last_error) == ("dead", 1, "no luck")
        assert peek(db) == [(failing, "dead")]
        assert peek(db, states=["done"]) == []
        call(db, "redrive", S, C, all=True)
        assert state(db, failing) == "parked"
        ack(db, S, C, receive(db, S, C))
        assert state(db, failing) == "done"

    def test_a_dead_letter_that_is_purged(self, db: Db, failing: int) -> None:
        nack(db, S, C, receive(db, S, C))
        call(db, "purge_dead", S, C, all=True)
        assert state(db, failing) == "done"

    def test_forged_dead_letters(self, db: Db, failing: int) -> None:
        """They can neither break what is shown, nor fail to be sent because of an index."""
        nack(db, S, C, receive(db, S, C))
        for headers in (
            {"source_consumer": C, "source_seq": "garbage"},
            {"source_consumer": C, "source_seq": "9" * 19},
            {"source_consumer": C, "source_seq": "9" * 10_000, "attempts": "many"},
            {"source_consumer": "c" * 10_000, "source_seq": 1},
            {"source_consumer": C, "source_seq": {"a": [1]}},
        ):
            forge_dead(db, "s.dead", "forged", headers=headers)
        assert peek(db, states=["dead"]) == [(failing, "dead")]
        assert state(db, failing) == "dead"
        assert facts(db, S, C)["dead"] == 5, "those that say they are this consumer's count"

    def test_discarded(self, db: Db, failing: int) -> None:
        other = send(db, S, "good", delay="1 hour")[0]
        ack(db, S, C, [m for m in receive(db, S, C) if m.seq == failing])
        tick(db, S)
        assert receive(db, S, C) == []
        assert state(db, other) == "parked"
        assert discard(db, S, C, [other]).discarded == 1
        assert state(db, other) == "discarded"
        assert peek(db, states=["discarded"]) == [(other, "discarded")]
        assert peek(db, states=["done"]) == [(failing, "done")]
        call(db, "seek", S, C, "beginning")
        assert state(db, other) == "available"
        assert column(db, "select seq from headgate.discarded") == []

    def test_nothing_of_it_is_left(self, db: Db, failing: int) -> None:
        assert discard(db, S, C, [999]).discarded == 0
        other = send(db, S, "good", delay="1 hour")[0]
        tick(db, S)
        ack(db, S, C, receive(db, S, C))
        assert discard(db, S, C, [other]).discarded == 1
        stream = value(db, "select id from headgate.stream where name = 's'")
        db.execute(f"update headgate.segment set state = 'dropped' where stream = {stream}")
        db.execute(f"truncate headgate.message_{stream}")
        call(db, "send", S, "so that there is one")
        db.execute("select * from headgate.maintain()")
        assert column(db, "select seq from headgate.discarded") == []
        db.execute("insert into headgate.discarded (consumer, seq) select id, 1 from headgate.consumer")
        call(db, "drop_consumer", S, C)
        assert column(db, "select seq from headgate.discarded") == []


class TestSettingsThatDiffer:
    def told(self, db: Db, function: str, *arguments: object, **named: object) -> tuple[str, str]:
        with pytest.raises(psycopg.Error) as error:
            call(db, function, *arguments, if_not_exists=True, **named)
        assert error.value.sqlstate == "HG015"
        return str(error.value.diag.message_primary), str(error.value.diag.message_hint)

    def test_streams(self, db: Db) -> None:
        made = call(db, "create_stream", S, lanes=4, retain_up_to="30 days")
        assert call(db, "create_stream", S, if_not_exists=True) == made
        same = {
            "lanes": 4,
            "lane_by": "hash",
            "retain_up_to": "720 hours",
            "dedup_window": "300 s",
            "max_storage": None,
        }
        assert call(db, "create_stream", S, if_not_exists=True, **same) == made
        message, hint = self.told(
            db, "create_stream", S, lanes=5, lane_by="key", max_storage=2_000_000, retain="forever"
        )
        assert message.endswith("lanes is 4, not 5; lane_by is hash, not key; max_storage is none, not 2000000")
        assert "headgate.alter_stream(…), headgate.set_lanes(…)" in hint
        assert "lane_by cannot be changed" in hint
        call(db, "alter_stream", S, max_storage=2_000_000)
        assert call(db, "create_stream", S, max_storage=2_000_000, if_not_exists=True) == made

    def test_defaults(self, db: Db) -> None:
        call(db, "create_stream", S, *[None] * 14)
        row = db.execute(
            "select lanes, lane_by, retain, dedup_window::text, max_message_bytes, segment_rows, segment_bytes, "
            "compact_every::text, one_message_per_key, process_unmodified from headgate.stream"
        ).fetchone()
        assert row == (16, "hash", "forever", "00:05:00", 16777216, 1000000, 1073741824, "00:30:00", False, False)
        call(db, "create_consumer", S, C, *[None] * 13)
        row = db.execute("select ordered, ack_wait::text, leased, lease_time::text from headgate.consumer").fetchone()
        assert row == (False, "00:00:30", False, "00:00:10")

    def test_consumers(self, db: Db) -> None:
        call(db, "create_stream", S)
        push = {"url": "https://a.b/c", "secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "timeout": 2.5}
        made = call(db, "create_consumer", S, C, ["a", "b"], backoff={"first": 1.0}, push=push)
        same = {"filter": ["b", "a", "b"], "backoff": {"first": 1}, "order": "none", "start": "end", "push": push}
        assert call(db, "create_consumer", S, C, if_not_exists=True, **same) == made
        other = {
            **push,
            "secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI0",
            "timeout": 3,
            "headers": {"X-Key": "hidden"},
        }
        message, hint = self.told(
            db, "create_consumer", S, C, filter=["a"], order="key", max_deliver=3, leased=True, push=other
        )
        assert message.endswith(
            "filter is {a,b}, not {a}; order is none, not key; max_deliver is none, not 3; leased is false, not true; "
            "push.secret is another one, not the given one; push.timeout is 2.5, not 3; "
            "push.headers is others, not the given ones"
        )
        assert "whsec" not in message + hint
        assert "hidden" not in message + hint
        assert "order, leased cannot be changed" in hint

    def test_upsert_streams_are_always_in_order(self, db: Db) -> None:
        call(db, "create_stream", S, one_message_per_key=True)
        made = call(db, "create_consumer", S, C, order="none")
        for order in ("none", "key", None):
            assert call(db, "create_consumer", S, C, order=order, if_not_exists=True) == made

    def test_creators_at_once(self, db: Db, database_url: str) -> None:
        answers: list[Any] = []

        def create() -> None:
            with psycopg.connect(database_url, autocommit=True) as other:
                gate.wait(30)
                stream = call(other, "create_stream", S, lanes=3, retain="until_acked", if_not_exists=True)
                consumer = call(other, "create_consumer", S, C, max_deliver=3, backoff=None, if_not_exists=True)
                answers.append((stream, consumer))

        gate = threading.Barrier(6)
        threads = [threading.Thread(target=create) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert len(answers) == 6
        assert len(set(answers)) == 1


class TestFigures:
    def test_many_channels(self, db: Db) -> None:
        """No function is called for each lane, and no lane is looked into that does not matter."""
        call(db, "create_stream", S, lane_by="channel")
        call(db, "create_consumer", S, C)
        for start in range(0, 20_000, 5000):
            send_batch(db, S, ["d"] * 5000, channels=[f"c{n}" for n in range(start, start + 5000)])
        tick(db, S)
        receive(db, S, C, 10)
        calls = "select coalesce(sum(calls), 0) from pg_stat_user_functions where schemaname = 'headgate'"
        db.execute("set track_functions = 'all'")
        facts(db, S, C)
        db.execute("select pg_stat_force_next_flush()")
        before = value(db, calls)
        row = facts(db, S, C)
        db.execute("select pg_stat_force_next_flush()")
        assert value(db, calls) - before < 200
        assert row["lag"] >= 10_000
        assert row["floor"] == 0

    def test_kept_messages_count(self, db: Db) -> None:
        stream = call(db, "create_stream", S, retain="until_acked")
        call(db, "create_consumer", S, C)
        send(db, S, "a", "b", "c")
        tick(db, S)
        nack(db, S, C, receive(db, S, C), "1 hour")
        db.execute(f"insert into headgate.preserved_{stream} select * from headgate.message_{stream}")
        db.execute(f"truncate headgate.message_{stream}")
        row = db.execute("select messages, exact, oldest is not null from headgate.streams where name = 's'").fetchone()
        assert row == (3, True, True)


def test_a_statement_without_a_result(hg: headgate.Headgate, db: Db) -> None:
    assert hg.run("create table made (n int)", ()) == []
    assert hg.run("insert into made values (1)", (), db) == []
    assert hg.run("select n from made") == [(1,)]


class TestHeartbeats:
    """A worker's row is held by others: by who takes it for dead, or by a call of the same worker."""

    def test_while_it_is_given_up(self, db: Db, database_url: str) -> None:
        call(db, "create_stream", S, lanes=4)
        call(db, "create_consumer", S, C, leased=True, lease_time="1 second")
        assert call(db, "join_workers", S, C, "w") == [0, 1, 2, 3]
        pass_time(db, "2 seconds")
        with psycopg.connect(database_url) as other:
            other.execute("select headgate.expire_workers(c, clock_timestamp()) from headgate.consumer c")
            assert call(db, "heartbeat", S, C, "w") == [], "it has none"
        assert call(db, "heartbeat", S, C, "w") == [0, 1, 2, 3]

    def test_while_it_is_alive(self, db: Db, database_url: str) -> None:
        """It waits for longer than others are waited for; and without being renewed it is not told that it was."""
        call(db, "create_stream", S, lanes=4)
        call(db, "create_consumer", S, C, leased=True, lease_time="6 seconds")
        assert call(db, "join_workers", S, C, "w") == [0, 1, 2, 3]
        with psycopg.connect(database_url) as other:
            call(other, "heartbeat", S, C, "w")
            threading.Timer(0.7, other.commit).start()
            assert call(db, "heartbeat", S, C, "w") == [0, 1, 2, 3]
            call(other, "heartbeat", S, C, "w")
            with pytest.raises(psycopg.errors.LockNotAvailable, match="another call of the worker"):
                call(db, "heartbeat", S, C, "w")


def test_the_floor_does_not_go_back_when_a_lane_wakes_up(db: Db) -> None:
    """A lane that nobody has sent to for long holds the floor before its next message, not where it was read last."""
    call(db, "create_stream", "woken", lanes=2)
    call(db, "create_consumer", "woken", "c")
    [busy] = same_lane_keys(db, 2, 1)
    idle = next(k for k in (f"k{n}" for n in range(1, 100)) if k not in same_lane_keys(db, 2, 100))
    for _ in range(3):
        send_batch(db, "woken", ["x"] * 10, keys=[busy] * 10)
        ack(db, "woken", "c", receive(db, "woken", "c", 10))
    assert facts(db, "woken", "c")["floor"] == 30
    send(db, "woken", "y", key=idle)
    assert facts(db, "woken", "c")["floor"] == 30


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("lane_by", ["hash", "key"])
def test_the_floor_does_not_go_back_for_who_is_late_before_the_start(
    db: Db, database_url: str, lane_by: str, is_done: bool
) -> None:
    """A transaction that has been open for long may still send what lies before the seq that the consumer starts at."""
    call(db, "create_stream", "later", lane_by=lane_by)
    call(db, "create_consumer", "later", "c")
    send(db, "later", "1", "2", key="k")
    tick(db, "later")
    with psycopg.connect(database_url) as late:
        send(late, "later", "late", key="k")
        send_batch(db, "later", ["x"] * 10, keys=["k"] * 10)
        call(db, "seek", "later", "c", "10")
        if is_done:
            assert len(drain(db, "later", "c")) == 4
        floor = facts(db, "later", "c")["floor"]
        assert floor >= 9
        seqs = value(db, "select id from headgate.stream where name = 'later'")
        db.execute(f"select nextval('headgate.seq_{seqs}') from generate_series(1, 11000)")
        send(db, "later", "y", key="k")
        tick(db, "later")
        assert value(db, "select late_xids is not null from headgate.tick order by id desc limit 1")
        assert facts(db, "later", "c")["floor"] >= floor


def test_after_a_seek_lanes_with_notes_count(db: Db) -> None:
    """A seek takes the cursors of named lanes away, and leaves notes for those with messages that compaction kept."""
    call(db, "create_stream", "noted", lane_by="channel")
    call(db, "create_consumer", "noted", "c")
    send_batch(db, "noted", ["x"] * 40, channels=["a"] * 40)
    receive(db, "noted", "c", 40)
    call(db, "seek", "noted", "c", "beginning")
    assert facts(db, "noted", "c")["unread"] == 40
    lane = value(db, "select lane from headgate.log_noted limit 1")
    db.execute("insert into headgate.wake (consumer, lane) select id, %s from headgate.consumer", [lane])
    assert facts(db, "noted", "c")["unread"] == 40
