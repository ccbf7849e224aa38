"""Upsert streams whose newest versions were acked and removed: an older one that is left somewhere stays superseded."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from headgate.database import schema
from support.calls import Db, ack, call, column, drain, facts, forge_dead, nack, pass_time, receive, send, tick, value
from support.storage import create, end_segment, exists, lost, maintain, remove
from support.waiting import wait_until

NEWEST = "select key from headgate.newest order by key"


@pytest.fixture(params=["hash", "key"])
def prices(request: pytest.FixtureRequest, db: Db) -> None:
    create(db, lanes=1, lane_by=request.param, one_message_per_key=True, retain="until_acked")
    call(db, "create_consumer", "s", "c", max_deliver=1)


def dead_letter(db: Db, data: str, key: str = "k") -> None:
    """Sends a message that fails for good."""
    send(db, "s", data, key=key)
    nack(db, "s", "c", receive(db, "s", "c"))
    assert data in [d for (d,) in db.execute("select data from headgate.dead_letters('s', 'c')")]


def send_and_remove(db: Db, data: str, key: str = "k") -> None:
    """Sends a version that everybody acks, and whose segment is then removed."""
    send(db, "s", data, key=key)
    segment = end_segment(db)
    assert drain(db, "s", "c") == [data]
    remove(db, segment["id"])


@pytest.mark.usefixtures("prices")
class TestRedrive:
    def test_an_older_version_is_dropped(self, db: Db) -> None:
        dead_letter(db, "A")
        send_and_remove(db, "B")
        assert column(db, "select data from headgate.log_s") == []
        assert call(db, "redrive", "s", "c", all=True) == 1
        assert drain(db, "s", "c") == []
        assert facts(db, "s", "c")["dead"] == facts(db, "s", "c")["parked"] == facts(db, "s", "c")["lag"] == 0
        assert column(db, "select data from headgate.log_s") == []
        assert lost(db) == 0

    def test_the_newest_version_comes_again(self, db: Db) -> None:
        dead_letter(db, "A")
        dead_letter(db, "B")
        segment = end_segment(db)
        remove(db, segment["id"])
        assert call(db, "redrive", "s", "c", all=True) == 2
        assert drain(db, "s", "c") == ["B"]

    def test_one_that_is_redriven_before_the_newer_one_is_sent(self, db: Db) -> None:
        """It waits in another segment's copy, and another consumer keeps nothing alive."""
        dead_letter(db, "A")
        first = end_segment(db)
        remove(db, first["id"])
        assert call(db, "redrive", "s", "c", all=True) == 1
        send(db, "s", "B", key="k")
        assert drain(db, "s", "c") == ["B"]
        remove(db, end_segment(db)["id"])
        assert drain(db, "s", "c") == []

    def test_dead_in_a_transaction_that_is_still_open(self, db: Db, database_url: str) -> None:
        """Its dead letter cannot be seen yet when the newer version's segment is compacted away."""
        send(db, "s", "A", key="k")
        batch = receive(db, "s", "c")
        with psycopg.connect(database_url) as other:
            nack(other, "s", "c", batch)
            call(db, "make_room", "s", 100_000)
            db.execute("select nextval('headgate.seq_1') from generate_series(1, 80000)")  # past what it has locked
            send(db, "s", "B", key="k")
            for i in range(9):
                send(db, "s", f"x{i}", key=f"x{i}")
            assert len(drain(db, "s", "c")) == 9  # B waits for A
            last = end_segment(db)
            call(db, "compact", "s")
            assert not exists(db, last["id"])
            other.commit()
        pass_time(db, "1 minute")
        assert drain(db, "s", "c") == ["B"]
        for _ in range(3):
            maintain(db)
        assert call(db, "redrive", "s", "c", all=True) == 1
        assert drain(db, "s", "c") == []


@pytest.mark.usefixtures("prices")
class TestLate:
    def test_an_older_version_that_commits_late(self, db: Db, database_url: str) -> None:
        with late_version(db, database_url) as removes_the_newer_one:
            removes_the_newer_one()
        assert drain(db, "s", "c") == []
        assert facts(db, "s", "c")["lag"] == 0
        assert column(db, "select data from headgate.log_s") == []
        assert column(db, "select data from headgate.messages('s')") == []
        assert lost(db) == 0
        assert maintain(db).get("superseded versions") == 1

    def test_it_is_not_what_a_send_is_compared_with(self, db: Db, database_url: str) -> None:
        with late_version(db, database_url) as removes_the_newer_one:
            removes_the_newer_one()
            assert column(db, "select data from headgate.message_1") == ["A"]
            assert value(db, "select count(*) from headgate.log_s") == 0
            sent = send(db, "s", "A", key="k")
            assert sent[0] > 2
        assert drain(db, "s", "c") == ["A"]

    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
    def test_a_snapshot_from_before_the_removal(self, db: Db, database_url: str, isolation: str) -> None:
        """It sees neither the newer version nor that there was one: its transaction has to be repeated."""
        with (
            late_version(db, database_url) as removes_the_newer_one,
            psycopg.connect(database_url) as receiver,
            psycopg.connect(database_url) as sender,
        ):
            for other in (receiver, sender):
                other.execute(f"set transaction isolation level {isolation}")
                other.execute("select count(*) from headgate.consumer")
            removes_the_newer_one()
            with pytest.raises(psycopg.errors.SerializationFailure):
                receive(receiver, "s", "c")
            with pytest.raises(psycopg.errors.SerializationFailure):
                send(sender, "s", "A", key="k")
            receiver.rollback()
            receiver.execute(f"set transaction isolation level {isolation}")
            assert receive(receiver, "s", "c") == []
            receiver.commit()


