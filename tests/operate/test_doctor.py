"""doctor(): each condition is made to happen, and must be found; a healthy database has none."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.rows import class_row

from headgate.database import schema
from support.calls import Db, ack, call, discard, nack, receive, send, send_batch, tick, value
from support.postgres import NewCluster

S = "orders"


class Found(NamedTuple):
    severity: str
    subject: str
    finding: str
    advice: str


def examine(db: Db, patience: str = "5 minutes") -> list[Found]:
    """All findings but that the tests' PostgreSQL does not fsync."""
    found = db.cursor(row_factory=class_row(Found)).execute("select * from headgate.doctor(%s)", [patience]).fetchall()
    assert [f for f in found if f.subject == "doctor"] == [], "an examination failed"
    return [f for f in found if f.subject != "setting fsync"]


def about(db: Db, subject: str, patience: str = "5 minutes") -> Found:
    """The one finding about this subject."""
    found = examine(db, patience)
    of_subject = [f for f in found if f.subject == subject]
    assert len(of_subject) == 1, found
    assert of_subject[0].advice
    return of_subject[0]


@pytest.fixture
def stream(db: Db) -> None:
    call(db, "create_stream", S, lanes=2, segment_rows=1000, retain="until_acked")
    call(db, "create_consumer", S, "c", max_deliver=2)


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url, application_name="report") as connection:
        yield connection
        connection.rollback()


def age_everything(db: Db, by: str = "1 hour") -> None:
    """As if nobody had looked at the stream for so long."""
    db.execute("update headgate.cursor set served_at = served_at - %s::interval", [by])
    for stream in db.execute("select id from headgate.stream").fetchall():
        db.execute(f"update headgate.message_{stream[0]} set created_at = created_at - %s::interval", [by])


@pytest.mark.usefixtures("stream")
class TestHealthy:
    def test_with_traffic_nothing_is_wrong(self, db: Db) -> None:
        for _ in range(3):
            send(db, S, "a", "b", "c")
            ack(db, S, "c", receive(db, S, "c"))
        db.execute("select headgate.maintain()")
        assert examine(db) == []

    def test_messages_that_have_just_come_are_no_finding(self, db: Db) -> None:
        db.execute("update headgate.cursor set served_at = served_at - interval '1 day'")
        send(db, S, "a")
        assert examine(db) == []

    def test_neither_is_a_worker_that_takes_its_time(self, db: Db) -> None:
        send(db, S, "a", "b", "c", "d")
        assert receive(db, S, "c", 1)
        age_everything(db)
        assert examine(db) == []

    @pytest.mark.alone
    def test_it_is_fast_beside_many_lanes_and_messages(self, db: Db) -> None:
        """What it looks at is bounded: far less than a millisecond a message."""
        call(db, "create_consumer", S, "many")
        db.execute(
            "insert into headgate.cursor (consumer, lane, served_at, pos, to_hi, to_tick, to_base, to_lo, from_tick, "
            "from_lo, to_snap, from_snap) select c.id, i + 100, clock_timestamp(), 0, 0, 1, 1, 0, 0, 0, '3:3:', "
            "'3:3:' from headgate.consumer c, generate_series(1, 100000) i where c.name = 'many'"
        )
        for _ in range(5):
            send_batch(db, S, ["x"] * 10_000)
        age_everything(db, "10 minutes")
        began = time.monotonic()
        assert re.search(r"about (49|50)\d\d\d messages wait", about(db, "consumer orders/c").finding)
        assert time.monotonic() - began < 2


