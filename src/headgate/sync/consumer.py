# Generated from src/headgate/aio/consumer.py by tools/generate_sync.py: do not edit, run `make sync`.
"""Consumers: receiving and settling, leases, work in a transaction."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Unpack, overload

from psycopg import Connection

from .. import tracing
from ..database import statements
from ..database.columns import Array
from ..database.drivers import Row
from ..database.encoding import T, as_int, checked_text, error_text, interval
from ..database.encoding import decode as default_decode
from ..database.forks import process_name
from ..database.parameters import as_seconds
from ..errors import Error, InvalidAckId, InvalidArgument, SchemaMissing, StaleDelivery
from ..types import (
    Order,
    Settled,
)
from .consumer_operations import ConsumerOperations
from .message import Message
from .pooled import PooledConnection, rows_of

if TYPE_CHECKING:
    from ..worker.lifecycle import Worker
    from ..worker.options import WorkerOptions
    from .client import Headgate

SHORTEST_POLL = 0.001
LONGEST_POLL = 0.1
TRIES = 5  # to find the stream's function, while it is dropped and made again


class Consumer(ConsumerOperations, Generic[T]):
    """A named reader of a stream with its own progress; any number of workers share it."""

    worker_type: ClassVar[type[Worker]]  # headgate.worker, a layer above, sets it

    def __init__(
        self,
        hg: Headgate,
        stream: str,
        name: str,
        *,
        stream_id: int,
        order: Order = "none",
        ack_wait: timedelta = timedelta(seconds=30),
        backoff: Any = None,
        leased: bool = False,
        lease_time: timedelta = timedelta(seconds=10),
        slot_modulus: int | None = None,
        max_waiting: int | None = None,
        worker: str | None = None,
        decode: Callable[[str, dict[str, Any] | None], T] | None = None,
    ) -> None:
        super().__init__(hg, stream, name)
        self._name_functions(int(stream_id))
        self.order: Order = order
        self.ack_wait = ack_wait
        self.backoff = backoff
        self.leased = leased
        self.lease_time = lease_time
        self.slot_modulus = slot_modulus  # of lanes by key or channel: how many leases share them
        self.max_waiting = max_waiting
        self._worker_name = worker
        self._decode: Callable[[str, dict[str, Any] | None], T] = decode or default_decode
        self.is_traced = True  # False for who makes spans of its own around the messages, as workers do

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r}, {self.name!r})"

    @property
    def worker_name(self) -> str:
        """Who receives: the host and the process, unless it was given a name."""
        return self._worker_name or process_name()

    @worker_name.setter
    def worker_name(self, name: str) -> None:
        self._worker_name = name

    def receive(
        self,
        batch_size: int = 1,
        *,
        wait: float | timedelta = 0,
        acks: Iterable[Message | str] = (),
        worker: str | None = None,
        ack_wait: float | timedelta | None = None,
    ) -> list[Message[T]]:
        """Up to `batch_size` messages; waits up to `wait` seconds for the first one.

        `acks` are messages (or ack_ids) that are done: they are settled in the same round trip. The messages are this
        worker's for `ack_wait` seconds (default: the consumer's).
        """
        done = as_ids(acks)
        worker = checked_text(worker, "worker")
        more = () if ack_wait is None else (interval(ack_wait),)
        deadline = monotonic() + as_seconds(wait, "wait")
        pause = SHORTEST_POLL
        while True:
            began = time_ns()
            params = (self.name, as_int(batch_size, "batch_size"), worker or self.worker_name, done or None, *more)
            try:
                rows = self._claim(params, max(0.0, deadline - monotonic()))
            except BaseException as error:
                self._hand_back(rows_of(error))
                raise
            left = deadline - monotonic()
            if rows or left <= 0:
                messages: list[Message[T]] = [Message(self, row) for row in rows]
                if messages and self.is_traced and tracing.is_on():
                    tracing.received(self.stream, self.name, messages, began)
                return messages
            done = Array()
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_POLL)

    def _hand_back(self, rows: list[Row]) -> None:
        """Releases what a call was given that was cancelled: nobody has it, and it would wait for its deadline."""
        if rows:
            with suppress(Error):  # then it does
                self.release([row[0] for row in rows])

    def _claim(self, params: tuple[Any, ...], wait: float) -> list[Row]:
        """What the stream's own function hands out. A stream that was dropped and made again has another one.

        Over HTTP it is the server that waits.
        """
        if self.hg.http is not None:
            return self.hg.http.receive(self.stream, params, wait)
        for left in range(TRIES - 1, -1, -1):
            try:
                return self.hg.run(self._receive_for if params[4:] else self._receive, params, binary=True)
            except SchemaMissing:
                if not left:
                    raise
            settings = self.hg.run(statements.CONSUMER_SETTINGS, (self.stream, self.name))
            self._name_functions(int(settings[0][0]))
        raise AssertionError

    def _name_functions(self, stream_id: int) -> None:
        self._receive = statements.RECEIVE.format(stream_id)
        self._receive_for = statements.RECEIVE_FOR.format(stream_id)

    def ack(self, messages: Iterable[Message | str], *, conn: Any = None) -> Settled:
        """Done with these messages (or ack_ids). With `conn` that commits with the caller's transaction."""
        query = statements.ACK_RELAXED if conn is None else statements.ACK
        return self._settle("ack", query, messages, (), conn)

    def nack(
        self,
        messages: Iterable[Message | str],
        *,
        delay: float | timedelta | None = None,
        error: str | None = None,
        conn: Any = None,
    ) -> Settled:
        """Not done with these: deliver them again after `delay` (default: the consumer's backoff)."""
        query = statements.NACK_RELAXED if conn is None else statements.NACK
        return self._settle("nack", query, messages, (interval(delay), error_text(error)), conn)

    def release(self, messages: Iterable[Message | str]) -> Settled:
        """Hands back messages that were not worked on: they are due at once and the delivery does not count."""
        return self._settle("release", statements.RELEASE, messages, (), None)

    def extend(self, messages: Iterable[Message | str], by: float | timedelta) -> Settled:
        """Moves the deadline of these messages alone to `by` seconds from now, also nearer. That counts as no attempt.

        0 makes them visible at once, as if the deadline had passed: that counts, and the last one of `max_deliver`
        makes a dead letter. Of a whole delivery (`m.delivery`) the deadline is never moved nearer, except by 0.
        """
        return self._settle("extend", statements.EXTEND, messages, (interval(by),), None)

    def _settle(
        self, what: str, query: str, messages: Iterable[Message | str], more: tuple[Any, ...], conn: Any
    ) -> Settled:
        is_traced = self.is_traced and tracing.is_on()
        messages = _several(messages)  # read twice: for their ids, and for their traces
        if conn is None:  # those of a `transaction()` are settled in it, as by their own methods
            conn = next((m._tx for m in messages if isinstance(m, Message) and m._tx is not None), None)
        ids = as_ids(messages)
        if not ids:
            return Settled(0, 0)
        with tracing.settling(what, self.stream, self.name, messages if is_traced else None):
            answer = Settled(*self.hg.run(query, (self.stream, self.name, ids, *more), conn)[0])
        if isinstance(conn, PooledConnection) and conn.settled is not None:
            conn.settled.update(ids)
            conn.stale += answer.stale
        return answer

    def join(self, *, worker: str | None = None) -> list[int]:
        """Joins the workers of a leased consumer; returns the lanes that are leased to this one now.

        For a loop of your own: `worker()` does it by itself. From then on call `heartbeat` three times in the
        `lease_time`. No two workers may have the same name.
        """
        return self._lanes(statements.JOIN, worker)

    def heartbeat(self, *, worker: str | None = None) -> list[int]:
        """This worker is alive; returns the lanes that are leased to it now. One that was given up joins again."""
        return self._lanes(statements.HEARTBEAT, worker)

    def leave(self, *, worker: str | None = None) -> int:
        """Gives this worker's lanes to the others at once; returns how many. What it has in hand stays its own."""
        params = (self.stream, self.name, worker or self.worker_name)
        return int(self.hg.run(statements.LEAVE, params)[0][0])

    def _lanes(self, query: str, worker: str | None) -> list[int]:
        return list(self.hg.run(query, (self.stream, self.name, worker or self.worker_name))[0][0])

    @property
    def has_named_lanes(self) -> bool:
        """Whether the stream's lanes are its keys or channels."""
        return self.slot_modulus is not None

    def slot(self, lane: int) -> int:
        """What is leased of a lane: itself or, of lanes by key or channel, which share leases, its remainder."""
        return lane if self.slot_modulus is None else lane % self.slot_modulus

    @contextmanager
    def transaction(
        self, batch_size: int = 1, *, wait: float | timedelta = 0, ack_wait: float | timedelta | None = None
    ) -> Iterator[tuple[Connection[tuple[Any, ...]], list[Message[T]]]]:
        """Work and ack in one transaction: `with consumer.transaction(10) as (tx, messages)`.

        What the block does on `tx` commits together with the acks, so its effects happen exactly once. A message that
        the block settles itself (`m.nack(delay=60)`) is settled by the same transaction. When the block raises,
        everything is rolled back and the messages are nacked. When the deadline passed meanwhile and another worker may
        have the messages, it is rolled back with StaleDelivery.
        """
        pool = self.hg._own_pool  # not after something was received: there may be none
        messages = self.receive(batch_size, wait=wait, ack_wait=ack_wait)
        process = os.getpid()
        try:
            with pool.ready().connection() as tx:
                with tx.transaction():
                    tx.settled, tx.stale = set(), 0
                    for m in messages:
                        m._tx = tx
                    yield tx, messages
                    settled, tx.settled = tx.settled, None
                    self._finish(tx, messages, settled)
                if not self.hg._pooler:
                    tx.clean()
        except StaleDelivery:
            raise
        except BaseException as error:
            if process != os.getpid():  # a child that was forked in the block: all of it is the parent's
                raise
            for m in messages:
                m._tx = None  # it was rolled back
            with suppress(Error):  # without it they come again at their deadline; what went wrong is the news
                self.nack(messages, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            for m in messages:
                m._tx = None

    def _finish(self, tx: PooledConnection, messages: list[Message], settled: set[str]) -> None:
        """Acks what the block of a transaction has not settled. StaleDelivery, if any was somebody else's by then."""
        rest = [m for m in messages if m.ack_id not in settled and m.delivery not in settled]
        stale = tx.stale + self.ack(rest, conn=tx).stale
        if stale:
            raise StaleDelivery(
                f"{stale} of {len(messages)} messages were taken back while they were worked on",
                hint="raise the consumer's ack_wait, or take smaller batches; the work was rolled back",
            )
        if len(rest) < len(messages):  # again, in case that was in a savepoint which the block then rolled back
            self.ack([m for m in messages if m not in rest], conn=tx)

    @overload
    def worker(self, handler: Callable[[Message[T]], Any], **options: Unpack[WorkerOptions]) -> Worker: ...

    @overload
    def worker(
        self, handler: None = None, **options: Unpack[WorkerOptions]
    ) -> Callable[[Callable[[Message[T]], Any]], Worker]: ...

    def worker(
        self, handler: Callable[[Message[T]], Any] | None = None, **options: Unpack[WorkerOptions]
    ) -> Worker | Callable[[Callable[[Message[T]], Any]], Worker]:
        """A worker that calls `handler` for each message: `@consumer.worker(concurrency=8)`, then `handle.run()`.

        What returns is acked, what raises is nacked and comes again; `headgate.Retry` says when. While a handler runs
        its message is kept. `WorkerOptions` has the options. A plain function runs in threads.
        """
        import_module("headgate.worker.lifecycle")
        if handler is None:
            return lambda handler: self.worker_type(self, handler, **options)
        return self.worker_type(self, handler, **options)


def as_ids(messages: Iterable[Message | str]) -> Array:
    """The ack_ids of messages, as a parameter."""
    ids = Array(m.ack_id if isinstance(m, Message) else m for m in _several(messages))
    for id in ids:
        if not isinstance(id, str):
            raise InvalidAckId(f"{id!r} is not an ack_id", hint="pass messages as they were received, or their ack_id")
    return ids


def _several(messages: Iterable[Message | str]) -> list[Message | str]:
    """A list of them; an error when it is a single one, or something else."""
    if isinstance(messages, (str, Message)):
        raise InvalidArgument(
            "a single message was passed where several are taken", hint="pass a list of messages or ack_ids"
        )
    if not isinstance(messages, Iterable):
        raise InvalidArgument(f"{messages!r} are not messages", hint="pass a list of messages or ack_ids")
    return list(messages)
