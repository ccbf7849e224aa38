"""Maintenance: the service that runs it, many processes at once, and hot tables under an old snapshot."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

import headgate
from headgate.database import schema
from headgate.maintenance import may_continue
from support.calls import Db, ack, call, column, facts, receive, send, send_batch, value
from support.clients import until
from support.postgres import NewCluster
from support.waiting import wait_until

S = "orders"


def expire_one(db: Db) -> None:
    """A delivery that maintenance has to take apart."""
    call(db, "create_stream", S, lanes=1, if_not_exists=True)
    call(db, "create_consumer", S, "c", ack_wait="1 second", if_not_exists=True)
    send(db, S, "a")
    assert receive(db, S, "c")
    db.execute("update headgate.delivery set deadline = deadline - interval '1 hour'")
    db.execute("update headgate.cursor set expires_at = expires_at - interval '1 hour'")


def is_swept(db: Db) -> bool:
    return value(db, "select count(*) from headgate.delivery") == 0


class TestService:
    def test_in_the_background(self, db: Db, hg: headgate.Headgate) -> None:
        expire_one(db)
        with hg.maintenance(interval=0.02) as service:
            wait_until(lambda: is_swept(db))
            wait_until(lambda: service.is_running)
            with pytest.raises(headgate.Error, match="running already"):
                service.start()
        assert not service.is_running
        assert "headgate-maintenance" not in [t.name for t in threading.enumerate()]
        expire_one(db)
        with service:  # again
            wait_until(lambda: is_swept(db))

    def test_run_until_another_thread_stops_it(self, db: Db, hg: headgate.Headgate) -> None:
        service = hg.maintenance(interval=0.02)
        thread = threading.Thread(target=service.run)
        thread.start()
        expire_one(db)
        wait_until(lambda: is_swept(db))
        service.stop()
        thread.join(10)
        assert not thread.is_alive()

    async def test_async(self, db: Db, database_url: str) -> None:
        expire_one(db)
        async with await headgate.connect_async(database_url) as hg:
            async with hg.maintenance(interval=0.02) as service:
                await until(lambda: is_swept(db))
            assert not service.is_running
            expire_one(db)
            task = asyncio.create_task(service.run())
            await until(lambda: is_swept(db))
            await service.stop()
            await asyncio.wait_for(task, 10)

    def test_a_worker_maintains_too(self, db: Db, hg: headgate.Headgate) -> None:
        """Another consumer's deliveries, that is: its own it sweeps anyway."""
        expire_one(db)
        worker = hg.stream(S).consumer("another", create=True).worker(lambda m: None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: is_swept(db))
        worker.stop()
        thread.join(10)

    def test_a_role_that_may_not(self, db: Db, database_url: str, caplog: pytest.LogCaptureFixture) -> None:
        db.execute("create role only_consumes login in role headgate_consumer")
        try:
            with headgate.connect(database_url.replace("//postgres@", "//only_consumes@")) as hg:
                with pytest.raises(headgate.errors.NotAllowed):
                    hg.maintenance(interval=0.01).run()
                service = hg.maintenance(interval=0.01).start()
                wait_until(lambda: "maintenance ended" in caplog.text)
                service.stop()
        finally:
            db.execute("drop role only_consumes")

    @pytest.mark.parametrize("interval", [0, -1, 4000])
    def test_an_interval_that_makes_no_sense(self, hg: headgate.Headgate, interval: float) -> None:
        with pytest.raises(headgate.errors.InvalidArgument):
            hg.maintenance(interval)

    def test_what_was_done_is_logged(self, db: Db, hg: headgate.Headgate, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "headgate.maintenance")
        expire_one(db)
        with hg.maintenance(interval=0.02):
            wait_until(lambda: "sweep: c (1)" in caplog.text)
        [record] = [r for r in caplog.records if r.message == "sweep: c (1)"]
        assert (record.levelno, record.task, record.subject) == (logging.DEBUG, "sweep", "c")  # type: ignore[attr-defined]

    @pytest.mark.alone
    def test_what_is_left_to_do_is_done_at_once(self, db: Db, hg: headgate.Headgate) -> None:
        """A step forgets 10,000 message ids. With a step an hour these would take days."""
        call(db, "create_stream", S)
        db.execute(
            "insert into headgate.message_id (stream, id, seq, at) "
            "select s.id, i, i, now() - interval '1 hour' from headgate.stream s, generate_series(1, 45000) i"
        )
        service = hg.maintenance(interval=2).start()
        wait_until(lambda: value(db, "select count(*) from headgate.message_id") < 45_000)
        began = time.monotonic()
        wait_until(lambda: value(db, "select count(*) from headgate.message_id") == 0)
        assert time.monotonic() - began < 1.5, "one step after the other, without a pause"
        service.stop()

    def test_which_steps_may_continue(self) -> None:
        assert not may_continue([])
        assert not may_continue([("tick", S, 7), ("thin ticks", S, 100), ("sweep", "c", 16), ("rewrite", "cursor", 80)])
        assert may_continue([("tick", S, 7), ("forget message ids", S, 10_000)])
        assert not may_continue([("forget message ids", S, 9_999)])
        assert may_continue([("drop segment", S, 1)]), "what this list does not know is done in parts"

    def test_a_restart(self, new_cluster: NewCluster, caplog: pytest.LogCaptureFixture) -> None:
        cluster = new_cluster()
        caplog.set_level(logging.INFO, "headgate.maintenance")
        with psycopg.connect(cluster.url()) as db:
            db.execute(schema.install_sql().encode())
        with headgate.connect(cluster.url()) as hg, hg.maintenance(interval=0.05):
            with psycopg.connect(cluster.url(), autocommit=True) as db:
                expire_one(db)
                wait_until(lambda: is_swept(db))
            cluster.stop("fast")
            wait_until(lambda: "maintenance failed" in caplog.text)
            cluster.start()
            wait_until(lambda: "maintenance works again" in caplog.text)
            with psycopg.connect(cluster.url(), autocommit=True) as db:
                expire_one(db)
                wait_until(lambda: is_swept(db))
        failures = [r for r in caplog.records if r.message.startswith("maintenance failed")]
        assert [r.levelno for r in failures] == [logging.WARNING], "said once, however long it was away"

    @pytest.mark.alone
    def test_stopping_while_the_database_is_away(
        self, new_cluster: NewCluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster = new_cluster()
        with psycopg.connect(cluster.url()) as db:
            db.execute(schema.install_sql().encode())
        hg = headgate.connect(cluster.url())
        cluster.stop("immediate")
        service = hg.maintenance(interval=0.05).start()  # it comes up while the database is away, too
        wait_until(lambda: "maintenance failed" in caplog.text)
        began = time.monotonic()
        service.stop()
        assert time.monotonic() - began < 8
        hg.close()


def test_from_many_sessions_at_once(db: Db, database_url: str) -> None:
    """Eight sessions maintain without a pause, while others send, receive, ack, and let deliveries expire."""
    call(db, "create_stream", S, lanes=4, segment_rows=1000, dedup_window="1 second")
    call(db, "create_consumer", S, "c", ack_wait="0.2 seconds")
    call(db, "create_consumer", S, "k", order="key", ack_wait="0.2 seconds")
    over = threading.Event()
    failures: list[BaseException] = []
    done: dict[str, set[str]] = {"c": set(), "k": set()}
    maybe: dict[str, set[str]] = {"c": set(), "k": set()}  # of acks some of which were too late
    sent: list[str] = []
    steps: list[int] = []

    def session(work: Callable[[Db, int], None]) -> Callable[[], None]:
        def loop() -> None:
            try:
                with psycopg.connect(database_url, autocommit=True) as own:
                    turn = 0
                    while not over.is_set():
                        work(own, turn)
                        turn += 1
            except BaseException as error:
                failures.append(error)

        return loop

    def maintain(own: Db, _: int) -> None:
        own.execute("select * from headgate.maintain()").fetchall()
        steps.append(1)

    def produce(own: Db, turn: int) -> None:
        datas = [f"{turn}.{n}" for n in range(20)]
        send_batch(own, S, datas, keys=[f"k{n % 7}" for n in range(20)], ids=datas)
        sent.extend(datas)

    def consume(consumer: str) -> Callable[[Db, int], None]:
        def work(own: Db, turn: int) -> None:
            got = receive(own, S, consumer, 15)
            if turn % 10 == 3:
                return  # it forgot them: they expire
            acked = got[: len(got) // 2] if turn % 10 == 6 else got
            if acked:
                full = ack(own, S, consumer, acked) == (len(acked), 0)
                (done if full else maybe)[consumer].update(m.data for m in acked)

        return work

    works = [maintain] * 8 + [produce, consume("c"), consume("c"), consume("k")]
    threads = [threading.Thread(target=session(work)) for work in works]
    for thread in threads:
        thread.start()
    wait_until(lambda: failures or (len(steps) > 400 and len(sent) > 1500), 60)
    over.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    for consumer, seen in done.items():

        def drained(consumer: str = consumer, seen: set[str] = seen) -> bool:
            while got := receive(db, S, consumer, 1000):
                seen.update(m.data for m in got)
                ack(db, S, consumer, got)
            return facts(db, S, consumer)["lag"] == 0

        wait_until(drained)
        assert seen <= set(sent) <= seen | maybe[consumer]
    assert value(db, "select sum(deadlocks) from pg_stat_database where datname = current_database()") == 0


class TestUnderAnOldSnapshot:
    TABLES = ("cursor", "delivery", "wake", "parked", "worker", "lease")

    @pytest.fixture
    def pinned(self, database_url: str) -> Iterator[Db]:
        """Somebody's forgotten report."""
        with psycopg.connect(database_url) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select txid_current()")
            yield connection

    def pages(self, db: Db, table: str) -> int:
        return int(value(db, f"select pg_relation_size('headgate.{table}') / 8192"))

    @pytest.mark.usefixtures("pinned")
    def test_hot_tables_stay_small(self, db: Db) -> None:
        call(db, "create_stream", S, lanes=4)
        call(db, "create_consumer", S, "c", order="key")
        largest = dict.fromkeys(self.TABLES, 0)
        handed_out = 0
        db.execute("set synchronous_commit = off")
        for _ in range(12):
            for _ in range(25):
                db.execute(
                    "select headgate.send_batch('orders', array_agg('x'::text), array_agg('k' || i % 50)) "
                    "from generate_series(1, 40) i"
                )
                got = receive(db, S, "c", 40)
                handed_out += len(got)
                call(db, "nack", S, "c", [m.ack_id for m in got[:5]], delay="0")
                ack(db, S, "c", got[5:])
            db.execute("select headgate.maintain()")
            for table in self.TABLES:
                largest[table] = max(largest[table], self.pages(db, table))
        assert handed_out > 3000
        assert all(pages < 150 for pages in largest.values()), largest
        while got := receive(db, S, "c", 1000):
            ack(db, S, "c", got)
        assert facts(db, S, "c")["unread"] == 0

    @pytest.mark.usefixtures("pinned")
    @pytest.mark.parametrize("table", TABLES)
    def test_a_rewrite_keeps_every_row_as_it_is(self, db: Db, table: str) -> None:
        rows = {
            "cursor": "1, i, now(), i, 7, 8, 9, 10, 11, 12, 13, now(), 14, now(), '5:9:6,7', '3:3:', '{[1,2), [7,9)}', "
            "'infinity', 3, '1 second', 'a, \"b\" \\ (c) {d} ' || i",
            "delivery": "1, i, i, array[i, 2], array[1, null], array['a,\"b', null, '{}'], now(), now(), 'w ' || i",
            "wake": "1, i, case when i % 2 = 0 then 'k \"' || i end",
            "parked": "1, i, i, null, 2, 'infinity', 'nacked', E'it said \"no\\n\"', now()",
            "worker": "1, 'w' || i, now(), now(), now()",
            "lease": "1, i, case when i % 2 = 0 then 'w' end, now()",
        }
        db.execute(f"insert into headgate.{table} select {rows[table]} from generate_series(1, 40) i")
        content = f"select t::text from headgate.{table} t order by 1"
        anything = {"wake": "key", "lease": "since", "worker": "until"}.get(table, "lane")
        for _ in range(500):
            db.execute(f"update headgate.{table} set {anything} = {anything}")
        before, pages = column(db, content), self.pages(db, table)
        assert pages > 64, "dead rows stay while somebody may see them"
        done = db.execute("select task, subject, done from headgate.maintain()").fetchall()
        assert ("rewrite", table, pages) in done
        assert column(db, content) == before
        assert self.pages(db, table) < 10

    @pytest.mark.alone
    def test_who_holds_a_row_for_long_is_not_waited_for(self, db: Db, database_url: str, pinned: Db) -> None:
        """Waiting for the lock would stop all that come behind, every second, for nothing."""
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, "c")
        for _ in range(3):
            db.execute("do $$ begin for i in 1 .. 3000 loop update headgate.cursor set delivered = i; end loop; end $$")
        pinned.rollback()
        pinned.execute("select 1 from headgate.cursor for update")
        pinned.execute("select pg_sleep(0.11)")
        before = self.pages(db, "cursor")
        assert before > 64
        with psycopg.connect(database_url, autocommit=True) as other:
            for _ in range(20):
                began = time.monotonic()
                other.execute("select headgate.rewrite_small()")
                if time.monotonic() - began < 0.015:
                    break
            else:
                pytest.fail("it waited for the lock")
        assert self.pages(db, "cursor") == before
        pinned.rollback()
        wait_until(lambda: value(db, "select count(*) from headgate.rewrite_small()") == 1)