@pytest.mark.usefixtures("stream")
class TestSessions:
    def test_an_old_snapshot_and_who_holds_it(self, db: Db, other: Db) -> None:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1")
        pid = other.info.backend_pid
        found = about(db, f"session {pid}", "0")
        assert found.severity == "problem"
        assert (
            f'Session {pid} (user {other.info.user}, application "report", idle in transaction) has a' in found.finding
        )
        assert "has sent" not in found.finding
        assert f"pg_terminate_backend({pid})" in found.advice
        assert examine(db) == [], "five minutes are allowed"

    def test_a_long_transaction_that_has_sent(self, db: Db, other: Db) -> None:
        call(db, "create_stream", "elsewhere")
        send(other, S, "a")
        send(other, "elsewhere", "a")
        wait = about(db, f"session {other.info.backend_pid}", "0").finding
        assert 'It has sent to "elsewhere", "orders"' in wait
        assert "when it commits" in wait
        other.commit()
        assert not [f for f in examine(db, "0") if f.subject.startswith("session")]

    @pytest.mark.alone
    def test_severity_grows_with_time(self, db: Db, other: Db) -> None:
        send(other, S, "a")
        began = time.monotonic()
        subject = f"session {other.info.backend_pid}"
        found = [f for f in examine(db, "0.05 s") if f.subject == subject]
        while not found:
            found = [f for f in examine(db, "0.05 s") if f.subject == subject]
        if time.monotonic() - began < 0.5:
            assert found[0].severity == "warning"
        while about(db, subject, "0.05 s").severity != "problem":
            assert time.monotonic() - began < 10

    def test_a_prepared_transaction(self, db: Db, other: Db) -> None:
        other.tpc_begin("forgotten")
        send(other, S, "a")
        other.tpc_prepare()
        try:
            found = about(db, "prepared transaction forgotten", "0")
            assert 'It has sent to "orders"' in found.finding
            assert "rollback prepared 'forgotten'" in found.advice
        finally:
            other.tpc_rollback()

    def test_a_slot_that_nobody_reads(self, db: Db) -> None:
        db.execute("select pg_create_logical_replication_slot('idle_slot', 'pgoutput')")
        try:
            assert "pg_drop_replication_slot('idle_slot')" in about(db, "replication slot idle_slot").advice
        finally:
            db.execute("select pg_drop_replication_slot('idle_slot')")


class TestHotTables:
    def test_dead_rows(self, db: Db, other: Db) -> None:
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, "c")
        other.execute("select txid_current()")
        with db.transaction():
            db.execute(
                "do $$ begin for i in 1 .. 12000 loop update headgate.cursor set delivered = i; end loop; end $$"
            )
        db.execute("select pg_stat_force_next_flush()")
        found = about(db, "table headgate.cursor")
        assert "12000 dead rows beside 1 live ones" in found.finding
        assert "Run maintenance" in found.advice
        db.execute("select headgate.maintain()")
        assert value(db, "select delivered from headgate.cursor") == 12000
        db.execute("select pg_stat_force_next_flush()")
        assert examine(db) == [], "maintenance helps, old snapshot or not"

    def test_staged_tables_are_ours(self, db: Db) -> None:
        """They are made without autovacuum, for one batch."""
        call(db, "create_stream", S)
        db.execute("select headgate.stage(%s, 'writer', 1)", [S])
        assert value(db, "select count(*) from pg_class where relname ~ '^staged_[0-9]+$'") == 1
        assert examine(db) == []

    def test_autovacuum_is_off(self, db: Db) -> None:
        with db.transaction(force_rollback=True):
            db.execute("alter table headgate.parked set (autovacuum_enabled = false)")
            found = about(db, "table headgate.parked")
        assert found.severity == "problem"
        assert found.advice == "alter table headgate.parked reset (autovacuum_enabled);"