@contextmanager
def late_version(db: Db, url: str) -> Iterator[Callable[[], None]]:
    """A (seq 1) commits after B, which lies in a segment of its own and was acked. Gives what removes B's segment."""
    with psycopg.connect(url) as late:
        send(late, "s", "A", key="k")
        first = value(db, "select headgate.segments_end(1)")
        db.execute("select nextval('headgate.seq_1') from generate_series(1, 9999)")  # the rest of its segment
        assert first > 10_000
        send(db, "s", "B", key="k")
        assert drain(db, "s", "c") == ["B"]
        late.commit()
    second = end_segment(db)
    yield lambda: remove(db, second["id"])


def test_parked_in_another_channel(db: Db) -> None:
    """The newer version came by another channel, whose lane knows nothing of the first."""
    create(db, lane_by="channel", one_message_per_key=True, retain="until_acked")
    call(db, "create_consumer", "s", "c")
    send(db, "s", "A", key="k", channel="x")
    for i in range(9):
        send(db, "s", f"x{i}", key=f"x{i}", channel="x")
    batch = receive(db, "s", "c", 20)
    assert nack(db, "s", "c", [m for m in batch if m.data == "A"], "1 hour") == (1, 0)
    assert ack(db, "s", "c", [m for m in batch if m.data != "A"]) == (9, 0)
    first = end_segment(db)
    call(db, "compact", "s")
    assert not exists(db, first["id"])
    send(db, "s", "B", key="k", channel="y")
    second = end_segment(db)
    assert drain(db, "s", "c") == ["B"]
    remove(db, second["id"])
    call(db, "retry_now", "s", "c", all=True)
    assert drain(db, "s", "c") == []
    assert lost(db) == 0


@pytest.mark.parametrize("lane_by", ["hash", "key"])
def test_seek_to_the_beginning(db: Db, database_url: str, lane_by: str) -> None:
    """The older version was left in the log by a sender with a fixed snapshot, in a segment that is kept."""
    create(db, lanes=1, lane_by=lane_by, one_message_per_key=True, retain="until_acked")
    call(db, "create_consumer", "s", "c")
    send(db, "s", "A", key="k")
    send(db, "s", "later", key="l", delay="1 hour")
    first = end_segment(db)
    with psycopg.connect(database_url) as fixed:
        fixed.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        send(fixed, "s", "B", key="k")
        fixed.commit()
    second = end_segment(db)
    assert drain(db, "s", "c") == ["B"]
    remove(db, second["id"])
    assert exists(db, first["id"])
    call(db, "seek", "s", "c", "beginning")
    assert drain(db, "s", "c") == []
    assert column(db, "select data from headgate.log_s") == ["later"]


@pytest.mark.usefixtures("prices")
class TestRows:
    """What headgate.newest holds."""

    def test_none_without_older_versions(self, db: Db) -> None:
        dead_letter(db, "x", key="other")
        for data in ("A", "B", "C"):
            send_and_remove(db, data)
        assert column(db, NEWEST) == []

    def test_one_while_an_older_version_is_left(self, db: Db) -> None:
        dead_letter(db, "A")
        for data in ("B", "C"):
            send_and_remove(db, data)
            assert column(db, NEWEST) == ["k"]
        newest = value(db, "select seq from headgate.newest")
        dead_letter(db, "D")
        assert value(db, "select seq from headgate.newest") == newest
        self.forget_after_a_while(db)
        assert column(db, NEWEST) == ["k"]
        call(db, "purge_dead", "s", "c", all=True)
        assert maintain(db).get("forget newest") is None, "it was looked at just now"
        assert self.forget_after_a_while(db) == 1
        assert column(db, NEWEST) == []

    def test_garbage_among_the_dead_letters(self, db: Db) -> None:
        dead_letter(db, "A")
        for seq in ('"x"', "null", "-1", '"99999999999999999999"'):
            forge_dead(db, "s.dead", "forged", key="k", headers=f'{{"source_consumer": "c", "source_seq": {seq}}}')
        send_and_remove(db, "B")
        assert column(db, NEWEST) == ["k"]

    def test_dropped_with_the_stream(self, db: Db) -> None:
        dead_letter(db, "A")
        send_and_remove(db, "B")
        assert column(db, NEWEST) == ["k"]
        call(db, "drop_stream", "s")
        assert column(db, NEWEST) == []

    def test_in_steps(self, db: Db) -> None:
        """Rows that stay do not keep others from being looked at."""
        dead_letter(db, "A")
        send_and_remove(db, "B")
        db.execute("insert into headgate.newest (stream, key, seq) select 1, 'x' || i, 5 from generate_series(1, 20) i")
        db.execute("update headgate.newest set checked_at = checked_at - interval '1 hour' where key <> 'k'")
        db.execute("update headgate.newest set checked_at = checked_at - interval '2 hours' where key = 'k'")
        step = "select headgate.forget_newest(s, 6) from headgate.stream s where s.id = 1"
        assert [value(db, step) for _ in range(5)] == [5, 6, 6, 3, 0]
        assert column(db, NEWEST) == ["k"]

    @staticmethod
    def forget_after_a_while(db: Db) -> int:
        db.execute("update headgate.newest set checked_at = checked_at - interval '1 hour'")
        return maintain(db).get("forget newest", 0)


