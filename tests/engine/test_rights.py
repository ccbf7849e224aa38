"""Who may do what: each role exactly its part, PUBLIC nothing; and what every function of the schema must look like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import headgate
from support.calls import Db, call, column, send, tick, value

S = "orders"
PRODUCER, CONSUMER, MONITOR, OWNER = "headgate_producer", "headgate_consumer", "headgate_monitor", "headgate_owner"

# what may be called, and by whom besides the owner
CALLS = {
    "select headgate.send('orders', 'x', 'k', id => 'i')": PRODUCER,
    "select headgate.send_batch('orders', array['x', 'y'])": PRODUCER,
    "select * from headgate.receive('orders', 'c', 1)": CONSUMER,
    "select * from headgate.ack('orders', 'c', array['0.1.1'])": CONSUMER,
    "select * from headgate.nack('orders', 'c', array['0.1.1'])": CONSUMER,
    "select * from headgate.extend('orders', 'c', array['0.1.1'], '1 minute')": CONSUMER,
    "select headgate.tick('orders')": CONSUMER,
    "select headgate.join_workers('orders', 'leased', 'w')": CONSUMER,
    "select headgate.heartbeat('orders', 'leased', 'w')": CONSUMER,
    "select headgate.leave_workers('orders', 'leased', 'w')": CONSUMER,
    "select * from headgate.last_seqs(array['orders'])": CONSUMER,
    "select * from headgate.peek('orders', 'c')": MONITOR,
    "select * from headgate.messages('orders')": MONITOR,
    "select * from headgate.message_states('orders', 1)": MONITOR,
    "select * from headgate.dead_letters('orders', 'c')": MONITOR,
    "select * from headgate.doctor()": MONITOR,
    "select * from headgate.vitals()": MONITOR,
    "select * from headgate.history()": MONITOR,
    "select headgate.seq_at('orders', 'beginning')": MONITOR,
    "select * from headgate.seek_preview('orders', 'c', 'beginning')": MONITOR,
    "select * from headgate.dead_groups('orders', 'c')": MONITOR,
    "select * from headgate.dead_of_group('orders', 'c', 'x')": MONITOR,
    "select * from headgate.waiting_of_key('orders', 'c', 'k')": MONITOR,
    "select * from headgate.try_filter('orders', array['a'])": MONITOR,
    "select * from headgate.streams": MONITOR,
    "select * from headgate.consumers": MONITOR,
    "select * from headgate.deliveries": MONITOR,
    "select * from headgate.parked_messages": MONITOR,
    "select * from headgate.segments": MONITOR,
    "select * from headgate.workers": MONITOR,
    "select * from headgate.log_orders": MONITOR,
    "select * from headgate.sources": MONITOR,
    "select * from headgate.postgres_sources()": MONITOR,
    "select * from headgate.source_backfills('shop')": MONITOR,
    "select * from headgate.sources_to_read()": OWNER,
    "select headgate.check_source_name('new')": OWNER,
    "select headgate.create_stream('new')": OWNER,
    "select headgate.alter_stream('orders', max_message_bytes => 1000)": OWNER,
    "select headgate.create_consumer('orders', 'new', max_deliver => 1)": OWNER,
    "select headgate.alter_consumer('orders', 'c', ack_wait => '1 minute')": OWNER,
    "select headgate.pause('orders', 'c')": OWNER,
    "select headgate.resume('orders', 'c')": OWNER,
    "select headgate.seek('orders', 'c', 'end')": OWNER,
    "select headgate.redrive('orders', 'c', '{1}')": OWNER,
    "select headgate.purge_dead('orders', 'c', '{1}')": OWNER,
    "select headgate.retry_now('orders', 'c', \"all\" => true)": OWNER,
    "select headgate.replay('orders', 'c', from_seq => 1)": OWNER,
    "select headgate.message_life('orders', 1)": MONITOR,
    "select headgate.attempts('orders', 1)": MONITOR,
    "select headgate.discard('orders', 'c', \"all\" => true)": OWNER,
    "select headgate.compact('orders')": OWNER,
    "select * from headgate.maintain()": OWNER,
    "select headgate.create_token('hg_1', 'me', sha256('x'), array['admin'])": OWNER,
    "select * from headgate.check_token('hg_1')": OWNER,
    "select * from headgate.tokens()": OWNER,
    "select headgate.revoke_token('hg_1')": OWNER,
    "select headgate.note_audit('me', null, 'GET /', 200)": OWNER,
    "select * from headgate.audit_log()": OWNER,
    "select headgate.push_version()": OWNER,
    "select * from headgate.push_targets()": OWNER,
    "select headgate.push_gone('orders', 'c', 1, 'gone')": OWNER,
    "select headgate.create_source('new', 'orders', scheme => 'none')": OWNER,
    "select headgate.alter_source('in', settings => '{}')": OWNER,
    "select headgate.drop_source('in')": OWNER,
    "select * from headgate.source_settings('in')": OWNER,
    "select headgate.forget_audit('1 day')": OWNER,
    "select headgate.drop_consumer('orders', 'c')": OWNER,
    "select headgate.drop_stream('orders')": OWNER,
}


@pytest.fixture
def stream(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, "c", max_deliver=2)
    call(db, "create_consumer", S, "leased", leased=True)
    call(db, "create_source", "in", S, scheme="none")
    send(db, S, "a")


@pytest.fixture
def nobody(db: Db) -> Iterator[str]:
    db.execute("create role nobody_special login")
    yield "nobody_special"
    db.execute("drop role nobody_special")


def allowed(db: Db, role: str, query: str) -> bool:
    with db.transaction(force_rollback=True):
        db.execute(f"set local role {role}")
        try:
            with db.transaction():
                db.execute(query)
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True


@pytest.mark.usefixtures("stream")
class TestRoles:
    @pytest.mark.parametrize("role", [PRODUCER, CONSUMER, MONITOR, OWNER])
    def test_each_can_do_exactly_its_part(self, db: Db, role: str) -> None:
        can = {query for query in CALLS if allowed(db, role, query)}
        assert can == {query for query, who in CALLS.items() if role in (who, OWNER)}

    def test_public_can_do_nothing(self, db: Db, nobody: str) -> None:
        assert [query for query in CALLS if allowed(db, nobody, query)] == []
        assert not allowed(db, nobody, "select headgate.installed_version()")

    @pytest.mark.parametrize("role", [PRODUCER, CONSUMER, MONITOR, OWNER])
    def test_everybody_of_ours_may_ask_for_the_version(self, db: Db, role: str) -> None:
        assert allowed(db, role, "select * from headgate.installed_version()")

    @pytest.mark.parametrize("role", [PRODUCER, CONSUMER, MONITOR, OWNER])
    def test_tables_and_sequences_are_private(self, db: Db, role: str) -> None:
        tables = column(
            db,
            "select oid::regclass::text from pg_class "
            "where relnamespace = 'headgate'::regnamespace and relkind in ('r', 'p')",
        )
        assert len(tables) > 10
        for table in tables:
            for right in ("select", "insert", "update", "delete", "truncate"):
                assert not value(db, "select has_table_privilege(%s, %s, %s)", role, table, right), (table, right)
        for sequence in column(
            db,
            "select oid::regclass::text from pg_class where relnamespace = 'headgate'::regnamespace and relkind = 'S'",
        ):
            assert not value(db, "select has_sequence_privilege(%s, %s, 'usage, select, update')", role, sequence), (
                sequence
            )
        assert not value(db, "select has_schema_privilege(%s, 'headgate', 'create')", role)

    def test_login_roles_get_by_with_membership(self, db: Db, database_url: str, nobody: str) -> None:
        db.execute(f"grant {PRODUCER}, {CONSUMER} to {nobody}")
        with psycopg.connect(database_url, autocommit=True) as mine:
            mine.execute(f"set session authorization {nobody}")
            send(mine, S, "b")
            tick(mine, S)
            [row] = mine.execute("select ack_id, data from headgate.receive('orders', 'c', 1)").fetchall()
            mine.execute("select headgate.nack('orders', 'c', %s, '0')", [[row[0]]])
            [row] = mine.execute("select ack_id, attempt from headgate.receive('orders', 'c', 1)").fetchall()
            mine.execute("select headgate.nack('orders', 'c', %s, '0')", [[row[0]]])  # makes a dead letter
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                mine.execute("select * from headgate.consumers")
        assert value(db, "select dead from headgate.consumers") in (0, 1)

    def test_a_search_path_of_the_callers_changes_nothing(self, db: Db, nobody: str) -> None:
        """Functions run with their owner's rights: names must not be caught by objects of the caller."""
        db.execute(f"grant {PRODUCER}, {CONSUMER} to {nobody}")
        db.execute(f"create schema evil authorization {nobody}")
        with db.transaction(force_rollback=True):
            db.execute(f"set local role {nobody}")
            for name in ("now", "clock_timestamp"):
                db.execute(
                    f"create function evil.{name}() returns timestamptz language plpgsql "
                    "as $$ begin raise exception 'caught'; end $$"
                )
            db.execute("set local search_path = evil, pg_catalog")
            db.execute("create temp table stream (name text)")
            db.execute("select headgate.send('orders', 'x')")
            db.execute("select * from headgate.receive('orders', 'c', 5)")
        db.execute("drop schema evil cascade")


