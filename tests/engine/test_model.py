"""Random histories, compared with the model of a consumer. The engine's clock is moved by `pass_time`."""

from __future__ import annotations

import itertools
import time

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.consumer_model import ACK_WAIT, Consumer, Waiting
from support.calls import Db, ack, call, column, extend, facts, nack, pass_time, receive, send_batch, tick

FAR = 120  # minutes
KEYS = ["a.1", "a.2", "b.1", None]
stream_numbers = itertools.count(1)


class History(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.db: Db = psycopg.connect(self.url, autocommit=True)
        self.other: Db = psycopg.connect(self.url)
        for db in (self.db, self.other):
            db.execute("select setseed(0.5)")  # messages without a key go to a random lane
        self.other.commit()
        self.stream = f"s{next(stream_numbers)}"
        self.keys: dict[int, str | None] = {}
        self.open: list[int] = []
        self.commits: dict[int, int] = {}
        self.consumers: list[Consumer] = []
        self.now = 0.0

    @initialize(
        lanes=st.integers(1, 3),
        shapes=st.tuples(
            *[st.tuples(st.booleans(), st.sampled_from([None, 1, 2]), st.sampled_from([None, None, 3]))] * 3
        ),
    )
    def create(self, lanes: int, shapes: tuple[tuple[bool, int | None, int | None], ...]) -> None:
        call(self.db, "create_stream", self.stream, lanes=lanes)
        for i, (ordered, max_deliver, pending) in enumerate(shapes):
            filters = ["a.*"] if i == 2 else None
            c = Consumer(f"c{i}", ordered or i == 0, filters, max_deliver, pending, self.keys, self.commits)
            call(
                self.db,
                "create_consumer",
                self.stream,
                c.name,
                filters,
                "key" if c.ordered else "none",
                f"{ACK_WAIT} minutes",
                max_deliver,
                pending,
            )
            self.consumers.append(c)
        self.send_now([key for key in KEYS for _ in range(3)], delayed=False)

    def commit(self, seqs: list[int], due: float = 0) -> None:
        self.commits.update(dict.fromkeys(seqs, len(self.commits)))
        for c in self.consumers:
            c.waiting.update({s: Waiting(0, due) for s in seqs if c.passes(s)})

    def send(self, db: Db, keys: list[str | None], delay: float = 0) -> list[int]:
        sent = send_batch(
            db, self.stream, ["data"] * len(keys), keys=keys, delays=[f"{delay} minutes" if delay else None] * len(keys)
        )
        self.keys.update(zip(sent, keys, strict=True))
        return sent

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        delayed=st.sampled_from([False, False, False, True]),
    )
    def send_now(self, keys: list[str | None], delayed: bool) -> None:
        self.commit(self.send(self.db, keys, FAR if delayed else 0), self.now + FAR if delayed else self.now)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    def send_in_open_transaction(self, keys: list[str | None]) -> None:
        self.open += self.send(self.other, keys)

    @precondition(lambda self: self.open)
    @rule(commit=st.sampled_from([True, True, False]))
    def end_transaction(self, commit: bool) -> None:
        if commit:
            self.other.commit()
            self.commit(self.open, self.now)
        else:
            self.other.rollback()
        self.open = []

    who = st.sampled_from([0, 0, 0, 1, 2])  # mostly the one that keeps order and has no filter
    some = st.lists(st.integers(0, 10**6), min_size=1, max_size=3)

    def chosen(self, c: Consumer, some: list[int]) -> list[str]:
        """Some of the ack_ids that were given, mostly of what is in flight."""
        live = [f"{d}.{s}" for d, x in c.flying.items() for s in x.attempts]
        pool = live * 3 + list(c.flying) + c.handed[-20:]
        return sorted({pool[i % len(pool)] for i in some}) if pool else []

    # Most of what happens is one rule, because Hypothesis leaves rules out at random: histories without it are dull.
    @rule(
        who=who,
        n=st.sampled_from([0, 1, 1, 2, 5, 100]),
        some=some,
        delay=st.sampled_from([0, 0, FAR]),
        fate=st.sampled_from(["keep", "ack", "ack all", "nack", "nack", "nack", "extend"]),
    )
    def work(self, who: int, n: int, some: list[int], delay: float, fate: str) -> None:
        c = self.consumers[who]
        if n:
            self.receive(who, n, [], "alone")
        ids = list(c.flying) if fate == "ack all" else self.chosen(c, some)
        if fate in ("ack", "ack all"):
            self.ack(c, ids)
        elif fate == "nack":
            self.nack(c, ids, delay)
        elif fate == "extend":
            self.extend(c, ids)

    @rule(
        who=who,
        n=st.sampled_from([1, 2, 5, 100]),
        some=some,
        how=st.sampled_from(["alone", "alone", "commit", "rollback"]),
    )
    def receive(self, who: int, n: int, some: list[int], how: str) -> None:
        c = self.consumers[who]
        acks = self.chosen(c, some) if how == "alone" else []
        parked = self.parked(c)
        c.ack(acks)
        parked &= set(c.waiting)
        start = time.monotonic()
        if how == "alone":
            got = receive(self.db, self.stream, c.name, n, acks=acks)
        else:
            with self.db.transaction(force_rollback=how == "rollback"):
                self.db.execute("select 1")
                got = receive(self.db, self.stream, c.name, n)
        if c.paused:
            assert got == []
            return
        if how == "rollback":
            gone = c.overdue()
        else:
            there = self.deliveries(c)
            gone = [d for d in c.overdue() if d not in there]
        undo = dict(c.waiting), dict(c.flying), list(c.dead)
        for delivery in gone:
            parked |= c.take_apart(delivery)
        room = n if c.max_ack_pending is None else min(n, c.max_ack_pending - len(c.in_flight()))
        c.check(got, parked)
        # inside a transaction it may go by a tick of some milliseconds ago; and it gives up looking after a while
        if how == "alone" and time.monotonic() - start < 0.15:
            rest = c.overdue()
            assert len(got) >= min(room, c.at_least(parked)) or rest, f"{len(got)} of {min(room, c.at_least(parked))}"
        if how == "rollback":
            c.waiting, c.flying, c.dead = undo
        else:
            c.hand_out(got)

    def parked(self, c: Consumer) -> set[int]:
        found = set(
            column(
                self.db,
                "select seq from headgate.parked_messages where stream = %s and consumer = %s",
                self.stream,
                c.name,
            )
        )
        assert found <= set(c.waiting)
        return found

    def deliveries(self, c: Consumer) -> dict[str, set[int]]:
        rows = self.db.execute(
            "select lane || '.' || id, seqs from headgate.deliveries where stream = %s and consumer = %s",
            [self.stream, c.name],
        )
        return {id: set(seqs) for id, seqs in rows}

    def ack(self, c: Consumer, ids: list[str]) -> None:
        assert ack(self.db, self.stream, c.name, ids) == c.ack(ids)

    def nack(self, c: Consumer, ids: list[str], delay: float) -> None:
        live, stale = c.pick(ids)
        assert nack(self.db, self.stream, c.name, ids, f"{delay} minutes") == (sum(map(len, live.values())), stale)
        for delivery, seqs in live.items():
            failed = {c.held(s): min(x for x in seqs if c.held(x) == c.held(s)) for s in seqs if c.held(s)}
            released = {s for s in c.flying[delivery].attempts if s not in seqs and s > failed.get(c.held(s), s)}
            if not seqs:
                continue
            for seq, attempt in c.settle(delivery, seqs | released).items():
                if seq in released:
                    c.waiting[seq] = Waiting(attempt - 1, self.now)
                else:
                    c.fail(seq, attempt, self.now + delay)

    def extend(self, c: Consumer, ids: list[str]) -> None:
        ids = sorted({".".join(i.split(".")[:2]) for i in ids})  # (single ones: test_own_deadlines.py)
        live, stale = c.pick(ids)
        assert extend(self.db, self.stream, c.name, ids, f"{FAR} minutes")[1] == stale
        for delivery, seqs in live.items():
            if seqs:
                c.flying[delivery].deadline = max(c.flying[delivery].deadline, self.now + FAR)

    @rule(minutes=st.sampled_from([1, ACK_WAIT + 10, FAR + 10]))
    def time_passes(self, minutes: int) -> None:
        pass_time(self.db, f"{minutes} minutes")
        self.now += minutes
        for c in self.consumers:
            c.now = self.now

    @rule(
        what=st.sampled_from(["maintain", "pause", "pause", "seek", "seek", "redrive", "redrive", "redrive"]),
        who=who,
        to=st.one_of(st.sampled_from(["beginning", "end"]), st.integers(0, 10**6)),
    )
    def intervene(self, what: str, who: int, to: str | int) -> None:
        if what == "maintain":
            self.maintain()
        elif what == "pause":
            self.pause_or_resume(who)
        elif what == "seek":
            self.seek(who, to)
        else:
            self.redrive(next((i for i, c in enumerate(self.consumers) if c.dead), who))

    def maintain(self) -> None:
        self.db.execute("select * from headgate.maintain()")
        for c in self.consumers:
            for delivery in c.overdue():
                c.take_apart(delivery)

    def pause_or_resume(self, who: int) -> None:
        c = self.consumers[who]
        c.paused = not c.paused
        call(self.db, "pause" if c.paused else "resume", self.stream, c.name)

    def seek(self, who: int, to: str | int) -> None:
        c = self.consumers[who]
        first = 10**9 if to == "end" else 0
        if isinstance(to, int) and self.commits:
            first = sorted(self.commits)[to % len(self.commits)]
        time.sleep(0.0015)
        call(self.db, "seek", self.stream, c.name, to if isinstance(to, str) else str(first))
        c.flying.clear()
        c.first = first if isinstance(to, int) else 0
        due = self.due()
        c.waiting = {s: Waiting(0, due.get(s, 0)) for s in self.commits if s >= first and c.passes(s)}

    def due(self) -> dict[int, float]:
        """When messages that were sent with a delay are due, from the log."""
        rows = self.db.execute(
            "select seq, extract(epoch from deliver_at - clock_timestamp())::float8 / 60 "
            f'from headgate."log_{self.stream}" where deliver_at is not null'
        )
        return {seq: self.now + round(left) for seq, left in rows}

    def redrive(self, who: int) -> None:
        c = self.consumers[who]
        assert call(self.db, "redrive", self.stream, c.name, all=True) == len(c.dead)
        for seq in set(c.dead) - set(c.waiting) - set(c.in_flight()):
            c.waiting[seq] = Waiting(0, self.now)
        c.dead.clear()

    @invariant()
    def the_views_agree(self) -> None:
        for c in self.consumers:
            row = facts(self.db, self.stream, c.name)
            unfinished = set(c.waiting) | set(c.in_flight())
            if row["lag"] < len(unfinished):  # what a late transaction left counts from the next tick on
                tick(self.db, self.stream)
                row = facts(self.db, self.stream, c.name)
            assert (row["lag"], row["in_flight"], row["dead"]) == (len(unfinished), len(c.in_flight()), len(c.dead))
            assert row["floor"] < min(unfinished, default=10**9)
            assert self.deliveries(c) == {id: set(d.attempts) for id, d in c.flying.items()}
            assert self.parked(c) <= set(c.waiting)

    def teardown(self) -> None:
        try:
            if self.consumers:
                self.drain()
        finally:
            self.other.close()
            self.db.execute("select headgate.drop_stream(name) from headgate.streams where name = %s", [self.stream])
            self.db.close()

    def drain(self) -> None:
        """Everything that was committed comes to its end."""
        if self.open:
            self.end_transaction(commit=True)
        self.time_passes(10 * FAR)
        for c in self.consumers:
            if c.paused:
                self.pause_or_resume(self.consumers.index(c))
            for _ in range(200):
                self.receive(self.consumers.index(c), 100, [], "alone")
                if not c.flying:
                    break
                self.ack(c, list(c.flying))
            assert c.waiting == {}
        self.the_views_agree()


def run(url: str, examples: int, steps: int) -> None:
    machine = type("History", (History,), {"url": url})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_histories(database_url: str) -> None:
    run(database_url, examples=40, steps=30)


@pytest.mark.slow
def test_many_long_random_histories(database_url: str) -> None:
    run(database_url, examples=400, steps=60)
