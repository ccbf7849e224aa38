"""Whose turn it is, where one worker serves several consumers: what waits for a handler, and who is served next.

Each consumer has an *account*: the seconds that its handlers took, divided by its weight. A handler that is free goes
to the smallest account of those with something waiting; of equal ones to the larger weight. So the accounts of all who
wait keep level: each gets its weight's share of the handlers' time, and one that uses less than that goes first.

- A running handler counts as taking the mean until it has taken longer.
- Who had nothing waiting saves nothing up: it comes back at the level of the others, less one message, so that it is
  next. A short gap, in which its messages were on their way, is made up for, but by no more than all handlers do in it
  or the longest message.
- While handlers have nothing to do, nobody takes anything from anybody: then all accounts begin anew.

No connections, no tasks; the clock is given. May be used from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import ceil

from .inflight import AHEAD_SECONDS, FOREVER, Claimed, ClaimLimits

LEAST = 0.001  # seconds that a message costs at least, however fast its handler is
GAP = 0.05  # seconds without anything waiting that are made up for
LATELY = 5.0  # seconds for which one that had something to do is reckoned with, so that no more is claimed than fits
IDLE = 0.25  # seconds after which a handler without work shows that there is none: every consumer was asked meanwhile


class RunningMessage:
    """A message that is being handled."""

    __slots__ = ("began", "expected", "is_late")

    def __init__(self, began: float, expected: float) -> None:
        self.began = began
        self.expected = expected  # seconds
        self.is_late = False  # it has taken longer


class Account:
    """One consumer's: what it has used, and what waits."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.waiting: deque[Claimed] = deque()
        self.emptied_at = -FOREVER  # when the last one that waited was taken
        self.spent = 0.0  # seconds, of those that have finished
        self.mean: float | None = None  # seconds that a handler takes
        self.longest = 0.0  # the longest that one took lately
        self.running: dict[Claimed, RunningMessage] = {}
        self._expected = 0.0  # seconds, of those that run and are not late
        self._late, self._late_began = 0, 0.0  # those that are, and the sum of the times at which they began
        self._due: list[tuple[float, int, Claimed]] = []  # a heap: when they will be late
        self._number = 0

    def level(self, now: float) -> float:
        due = self._due
        while due and due[0][0] <= now:
            _, _, claimed = heappop(due)
            if (run := self.running.get(claimed)) is not None:
                run.is_late = True
                self._expected -= run.expected
                self._late += 1
                self._late_began += run.began
        return (self.spent + self._expected + self._late * now - self._late_began) / self.weight

    def settle_at(self, level: float, now: float) -> None:
        self.spent += (level - self.level(now)) * self.weight

    def message_cost(self) -> float:
        return max(self.mean or 0, LEAST)

    def begin(self, now: float) -> Claimed:
        """The first one that waits runs now."""
        claimed = self.waiting.popleft()
        if not self.waiting:
            self.emptied_at = now
        expected = self.message_cost()
        if self.mean is None and self.running:  # at least as long as the others did
            expected = max(expected, now - next(iter(self.running.values())).began)
        self.running[claimed] = RunningMessage(now, expected)
        self._expected += expected
        self._number += 1
        heappush(self._due, (now + expected, self._number, claimed))
        return claimed

    def finish(self, claimed: Claimed, seconds: float) -> bool:
        """It runs no longer, and took so long; False if it did not run."""
        run = self.running.pop(claimed, None)
        if run is None:
            return False
        if run.is_late:
            self._late -= 1
            self._late_began -= run.began
        else:
            self._expected -= run.expected
        if not self.running:
            self._expected, self._late, self._late_began = 0.0, 0, 0.0
            self._due.clear()
        self.spent += max(seconds, LEAST)
        self.longest = max(seconds, self.longest * 0.99)
        self.mean = seconds if self.mean is None else self.mean + (seconds - self.mean) * 0.05
        return True

    def is_busy(self, now: float, within: float = AHEAD_SECONDS) -> bool:
        """Whether it has, or had a moment ago, something to do."""
        return bool(self.waiting or self.running) or now - self.emptied_at < within