@pytest.mark.parametrize("lane_by", ["hash", "channel"])
def test_upgrade(db: Db, lane_by: str) -> None:
    """Streams that were there before get the log that a new one has."""
    create(db, lane_by=lane_by, one_message_per_key=True)
    create(db, "plain")
    logs = "select pg_get_viewdef(('headgate.log_' || name)::regclass) from headgate.stream order by name"
    of_new = column(db, logs)
    [migration] = [m.script for m in schema.migrations() if m.name == "newest"]
    for before, after in (("preserved", "kept"), ("kept", "preserved")):  # its name then, and since migration 28
        for stream in (1, 2):
            db.execute(f"alter table headgate.{before}_{stream} rename to {after}_{stream}")
        if after == "kept":
            db.execute(migration[migration.index("do $$") :].encode())
    assert column(db, logs) == of_new


@pytest.mark.parametrize("lane_by", ["hash", "key"])
def test_many_at_once(db: Db, database_url: str, lane_by: str) -> None:
    """Senders of some keys, with fixed snapshots or late commits now and then, workers that fail, and maintenance that
    removes each segment as soon as it can, when the senders pause; then all that is dead is redriven. Once a version is
    acked, no older one of its key is handed out."""
    keys = [f"k{i}" for i in range(8)]
    create(db, lanes=2, lane_by=lane_by, one_message_per_key=True, retain="until_acked", segment_rows=1000)
    call(db, "create_consumer", "s", "c", max_deliver=1)
    stop, busy = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    acked: dict[str, int] = defaultdict(int)
    too_late: list[tuple[str, int, int]] = []
    noted: set[int] = set()
    lock = threading.Lock()

    def write(own: Db, rng: random.Random) -> None:
        if not busy.wait(0.1):
            return
        own.isolation_level = rng.choice([None, None, psycopg.IsolationLevel.REPEATABLE_READ])
        for key in rng.sample(keys, rng.choice([1, 1, 3])):
            send(own, "s", str(rng.random()), key=key)
        if rng.random() < 0.1:
            stop.wait(rng.random() / 2)
        own.rollback() if rng.random() < 0.1 else own.commit()

    def work(own: Db, rng: random.Random) -> None:
        with lock:  # so that it is known what was acked before
            got = [(m, m.key or "") for m in receive(own, "s", "c", rng.choice([1, 5]))]
            own.commit()
            too_late.extend((key, m.seq, acked[key]) for m, key in got if m.seq < acked[key])
        for m, key in got:
            if rng.random() < 0.3:
                nack(own, "s", "c", [m])
                own.commit()
            else:
                with lock:
                    ack(own, "s", "c", [m])
                    own.commit()
                    acked[key] = max(acked[key], m.seq)

    def keep(own: Db, rng: random.Random) -> None:
        own.autocommit = True
        tick(own, "s")
        maintain(own)

    def run(what: Callable[[Db, random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        try:
            with psycopg.connect(database_url) as own:
                while not stop.is_set():
                    what(own, rng)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(what, seed))
        for seed, what in enumerate([write, write, write, work, work, keep])
    ]
    for thread in threads:
        thread.start()
    try:
        for turn in range(30):
            busy.set()
            stop.wait(0.3)
            busy.clear()
            wait_until(lambda: failures or value(db, "select count(*) from headgate.message_1") == 0)
            noted.add(value(db, "select coalesce(sum(seq), 0) from headgate.newest"))
            if failures or len(noted) > 3:
                break
            if turn % 2:
                call(db, "redrive", "s", "c", all=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert too_late == []
    assert len(noted) > 3, "hardly a version went before an older one did: this tested nothing"
    assert lost(db) == 0


def test_gone_at_the_moment_of_the_last_nack(db: Db) -> None:
    """A plain stream's message can only have gone with its segment, and is lost. (One that was superseded is not: see
    test_unparked.py.)"""
    create(db)
    call(db, "create_consumer", "s", "c", max_deliver=1)
    send(db, "s", "A", key="k")
    batch = receive(db, "s", "c")
    db.execute("delete from headgate.message_1")
    assert nack(db, "s", "c", batch) == (1, 0)
    assert (lost(db), facts(db, "s", "c")["dead"]) == (1, 0)
