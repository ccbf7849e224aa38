"""Sessions: threads with a connection of their own that draw what they do from a seeded random.Random."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from histories.record import COMMITTED, FAILED, ROLLED_BACK, Event, History, Message, Sent, Transaction
from histories.world import STREAM, Preset, named

ISOLATIONS = ("read committed", "read committed", "read committed", "repeatable read", "serializable")
STATEMENT_TIMEOUT = "15s"
HOLDS = (0.0,) * 6 + (0.01,) * 6 + (0.03,) * 6 + (0.1, 0.1, 0.3, 1.0, 2.5, 2.5)  # seconds that transactions stay open


class Pool:
    """Messages that a worker passes on, so that others settle a part of its batch, and those received last, which
    others may extend while their worker settles them."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, Message]] = []
        self._recent: list[tuple[str, Message]] = []
        self._lock = threading.Lock()

    def notice(self, consumer: str, messages: list[Message]) -> None:
        with self._lock:
            self._recent += [(consumer, m) for m in messages]
            del self._recent[:-40]

    def recent(self, consumer: str) -> list[Message]:
        with self._lock:
            return [m for c, m in self._recent if c == consumer]

    def put(self, consumer: str, messages: list[Message]) -> None:
        with self._lock:
            self._messages += [(consumer, m) for m in messages]
            del self._messages[:-60]  # what nobody took is forgotten, and expires

    def take(self, consumer: str, n: int) -> list[Message]:
        with self._lock:
            taken = [p for p in self._messages if p[0] == consumer][-n:]
            self._messages = [p for p in self._messages if p not in taken]
        return [m for _, m in taken]


