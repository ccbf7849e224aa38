"""Sessions: threads with a connection of their own that draw what they do from a seeded random.Random."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from ..presets.preset import STREAM, Preset
from ..record import COMMITTED, FAILED, ROLLED_BACK, UNKNOWN, Event, HandedMessage, History, Sent, TransactionRecord

ISOLATIONS = ("read committed", "read committed", "read committed", "repeatable read", "serializable")
STATEMENT_TIMEOUT = "15s"
LONGEST_OUTAGE = 60.0
STILL_THERE = "select from pg_stat_activity where pid = %s and application_name = %s and pid <> pg_backend_pid()"
Values = list[Any] | dict[str, Any]
IDLE, IN_TRANSACTION = TransactionStatus.IDLE, TransactionStatus.INTRANS


class MessagePool:
    """Messages that a worker passes on, so that others settle a part of its batch, and those received last, which
    others may extend while their worker settles them."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, HandedMessage]] = []
        self.shared: set[str] = set()  # deliveries of which several have a part
        self._recent: list[tuple[str, HandedMessage]] = []
        self._lock = threading.Lock()

    def notice(self, consumer: str, messages: list[HandedMessage]) -> None:
        with self._lock:
            self._recent += [(consumer, m) for m in messages]
            del self._recent[:-40]

    def recent(self, consumer: str) -> list[HandedMessage]:
        with self._lock:
            return [m for c, m in self._recent if c == consumer]

    def put(self, consumer: str, messages: list[HandedMessage]) -> None:
        with self._lock:
            self._messages += [(consumer, m) for m in messages]
            self.shared |= {m.delivery for m in messages}
            del self._messages[:-60]  # what nobody took is forgotten, and expires

    def take(self, consumer: str, n: int) -> list[HandedMessage]:
        with self._lock:
            taken = [p for p in self._messages if p[0] == consumer][-n:]
            self._messages = [p for p in self._messages if p not in taken]
        return [m for _, m in taken]