@pytest.mark.usefixtures("stream")
class TestConsumers:
    SUBJECT = "consumer orders/c"

    def test_it_stopped_and_messages_came_since(self, db: Db) -> None:
        send(db, S, "a")
        ack(db, S, "c", receive(db, S, "c"))
        send(db, S, "b", "c")
        age_everything(db)
        found = about(db, self.SUBJECT)
        assert found.severity == "problem"
        assert "has stopped" in found.finding
        assert "and 2 messages wait" in found.finding
        ack(db, S, "c", receive(db, S, "c"))
        assert examine(db) == []

    def test_it_stopped_in_the_middle_of_a_span(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 50)
        ack(db, S, "c", receive(db, S, "c", 10))
        age_everything(db)
        assert "has stopped" in about(db, self.SUBJECT).finding

    def test_it_stopped_and_messages_are_due_again(self, db: Db) -> None:
        send(db, S, "a")
        nack(db, S, "c", receive(db, S, "c"), delay="1 minute")
        age_everything(db)
        assert examine(db) == [], "not yet due"
        db.execute("update headgate.parked set visible_at = visible_at - interval '1 hour'")
        assert "due again" in about(db, self.SUBJECT).finding

    def test_it_is_paused(self, db: Db) -> None:
        call(db, "pause", S, "c")
        assert examine(db) == []
        send(db, S, "a")
        found = about(db, self.SUBJECT)
        assert found.severity == "note"
        assert "is paused" in found.finding
        assert "headgate.resume('orders', 'c')" in found.advice

    def test_many_messages_fail(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 1000)
        while got := receive(db, S, "c", 1000):
            nack(db, S, "c", got, delay="1 hour", error="no such customer")
        found = about(db, self.SUBJECT)
        assert found.severity == "warning"
        assert "1000 messages" in found.finding
        assert "no such customer" in found.finding

    def test_dead_letters(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 101)
        while got := receive(db, S, "c", 100):
            nack(db, S, "c", got, delay="0", error="too bad")
        found = about(db, self.SUBJECT)
        assert found.severity == "warning"
        assert "101 of the last 1,000 dead letters" in found.finding
        assert "too bad" in found.finding
        call(db, "purge_dead", S, "c", all=True)
        assert examine(db) == []

    def test_a_message_that_fails_for_ever(self, db: Db) -> None:
        """In flight or parked; and only those that do."""
        call(db, "alter_consumer", S, "c", clear=["max_deliver"])
        send(db, S, "poison", "good")
        for n in range(120):
            got = [m for m in receive(db, S, "c", 2) if m.data == "poison" or ack(db, S, "c", [m]) is None]
            if n == 9:
                assert examine(db) == [], "nine times are no reason to worry"
            nack(db, S, "c", got, delay="0", error="cannot")
            if n == 20:
                assert about(db, self.SUBJECT).severity == "warning"
        found = about(db, self.SUBJECT)
        assert found.severity == "problem"
        assert "Message 1 of stream" in found.finding
        assert 'has failed 120 times for consumer "c"; the last error was: cannot' in found.finding
        receive(db, S, "c", 1)
        assert about(db, self.SUBJECT).finding == found.finding, "also while a worker has it"
        assert "alter_consumer('orders', 'c', max_deliver => 20)" in found.advice
        discard(db, S, "c", seqs=[1])
        assert examine(db) == []

    def test_it_falls_behind(self, db: Db) -> None:
        call(db, "create_consumer", S, "fast")
        for _ in range(3):
            send_batch(db, S, ["x"] * 1000)
            ack(db, S, "fast", receive(db, S, "fast", 1000))
            ack(db, S, "c", receive(db, S, "c", 1))
            db.execute("update headgate.message_1 set created_at = created_at - interval '1 minute'")
        found = about(db, self.SUBJECT, "1 minute")
        assert found.severity == "warning"
        assert re.search(r"2997 messages wait, the first since .*; it gets \d", found.finding)
        db.execute(re.search(r"select .*;", found.advice)[0])  # type: ignore[index]
        assert [f for f in examine(db, "1 minute") if f.subject == self.SUBJECT] == []

    def test_where_a_segment_ended_early_nothing_waits(self, db: Db) -> None:
        """Seqs leap there; how much waits is counted, not inferred."""
        call(db, "alter_stream", S, segment_rows=1_000_000)
        db.execute("select setval('headgate.seq_1', 900)")
        send_batch(db, S, ["x"] * 8)
        age_everything(db)
        assert "and 8 messages wait" in about(db, self.SUBJECT).finding

    def test_lost_messages(self, db: Db) -> None:
        db.execute(
            "insert into headgate.loss (consumer, first_seq, last_seq, messages, reason) "
            "select id, 1, 70, 70, 'retain_up_to' from headgate.consumer"
        )
        found = about(db, self.SUBJECT)
        assert found.severity == "problem"
        assert "lost 70 messages" in found.finding
        assert "retain_up_to" in found.finding
        db.execute("update headgate.loss set at = at - interval '2 days'")
        assert about(db, self.SUBJECT).severity == "note"


