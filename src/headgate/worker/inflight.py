"""The messages that a worker has in flight: which it has claimed, and what is to be sent about those that are finished.

No connections, no tasks; the clock is given. Everything here runs on the worker's event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, NamedTuple

from ..errors import error_text
from .options import Retry, WorkerSettings, as_seconds, default_delay

log = logging.getLogger("headgate.worker")

FOREVER = float("inf")
# How long a finished message waits for others to be acked with it. To ack a part of a delivery costs more than all of
# it, so a part waits longer; but not where the next message of a key waits for it.
FLUSH_AFTER, FLUSH_PART_AFTER = 0.005, 0.02
AHEAD_SECONDS = 0.5  # seconds' worth of messages to claim ahead: what one worker holds, no other one can take
HOLD_SECONDS = (
    0.6  # seconds that a claimed message may wait for a handler; then it goes back, and another worker can have it
)
SLOWER, FASTER = (
    0.3,
    0.05,
)  # how much a message counts that took longer, or less, than the mean: slow ones are noticed soon

Nack = tuple[float | None, bool, str]  # delay (None: the consumer's backoff), whether to spread it, error


class NotStarted(Exception):
    """Instead of a handler's result: it was not called, because the message may no longer be this worker's."""


class ClaimLimits(NamedTuple):
    """What may be claimed."""

    slots: int  # handlers that are free for it or have its messages
    ahead: int  # messages that it may hold besides, because their handlers are free soon
    most: int  # messages that it may hold at all
    part: float = 1.0  # of a batch, that it may ask for
    fair: float = FOREVER  # messages that it can hold, with others beside it, without letting them wait too long


class Acks:
    """Acks that go together."""

    __slots__ = ("deadline", "ids", "messages")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.messages = 0  # that they are of
        self.deadline = FOREVER  # the earliest of their deliveries; after it, they may be stale

    def add(self, ids: Iterable[str], messages: int, deadline: float) -> None:
        """These too."""
        self.ids += ids
        self.messages += messages
        self.deadline = min(self.deadline, deadline)


class ClaimedDelivery:
    """A delivery with messages that are not finished."""

    __slots__ = ("deadline", "done", "done_since", "id", "left", "lost", "start_by", "total")

    def __init__(self, id: str, deadline: float, start_by: float = FOREVER) -> None:
        self.id = id
        self.deadline = deadline
        self.start_by = start_by  # by time.monotonic(): later, nothing of it is started: it may be another worker's
        self.total = 0
        self.left = 0  # not finished
        self.done: list[str] = []  # ack_ids of finished messages, not sent yet
        self.done_since = 0.0
        self.lost = False  # the deadline had passed: another worker may have it


class Claimed:
    """One message to be handled."""

    __slots__ = ("claimed_at", "delivery", "index", "late", "message", "over", "started")

    def __init__(self, message: Any, delivery: ClaimedDelivery, index: int = 0, claimed_at: float = 0.0) -> None:
        self.message = message
        self.delivery = delivery
        self.index = index  # of the subscription that it is of
        self.claimed_at = claimed_at
        self.started = 0.0
        self.late: BaseException | None = None  # its time is up, but it has not ended
        self.over = False  # its result is decided; what its thread says later does not count


class InFlight:
    """The messages in flight, and what is to be sent: acks, nacks, releases."""

    def __init__(
        self, settings: WorkerSettings, clock: Callable[[], float], extra: dict[str, Any], index: int = 0
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._extra = extra  # of log records
        self._index = index
        self.ordered = False
        self.has_backoff = False  # the consumer says when failed messages come again
        self.deliveries: dict[str, ClaimedDelivery] = {}
        self.count = 0  # messages in flight
        self._blocked = 0  # those of them that wait for an earlier one of their key
        self._keys: dict[
            str, deque[Claimed] | None
        ] = {}  # if ordered: keys in flight, and what waits behind the first one
        self._acks = Acks()
        self.nacks: dict[Nack, list[str]] = {}
        self.releases: list[str] = []
        self.send_at = FOREVER  # when something has to be sent at the latest
        self.sending = 0  # messages that the call under way settles
        self.lost = 0
        self.released = 0  # with another one of their key
        self.settled = 0  # by their handlers, or with such a one of their key
        self.hung = 0  # handlers that have not ended, though their messages are not in flight any more
        self.has_given_back = False  # because handlers were slow, and none has finished since
        self._mean: float | None = None  # seconds that a handler takes

    def room(self, claim_limits: ClaimLimits | None = None) -> int:
        """How many messages to ask for now; 0 while it is not worth a call. Without an outlook all handlers are its."""
        s = self._settings
        slots, ahead, most, part, _ = claim_limits or self._limits_alone()
        if self.hung >= s.concurrency:
            return 0
        batch = ceil(s.batch_size * part)
        window = min(most, slots + ahead) if s.prefetch is None else most
        active = self.count - self._blocked
        room = min(batch, window - active, most - self.count)
        # In order, messages of keys in flight would only be parked, at a price: ask when a runner has nothing to do.
        is_worth_it = active < slots if self.ordered else active <= slots or room >= min(batch, window // 2)
        return max(0, room) if is_worth_it else 0

    def excess(self, claim_limits: ClaimLimits) -> int:
        """How many of the messages in flight would wait so long that others should have them; 0 if not worth a call."""
        active = self.count - self._blocked
        return ceil(active - claim_limits.fair) if active > 2 * (claim_limits.fair + self._settings.concurrency) else 0

    def _limits_alone(self) -> ClaimLimits:
        s, ahead = self._settings, 0
        slots = max(0, s.concurrency - self.hung)
        if self._mean is not None and not self.has_given_back:
            ahead = int(AHEAD_SECONDS * slots / self._mean) if self._mean > 0 else s.most_claimed
        return ClaimLimits(slots, ahead, s.most_claimed)

    def take(self, messages: Iterable[Any], deadline: float, start_by: float = FOREVER) -> list[Claimed]:
        """Messages were received; returns those that may run now."""
        ready: list[Claimed] = []
        d = ClaimedDelivery("", 0)
        now = self._clock()
        for m in messages:
            if (id := m.delivery) != d.id:
                d = self.deliveries[id] = ClaimedDelivery(id, deadline, start_by)
            d.total += 1
            d.left += 1
            self.count += 1
            claimed = Claimed(m, d, self._index, now)
            if self.ordered and m.key is not None:
                if m.key in self._keys:
                    behind = self._keys[m.key]
                    if behind is None:
                        behind = self._keys[m.key] = deque()
                    behind.append(claimed)
                    self._blocked += 1
                    continue
                self._keys[m.key] = None
            ready.append(claimed)
        return ready

    def finish(
        self, claimed: Claimed, error: BaseException | None, seconds: float, *, is_running: bool = False
    ) -> Claimed | None:
        """A handler has returned or raised; returns the message of the same key that may run now.

        Or its time is up, but it `is_running` still. In order, nothing of its key may run beside it: its message stays
        in flight until it ends.
        """
        if claimed.over:
            return None
        m, d = claimed.message, claimed.delivery
        if is_running and self.ordered and m.key is not None:
            claimed.late = error
            log.error(
                "a handler does not end: its key waits for it: %s", self._named(m), extra=self._about(m, seconds, error)
            )
            return None
        claimed.over = True
        error = claimed.late or error
        failed = False
        if m.settled is not None or d.lost:  # nothing is to be sent, but there is room: that must not go unnoticed
            self.send_by(self._clock() + self._part_waits())
        if m.settled is not None:
            self.settled += 1
            failed = m.settled != "acked"
            if error is not None:
                about = self._about(m, seconds, error)
                text = "handler failed after it had settled its message: %s"
                log.warning(text, self._named(m), exc_info=error, extra=about)
        elif d.lost:
            self.lost += 1
            about = self._about(m, seconds, error)
            log.warning("message lost: its deadline had passed: %s", self._named(m), extra=about)
        elif isinstance(error, NotStarted):
            failed = True  # so that what waits behind it, and is released with it, is not run
            self.releases.append(m.ack_id)
            self.send_by(0)
        elif error is None:
            if not d.done:
                d.done_since = self._clock()
                self.send_by(d.done_since + self._part_waits())
            d.done.append(m.ack_id)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("message handled: %s", self._named(m), extra=self._about(m, seconds, None))
        else:
            failed = True
            self._fail(m, error, seconds)
        if not isinstance(error, NotStarted):
            self.has_given_back = False
            mean = seconds if self._mean is None else self._mean
            self._mean = mean + (seconds - mean) * (SLOWER if seconds > mean else FASTER)
        following = self._next_of_key(claimed, failed) if self._keys and m.key is not None else None
        self._remove(d)
        return following

    def give_back(self, claims: Sequence[Claimed], is_given: Callable[[Claimed], bool] = lambda claimed: True) -> None:
        """These were not started, nor was what waits behind a key and `is_given`: another worker may have them now."""
        behind: list[Claimed] = []
        for claimed in claims:  # what waits behind one that is given back goes with it
            behind += self._keys.pop(claimed.message.key, None) or ()
        for waiting in self._keys.values():
            for n, claimed in enumerate(waiting or ()):
                if is_given(claimed):
                    while len(waiting or ()) > n:
                        behind.append(waiting.pop())  # type: ignore[union-attr]
                    break
        self._blocked -= len(behind)
        for claimed in (*claims, *behind):
            claimed.over = True
            if claimed.delivery.lost:
                self.lost += 1
            else:
                self.releases.append(claimed.message.ack_id)
            self._remove(claimed.delivery)
        if self.releases:
            self.send_by(0)

    def give_back_waiting(self, claims: Sequence[Claimed]) -> None:
        """These have waited too long for a handler. No more are claimed ahead until one has finished."""
        if claims:
            self.has_given_back = True
            self.give_back(claims, lambda claimed: False)
            log.debug("handed back: no handler is free for them", extra={**self._extra, "messages": len(claims)})

    def unsettled(self) -> int:
        """How many messages are in flight, or finished and not settled."""
        finished = sum(len(d.done) for d in self.deliveries.values()) + self._acks.messages + self.sending
        return self.count + finished + len(self.releases) + sum(map(len, self.nacks.values()))

    def lanes(self) -> set[int]:
        """The lanes of the messages in flight."""
        return {int(id.partition(".")[0]) for id in self.deliveries}

    def lose(self, d: ClaimedDelivery, running: Iterable[Claimed]) -> None:
        """The delivery is not ours any more."""
        d.lost = True
        self.lost += len(d.done)
        d.done = []
        settled = sum(claimed.delivery is d and claimed.message.settled is not None for claimed in running)
        if d.left > settled:
            extra = {**self._extra, "messages": d.left - settled}
            log.warning("delivery lost: its deadline had passed", extra=extra)

    def collect(self, *, everything: bool = False) -> Acks:
        """The acks to send now."""
        acks, self._acks = self._acks, Acks()
        self.send_at = FOREVER
        longest, now = self._part_waits(), self._clock()
        for d in self.deliveries.values():
            if d.done:
                if everything or d.done_since + longest <= now:
                    acks.add(d.done, len(d.done), d.deadline)
                    d.done = []
                else:
                    self.send_by(d.done_since + longest)
        return acks

    def put_back(self, acks: Acks) -> None:
        """They could not be sent, or that is not known: they go again, and a stale answer does no harm."""
        if acks.ids:
            self._acks.add(acks.ids, acks.messages, -FOREVER)
            self.send_by(0)

    def send_by(self, time: float) -> None:
        if time < self.send_at:
            self.send_at = time

    def _part_waits(self) -> float:
        return FLUSH_AFTER if self.ordered else FLUSH_PART_AFTER

    def _remove(self, d: ClaimedDelivery) -> None:
        """One message of the delivery is no longer in flight."""
        self.count -= 1
        d.left -= 1
        if d.left == 0:
            self.deliveries.pop(d.id, None)
            if d.done and not d.lost:
                self._acks.add([d.id] if len(d.done) == d.total else d.done, len(d.done), d.deadline)
                d.done = []
                self.send_by(self._clock() + FLUSH_AFTER)
        if self.count == 0 and self.send_at < FOREVER:
            self.send_at = 0  # nothing else will come along

    def _fail(self, m: Any, error: BaseException, seconds: float) -> None:
        asked, option = error.delay if isinstance(error, Retry) else None, self._settings.retry_delay
        delay: float | None = default_delay(m.attempt)
        is_spread = True
        try:
            if asked is not None:
                delay, is_spread = as_seconds(asked), False
            elif option is not None:
                delay, is_spread = as_seconds(option(m.attempt) if callable(option) else option), False
            elif self.has_backoff:
                delay, is_spread = None, False
        except Exception:
            log.exception("the delay of a retry is not a number of seconds", extra=self._about(m, seconds, error))
        # what failed alike is nacked in one call
        self.nacks.setdefault((delay, is_spread, error_text(error)), []).append(m.ack_id)
        self.send_by(self._clock() + FLUSH_AFTER)
        if isinstance(error, Retry):
            log.info("message to be retried: %s", self._named(m), extra=self._about(m, seconds, error))
        else:
            about = self._about(m, seconds, error)
            log.warning("handler failed: %s: %s", self._named(m), error_text(error), exc_info=error, extra=about)

    def _next_of_key(self, claimed: Claimed, failed: bool) -> Claimed | None:
        """After a failure, those of the same delivery are not run: what gives it back gives them back too."""
        behind = self._keys.pop(claimed.message.key, None)
        while behind:
            later = behind.popleft()
            self._blocked -= 1
            if failed and later.delivery is claimed.delivery:
                later.over = True
                if claimed.message.settled is not None:
                    self.settled += 1
                else:
                    self.released += 1
                self._remove(later.delivery)
                continue
            self._keys[claimed.message.key] = behind
            return later
        return None

    def _named(self, m: Any) -> str:
        """The message, for people who read a log. Never its data."""
        key = "" if m.key is None else f" key {m.key!r}"
        return f"{self._extra['stream']}/{self._extra['consumer']} seq {m.seq}{key} attempt {m.attempt}"

    def _about(self, m: Any, seconds: float, error: BaseException | None) -> dict[str, Any]:
        """The fields of a log record. Never the message's data."""
        about = {**self._extra, "seq": m.seq, "key": m.key, "attempt": m.attempt, "seconds": round(seconds, 6)}
        return about if error is None else {**about, "error": error_text(error)}
