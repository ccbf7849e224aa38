"""What became of a message: its failed attempts, and its whole life."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headgate.postgres.cluster import Cluster
from support.calls import Db, ack, call, column, nack, pass_time, receive, send, send_batch, value
from support.databases import new_database
from support.plans import Explained
from support.storage import create, end_segment, maintain

S, C = "orders", "c"


@pytest.fixture
def stream(db: Db) -> None:
    call(db, "create_stream", S, lanes=2)
    call(db, "create_consumer", S, C, max_deliver=2)


def attempts(db: Db, **chosen: Any) -> list[tuple[Any, ...]]:
    named = "".join(f", {name} => %s" for name in chosen)
    columns = "consumer, seq, attempt, outcome, is_dead, worker, error"
    return db.execute(f"select {columns} from headgate.attempts(%s{named})", [S, *chosen.values()]).fetchall()


def life(db: Db, seq: int, consumer: str | None = C) -> list[str]:
    """The events that are about the message, or about it and a consumer."""
    return column(
        db, "select event from headgate.message_life(%s, %s) where consumer is null or consumer = %s", S, seq, consumer
    )


def test_streams_of_both_kinds_in_one_session(db: Db) -> None:
    """Lanes are numbers of different sizes, and a session keeps its plans."""
    for n, lane_by in enumerate(("hash", "channel", "hash")):
        name = f"s{n}"
        call(db, "create_stream", name, lane_by=lane_by)
        call(db, "create_consumer", name, C)
        seq = send(db, name, "x")[0]
        assert column(db, "select event from headgate.message_life(%s, %s)", name, seq) == ["sent", "waiting"]


class TestAttempts:
    def test_success_leaves_none(self, db: Db, stream: None) -> None:
        send_batch(db, S, list("abc"))
        ack(db, S, C, receive(db, S, C))
        assert value(db, "select count(*) from headgate.attempt") == 0

    def test_nacks_deadlines_and_deaths(self, db: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        nack(db, S, C, receive(db, S, C, worker="w1"), "0", "first")
        receive(db, S, C, worker="w2")
        pass_time(db, "1 minute")
        assert receive(db, S, C) == []
        assert attempts(db) == [
            (C, seq, 2, "expired", True, "w2", None),
            (C, seq, 1, "nacked", False, "w1", "first"),
        ]
        [(began, at)] = db.execute(
            "select began, at from headgate.attempts('orders', %s) where attempt = 1", [seq]
        ).fetchall()
        assert began < at

    def test_chosen_and_page_by_page(self, db: Db, stream: None) -> None:
        call(db, "create_consumer", S, "other")
        sent = send_batch(db, S, list("abc"))
        for consumer in (C, "other"):
            got = receive(db, S, consumer)
            while len(got) < 3:
                got += receive(db, S, consumer)
            for m in got:
                nack(db, S, consumer, [m], "1 hour", m.data)
        assert len(attempts(db)) == 6
        assert {(a[0], a[6]) for a in attempts(db, seq=sent[1])} == {(C, "b"), ("other", "b")}
        assert [a[6] for a in attempts(db, seq=sent[2], consumer=C)] == ["c"]
        assert {a[0] for a in attempts(db, consumer="other")} == {"other"}
        newest = db.execute("select id from headgate.attempts('orders', max => 2)").fetchall()
        rest = db.execute("select id from headgate.attempts('orders', before => %s)", newest[-1]).fetchall()
        ids = [id for (id,) in newest + rest]
        assert ids == sorted(ids, reverse=True)
        assert len(ids) == 6

    def test_none_of_the_rolled_back(self, db: Db, stream: None) -> None:
        send(db, S, "a")
        got = receive(db, S, C)
        with db.transaction(force_rollback=True):
            nack(db, S, C, got)
        assert attempts(db) == []

    def test_released_and_blocked_ones_did_not_fail(self, db: Db, stream: None) -> None:
        call(db, "create_consumer", S, "ordered", order="key")
        sent = send_batch(db, S, list("abc"), keys=["k"] * 3)
        got = receive(db, S, "ordered")
        nack(db, S, "ordered", got[:1], "0")
        assert [a[1] for a in attempts(db)] == sent[:1]
        db.execute("select headgate.release(%s, %s, %s)", [S, C, [m.ack_id for m in receive(db, S, C)]])
        assert len(attempts(db)) == 1

    def test_long_errors_are_cut(self, db: Db, stream: None) -> None:
        send(db, S, "a")
        nack(db, S, C, receive(db, S, C), "0", "e" * 5000)
        assert attempts(db)[0][6] == "e" * 2000

    def test_bounded_per_message(self, db: Db) -> None:
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, C)
        sent = send_batch(db, S, ["a", "b"])
        for n in range(30):
            for m in receive(db, S, C):
                if m.data == "a" or n < 3:
                    nack(db, S, C, [m], "0", str(n))
                else:
                    ack(db, S, C, [m])
            if n % 10 == 9:
                maintain(db)
        maintain(db)
        assert [a[6] for a in attempts(db, seq=sent[0])] == [str(n) for n in range(29, 9, -1)]
        assert len(attempts(db, seq=sent[1])) == 3

    def test_bounded_per_stream(self, db: Db, stream: None) -> None:
        sent = send_batch(db, S, ["x"] * 30)
        got = receive(db, S, C, 100)
        while len(got) < 30:
            got += receive(db, S, C, 100)
        for m in got:
            nack(db, S, C, [m], "1 hour")
        trim = "select headgate.trim_attempts(s, p_in_all => 25) from headgate.stream s where name = 'orders'"
        assert value(db, trim) == 5
        assert value(db, trim) == 0
        assert {a[1] for a in attempts(db)} == set(sent) - {m.seq for m in got[:5]}

    def test_they_go_with_their_consumer(self, db: Db, stream: None) -> None:
        send(db, S, "a")
        nack(db, S, C, receive(db, S, C))
        call(db, "drop_consumer", S, C)
        assert value(db, "select count(*) from headgate.attempt") == 0

    def test_two_open_transactions_note_the_same_moment(self, db: Db, database_url: str, stream: None) -> None:
        send_batch(db, S, list("ab"), keys=["k", "k"])
        got = receive(db, S, C)
        assert len(got) == 2
        with psycopg.connect(database_url) as one, psycopg.connect(database_url) as two:
            one.execute("set lock_timeout = '1s'")
            two.execute("set lock_timeout = '1s'")
            assert nack(one, S, C, got[:1], "0", "one") == (1, 0)
            assert nack(two, S, C, got[1:], "0", "two") == (1, 0)
        assert sorted(a[6] for a in attempts(db)) == ["one", "two"]


class TestLife:
    def test_from_sent_to_done(self, db: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        assert life(db, seq) == ["sent", "waiting"]
        [m] = receive(db, S, C, worker="w1")
        [(at, worker, attempt, until)] = db.execute(
            "select at, worker, attempt, until from headgate.message_life(%s, %s) where event = 'delivered'", [S, seq]
        ).fetchall()
        assert (worker, attempt) == ("w1", 1)
        assert at < until
        ack(db, S, C, [m])
        assert life(db, seq) == ["sent", "done"]
        assert value(db, "select at from headgate.message_life(%s, %s) where event = 'done'", S, seq) is None

    def test_failures_death_redrive_replay_discard(self, db: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        nack(db, S, C, receive(db, S, C, worker="w1"), "0", "broken")
        assert life(db, seq) == ["sent", "delivered", "failed", "parked"]
        receive(db, S, C, worker="w2")
        pass_time(db, "1 minute")
        receive(db, S, C)
        died = ["sent", "delivered", "failed", "delivered", "expired", "dead"]
        assert sorted(life(db, seq)) == sorted(died)
        call(db, "redrive", S, C, all=True)
        assert sorted(life(db, seq)) == sorted([*died, "redriven", "parked"])
        ack(db, S, C, receive(db, S, C))
        assert sorted(life(db, seq)) == sorted([*died, "redriven", "done"])
        db.execute("select headgate.replay(%s, %s, seqs => %s)", [S, C, [seq]])
        assert sorted(life(db, seq)) == sorted([*died, "redriven", "replayed", "parked"])
        call(db, "discard", S, C, [seq])
        assert life(db, seq)[-2:] == ["replayed", "discarded"]
        rows = db.execute(
            "select event, attempt, worker, error from headgate.message_life(%s, %s) where consumer = 'c'", [S, seq]
        ).fetchall()
        assert ("failed", 1, "w1", "broken") in rows
        assert ("expired", 2, "w2", None) in rows

    def test_each_consumer_and_why_it_waits(self, db: Db, stream: None) -> None:
        call(db, "create_consumer", S, "ordered", order="key")
        call(db, "create_consumer", S, "filtered", filter=["x.>"])
        sent = send_batch(db, S, ["a", "b"], keys=["k", "k"])
        nack(db, S, "ordered", receive(db, S, "ordered")[:1], "1 hour", "no")
        assert life(db, sent[0], "ordered") == ["sent", "delivered", "failed", "parked"]
        assert life(db, sent[1], "ordered") == ["sent", "blocked"]
        assert life(db, sent[0], "filtered") == ["sent", "skipped"]
        assert life(db, sent[0], C) == ["sent", "waiting"]
        [late] = send(db, S, "c", delay="1 hour")
        receive(db, S, C)
        assert life(db, late) == ["sent", "delayed"]
        until = column(db, "select until from headgate.message_life(%s, %s) where consumer is null", S, late)
        assert until[0] > value(db, "select clock_timestamp()")

    def test_letters_of_which_no_attempt_is_known(self, db: Db, stream: None) -> None:
        [seq] = send(db, S, "a")
        for _ in range(2):
            nack(db, S, C, receive(db, S, C), "0", "broken")
        db.execute("delete from headgate.attempt")
        [(at, attempt, error)] = db.execute(
            "select at, attempt, error from headgate.message_life(%s, %s) where event = 'dead'", [S, seq]
        ).fetchall()
        assert (at is not None, attempt, error) == (True, 2, "broken")

    def test_what_is_gone(self, db: Db) -> None:
        create(db, S, retain="until_acked")
        call(db, "create_consumer", S, C)
        sent = send_batch(db, S, ["x"] * 3)
        nack(db, S, C, [m for m in receive(db, S, C) if m.seq == sent[0]], "0", "once")
        while got := receive(db, S, C):
            ack(db, S, C, got)
        pass_time(db, "1 minute")
        while got := receive(db, S, C):
            ack(db, S, C, got)
        end_segment(db, S)
        maintain(db)
        assert value(db, "select count(*) from headgate.log_orders") == 0
        assert life(db, sent[0])[:2] == ["delivered", "failed"]
        assert life(db, sent[0])[-1] == "gone"
        assert life(db, value(db, "select headgate.last_seq(1)") + 1) == []
        assert life(db, -1) == []

    def test_no_such_stream(self, db: Db) -> None:
        with pytest.raises(psycopg.Error) as error:
            life(db, 1)
        assert error.value.sqlstate == "HG001"


CHANNELS = 2_000
MESSAGES = 40_000


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_stream('orders', lane_by => 'channel', segment_rows => 10000)")
        for name in ("c", "ordered"):
            db.execute(
                "select headgate.create_consumer('orders', %s, \"order\" => %s, ack_wait => '1 hour')",
                [name, "key" if name == "ordered" else "none"],
            )
        for _ in range(MESSAGES // 10_000):
            db.execute(
                "select headgate.send_batch('orders', array(select 'd' from generate_series(1, 10000)), "
                "array(select 'k' || n %% 100 from generate_series(1, 10000) n), "
                "channels => array(select 'ch' || n %% %s from generate_series(1, 10000) n))",
                [CHANNELS],
            )
        time.sleep(0.01)
        for name in ("c", "ordered"):
            for _ in range(10):
                rows = db.execute("select ack_id from headgate.receive('orders', %s, 1000)", [name]).fetchall()
                ids = [id for (id,) in rows]
                db.execute("select headgate.nack('orders', %s, %s, '1 hour', 'no')", [name, ids[::3]])
                db.execute("select headgate.ack('orders', %s, %s)", [name, ids[1::3]])
        db.execute("analyze")
        yield url


class TestSpeed:
    """What it reads does not depend on how much there is."""

    def test_life_and_attempts_read_by_index(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            explained = Explained(db)
            seqs = [value(db, f"select seq from headgate.{table} limit 1") for table in ("parked", "in_flight")]
            seqs.append(39_999)
            for query in (
                "select * from headgate.message_life('orders', %s)",
                "select * from headgate.attempts('orders', %s)",
            ):
                for seq in seqs:
                    explained.run(query, seq)
                    rows, found = explained.run(query, seq)
                    assert rows or "attempts" in query
                    tables = (
                        "message_",
                        "preserved_",
                        "delivery",
                        "departed",
                        "cursor",
                        "parked",
                        "attempt",
                        "discovered",
                    )
                    nodes = [n for s in found for t in tables for n in s.on(t)]
                    assert [str(n) for n in nodes if n.kind not in ("Index Scan", "Index Only Scan")] == []
                    assert sum(n.rows + n.removed for n in nodes) < 300, "\n".join(map(str, nodes))

    def test_a_replay_looks_at_each_message_once(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            for _ in range(20):
                if value(db, "select count(*) > 100 from headgate.discovered"):
                    break
                db.execute("select headgate.receive('orders', 'c', 10)").fetchall()
            rows, found = Explained(db).run("select * from headgate.replay('orders', 'c', from_seq => 1)")
            assert rows[0][0] > 1000
            most = max((n for s in found for n in s.nodes), key=lambda n: n.rows + n.removed)
            assert most.rows + most.removed <= 2 * MESSAGES, str(most)

    @pytest.mark.alone
    def test_it_is_quick(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            took = []
            for seq in range(100, 110):
                began = time.monotonic()
                db.execute("select * from headgate.message_life('orders', %s)", [seq]).fetchall()
                took.append(time.monotonic() - began)
            assert min(took) < 0.05
