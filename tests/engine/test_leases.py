"""Leased lanes in SQL: fair shares, handing over, dead workers, and that no two workers have one lane in hand."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import psycopg
import pytest

from support.calls import (
    Db,
    Received,
    ack,
    call,
    column,
    facts,
    pass_time,
    receive,
    record,
    same_lane_keys,
    send,
    tick,
    value,
)

S, C = "orders", "c"
LANES = 16


@pytest.fixture
def leased(db: Db) -> None:
    call(db, "create_stream", S, lanes=LANES)
    call(db, "create_consumer", S, C, leased=True)


def join(db: Db, worker: str) -> list[int]:
    return call(db, "join_workers", S, C, worker)  # type: ignore[no-any-return]


def beat(db: Db, worker: str) -> list[int]:
    return call(db, "heartbeat", S, C, worker)  # type: ignore[no-any-return]


def leave(db: Db, worker: str) -> int:
    return call(db, "leave_workers", S, C, worker)  # type: ignore[no-any-return]


def held(db: Db) -> dict[str, list[int]]:
    return dict(db.execute("select name, lanes from headgate.workers where until > clock_timestamp()").fetchall())


def lane(message: Received) -> int:
    return int(message.ack_id.split(".")[0])


def send_to_all_lanes(db: Db, rounds: int = 1) -> None:
    for n in range(rounds):
        call(db, "send_batch", S, [str(n)] * 200, [f"k{i}" for i in range(200)])


@pytest.mark.usefixtures("leased")
class TestShares:
    @pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
    def test_fair_for_any_number_of_workers(self, db: Db, workers: int) -> None:
        names = [f"w{n}" for n in range(workers)]
        for name in names:
            join(db, name)
        for _ in range(2):
            shares = {name: beat(db, name) for name in names}
        assert sorted(slot for share in shares.values() for slot in share) == list(range(LANES))
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) == -(-LANES // workers)
        assert min(sizes) == LANES // workers
        assert shares == held(db)
        assert shares == {name: beat(db, name) for name in names}, "and nothing moves any more"

    def test_the_first_gets_everything_at_once(self, db: Db) -> None:
        assert join(db, "a") == list(range(LANES))

    def test_excess_is_given_back_from_the_top(self, db: Db) -> None:
        join(db, "a")
        assert join(db, "b") == []
        assert beat(db, "a") == list(range(8))
        assert beat(db, "b") == list(range(8, 16))
        join(db, "c")
        assert (beat(db, "a"), beat(db, "b")) == ([0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12])
        assert beat(db, "c") == [6, 7, 13, 14, 15]

    def test_a_fifth_gets_its_share_within_two_heartbeats(self, db: Db) -> None:
        names = ["a", "b", "c", "d"]
        for name in names * 3:
            beat(db, name)
        join(db, "e")
        for _ in range(2):
            for name in (*names, "e"):
                beat(db, name)
        assert len(held(db)["e"]) == 3
        assert sorted(len(lanes) for lanes in held(db).values()) == [3, 3, 3, 3, 4]

    def test_more_workers_than_lanes(self, db: Db) -> None:
        names = [f"w{n:02}" for n in range(20)]
        for name in names * 3:
            beat(db, name)
        assert [len(held(db)[name]) for name in names] == [1] * 16 + [0] * 4
        free = held(db)["w03"]
        leave(db, "w03")
        assert beat(db, "w19") == []
        assert beat(db, "w16") == free

    def test_leave_while_a_heartbeat_is_open(self, db: Db, database_url: str) -> None:
        """It says what is in the way, not only that something is."""
        join(db, "a")
        with psycopg.connect(database_url) as other:
            beat(other, "a")
            with pytest.raises(psycopg.errors.LockNotAvailable, match='worker "a"') as caught:
                leave(db, "a")
            assert "repeat the call" in (caught.value.diag.message_hint or "")
        assert leave(db, "a") == LANES

    @pytest.mark.alone
    def test_giving_back_while_another_takes(self, db: Db, database_url: str) -> None:
        """One that left and joins again gives lanes back which an open transaction is just taking."""
        join(db, "a")
        with psycopg.connect(database_url) as sharing, psycopg.connect(database_url) as taking:
            sharing.execute("select from headgate.lease for update")
            assert leave(db, "a") == 0  # they are its own no more, but say so still
            sharing.rollback()
            sharing.execute("select from headgate.lease where slot = -1 for update")
            assert beat(taking, "b") == list(range(LANES))
            sharing.rollback()
            beat(db, "c")
            start = time.monotonic()
            assert beat(db, "a") == list(range(LANES // 2))
            assert time.monotonic() - start < 1

    def test_leave_hands_over_at_once(self, db: Db) -> None:
        for name in ("a", "b", "a", "b"):
            beat(db, name)
        assert leave(db, "a") == 8
        assert beat(db, "b") == list(range(LANES))
        assert leave(db, "a") == 0

    def test_a_stale_lease_is_stolen(self, db: Db) -> None:
        for name in ("a", "b", "a", "b"):
            beat(db, name)
        db.execute("update headgate.worker set until = clock_timestamp() + '50 ms' where name = 'a'")
        assert beat(db, "b") == list(range(8, 16)), "not before its time"
        time.sleep(0.06)
        assert beat(db, "b") == list(range(LANES))
        assert beat(db, "a") == [], "who comes back joins as the last one"
        assert (beat(db, "b"), beat(db, "a")) == (list(range(8)), list(range(8, 16)))

    def test_lanes_that_come_and_go(self, db: Db) -> None:
        """`set_lanes` makes and removes cursors."""
        join(db, "a")
        db.execute(
            "insert into headgate.cursor select (k).* from (select jsonb_populate_record(k, '{\"lane\": 16}') as k "
            "from headgate.cursor k where lane = 15) x"
        )
        assert beat(db, "a") == list(range(17))
        db.execute("delete from headgate.cursor where lane in (0, 16)")
        assert beat(db, "a") == list(range(1, 16))

    @pytest.mark.parametrize("lane_by", ["key", "channel"])
    def test_lanes_by_name_share_slots(self, db: Db, lane_by: str) -> None:
        call(db, "create_stream", "named", lanes=4, lane_by=lane_by)
        call(db, "create_consumer", "named", C, leased=True)
        assert call(db, "join_workers", "named", C, "a") == [0, 1, 2, 3]
        consumer = "(select c from headgate.consumer c where c.id = %s)"
        id = value(db, "select c.id from headgate.consumer c join headgate.stream s on s.id = c.stream "
                       "where s.name = 'named'")  # fmt: skip
        db.execute("insert into headgate.delivery (consumer, lane, seqs, deadline, worker) "
                   "values (%s, 4 * 1000 + 2, '{1}', clock_timestamp() + '1 minute', 'b')", [id])  # fmt: skip
        assert value(db, f"select headgate.leased_slots({consumer}, 'a', clock_timestamp())", id) == [0, 1, 3]
        assert not value(db, f"select headgate.may_claim({consumer}, 4002, 'a')", id)
        assert value(db, f"select headgate.may_claim({consumer}, 4001, 'a')", id)


@pytest.mark.usefixtures("leased")
class TestClaims:
    def test_only_from_its_own_lanes(self, db: Db) -> None:
        for name in ("a", "b", "a", "b"):
            beat(db, name)
        send_to_all_lanes(db)
        for name in ("a", "b"):
            got = receive(db, S, C, 1000, worker=name)
            assert {lane(m) for m in got} == set(held(db)[name])
            ack(db, S, C, got)
        assert facts(db, S, C)["lag"] == 0

    def test_who_has_not_joined_is_told_to(self, db: Db) -> None:
        send(db, S, "x")
        join(db, "a")
        for worker in (None, "b"):
            with pytest.raises(psycopg.Error, match="has not joined") as caught:
                receive(db, S, C, worker=worker)
            assert caught.value.sqlstate == "HG012"
            assert "join_workers" in (caught.value.diag.message_hint or "")
        pass_time(db, "11 s")
        with pytest.raises(psycopg.Error, match="not seen"):
            receive(db, S, C, worker="a")
        beat(db, "a")
        assert len(receive(db, S, C, worker="a")) == 1

    def test_a_lane_that_moves_waits_for_what_is_in_flight(self, db: Db) -> None:
        join(db, "a")
        send_to_all_lanes(db, 2)
        first = receive(db, S, C, 1000, worker="a")
        busy = [m for m in first if lane(m) in (8, 9)]
        ack(db, S, C, [m for m in first if m not in busy])
        assert {lane(m) for m in first} == set(range(LANES))
        for name in ("b", "a", "b"):
            beat(db, name)
        send_to_all_lanes(db)
        assert held(db)["b"] == list(range(8, 16))
        got = receive(db, S, C, 1000, worker="b")
        assert {lane(m) for m in got} == set(range(10, 16))
        ack(db, S, C, [m for m in busy if lane(m) == 8])
        assert {lane(m) for m in receive(db, S, C, 1000, worker="b")} == {8}
        pass_time(db, "9 s")
        beat(db, "a"), beat(db, "b")
        assert receive(db, S, C, 1000, worker="b") == []
        db.execute("update headgate.delivery set deadline = clock_timestamp() where lane = 9")
        db.execute("update headgate.cursor set expires_at = clock_timestamp() where lane = 9")
        again = receive(db, S, C, 1000, worker="b")
        assert {lane(m) for m in again} == {9}
        assert {m.attempt for m in again} == {1, 2}

    def test_what_a_dead_worker_had_comes_again_at_once(self, db: Db) -> None:
        db.execute("update headgate.consumer set ack_wait = '1 hour'")
        beat(db, "a")
        send_to_all_lanes(db)
        assert len(receive(db, S, C, 1000, worker="a")) == 200
        db.execute("update headgate.worker set until = clock_timestamp()")
        assert len(beat(db, "b")) == LANES
        got = receive(db, S, C, 1000, worker="b")
        assert Counter(m.attempt for m in got) == {2: 200}

    def test_a_claim_that_was_under_way_when_its_worker_died(self, db: Db, database_url: str) -> None:
        """Its delivery appears after the worker was found dead: the next heartbeat finds it."""
        join(db, "a")
        send(db, S, "x")
        with psycopg.connect(database_url) as open_one:
            assert len(receive(open_one, S, C, worker="a")) == 1
            db.execute("update headgate.worker set until = clock_timestamp()")
            assert len(beat(db, "b")) == LANES
            assert receive(db, S, C, worker="b") == []
            open_one.commit()
        assert receive(db, S, C, worker="b") == []
        beat(db, "b")
        assert [m.attempt for m in receive(db, S, C, worker="b")] == [2]

    def test_what_is_in_flight_stays_with_a_worker_that_left(self, db: Db) -> None:
        join(db, "a")
        send(db, S, "x")
        got = receive(db, S, C, worker="a")
        leave(db, "a")
        assert len(join(db, "b")) == LANES
        assert receive(db, S, C, worker="b") == []
        assert ack(db, S, C, got) == (1, 0)

    def test_a_lease_that_moves_between_looking_and_claiming(self, db: Db, database_url: str) -> None:
        """The claim looks again once it holds the cursor."""
        join(db, "a")
        send(db, S, "x", key=same_lane_keys(db, LANES, 1)[0])
        with psycopg.connect(database_url) as mover:
            mover.execute("update headgate.lease set worker = 'b' where slot = 0")
            mover.execute("insert into headgate.worker (consumer, name, until) "
                          "select consumer, 'b', until from headgate.worker")  # fmt: skip
            consumer = value(db, "select id from headgate.consumer")
            may = "select headgate.may_claim(c, 0, %s) from headgate.consumer c where c.id = %s"
            assert (value(db, may, "a", consumer), value(db, may, "b", consumer)) == (True, False)
            mover.commit()
            assert (value(db, may, "a", consumer), value(db, may, "b", consumer)) == (False, True)

    def test_a_lane_that_moves_while_a_claim_waits_for_it(self, db: Db, database_url: str) -> None:
        """A claim reads the leases first; then it finds the cursor locked, tries again, and gets it just
        after the lane went to another worker."""
        join(db, "a")
        db.execute(
            "insert into headgate.worker (consumer, name, until) select consumer, 'b', until from headgate.worker"
        )
        send(db, S, "x", key=same_lane_keys(db, LANES, 1)[0])
        tick(db, S)
        with psycopg.connect(database_url) as mover, psycopg.connect(database_url, autocommit=True) as claimer:
            for n in range(20):
                db.execute("update headgate.lease set worker = 'a' where slot = 0")
                mover.execute("select from headgate.cursor where lane = 0 for update")
                mover.execute("update headgate.lease set worker = 'b' where slot = 0")
                got: list[Any] = []
                claim = threading.Thread(
                    target=lambda got=got: got.extend(
                        claimer.execute("select * from headgate.receive(%s, %s, 1, 'a')", [S, C]).fetchall()
                    )
                )
                claim.start()
                time.sleep(0.002 + n % 5 * 0.002)
                mover.commit()
                claim.join()
                assert got == []
        assert len(receive(db, S, C, worker="b")) == 1

    def test_ordered_and_filtered_consumers_keep_to_their_lanes(self, db: Db) -> None:
        call(db, "create_consumer", S, "d", leased=True, order="key", filter=["k.>"])
        for name in ("a", "b", "a", "b"):
            call(db, "heartbeat", S, "d", name)
        call(db, "send_batch", S, ["x"] * 200, [f"k.{i}" for i in range(100)] * 2)
        send(db, S, "no", key="other")
        total = 0
        for name in ("a", "b"):
            while got := receive(db, S, "d", 1000, worker=name):
                lanes = value(db, "select lanes from headgate.workers where consumer = 'd' and name = %s", name)
                assert {lane(m) for m in got} <= set(lanes)
                total += ack(db, S, "d", got)[0]
        assert total == 200


@pytest.mark.usefixtures("leased")
class TestOpenTransactions:
    @pytest.mark.alone
    def test_a_held_lock_falls_back_to_availability(self, db: Db, database_url: str) -> None:
        for name in ("a", "b", "a", "b"):
            beat(db, name)
        with psycopg.connect(database_url) as open_one:
            beat(open_one, "c")  # and its transaction stays open
            begun = time.monotonic()
            assert beat(db, "a") == list(range(8)), "keeps what it has, though there may be a third worker"
            assert time.monotonic() - begun < 2
            leave(db, "b")
            assert beat(db, "a") == list(range(LANES)), "beyond its share: nobody else can have them"
            db.execute("update headgate.worker set until = clock_timestamp() where name = 'a'")
            assert beat(db, "d") == list(range(LANES)), "also from the dead"
            open_one.commit()
        for _ in range(2):
            shares = {name: len(beat(db, name)) for name in ("c", "d")}
        assert shares == {"c": 8, "d": 8}

    def test_the_same_worker_in_an_open_transaction_is_a_conflict(self, db: Db, database_url: str) -> None:
        join(db, "a")
        with psycopg.connect(database_url) as open_one:
            beat(open_one, "a")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                beat(db, "a")
        assert value(db, "show lock_timeout") == "0"

    def test_the_callers_lock_timeout_stays(self, db: Db) -> None:
        db.execute("set lock_timeout = '7s'")
        with db.transaction():
            join(db, "a")
            assert value(db, "show lock_timeout") == "7s"

    def test_a_cursor_that_is_held_delays_only_its_lane(self, db: Db, database_url: str) -> None:
        join(db, "a")
        send_to_all_lanes(db)
        receive(db, S, C, 1000, worker="a")
        db.execute("update headgate.worker set until = clock_timestamp()")
        with psycopg.connect(database_url) as open_one:
            open_one.execute("select from headgate.cursor where lane = 3 for update")
            beat(db, "b")
            got = receive(db, S, C, 1000, worker="b")
            assert {lane(m) for m in got} == set(range(LANES)) - {3}
        beat(db, "b")
        assert {lane(m) for m in receive(db, S, C, 1000, worker="b")} == {3}


@pytest.mark.usefixtures("leased")
class TestLooking:
    def test_the_view(self, db: Db) -> None:
        join(db, "a")
        send_to_all_lanes(db)
        receive(db, S, C, 20, worker="a")
        row = record(db, "select * from headgate.workers")
        assert (row["stream"], row["consumer"], row["name"], row["in_flight"]) == (S, C, "a", 20)
        assert row["lanes"] == list(range(LANES))
        assert row["joined_at"] <= row["seen_at"] < row["until"]

    def test_maintain_finds_dead_workers(self, db: Db) -> None:
        join(db, "a")
        send(db, S, "x")
        receive(db, S, C, worker="a")
        db.execute("update headgate.worker set until = clock_timestamp()")
        assert ("expire workers", C, 1) in db.execute("select * from headgate.maintain()").fetchall()
        assert (facts(db, S, C)["in_flight"], facts(db, S, C)["parked"]) == (0, 1)
        assert record(db, "select * from headgate.workers")["lanes"] == []
        pass_time(db, "1 minute")
        db.execute("select * from headgate.maintain()")
        assert column(db, "select name from headgate.workers") == []
        assert not [task for task in column(db, "select task from headgate.maintain()") if task == "expire workers"]

    def test_drop(self, db: Db) -> None:
        join(db, "a")
        call(db, "drop_consumer", S, C)
        assert value(db, "select (select count(*) from headgate.lease) + (select count(*) from headgate.worker)") == 0


class TestMistakes:
    @pytest.mark.parametrize("function", ["join_workers", "heartbeat", "leave_workers"])
    def test_bad_input(self, db: Db, function: str) -> None:
        call(db, "create_stream", S)
        call(db, "create_consumer", S, C)
        call(db, "create_consumer", S, "l", leased=True)
        for arguments, state in (
            ((S, C, "w"), "HG010"),
            ((S, "l", None), "HG010"),
            ((S, "l", ""), "HG010"),
            ((S, "l", "x" * 201), "HG010"),
            ((S, "no", "w"), "HG003"),
            (("no", "l", "w"), "HG001"),
        ):
            with pytest.raises(psycopg.Error) as caught:
                call(db, function, *arguments)
            assert caught.value.sqlstate == state, arguments
            assert caught.value.diag.message_hint


@pytest.mark.alone
def test_workers_that_come_and_go_never_share_a_lane(db: Db, database_url: str) -> None:
    """Many sessions that join, claim, hold, ack, leave and die, with short leases. After each claim the deliveries
    themselves tell whether another one that is alive has messages of the lane."""
    call(db, "create_stream", S, lanes=4)
    call(db, "create_consumer", S, C, leased=True, lease_time="1 s", ack_wait="1 hour")
    clash = (
        "select array_agg(distinct lane) from headgate.delivery d join headgate.worker w on w.name = d.worker "
        "where w.until > clock_timestamp() and deadline > clock_timestamp() "
        "group by lane having count(distinct d.worker) > 1"
    )
    end = time.monotonic() + 5
    seen: Counter[str] = Counter()
    failures: list[BaseException] = []
    order: dict[str, list[int]] = defaultdict(list)

    def work(number: int) -> None:
        dice = random.Random(number)
        life = 0
        try:
            with psycopg.connect(database_url, autocommit=True) as mine:
                while time.monotonic() < end:
                    life += 1
                    name, beaten = f"w{number}.{life}", 0.0
                    for _ in range(dice.randint(5, 40)):
                        if time.monotonic() - beaten > 0.3:
                            beaten = time.monotonic()
                            beat(mine, name)
                        got = receive(mine, S, C, 5, worker=name)
                        assert value(mine, clash) is None
                        time.sleep(dice.random() * 0.01)
                        _, stale = ack(mine, S, C, got)
                        assert stale == 0 or time.monotonic() - beaten > 0.9
                        seen.update(m.data for m in got)
                    if dice.random() < 0.5:
                        leave(mine, name)
                    else:
                        receive(mine, S, C, 5, worker=name)  # and it dies
        except BaseException as error:
            failures.append(error)

    def publish() -> None:
        with psycopg.connect(database_url, autocommit=True) as mine:
            n = 0
            while time.monotonic() < end:
                call(mine, "send_batch", S, [str(n + i) for i in range(10)], [f"k{i}" for i in range(10)])
                n += 10
                time.sleep(0.01)
            order["sent"] = [n]

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)] + [threading.Thread(target=publish)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    deadline = time.monotonic() + 10
    while facts(db, S, C)["lag"]:
        assert time.monotonic() < deadline
        beat(db, "last")
        got = receive(db, S, C, 100, worker="last")
        seen.update(m.data for m in got)
        ack(db, S, C, got)
    assert len(seen) == order["sent"][0]
