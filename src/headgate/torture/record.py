"""What was asked of the engine, when, and what it answered: appended while a history runs, read when it is over.

All times are seconds since the history began. Of a call we know when it was made and when it was answered; it happened
somewhere between. What a transaction did happens for others between the call of COMMIT and its answer.
When the connection is lost meanwhile, nobody knows whether it happened; "answered" is then when it was surely over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

OPEN, COMMITTED, ROLLED_BACK, FAILED, UNKNOWN = "open", "committed", "rolled back", "failed", "unknown"
LOST = "lost"  # the state of a Problem: the connection went away, and no answer came

FIXED = ("repeatable read", "serializable")  # isolation levels with one snapshot for the whole transaction


class HandedMessage(NamedTuple):
    """A message as a receive answered it."""

    ack_id: str
    seq: int
    key: str | None
    data: str
    attempt: int

    @property
    def delivery(self) -> str:
        return self.ack_id.rpartition(".")[0]

    @property
    def lane(self) -> int:
        return int(self.ack_id.partition(".")[0])


class Sent(NamedTuple):
    """A message as a send asked for it."""

    key: str | None
    data: str
    channel: str | None = None
    id: str | None = None
    delay: float = 0.0


class CallError(NamedTuple):
    """An error that the engine answered."""

    state: str
    text: str
    hint: str | None


@dataclass(eq=False)
class TransactionRecord:
    number: int
    session: str
    isolation: str
    began: float
    ending: float = float("inf")  # when COMMIT or ROLLBACK was called, or the statement that made it fail
    ended: float = float("inf")
    outcome: str = OPEN

    def __str__(self) -> str:
        return f"transaction {self.number} ({self.isolation}, {self.outcome})"


@dataclass(eq=False)
class Event:
    """One call. `undone` is when a rollback to a savepoint, which took it back, was called."""

    session: str
    kind: str
    consumer: str | None
    asked: dict[str, Any]
    called: float
    transaction: TransactionRecord | None = None
    answered: float = float("inf")
    answer: Any = None
    problem: CallError | None = None
    undone: float | None = None
    doubted: bool = False  # it was answered, and may have been lost since
    queued: float = 0.0  # how long its server process was ready to run, and the machine was busy with others

    @property
    def happened(self) -> bool:
        """Whether it surely counts, now that all is over."""
        if self.problem or self.undone is not None or self.doubted:
            return False
        return self.transaction is None or self.transaction.outcome == COMMITTED

    @property
    def unknown(self) -> bool:
        """Whether nobody can say if it happened."""
        if self.undone is not None:
            return False
        if self.transaction is None:
            return self.doubted if self.problem is None else self.problem.state == LOST
        return self.problem is None and (self.doubted or self.transaction.outcome == UNKNOWN)

    @property
    def lost(self) -> bool:
        """Whether no answer came."""
        return self.problem is not None and self.problem.state == LOST

    @property
    def possible(self) -> bool:
        """Whether it may count."""
        return self.happened or self.unknown

    @property
    def effective(self) -> bool:
        """Whether it may have changed something: it may count, and did not answer that there was nothing to do."""
        return self.unknown or (self.happened and bool(self.answer))

    @property
    def seen_from(self) -> float:
        """Others cannot have seen it before."""
        return self.called if self.transaction is None else self.transaction.ending

    @property
    def seen_by(self) -> float:
        """Everybody who calls later must see it."""
        return self.answered if self.transaction is None else self.transaction.ended

    @property
    def held_until(self) -> float:
        """Until then, at least, it kept what it locked."""
        if self.transaction is None:
            return self.answered
        return self.transaction.ending if self.undone is None else min(self.undone, self.transaction.ending)

    @property
    def seqs(self) -> list[int]:
        """The messages that it is about, as far as it names them."""
        if self.kind == "receive":
            return [m.seq for m in self.answer or []]
        if self.kind == "send":
            return list(self.answer or [])
        return list(self.asked.get("seqs") or [])

    @property
    def took(self) -> float:
        return self.answered - self.called


class Wait(NamedTuple):
    """The watcher saw that a session waited for others."""

    at: float
    session: str
    blockers: tuple[str, ...]


CRASHES = ("crash", "restart", "fill", "fail_over", "fail_over_late")  # faults that PostgreSQL has to recover from


class Fault(NamedTuple):
    """Something that was done to the server, the network or a process: what, when, and until when it worked."""

    kind: str
    start: float
    end: float
    text: str = ""


@dataclass
class Ending:
    """What is left of a consumer after the drain."""

    dead: set[int] = field(default_factory=set)  # source seqs of its dead letters
    losses: list[tuple[int, int, str]] = field(default_factory=list)  # first seq, last seq, reason
    left: list[tuple[int, str]] = field(default_factory=list)  # what is parked or in flight although it was drained
    lost: int | None = None  # how many messages the losses count


class History:
    """Everything that happened in one run."""

    def __init__(self, preset: str, seed: int) -> None:
        self.preset = preset
        self.seed = seed
        self.events: list[Event] = []
        self.transactions: list[TransactionRecord] = []
        self.waits: list[Wait] = []
        self.starved: list[tuple[float, float]] = []  # when the machine kept everybody waiting, from and to
        self.faults: list[Fault] = []
        self.endings: dict[str, Ending] = {}
        self.drained_at = float("inf")
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def now(self) -> float:
        return self.at(time.monotonic())

    def at(self, clock: float) -> float:
        """The time of the history at which time.monotonic(), of whichever process, was that."""
        return clock - self._began

    def call(
        self,
        session: str,
        kind: str,
        ask: Callable[[], Any],
        *,
        consumer: str | None = None,
        transaction: TransactionRecord | None = None,
        **asked: Any,
    ) -> Event:
        """Make a call and write down what came of it. Errors of the database are answers, too."""
        event = Event(session, kind, consumer, asked, self.now(), transaction)
        try:
            event.answer = ask()
        except psycopg.Error as error:
            event.problem = problem_of(error)
            if transaction is not None:
                transaction.ending = min(transaction.ending, event.called)
        event.answered = self.now()
        with self._lock:
            self.events.append(event)
        return event

    def begin(self, session: str, isolation: str) -> TransactionRecord:
        with self._lock:
            transaction = TransactionRecord(len(self.transactions) + 1, session, isolation, self.now())
            self.transactions.append(transaction)
        return transaction

    def end(self, transaction: TransactionRecord, outcome: str, ask: Callable[[], Any]) -> None:
        """COMMIT or ROLLBACK."""
        transaction.ending = min(transaction.ending, self.now())
        event = self.call(transaction.session, "commit" if outcome == COMMITTED else "rollback", ask)
        event.transaction = transaction
        transaction.ended = event.answered
        if event.problem is None:
            transaction.outcome = outcome
        else:
            transaction.outcome = UNKNOWN if event.lost and outcome == COMMITTED else FAILED

    def starvation(self, start: float, end: float) -> float:
        """For how much of that time the machine, and not the engine, kept everybody waiting."""
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.starved)

    def excuse(self, event: Event) -> float:
        """For how much of the time of a call the machine, and not the engine, kept it waiting."""
        return max(event.queued, self.starvation(event.called, event.answered))


LOST_STATES = (
    "57P01",
    "57P02",
    "57P03",
    "57P05",
    "25P03",
    "25P04",
)  # the server ends the session, or does not begin it


def problem_of(error: psycopg.Error) -> CallError:
    state = error.sqlstate or ""
    if isinstance(error, psycopg.OperationalError) and (not state or state in LOST_STATES or state.startswith("08")):
        return CallError(LOST, str(error), None)
    return CallError(state or type(error).__name__, str(error), error.diag.message_hint)