SQL = Path(headgate.__file__).parent / "sql"
STEP_FILES = (
    *(f"functions/read/{name}.sql" for name in ("steps", "limits", "claiming", "spans")),
    "templates/receive_step.sql",
)
STEPS = [
    name
    for file in STEP_FILES
    for name in re.findall(r"^create or replace function (headgate\.\w+)", (SQL / file).read_text(), re.MULTILINE)
]


@pytest.mark.usefixtures("stream")
class TestCatalog:
    def functions(self, db: Db) -> list[tuple[str, list[str] | None, bool, bool]]:
        return db.execute(
            "select p.oid::regprocedure::text, p.proconfig, p.prosecdef, "
            "has_function_privilege('public', p.oid, 'execute') "
            "from pg_proc p where p.pronamespace = 'headgate'::regnamespace"
        ).fetchall()

    def test_every_function_pins_its_search_path(self, db: Db) -> None:
        found = self.functions(db)
        assert len(found) > 50
        assert {
            name.partition("(")[0]
            for name, config, *_ in found
            if not any(c.startswith("search_path=pg_catalog, pg_temp") for c in config or [])
        } <= set(STEPS)

    def test_steps_are_called_by_functions_that_do(self, db: Db) -> None:
        """With the search_path of receive_<stream id>: neither by roles, nor with rights of their own."""
        callable_by = "has_function_privilege(r.rolname, p.oid, 'execute') and not r.rolsuper"
        assert column(
            db,
            "select p.oid::regprocedure::text from pg_proc p where p.oid::regproc::text = any(%s) and (p.prosecdef "
            f"or exists (select from pg_roles r where {callable_by}))",
            list(STEPS),
        ) == []  # fmt: skip

    def test_no_function_is_open_to_public(self, db: Db) -> None:
        assert [name for name, _, _, public in self.functions(db) if public] == []

    def test_nothing_else_is_open_to_public(self, db: Db) -> None:
        assert not value(db, "select has_schema_privilege('public', 'headgate', 'usage')")
        assert column(
            db,
            "select oid::regclass::text from pg_class "
            "where relnamespace = 'headgate'::regnamespace and relkind in ('r', 'p', 'v') "
            "and has_table_privilege('public', oid, 'select, insert, update, delete')",
        ) == []  # fmt: skip

    def test_what_runs_with_the_owners_rights_is_what_roles_may_call(self, db: Db) -> None:
        """A function for internal use needs no rights of its own: it is called from those that have them."""
        granted = set(
            column(
                db,
                "select p.oid::regprocedure::text from pg_proc p, unnest(array['headgate_producer', "
                "'headgate_consumer', 'headgate_monitor', 'headgate_owner']) r "
                "where p.pronamespace = 'headgate'::regnamespace and has_function_privilege(r, p.oid, 'execute')",
            )
        )
        definers = {name for name, _, definer, _ in self.functions(db) if definer}
        assert granted - definers == set()

    def test_stream_functions_made_later_are_closed_too(self, db: Db) -> None:
        call(db, "create_stream", "later")
        assert [name for name, _, _, public in self.functions(db) if public] == []