@pytest.mark.usefixtures("stream")
class TestStorage:
    SUBJECT = "stream orders"

    def held(self, db: Db) -> Found:
        return next(f for f in examine(db) if f.subject == self.SUBJECT)

    def fill(self, db: Db, messages: int = 2500) -> None:
        send_batch(db, S, ["x"] * messages)
        tick(db, S)

    def test_what_is_not_read_holds_segments(self, db: Db) -> None:
        self.fill(db)
        found = self.held(db)
        assert found.severity == "note"
        assert 'Consumer "c" holds the oldest of 2 segments' in found.finding
        assert "the rest is not read" in found.finding
        self.fill(db, 3000)
        assert self.held(db).severity == "warning"

    def test_a_parked_message_holds_a_segment(self, db: Db) -> None:
        self.fill(db)
        nack(db, S, "c", receive(db, S, "c", 1), delay="1 hour")
        while got := receive(db, S, "c", 1000):
            ack(db, S, "c", got)
        found = self.held(db)
        assert "is parked" in found.finding
        assert "headgate.discard('orders', 'c', array[" in found.advice
        discard(db, S, "c", all=True)
        assert [f for f in examine(db) if f.subject == self.SUBJECT] == []

    def test_a_paused_consumer_holds_segments(self, db: Db) -> None:
        self.fill(db)
        call(db, "pause", S, "c")
        assert "it is paused" in self.held(db).finding

    def test_a_full_stream(self, db: Db) -> None:
        """As of now: `send` fails before maintenance has looked."""
        call(db, "alter_stream", S, retain="forever", max_storage=1_048_576, retain_at_least="1 day")
        send_batch(db, S, [random.randbytes(2000).hex() for _ in range(500)])
        found = self.held(db)
        assert found.severity == "problem"
        assert "is full" in found.finding
        db.execute(re.search(r"select .*?;", found.advice)[0])  # type: ignore[index]
        assert [f for f in examine(db) if f.subject == self.SUBJECT] == []
        send(db, S, "room")

    def test_segments_that_should_be_gone_and_who_uses_them(self, db: Db, other: Db) -> None:
        call(db, "alter_stream", S, retain="forever", retain_up_to="1 hour")
        self.fill(db)
        db.execute("update headgate.segment set state = 'closed', last_at = now() - interval '2 hours' where id = 1")
        other.execute("select * from headgate.message_1 limit 1")
        assert "no session holds them" in self.held(db).finding, "five minutes are allowed"
        found = next(f for f in examine(db, "0") if f.subject == self.SUBJECT)
        assert found.severity == "warning"
        assert f"of sessions {other.info.backend_pid}" in found.finding


@pytest.mark.usefixtures("stream")
class TestUpkeep:
    def test_nobody_maintains(self, db: Db) -> None:
        db.execute("update headgate.maintenance_run set at = at - interval '1 hour'")
        assert about(db, "maintenance").severity == "warning"
        send(db, S, "a", id="1")
        db.execute("update headgate.message_id set at = at - interval '1 hour'")
        assert "1 message ids could be forgotten" in about(db, "maintenance").finding
        receive(db, S, "c")
        db.execute("update headgate.delivery set deadline = deadline - interval '1 hour'")
        found = about(db, "maintenance")
        assert found.severity == "problem"
        assert "1 deliveries are past their deadline" in found.finding
        db.execute("select headgate.maintain()")
        assert examine(db) == []

    def test_a_restored_database(self, db: Db) -> None:
        with db.transaction(force_rollback=True):
            db.execute(
                "update headgate.cluster_identity set own_table = own_table"
            )  # as a restore does, in a later transaction
            assert "restored from a dump" in about(db, "database").finding


