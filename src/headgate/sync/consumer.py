# Generated from src/headgate/aio/consumer.py by tools/generate_sync.py: do not edit, run `make sync`.
"""Consumers: receiving and settling, positions, dead letters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from importlib import import_module
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Unpack, overload

from psycopg import Connection

from .. import tracing
from ..database import statements
from ..database.drivers import Array, Row
from ..database.encoding import T, checked_text, error_text, interval, whole
from ..database.encoding import decode as default_decode
from ..database.forks import process_name
from ..database.parameters import as_filter, as_moment, as_position, as_seconds, as_seqs, as_settings
from ..errors import Error, InvalidAckId, InvalidArgument, SchemaMissing, StaleDelivery
from ..settings import CONSUMER, ConsumerChanges, changeable
from ..types import (
    Attempt,
    Channels,
    ChannelSort,
    ConsumerInfo,
    DeadLetter,
    Discarded,
    Order,
    Peek,
    Replayed,
    Settled,
    State,
)
from .message import Message
from .pooled import PooledConnection, rows_of

if TYPE_CHECKING:
    from ..worker.lifecycle import Worker
    from ..worker.options import WorkerOptions
    from .client import Headgate

SHORTEST_POLL = 0.001
LONGEST_POLL = 0.1
TRIES = 5  # to find the stream's function, while it is dropped and made again


class Consumer(Generic[T]):
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
        self.hg = hg
        self.stream = stream
        self.name = name
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
        more = () if ack_wait is None else (interval(ack_wait),)
        deadline = monotonic() + as_seconds(wait, "wait")
        pause = SHORTEST_POLL
        while True:
            began = time_ns()
            params = (self.name, whole(batch_size, "batch_size"), worker or self.worker_name, done or None, *more)
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

    def info(self) -> ConsumerInfo:
        """The consumer's settings and how far it is."""
        return self.hg.insights.consumer(self.stream, self.name)

    def peek(
        self,
        limit: int = 10,
        *,
        newest_first: bool = False,
        states: Sequence[State] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> Peek:
        """Messages with their state for this consumer, without any effect.

        However long the stream is, about 20,000 messages are looked at: where that ends it, `next` of the answer says
        where to go on (`after=`, or `before=` with `newest_first`).
        """
        return self.hg.insights.peek(
            self.stream, self.name, limit, newest_first=newest_first, states=states, before=before, after=after
        )

    def alter(self, *, clear: Sequence[str] = (), **settings: Unpack[ConsumerChanges]) -> None:
        """Changes the settings that are given, of `push` those in it; `clear` names settings to put back to none."""
        params = (self.stream, self.name, *as_settings(changeable(CONSUMER), settings), Array(clear))
        self.hg.run(statements.ALTER_CONSUMER, params)

    def drop(self) -> None:
        """Removes the consumer and its progress. Its dead letters stay."""
        self.hg.run(statements.DROP_CONSUMER, (self.stream, self.name))

    def pause(self) -> None:
        """Receives nothing until `resume`."""
        self.hg.run(statements.PAUSE, (self.stream, self.name))

    def resume(self) -> None:
        """Receives again."""
        self.hg.run(statements.RESUME, (self.stream, self.name))

    def set_channel(
        self,
        channel: str | None,
        *,
        max_concurrency: int | None = None,
        release_interval: float | timedelta | None = None,
        clear: Sequence[str] = (),
    ) -> None:
        """Changes the limits of one channel (or key, by the stream's lanes) that are given.

        `clear` names limits to put back to the consumer's own. `max_concurrency=0` holds the channel back.
        """
        limits = (whole(max_concurrency, "max_concurrency"), interval(release_interval), Array(clear))
        self.hg.run(statements.SET_CHANNEL, (self.stream, self.name, checked_text(channel, "channel"), *limits))

    def channels(
        self,
        channel: str | None = None,
        limit: int = 100,
        *,
        sort: ChannelSort = "waiting",
        after: str | None = None,
    ) -> Channels:
        """What waits in each channel, since when, what is in flight, and its limits; of all, or of one.

        `sort` is by what is "waiting" (most first), by the "oldest" message, or by "name". With `next` of the answer
        set there may be more: call again with `after` it.
        """
        return self.hg.insights.channels(self.stream, self.name, channel, limit, sort=sort, after=after)

    def seek(self, target: str | int | datetime) -> None:
        """Moves to "beginning", "end", a seq or a time with a zone. What was in flight or parked is forgotten."""
        self.hg.run(statements.SEEK, (self.stream, self.name, as_position(target)))

    def dead_letters(self, limit: int = 100, *, after: int = 0) -> list[DeadLetter]:
        """The consumer's dead letters, oldest first."""
        return self.hg.insights.dead_letters(self.stream, self.name, limit, after=after)

    def redrive(
        self,
        *,
        seqs: Sequence[int] | None = None,
        filter: str | list[str] | None = None,
        limit: int | None = None,
        all: bool = False,
    ) -> int:
        """Gives dead letters back: these, those whose key passes the filter, the oldest so many, or (`all=True`) all.

        Returns how many. Of a stream with `one_message_per_key`, those of which a newer version was sent are counted
        and dropped instead.
        """
        return self._count(statements.REDRIVE, as_seqs(seqs), as_filter(filter), whole(limit, "limit"), all)

    def purge_dead(
        self,
        *,
        seqs: Sequence[int] | None = None,
        filter: str | list[str] | None = None,
        limit: int | None = None,
        all: bool = False,
    ) -> int:
        """Throws dead letters away; chosen as in `redrive`. Returns how many."""
        return self._count(statements.PURGE_DEAD, as_seqs(seqs), as_filter(filter), whole(limit, "limit"), all)

    def retry_now(self, seqs: Sequence[int] | None = None, *, all: bool = False) -> int:
        """Makes parked messages due at once: these, or (`all=True`) all. Returns how many."""
        return self._count(statements.RETRY_NOW, as_seqs(seqs), all)

    def replay(
        self,
        *,
        seqs: Sequence[int] | None = None,
        from_seq: int | None = None,
        to_seq: int | None = None,
        from_time: datetime | str | None = None,
        to_time: datetime | str | None = None,
        filter: str | list[str] | None = None,
    ) -> Replayed:
        """Hands messages to this consumer again, as if never delivered; it stays where it is.

        What is given must all hold: these seqs; `from_seq` to `to_seq`; sent at `from_time` or later, and before
        `to_time`; keys that pass the filter. At least one must be given: `from_seq=1` means all there are. Passed over
        is what the consumer has in flight or parked already, has not read yet, or does not let through its own filter.
        At most 10,000 messages a call: if that was not all, `next_seq` of the answer is the `from_seq` to go on with.
        """
        params = (
            self.stream,
            self.name,
            as_seqs(seqs),
            whole(from_seq, "from_seq", 63),
            whole(to_seq, "to_seq", 63),
            as_moment(from_time),
            as_moment(to_time),
            as_filter(filter),
        )
        return Replayed(*self.hg.run(statements.REPLAY, params)[0])

    def attempts(self, seq: int | None = None, *, limit: int = 100, before: int | None = None) -> list[Attempt]:
        """Attempts of this consumer that failed, the newest first: of one message, or of all."""
        return self.hg.insights.attempts(self.stream, seq, consumer=self.name, limit=limit, before=before)

    def discard(
        self,
        seqs: Sequence[int] | None = None,
        *,
        filter: str | list[str] | None = None,
        channel: str | None = None,
        older_than: float | timedelta | None = None,
        all: bool = False,
    ) -> Discarded:
        """Gives up messages for good that are unread, delayed, parked or in flight and fit all of what is given.

        These seqs, keys that pass the filter, that channel (or key, by the stream's lanes), sent longer ago than that;
        at least one of them, or `all`. Acks of what was in flight are stale then; what waited behind goes on.
        What commits after the call is not discarded. It goes in steps, each a transaction: see `discard_some`.
        """
        discarded, held, go_on = 0, 0, None
        while True:
            step = self.discard_some(seqs, filter=filter, channel=channel, older_than=older_than, all=all, go_on=go_on)
            discarded, held, go_on = discarded + step.discarded, held + step.held, step.more
            if go_on is None:
                return Discarded(discarded, held)

    def discard_some(
        self,
        seqs: Sequence[int] | None = None,
        *,
        filter: str | list[str] | None = None,
        channel: str | None = None,
        older_than: float | timedelta | None = None,
        all: bool = False,
        go_on: str | None = None,
    ) -> Discarded:
        """One step of `discard`: up to 10,000 messages. When `more` is not None, pass it as `go_on` to go on."""
        params = (
            self.stream,
            self.name,
            as_seqs(seqs),
            as_filter(filter),
            checked_text(channel, "channel"),
            interval(older_than),
            all,
            checked_text(go_on, "go_on"),
        )
        return Discarded(*self.hg.run(statements.DISCARD, params)[0])

    def _count(self, query: str, *params: Any) -> int:
        return int(self.hg.run(query, (self.stream, self.name, *params))[0][0])


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