class Turns:
    """Messages that wait for a handler, in the order in which they get one. A worker's queue, as a deque is for one."""

    def __init__(self, weights: Sequence[float], concurrency: int, clock: Callable[[], float]) -> None:
        self._accounts = [Account(weight) for weight in weights]
        self._concurrency = concurrency
        self._clock = clock
        self._waiting = self._running = 0
        self._last = 0.0  # the highest level at which one was served
        self._idle_since = -FOREVER  # FOREVER while every handler has work
        self._lock = threading.Lock()
        self.hung = 0  # handlers that have not ended although their messages were given up

    def __len__(self) -> int:
        return self._waiting

    def extend(self, claims: Iterable[Claimed]) -> None:
        """These wait from now on, behind what waits of their consumer."""
        with self._lock:
            now = self._clock()
            for claimed in claims:
                if not self._waiting and now - self._idle_since > IDLE:
                    self._begin_anew(now)
                account = self._accounts[claimed.index]
                if not account.waiting:
                    self._join(account, now)
                account.waiting.append(claimed)
                self._waiting += 1

    def popleft(self) -> Claimed:
        """The next one: it runs from now on, until `finish`."""
        with self._lock:
            now = self._clock()
            account = min(
                (a for a in self._accounts if a.waiting), key=lambda a: (a.level(now), -a.weight), default=None
            )
            if account is None:
                raise IndexError("nothing waits")
            self._last = max(self._last, account.level(now))
            claimed = account.begin(now)
            self._waiting -= 1
            self._running += 1
            self._note_idle(now)
            return claimed

    def finish(self, claimed: Claimed, seconds: float) -> None:
        """It runs no longer, and took so long. Nothing, if it was counted out before or had not started."""
        with self._lock:
            if self._accounts[claimed.index].finish(claimed, seconds):
                self._running -= 1
                self._note_idle(self._clock())

    def take_back(self, index: int, most: int | None = None) -> list[Claimed]:
        """What waits of a consumer, or as many as that of them, the last ones; they wait no more."""
        with self._lock:
            waiting = self._accounts[index].waiting
            claims = [waiting.pop() for _ in range(len(waiting) if most is None else min(most, len(waiting)))]
            self._waiting -= len(claims)
            self._note_idle(self._clock())
            return claims[::-1]

    def take_overdue(self, index: int, before: float) -> list[Claimed]:
        """What waits of a consumer and was claimed before that time; it waits no more."""
        with self._lock:
            waiting = self._accounts[index].waiting
            claims = []
            while waiting and waiting[0].claimed_at < before:
                claims.append(waiting.popleft())
            self._waiting -= len(claims)
            self._note_idle(self._clock())
            return claims

    def order(self) -> list[int]:
        """The consumers, the one first that is to be served next."""
        now = self._clock()
        with self._lock:
            accounts = self._accounts
            return sorted(range(len(accounts)), key=lambda n: (accounts[n].level(now), -accounts[n].weight))

    def claim_limits(self, index: int, most: int, *, is_given: bool = False) -> ClaimLimits:
        """What a consumer may claim: as many as will be started soon, so that they do not wait for others' handlers.

        `most` is how many it may claim alone; if that is a number `is_given` by the user, all have a part of it.
        """
        with self._lock:
            now, own = self._clock(), self._accounts[index]
            others = [a for a in self._accounts if a is not own]
            free = max(0, self._concurrency - self._running - self.hung)
            ahead_of_it = self._waiting - len(own.waiting)
            rivals = [a.weight for a in others if a.is_busy(now)]
            share = own.weight / (own.weight + sum(rivals))
            # Of what it holds: reckoned with those who may come back soon, so that it need not be handed back then.
            rivals_lately = [a.weight for a in others if a.is_busy(now, LATELY)]
            share_lately = own.weight / (own.weight + sum(rivals_lately))
            if is_given:  # enough for all handlers, as long as they are its
                most = max(1, ceil(most * share_lately), min(ceil(most * share), 2 * self._concurrency))
            slots = len(own.running) + max(0, free - ahead_of_it)
            pace = share * sum(
                min(len(a.running) + len(a.waiting), self._concurrency) / a.message_cost()
                for a in others
                if a.mean is not None
            )
            if own.mean is not None:
                pace += slots / own.message_cost()
            ahead = int(AHEAD_SECONDS * pace)
            if ahead_of_it > free:  # the next handler is given to one that waits: it must be among them
                slots += 1
            elif slots == 0:
                slots = min(1, ahead)
            fits = self._concurrency * share_lately  # in half a second, with those beside it
            if own.mean is not None:
                fits *= 1 + AHEAD_SECONDS / own.message_cost()
            if rivals_lately:  # see `InFlight.excess`: what is claimed so is far from it
                ahead = min(ahead, int(fits if ahead_of_it else max(fits, self._concurrency)))
            fair = FOREVER
            if ahead_of_it:
                fair = most if is_given else fits
            # Where handlers are faster than receiving is, that is what has to be shared out: it goes round by turns.
            return ClaimLimits(slots, ahead, most, own.weight / max([own.weight, *rivals]), fair)

    def _join(self, account: Account, now: float) -> None:
        """It had nothing waiting: it does not save that up."""
        others = (a.level(now) - a.message_cost() / a.weight for a in self._accounts if a.waiting)
        level = min(others, default=self._last)
        if now - account.emptied_at < GAP:
            longest = max((a.longest / a.weight for a in self._accounts if a.is_busy(now)), default=0)
            level -= max(GAP * self._concurrency / account.weight, longest)
        if account.level(now) < level:
            account.settle_at(level, now)

    def _begin_anew(self, now: float) -> None:
        for account in self._accounts:
            account.settle_at(0, now)
        self._last = 0.0

    def _note_idle(self, now: float) -> None:
        is_idle = not self._waiting and self._running < self._concurrency
        if not is_idle:
            self._idle_since = FOREVER
        elif self._idle_since == FOREVER:
            self._idle_since = now