class TestRights:
    def test_public_may_call_something(self, db: Db) -> None:
        with db.transaction(force_rollback=True):
            db.execute("grant execute on function headgate.maintain() to public")
            found = about(db, "rights")
        assert found.severity == "problem"
        assert "headgate.maintain()" in found.finding

    def test_public_may_read_a_table(self, db: Db) -> None:
        with db.transaction(force_rollback=True):
            db.execute("grant select on headgate.parked to public")
            assert "headgate.parked" in about(db, "rights").finding

    def test_a_role_lacks_what_it_needs(self, db: Db) -> None:
        with db.transaction(force_rollback=True):
            db.execute("revoke execute on function headgate.maintain() from headgate_owner")
            assert about(db, "role headgate_owner").finding == "The role headgate_owner may not call headgate.maintain."

    def test_a_role_is_missing(self, db: Db) -> None:
        with db.transaction(force_rollback=True):
            db.execute("alter role headgate_monitor rename to somebody_else")
            assert "do not exist" in about(db, "roles").finding

    def test_an_owner_who_does_not_see_the_sessions(self, db: Db) -> None:
        """Not a superuser, as in a managed database: told, and nothing fails."""
        with db.transaction(force_rollback=True):
            db.execute("create role plain_owner; grant usage on schema headgate to plain_owner")
            db.execute("grant select on all tables in schema headgate to plain_owner")
            db.execute(
                "do $$ declare f regprocedure; begin for f in select p.oid from pg_proc p "
                "where p.pronamespace = 'headgate'::regnamespace loop execute 'alter function ' || f || "
                "' owner to plain_owner'; end loop; end $$"
            )
            rows = db.execute("select subject, finding, advice from headgate.doctor()").fetchall()
        [(_, finding, advice)] = [row for row in rows if row[0] == "doctor"]
        assert "plain_owner" in finding
        assert advice == "grant pg_read_all_stats to plain_owner;"

    @pytest.mark.alone
    def test_what_is_locked_is_left_out(self, db: Db, other: Db) -> None:
        other.execute("lock table headgate.delivery in access exclusive mode")
        began = time.monotonic()
        rows = db.execute("select subject, finding from headgate.doctor()").fetchall()
        assert time.monotonic() - began < 5
        assert [f for s, f in rows if s == "doctor" and "lock timeout" in f]


def test_settings(new_cluster: NewCluster) -> None:
    """Of a server of its own: they are everybody's."""
    cluster = new_cluster()
    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute(schema.install_sql().encode())
        subjects = {f[1]: f for f in db.execute("select * from headgate.doctor()")}
        assert list(subjects) == ["setting fsync"]
        assert subjects["setting fsync"][0] == "problem"
        db.execute("set synchronous_commit = off")
        assert about(db, "setting synchronous_commit").severity == "warning"
        db.execute("set synchronous_commit = on")
        with db.transaction(force_rollback=True):
            db.execute(
                "update pg_database set datfrozenxid = ((txid_current() - 1200000000 + 4294967296) %% 4294967296)"
                "::text::xid where datname = current_database()",
                [],
            )
            assert "transactions old" in about(db, "database postgres").finding
        room = value(db, "select current_setting('max_connections')::int * 0.8")
        crowd: list[Any] = [psycopg.connect(cluster.url()) for _ in range(int(room))]
        assert "connections are in use" in about(db, "setting max_connections").finding
        for connection in crowd:
            connection.close()


def test_ids_that_run_out_anywhere(new_cluster: NewCluster) -> None:
    """The limit is the server's: every database counts, for transactions and for multixacts."""
    cluster = new_cluster()
    old = "((txid_current() - 500000000 + 4294967296) %% 4294967296)::text::xid"

    def found(db: Db) -> dict[str, Found]:
        return {f.subject: f for f in examine(db) if f.subject.startswith("database ")}

    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute(schema.install_sql().encode())
        db.execute("create database other")
        assert found(db) == {}
        with db.transaction(force_rollback=True):
            db.execute(f"update pg_database set datfrozenxid = {old} where datname in ('other', 'template0')", [])
            seen = found(db)
        assert list(seen) == ["database other", "database template0"]
        assert seen["database other"].severity == "warning"
        assert "although autovacuum freezes after 200000000" in seen["database other"].finding
        assert "held back" not in seen["database other"].finding, "nobody does"
        assert seen["database other"].advice == "Freeze what is old: `vacuumdb --freeze --dbname=other`."
        assert "alter database template0 allow_connections true;" in seen["database template0"].advice
        with db.transaction(force_rollback=True):
            db.execute("update pg_database set datminmxid = '3294967296'::xid where datname = 'postgres'")
            [multi] = found(db).values()
        assert "The oldest multixact id" in multi.finding
        assert multi.advice == "Freeze what is old: vacuum (freeze);"
        with db.transaction(force_rollback=True):
            db.execute(
                "update pg_database set datfrozenxid = ((txid_current() - 1900000000 + 4294967296) %% 4294967296)"
                "::text::xid where datname = 'other'",
                [],
            )
            assert found(db)["database other"].severity == "problem"