class Session(threading.Thread):
    """What all sessions share: a connection, transactions around what they do, and the record of it."""

    def __init__(self, name: str, url: str, preset: Preset, history: History, pool: Pool, seconds: float) -> None:
        super().__init__(name=name, daemon=True)
        self.preset = preset
        self.history = history
        self.pool = pool
        self.seconds = seconds
        self.random = random.Random(f"{history.seed}/{preset.name}/{name}")
        self.db = psycopg.connect(url, autocommit=True, application_name=name)
        self.db.execute(f"set statement_timeout = '{STATEMENT_TIMEOUT}'")
        self.transaction: Transaction | None = None
        self.steps: list[Event] = []  # of the open transaction
        self.failure: BaseException | None = None

    # what a kind of session does, and what it must forget when that is taken back

    def step(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """Before a transaction begins."""

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        pass

    # the life of a session

    def run(self) -> None:
        try:
            while self.history.now() < self.seconds:
                if self.random.random() < self.preset.open:
                    self.in_transaction()
                else:
                    self.step()
                    self.rest(0.005)
        except BaseException as error:  # told by the runner, with the history
            self.failure = error
        finally:
            self.db.close()

    def rest(self, seconds: float) -> None:
        time.sleep(self.random.random() * seconds)

    def in_transaction(self) -> None:
        """BEGIN, a few steps with pauses between them, COMMIT or ROLLBACK."""
        self.prepare()
        isolation = self.random.choice(ISOLATIONS)
        before = self.state()
        longest = self.random.choice(HOLDS)
        self.transaction = self.history.begin(self.name, isolation)
        self.steps = []
        self.db.execute(sql.SQL("begin isolation level {}").format(sql.SQL(isolation)))
        self.rest(self.random.choice((0.0, 0.005)))  # so that the first statement looks alone, or does not
        count = self.random.choice((1, 1, 2, 3, 4))
        failed = False
        for _ in range(count):
            failed = self.in_savepoint() if self.random.random() < 0.2 else self.one_step()
            if failed:
                break
            self.rest(longest / count)
        self.end(before, FAILED if failed else ROLLED_BACK if self.random.random() < 0.3 else COMMITTED)

    def one_step(self) -> bool:
        """Whether the transaction has failed with it."""
        self.step()
        return bool(self.steps and self.steps[-1].problem)

    def in_savepoint(self) -> bool:
        before, first = self.state(), len(self.steps)
        self.db.execute("savepoint here")
        failed = self.one_step()
        if failed or self.random.random() < 0.4:
            undone = self.steps[-1].called if failed else self.history.now()
            self.db.execute("rollback to savepoint here")
            for event in self.steps[first:]:
                event.undone = undone
            self.restore(before)
            if failed and self.transaction:
                self.transaction.ending = float("inf")  # it goes on
        self.steps.append(Event(self.name, "savepoint", None, {}, self.history.now()))
        return False

    def end(self, before: Any, outcome: str) -> None:
        transaction = self.transaction
        assert transaction is not None
        statement = "commit" if outcome == COMMITTED else "rollback"
        self.history.end(transaction, outcome, lambda: self.db.execute(statement))
        if transaction.outcome != COMMITTED:
            self.restore(before)
        self.transaction = None
        self.steps = []

    def call(self, kind: str, query: str, values: list[Any], read: Callable[[list[Any]], Any], **asked: Any) -> Event:
        """One statement, written down."""
        consumer = asked.pop("consumer", None)
        event = self.history.call(
            self.name,
            kind,
            lambda: read(self.db.execute(query, values).fetchall()),
            consumer=consumer,
            transaction=self.transaction,
            **asked,
        )
        if self.transaction is not None:
            self.steps.append(event)
        return event

    def send(self, messages: list[Sent]) -> Event:
        columns: list[list[Any] | None] = [
            [m.channel for m in messages] if self.preset.lane_by == "channel" else None,
            [timedelta(seconds=m.delay) if m.delay else None for m in messages] if self.preset.delays else None,
            [m.id for m in messages] if self.preset.ids else None,
        ]
        return self.call(
            "send",
            "select headgate.send_batch(%s, %s::text[], %s::text[], null, %s::text[], %s::interval[], %s::text[])",
            [STREAM, [m.data for m in messages], [m.key for m in messages], *columns],
            lambda rows: list(rows[0][0]),
            messages=messages,
        )


class Sender(Session):
    """The only writer of its keys, so that it knows their order; in upsert streams it also writes keys of all."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        families = self.preset.families
        self.keys = [f"{families[i % len(families)]}.{self.name}-{i}" for i in range(self.preset.keys)]
        self.count = 0
        self.used: list[Sent] = []  # messages with ids

    def step(self) -> None:
        # ids in a fixed order within a transaction: all are this session's own, so that nobody waits for them
        messages = [self.message() for _ in range(self.random.randint(1, self.preset.batch))]
        event = self.send(messages)
        if not event.problem:
            self.used += [m for m in messages if m.id]
            del self.used[:-12]

    def message(self) -> Sent:
        if self.used and self.random.random() < 0.3:
            return self.random.choice(self.used)
        self.count += 1
        key: str | None = self.random.choice(self.keys)
        if self.preset.upsert and self.random.random() < 0.4:
            key = f"{self.preset.families[0]}.shared-{self.random.randrange(2)}"
        elif self.random.random() < self.preset.keyless:
            key = None
        channel = "t0" if key is None else f"t{key[-1]}"
        what = {"value": self.random.choice("ABC")} if self.preset.upsert else {"n": self.count, "by": self.name}
        return Sent(
            key,
            json.dumps({"key": key} | what),
            channel if self.preset.lane_by == "channel" else None,
            f"{self.name}-{self.count:06}" if self.random.random() < self.preset.ids else None,
            round(self.random.random() * 0.8, 3) if self.random.random() < self.preset.delays else 0.0,
        )


class Worker(Session):
    """Receives and settles, in every way there is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.hands: dict[str, list[Message]] = {c.name: [] for c in self.preset.consumers}
        self.joined: dict[str, float] = {}
        self.sent = 0

    def state(self) -> Any:
        return {consumer: list(hand) for consumer, hand in self.hands.items()}

    def restore(self, state: Any) -> None:
        self.hands = {consumer: list(hand) for consumer, hand in state.items()}

    def prepare(self) -> None:
        """Take over from others only before a transaction: its snapshot may be older than their deliveries."""
        consumer = self.random.choice(self.preset.consumers).name
        self.hands[consumer] += self.pool.take(consumer, self.random.randint(1, 4))

    def step(self) -> None:
        consumer = self.random.choice(self.preset.consumers).name
        hand = self.hands[consumer]
        if self.preset.consumer(consumer).leased and not self.stay(consumer):
            return
        if self.transaction is None and self.random.random() < 0.2:
            hand += self.pool.take(consumer, 3)
        if self.transaction is not None and self.random.random() < 0.15:
            self.send_more()
        elif hand and self.random.random() < 0.6:
            self.settle(consumer)
        elif self.random.random() < 0.1:
            self.extend(consumer, self.pool.recent(consumer))
        else:
            self.receive(consumer)

    def send_more(self) -> None:
        """What a handler sends in its own transaction: without a key, for others own the keys."""
        self.sent += 1
        data = json.dumps({"key": None, "n": self.sent, "by": self.name})
        self.send([Sent(None, data, "t0" if self.preset.lane_by == "channel" else None)])

    def stay(self, consumer: str) -> bool:
        """Join a leased consumer, and be seen again in time; whether that went well."""
        if self.history.now() > self.joined.get(consumer, 0.0):
            function = "heartbeat" if consumer in self.joined else "join_workers"
            event = self.call(
                function,
                f"select headgate.{function}(%s, %s, %s)",
                [STREAM, consumer, self.name],
                lambda rows: rows[0][0],
                consumer=consumer,
            )
            if event.problem:
                return False
            self.joined[consumer] = self.history.now() + 0.3
        return True

    def receive(self, consumer: str) -> None:
        n = self.random.choice((1, 3, 10, 50))
        acks = self.pick(consumer, whole=True) if self.random.random() < 0.4 else []
        misused = self.transaction is not None and self.random.random() < self.preset.misuse
        event = self.call(
            "receive",
            "select ack_id, seq, key, data, attempt from headgate.receive(%s, %s, %s, %s, %s::text[], %s)",
            [STREAM, consumer, n, self.name, acks or None, False if misused else None],
            lambda rows: [Message(*row) for row in rows],
            consumer=consumer,
            n=n,
            acks=acks,
            open=False if misused else None,
        )
        if event.problem or not event.answer:
            return
        got: list[Message] = event.answer
        if self.transaction is None:
            self.pool.notice(consumer, got)
        if self.random.random() < self.preset.deaf:
            return
        if self.transaction is None and len(got) > 1 and self.random.random() < self.preset.share:
            half = self.random.randint(1, len(got) - 1)
            self.pool.put(consumer, got[half:])
            got = got[:half]
        self.hands[consumer] += got

    def pick(self, consumer: str, whole: bool) -> list[str]:
        """Ids of messages, or of whole deliveries, which are then in this hand no more."""
        hand = self.hands[consumer]
        if not hand:
            return []
        if whole and self.random.random() < 0.6:
            delivery = self.random.choice(hand).delivery
            self.hands[consumer] = [m for m in hand if m.delivery != delivery]
            return [delivery]
        picked = self.random.sample(hand, self.random.randint(1, min(len(hand), 8)))
        self.hands[consumer] = [m for m in hand if m not in picked]
        return [m.ack_id for m in picked]

    def settle(self, consumer: str) -> None:
        draw = self.random.random()
        if draw < self.preset.nack:
            long = self.random.random() < self.preset.long_nack
            delay = 1.0 + self.random.random() if long else self.random.choice((0.0, 0.05, 0.3))
            self.settle_by("nack", consumer, self.pick(consumer, whole=False), delay)
        elif draw < self.preset.nack + 0.08:
            self.settle_by("release", consumer, self.pick(consumer, whole=False))
        elif draw < self.preset.nack + 0.16:
            self.extend(consumer, self.hands[consumer])
        else:
            self.settle_by("ack", consumer, self.pick(consumer, whole=True))

    def settle_by(self, kind: str, consumer: str, acks: list[str], delay: float | None = None) -> None:
        if not acks:
            return
        more = ", make_interval(secs => %s)" if delay is not None else ""
        self.call(
            kind,
            f"select * from headgate.{kind}(%s, %s, %s::text[]{more})",
            [STREAM, consumer, acks] + ([delay] if delay is not None else []),
            lambda rows: tuple(rows[0]),
            consumer=consumer,
            acks=acks,
            delay=delay,
        )

    def extend(self, consumer: str, choices: list[Message]) -> None:
        if not choices:
            return
        by = self.random.choice((0.3, 0.8, 1.2))
        acks = [m.ack_id for m in self.random.sample(choices, self.random.randint(1, min(3, len(choices))))]
        self.call(
            "extend",
            "select * from headgate.extend(%s, %s, %s::text[], make_interval(secs => %s))",
            [STREAM, consumer, acks, by],
            lambda rows: tuple(rows[0]),
            consumer=consumer,
            acks=acks,
            by=by,
        )


class Operator(Session):
    """Maintains, seeks, alters: whatever the preset has weights for."""

    def step(self) -> None:
        kinds = list(self.preset.weights)
        kind = self.random.choices(kinds, [self.preset.weights[k] for k in kinds])[0]
        getattr(self, kind)(self.random.choice(self.preset.consumers).name)
        self.rest(0.1)

    def maintain(self, consumer: str) -> None:
        self.call(
            "maintain", "select task, subject, done from headgate.maintain()", [], lambda rows: [tuple(r) for r in rows]
        )

    def tick(self, consumer: str) -> None:
        self.call("tick", "select headgate.tick(%s)", [STREAM], first)

    def compact(self, consumer: str) -> None:
        self.call("compact", "select headgate.compact(%s)", [STREAM], first)

    def set_lanes(self, consumer: str) -> None:
        n = self.random.choice((1, 2, 3, 5))
        self.call("set_lanes", "select headgate.set_lanes(%s, %s)", [STREAM, n], first, lanes=n)

    def seek(self, consumer: str) -> None:
        target = self.random.choice(("beginning", "beginning", "beginning", "end", "seq"))
        if target == "seq":
            target = str(self.random.choice(self.known()))
        self.of_consumer("seek", consumer, [target], target=target)

    def retry_now(self, consumer: str) -> None:
        self.of_consumer("retry_now", consumer)

    def discard(self, consumer: str) -> None:
        seqs = sorted(self.random.sample(self.known(), 1))
        self.of_consumer("discard", consumer, [seqs], seqs=seqs)

    def redrive(self, consumer: str) -> None:
        self.of_consumer("redrive", consumer)

    def purge_dead(self, consumer: str) -> None:
        self.of_consumer("purge_dead", consumer)

    def pause(self, consumer: str) -> None:
        """For a moment only: a consumer that stays paused tests nothing."""
        self.of_consumer("pause", consumer)
        if self.transaction is None:
            self.rest(0.1)
        if self.transaction is None or not self.steps[-1].problem:
            self.of_consumer("resume", consumer)

    def alter_consumer(self, consumer: str) -> None:
        changes: dict[str, Any] = {
            "ack_wait": self.preset.consumer(consumer).ack_wait + self.random.choice((0.0, 0.1, 0.4)),
        }
        if self.preset.consumer(consumer).settings.get("max_ack_pending"):
            changes["max_ack_pending"] = self.random.randint(4, 20)
        if self.preset.consumer(consumer).settings.get("max_concurrency"):
            changes["max_concurrency"] = self.random.randint(1, 4)
        text, values = named(changes)
        self.call(
            "alter_consumer",
            f"select headgate.alter_consumer(%s, %s, {text})",
            [STREAM, consumer, *values],
            first,
            consumer=consumer,
            changes=changes,
        )

    def alter_stream(self, consumer: str) -> None:
        age = self.random.choice(("100 ms", "200 ms", "500 ms"))
        self.call(
            "alter_stream", "select headgate.alter_stream(%s, segment_age => %s)", [STREAM, age], first, segment_age=age
        )

    def set_channel(self, consumer: str) -> None:
        channel, most = f"t{self.random.randrange(3)}", self.random.randint(1, 3)
        pace = self.random.choice((None, 0.005, 0.05))
        self.call(
            "set_channel",
            "select headgate.set_channel(%s, %s, %s, %s, make_interval(secs => %s))",
            [STREAM, consumer, channel, most, pace],
            first,
            consumer=consumer,
            channel=channel,
            max_concurrency=most,
            release_interval=pace,
        )

    def of_consumer(self, kind: str, consumer: str, values: list[Any] | None = None, **asked: Any) -> None:
        marks = ", %s" * len(values or [])
        self.call(
            kind,
            f"select headgate.{kind}(%s, %s{marks})",
            [STREAM, consumer, *(values or [])],
            first,
            consumer=consumer,
            **asked,
        )

    def known(self) -> list[int]:
        """Seqs that have been sent, as far as the history has come."""
        sends = [e for e in self.history.events[-400:] if e.kind == "send" and e.answer]
        return [seq for e in sends for seq in e.answer] or [1]


def first(rows: list[Any]) -> Any:
    return rows[0][0]
