"""Upserts with message ids: repeats are told by their id first, and what is left is compared with what precedes it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine.upsert_model import Update, UpsertModel, Version
from support.calls import Db, call, column, drain, pass_time, send, send_batch, value
from support.storage import end_segment, exists, maintain
from support.waiting import wait_until

S = "prices"
STORED = "select data from headgate.message_1 order by seq"
FIXED = [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]


def send_updates(db: Db, stream: str, batch: Sequence[Update]) -> list[int]:
    return send_batch(
        db,
        stream,
        [u.data for u in batch],
        keys=[u.key for u in batch],
        headers=[f'{{"data": "{u.data}"}}' for u in batch],
        ids=[u.id for u in batch] if any(u.id for u in batch) else None,
    )


def waiting(db: Db, sends: Callable[[], list[int]]) -> Future[list[int]]:
    """Sends in a thread of its own, and comes back when that waits for a transaction."""
    pool = ThreadPoolExecutor(1)
    answer = pool.submit(sends)
    pool.shutdown(wait=False)
    wait_until(lambda: value(db, "select count(*) from pg_locks where not granted and locktype = 'transactionid'"))
    return answer


@pytest.fixture
def prices(db: Db) -> None:
    call(db, "create_stream", S, lanes=1, one_message_per_key=True)


@pytest.mark.usefixtures("prices")
class TestRepeats:
    def test_a_repeat_is_not_what_an_update_is_compared_with(self, db: Db) -> None:
        send(db, S, "B", key="k", id="1")
        send(db, S, "C", key="k", id="2")
        assert send_batch(db, S, ["B", "B"], keys=["k", "k"], ids=["1", "3"]) == [1, 3]
        assert column(db, STORED) == ["B"]

    def test_the_retry_of_an_unmodified_message_is_a_repeat(self, db: Db) -> None:
        send(db, S, "A", key="k", id="1")
        assert send(db, S, "A", key="k", id="2") == [1]
        send(db, S, "B", key="k", id="3")
        assert send(db, S, "A", key="k", id="2") == [1]
        assert column(db, STORED) == ["B"]

    def test_unmodified_within_a_batch(self, db: Db) -> None:
        """Its id stands for the version in the batch, also when the same id comes twice."""
        sent = send_batch(db, S, ["A", "A", "B", "A"], keys=["k"] * 4, ids=["1", "2", "3", "2"])
        assert sent == [1, 1, 2, 1]
        assert send(db, S, "A", key="k", id="2") == [1]
        assert column(db, STORED) == ["B"]

    def test_a_repeat_with_another_key_removes_nothing(self, db: Db) -> None:
        send(db, S, "b", key="b")
        send(db, S, "a", key="a", id="1")
        assert send(db, S, "b again", key="b", id="1") == [2]
        assert column(db, STORED) == ["b", "a"]

    def test_an_id_whose_time_is_over_stands_for_the_new_message(self, db: Db) -> None:
        send(db, S, "A", key="k", id="1")
        pass_time(db, "10 minutes")
        assert send(db, S, "A", "B", key="k", id="1") == [1, 1]  # unmodified, and so a repeat from now on
        assert send(db, S, "B", key="k", id="2") == [2]
        pass_time(db, "10 minutes")
        assert send(db, S, "C", "D", key="k", id="1") == [3, 3]
        assert column(db, STORED) == ["C"]

    def test_only_some_have_ids(self, db: Db) -> None:
        keys, given = ["k", "k", None, "k", "k"], [None, "1", "2", None, "3"]
        sent = send_batch(db, S, ["A", "A", "x", "B", "B"], keys=keys, ids=given)
        assert sent == [1, 1, 2, 3, 3]
        assert send_batch(db, S, ["?"] * 3, keys=["k"] * 3, ids=["1", "2", "3"]) == [1, 2, 3]
        assert column(db, STORED) == ["x", "B"]

    def test_without_keys(self, db: Db) -> None:
        assert send_batch(db, S, ["x", "x", "y"], ids=["1", "1", None]) == [1, 1, 2]
        assert column(db, STORED) == ["x", "y"]

    def test_many_in_one_batch(self, db: Db) -> None:
        n = 10_000
        keys, given = [f"k{i % 5000}" for i in range(n)], [f"id{i}" for i in range(n)]
        first = send_batch(db, S, ["A"] * n, keys=keys, ids=given)
        assert first == [*range(1, 5001)] * 2
        assert send_batch(db, S, ["B"] * n, keys=keys, ids=given) == first
        assert value(db, "select last_value from headgate.seq_1") == 5000


@pytest.mark.usefixtures("prices")
class TestAtOnce:
    def test_the_one_that_waits_compares_with_what_it_waited_for(self, db: Db, database_url: str) -> None:
        """[B (id 1), A (id 2)] waits for B (id 1), which is the newest version when it goes on: A is an update."""
        send(db, S, "A", key="k")
        with psycopg.connect(database_url) as first, psycopg.connect(database_url, autocommit=True) as second:
            send(first, S, "B", key="k", id="1")
            answer = waiting(db, lambda: send_batch(second, S, ["B", "A"], keys=["k", "k"], ids=["1", "2"]))
            first.commit()
            assert answer.result(30) == [2, 3]
        assert column(db, STORED) == ["A"]

    def test_the_one_that_waits_sends_when_the_other_rolls_back(self, db: Db, database_url: str) -> None:
        send(db, S, "A", key="k")
        with psycopg.connect(database_url) as first, psycopg.connect(database_url, autocommit=True) as second:
            send(first, S, "B", key="k", id="1")
            answer = waiting(db, lambda: send_batch(second, S, ["A", "B"], keys=["k", "k"], ids=["1", "1"]))
            first.rollback()
            assert answer.result(30) == [1, 1]
        assert send(db, S, "B", key="k", id="1") == [1]
        assert column(db, STORED) == ["A"]

    def test_other_ids_of_the_same_key_do_not_wait(self, db: Db, database_url: str) -> None:
        send(db, S, "A", key="k")
        with psycopg.connect(database_url) as other:
            send(other, S, "B", key="k", id="1")
            assert send(db, S, "A", key="k", id="2") == [1]
            other.commit()
        assert send(db, S, "A", key="k", id="2") == [1]
        assert column(db, f"select data from headgate.log_{S}") == ["B"]

    @pytest.mark.parametrize("isolation", FIXED)
    def test_a_fixed_snapshot_never_answers_another_message(
        self, db: Db, database_url: str, isolation: psycopg.IsolationLevel
    ) -> None:
        """An id that was sent after the snapshot was taken is a serialization failure; other ids go on."""
        with psycopg.connect(database_url) as other:
            other.isolation_level = isolation
            other.execute("select count(*) from headgate.stream")
            send(db, S, "A", key="k", id="1")
            assert send(other, S, "B", key="k", id="2") == [2]
            assert send(other, S, "B", key="k", id="3") == [2]
            with pytest.raises(psycopg.errors.SerializationFailure):
                send(other, S, "A", key="k", id="1")
        assert column(db, STORED) == ["A"]


class UpsertHistory(RuleBasedStateMachine):
    """Random sends into one stream, whose answers and contents are those of the model, to the seq."""

    url: str
    numbers = itertools.count(1)
    batches = st.lists(
        st.builds(
            Update,
            st.sampled_from(["a", "a", "b", None]),
            st.sampled_from("ABC"),
            st.sampled_from([None, "1", "2", "3", "4", "5"]),
        ),
        min_size=1,
        max_size=5,
    )

    def __init__(self) -> None:
        super().__init__()
        self.db: Db = psycopg.connect(self.url, autocommit=True)
        self.other: Db = psycopg.connect(self.url)
        self.stream = f"s{next(self.numbers)}"
        call(
            self.db, "create_stream", self.stream, lanes=2, one_message_per_key=True, retain="until_acked",
            segment_rows=10_000, segment_age="1 microsecond",
        )  # fmt: skip
        call(self.db, "create_consumer", self.stream, "c")
        self.model = UpsertModel()
        self.drained = 0

    def teardown(self) -> None:
        self.other.close()
        call(self.db, "drop_stream", self.stream)
        self.db.close()

    @rule(batch=batches)
    def send(self, batch: list[Update]) -> None:
        assert send_updates(self.db, self.stream, batch) == self.model.send(batch)

    @rule(
        sent=st.lists(batches, min_size=1, max_size=3),
        isolation=st.sampled_from([psycopg.IsolationLevel.READ_COMMITTED, *FIXED]),
        commits=st.booleans(),
    )
    def send_in_a_transaction(self, sent: list[list[Update]], isolation: psycopg.IsolationLevel, commits: bool) -> None:
        before = copy.deepcopy(self.model)
        self.other.isolation_level = isolation
        for batch in sent:
            assert send_updates(self.other, self.stream, batch) == self.model.send(batch)
        if commits:
            self.other.commit()
        else:
            self.other.rollback()
            before.last_seq = self.model.last_seq
            self.model = before

    @rule(by_maintenance=st.booleans())
    def ids_expire(self, by_maintenance: bool) -> None:
        pass_time(self.db, "10 minutes")
        if by_maintenance:
            self.db.execute("delete from headgate.message_id where at < clock_timestamp() - interval '5 minutes'")
        self.model.ids.clear()

    @rule(processed=st.booleans())
    def process_unmodified(self, processed: bool) -> None:
        call(self.db, "alter_stream", self.stream, process_unmodified=processed)
        self.model.process_unmodified = processed

    @rule()
    def drain(self) -> None:
        expected = sorted(v.data for v in self.model.log if v.seq > self.drained)
        assert drain(self.db, self.stream, "c") == expected
        self.drained = self.model.last_seq

    @rule()
    def acked_and_removed(self) -> None:
        """What was removed is appended again, modified or not."""
        if not self.model.log:
            return
        self.drain()
        segment = end_segment(self.db, self.stream)
        wait_until(lambda: maintain(self.db) and not exists(self.db, segment["id"], self.stream))
        last = value(self.db, "select headgate.last_seq(id) from headgate.stream where name = %s", self.stream)
        self.model.remove_all(last)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        rows = self.db.execute(f"select seq, key, data, headers ->> 'data' from headgate.log_{self.stream} order by 1")
        held = [(Version(seq, key, data), header) for seq, key, data, header in rows]
        assert held == [(v, v.data) for v in self.model.log]


def test_histories(database_url: str) -> None:
    machine = type("UpsertHistory", (UpsertHistory,), {"url": database_url})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("upserts", [False, True])
@pytest.mark.parametrize("analyzed_at", [None, 1, 300])
def test_what_an_id_costs_does_not_depend_on_how_many_there_are(db: Db, upserts: bool, analyzed_at: int | None) -> None:
    """Whatever the statistics say: only the ids of the batch are read."""
    read = "select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'message_id'"
    call(db, "create_stream", S, one_message_per_key=upserts)
    db.execute("alter table headgate.message_id set (autovacuum_enabled = off)")
    for n in range(200):
        send(db, S, str(n), key=str(n), id=str(n))
        if n == analyzed_at:
            db.execute("analyze headgate.message_id")
    for i in range(10):
        given = [f"{i}.{n}" for n in range(100)]
        first = send_batch(db, S, given, keys=given, ids=given)
        assert send_batch(db, S, given, keys=given, ids=given) == first
        if i == 3 and analyzed_at == 300:
            db.execute("analyze headgate.message_id")
    db.execute("select pg_stat_force_next_flush()")
    assert value(db, read) < 10 * (200 + 2 * 10 * 100)