class TortureSession(threading.Thread, ABC):
    """What all sessions share: a connection, transactions around what they do, and the record of it."""

    def __init__(
        self, name: str, url: str, preset: Preset, history: History, pool: MessagePool, seconds: float
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.preset = preset
        self.history = history
        self.pool = pool
        self.seconds = seconds
        self.random = random.Random(f"{history.seed}/{preset.name}/{name}")
        self.url = url
        self.db = self.connect()
        self.open = preset.open  # how many steps are a transaction
        self.longest_rest = 0.005  # between steps, at most
        self.prepared = preset.prepared if can_prepare(self.db) else 0.0
        self.transaction: TransactionRecord | None = None
        self.steps: list[Event] = []  # of the open transaction
        self.failure: BaseException | None = None

    def connect(self) -> psycopg.Connection:
        options = f"-c statement_timeout={STATEMENT_TIMEOUT}"
        return psycopg.connect(self.url, autocommit=True, application_name=self.name, options=options)

    def come_back(self) -> None:
        """After the connection was lost: connect again, and wait until the server has ended the old session, so that
        it does nothing more."""
        old, patience = self.db.info.backend_pid, time.monotonic() + LONGEST_OUTAGE
        self.db.close()
        while True:
            try:
                self.db = self.connect()
                while self.db.execute(STILL_THERE, [old, self.name]).fetchone():
                    time.sleep(0.01)
                return
            except psycopg.OperationalError:
                if time.monotonic() > patience:
                    raise
                time.sleep(0.02)

    # what a kind of session does, and what it must forget when that is taken back

    @abstractmethod
    def step(self) -> None:
        """One thing that it does, as chance has it."""

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
                if self.random.random() < self.open:
                    self.in_transaction()
                else:
                    self.step()
                    self.rest(self.longest_rest)
        except BaseException as error:  # told by the runner, with the history
            self.failure = error
        finally:
            self.db.close()

    def rest(self, seconds: float) -> None:
        time.sleep(self.random.random() * seconds)

    def in_transaction(self, *script: Callable[[], None], isolation: str | None = None) -> None:
        """BEGIN, a few steps (or those of the script) with pauses between them, COMMIT or ROLLBACK."""
        self.prepare()
        isolation = isolation or self.random.choice(ISOLATIONS)
        before = self.state()
        longest = self.random.choice(self.preset.holds)
        self.transaction = self.history.begin(self.name, isolation)
        self.steps = []
        self.insist(sql.SQL("begin isolation level {}").format(sql.SQL(isolation)), IN_TRANSACTION)
        self.rest(self.random.choice((0.0, 0.005)))  # so that the first statement looks alone, or does not
        steps = script or (self.step,) * self.random.choice((1, 1, 2, 3, 4))
        failed = False
        try:
            for step in steps:
                failed = self.in_savepoint() if self.random.random() < 0.2 and not script else self.one_step(step)
                if failed:
                    break
                self.rest(longest / len(steps))
        except psycopg.OperationalError:  # not one of the calls that are written down, but what holds them together
            if self.db.closed:
                self.come_back()
            failed = True
        self.end(before, FAILED if failed else ROLLED_BACK if self.random.random() < 0.3 else COMMITTED)

    def one_step(self, step: Callable[[], None]) -> bool:
        """Whether the transaction has failed with it."""
        step()
        return bool(self.steps and self.steps[-1].problem)

    def in_savepoint(self) -> bool:
        before, first = self.state(), len(self.steps)
        self.db.execute("savepoint here")
        failed = self.one_step(self.step)
        if self.db.info.transaction_status == IDLE:  # it has come back: the transaction ended with its connection
            return True
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
        id = self.transaction_id() if outcome == COMMITTED and self.preset.faults else None
        if outcome != FAILED and self.random.random() < self.prepared:
            self.end_prepared(transaction, outcome, statement)
        else:
            self.history.end(transaction, outcome, lambda: self.db.execute(statement))
        if self.db.closed:
            self.come_back()
            transaction.ended = self.history.now()
            if transaction.outcome == UNKNOWN:
                transaction.outcome = self.outcome_of(id)
        if transaction.outcome != COMMITTED:
            self.insist(sql.SQL("rollback"), IDLE)
            self.restore(before)
        self.transaction = None
        self.steps = []

    def end_prepared(self, transaction: TransactionRecord, outcome: str, statement: str) -> None:
        """PREPARE TRANSACTION; another session ends it after a while."""
        name = f"{self.name}-{transaction.number}"
        event = self.history.call(
            self.name, "prepare", lambda: self.db.execute(f"prepare transaction '{name}'"), transaction=transaction
        )
        if event.problem:
            transaction.ended, transaction.outcome = event.answered, FAILED
            return
        self.rest(self.random.choice(self.preset.holds))
        with psycopg.connect(self.url, autocommit=True, application_name="closer") as closer:
            self.history.end(transaction, outcome, lambda: closer.execute(f"{statement} prepared '{name}'"))

    def insist(self, statement: sql.SQL | sql.Composed, status: TransactionStatus) -> None:
        """Again and again, if it is cancelled, until the transaction is as it should be."""
        while self.db.info.transaction_status != status:
            with suppress(psycopg.OperationalError):
                if self.db.closed:
                    self.come_back()
                self.db.execute(statement)

    def transaction_id(self) -> str | None:
        with suppress(psycopg.OperationalError):
            found = self.db.execute("select pg_current_xact_id_if_assigned()").fetchall()[0][0]
            return None if found is None else str(found)
        return None

    def outcome_of(self, id: str | None) -> str:
        """What became of a transaction whose commit was not answered."""
        with suppress(psycopg.Error):
            status = self.db.execute("select pg_xact_status(%s::xid8)", [id]).fetchall()[0][0]
            return {"committed": COMMITTED, "aborted": FAILED}.get(status, UNKNOWN)
        return UNKNOWN

    def call(self, kind: str, query: str, values: Values, read: Callable[[list[Any]], Any], **asked: Any) -> Event:
        """One statement, written down."""
        consumer = asked.pop("consumer", None)
        before = queued(self.db)
        event = self.history.call(
            self.name,
            kind,
            lambda: read(self.db.execute(query, values).fetchall()),
            consumer=consumer,
            transaction=self.transaction,
            **asked,
        )
        if self.db.closed:
            self.come_back()
            event.answered = self.history.now()
        else:
            event.queued = queued(self.db) - before
        if self.transaction is not None:
            self.steps.append(event)
        return event

    def send(self, messages: list[Sent]) -> Event:
        columns: list[list[Any] | None] = [
            [m.channel for m in messages] if self.preset.lane_by == "channel" else None,
            [timedelta(seconds=m.delay) if m.delay else None for m in messages] if self.preset.delays else None,
            [m.id for m in messages] if any(m.id for m in messages) else None,
        ]
        return self.call(
            "send",
            "select headgate.send_batch(%s, %s::text[], %s::text[], null, %s::text[], %s::interval[], %s::text[])",
            [STREAM, [m.data for m in messages], [m.key for m in messages], *columns],
            lambda rows: list(rows[0][0]),
            messages=messages,
        )


def queued(db: psycopg.Connection) -> float:
    """For how many seconds so far its server process waited for a processor; 0 where the machine does not say, or it is
    another one's."""
    with suppress(OSError, IndexError, ValueError):
        process = Path("/proc") / str(db.info.backend_pid)
        if (process / "comm").read_text().strip() == "postgres":
            return int((process / "schedstat").read_text().split()[1]) / 1e9
    return 0.0


def can_prepare(db: psycopg.Connection) -> bool:
    """Whether the server has room for prepared transactions; most have none."""
    return bool(
        db.execute("select setting::int > 0 from pg_settings where name = 'max_prepared_transactions'").fetchall()[0][0]
    )
