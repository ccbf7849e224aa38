"""Whose turn it is in a worker of several consumers, in simulated time: shares, no starvation, who goes first."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.worker.inflight import Claimed, ClaimedDelivery, ClaimLimits, InFlight
from headgate.worker.options import WorkerSettings
from headgate.worker.turns import GAP, LATELY, LEAST, Turns


class Bench:
    """Handlers in simulated time: each message of a subscription takes its next duration."""

    def __init__(self, weights: Sequence[float], concurrency: int, durations: Sequence[Sequence[float]]) -> None:
        self.now = 1000.0
        self.turns = Turns(weights, concurrency, lambda: self.now)
        self._concurrency = concurrency
        self._durations = [itertools.cycle(d) for d in durations]
        self._running: list[tuple[float, int, Claimed, float]] = []
        self._numbers = itertools.count()
        self.waiting = [0] * len(weights)
        self.used = [0.0] * len(weights)  # seconds, of what has finished
        self.starts: list[int] = []

    def put(self, *indexes: int) -> None:
        """A message of each, then the handlers begin."""
        self.turns.extend([Claimed(next(self._numbers), ClaimedDelivery("1.1", 0), index) for index in indexes])
        for index in indexes:
            self.waiting[index] += 1
        self.start()

    def start(self) -> None:
        """Handlers that are free take what waits: none stays idle."""
        while self.turns and len(self._running) < self._concurrency:
            claimed = self.turns.popleft()
            self.waiting[claimed.index] -= 1
            self.starts.append(claimed.index)
            seconds = next(self._durations[claimed.index])
            heapq.heappush(self._running, (self.now + seconds, next(self._numbers), claimed, seconds))
        assert len(self.turns) == sum(self.waiting)

    def step(self) -> None:
        """The next handler finishes."""
        self.now, _, claimed, seconds = heapq.heappop(self._running)
        self.turns.finish(claimed, seconds)
        self.used[claimed.index] += seconds
        self.start()

    def keep_busy(self, steps: int) -> None:
        """All have something waiting all the time."""
        indexes = range(len(self.waiting))
        self.put(*[*indexes] * self._concurrency)
        for _ in range(steps):
            self.step()
            self.put(*(index for index in indexes if self.waiting[index] < self._concurrency))

    def run_dry(self) -> None:
        while self._running:
            self.step()


weights_of = st.lists(st.one_of(st.integers(1, 20), st.floats(0.5, 20)), min_size=2, max_size=5)
seconds_of = st.lists(st.floats(0.002, 2), min_size=1, max_size=5)


class TestShares:
    @settings(max_examples=60, deadline=None)
    @given(st.data(), weights_of, st.integers(1, 12))
    def test_each_gets_its_share_of_the_time(self, data: Any, weights: list[float], concurrency: int) -> None:
        durations = data.draw(st.lists(seconds_of, min_size=len(weights), max_size=len(weights)))
        bench = Bench(weights, concurrency, durations)
        longest = max(map(max, durations))
        bench.keep_busy(500)
        total = sum(bench.used)
        for weight, used in zip(weights, bench.used, strict=True):
            # never further behind than by what the handlers have under way
            assert used >= weight / sum(weights) * total - (concurrency + 2) * longest

    @settings(max_examples=60, deadline=None)
    @given(weights_of, st.integers(1, 12), st.floats(0.002, 1))
    def test_none_waits_for_more_than_a_round(self, weights: list[float], concurrency: int, seconds: float) -> None:
        bench = Bench(weights, concurrency, [[seconds]] * len(weights))
        bench.keep_busy(300)
        for index, weight in enumerate(weights):
            places = [n for n, started in enumerate(bench.starts) if started == index]
            round_of = sum(weights) / weight
            gaps = [b - a for a, b in itertools.pairwise(places)]
            assert places, "it was never served"
            # a round for each of its handlers, if they all began at once
            assert max(gaps, default=0) <= (round_of + len(weights)) * concurrency

    def test_equal_handlers_are_given_out_by_weight(self) -> None:
        bench = Bench([8, 3, 1], 1, [[0.01]] * 3)
        bench.keep_busy(1200)
        assert [bench.starts.count(index) for index in range(3)] == pytest.approx([800, 300, 100], abs=3)

    def test_slow_ones_of_low_weight_do_not_fill_the_handlers(self) -> None:
        """By time, not by count: else every twelfth start would take a handler for a minute, until all are taken."""
        bench = Bench([8, 1], 8, [[0.01], [60]])
        bench.keep_busy(100_000)
        urgent, bulk = bench.used
        assert urgent / (urgent + bulk) == pytest.approx(8 / 9, abs=0.03)

    def test_handlers_that_take_no_time_are_shared_out_too(self) -> None:
        bench = Bench([3, 1], 1, [[0], [0]])
        bench.put(*[0, 1] * 400)
        bench.run_dry()
        assert bench.starts[:400].count(1) == pytest.approx(100, abs=2)


class TestFirst:
    def test_one_that_comes_back_is_next_however_much_waits(self) -> None:
        bench = Bench([8, 1], 2, [[0.01], [0.1]])
        bench.put(*[1] * 1000)
        for _ in range(50):
            bench.step()
            bench.put(0)
            if bench.starts[-1] == 1:  # both handlers are taken: it gets the next one
                bench.step()
            assert bench.starts[-1] == 0

    def test_nothing_is_saved_up(self) -> None:
        """One that had nothing to do for long does not take all handlers when it comes back."""
        bench = Bench([1, 1], 1, [[0.1], [0.1]])
        bench.put(*[1] * 10_000)
        for _ in range(1000):
            bench.step()
        bench.put(*[0] * 100)
        bench.starts.clear()
        for _ in range(40):
            bench.step()
        assert bench.starts.count(1) == pytest.approx(20, abs=2)

    def test_a_trickle_saves_nothing_up_either(self) -> None:
        bench = Bench([8, 1], 8, [[0.02], [0.02]])
        bench.put(*[1] * 100_000)
        for _ in range(5000):  # it always has one running, and uses far less than its share
            bench.step()
            if bench.waiting[0] == 0 and bench.starts[-1] == 1:
                bench.put(0)
        began = bench.now
        bench.put(*[0] * 100_000)
        bench.starts.clear()
        while bench.now < began + 3 * 9 / 8 * GAP + 0.2:
            bench.step()
        assert 1 in bench.starts

    def test_what_was_used_while_handlers_were_idle_is_not_held_against_anyone(self) -> None:
        bench = Bench([1, 1], 2, [[0.1], [100, *[0.1] * 1000]])
        bench.put(1)
        while not bench.used[1]:
            bench.put(0)  # the other handler has nothing to do most of the time
            bench.step()
            bench.now += 1
        bench.put(*[0, 1] * 1000)
        bench.starts.clear()
        for _ in range(40):
            bench.step()
        assert bench.starts.count(1) == pytest.approx(20, abs=5)

    def test_alone_it_has_everything(self) -> None:
        bench = Bench([1, 1000], 4, [[1], [1]])
        bench.put(*[0] * 40)
        began = bench.now
        bench.run_dry()
        assert bench.now - began == pytest.approx(10)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.floats(0, 1)), max_size=60), st.integers(1, 4))
    def test_whatever_comes_is_served_once_and_in_order(
        self, arrivals: list[tuple[int, int, float]], concurrency: int
    ) -> None:
        bench = Bench([5, 2, 0.5], concurrency, [[0.1, 0.3], [0], [0.7, 0.01]])
        sent = [0, 0, 0]
        order: list[tuple[int, int]] = []
        popleft = bench.turns.popleft

        def noted() -> Claimed:
            claimed = popleft()
            order.append((claimed.index, claimed.message))
            return claimed

        bench.turns.popleft = noted  # type: ignore[method-assign]
        for index, count, pause in arrivals:
            bench.put(*[index] * count)
            sent[index] += count
            if bench._running and pause > 0.5:
                bench.step()
        bench.run_dry()
        for index in range(3):
            served = [number for n, number in order if n == index]
            assert len(served) == sent[index]
            assert served == sorted(served)


class TestTakenBack:
    def test_the_last_ones_of_a_line(self) -> None:
        turns = Turns([1, 1], 1, lambda: 0.0)
        claims = [Claimed(n, ClaimedDelivery("1.1", 0), n % 2) for n in range(10)]
        turns.extend(claims)
        assert [w.message for w in turns.take_back(1, 2)] == [7, 9]
        assert [w.message for w in turns.take_back(0)] == [0, 2, 4, 6, 8]
        assert len(turns) == 3
        assert [turns.popleft().message for _ in range(3)] == [1, 3, 5]
        with pytest.raises(IndexError):
            turns.popleft()

    def test_what_is_finished_twice_counts_once(self) -> None:
        turns = Turns([1, 1], 1, lambda: 0.0)
        turns.extend([Claimed(0, ClaimedDelivery("1.1", 0), 0)])
        claimed = turns.popleft()
        for _ in range(3):
            turns.finish(claimed, 1)
        assert turns._accounts[0].spent == 1
        assert not turns._accounts[0].running


class TestOutlook:
    """What may be claimed ahead, with 8 handlers and weights 8 and 1."""

    def bench(self, urgent: float, bulk: float, *, seen: bool = True) -> Bench:
        bench = Bench([8, 1], 8, [[urgent], [bulk]])
        for index in range(2 if seen else 0):
            bench.put(index)
        bench.run_dry()
        bench.now += 10  # nobody is busy any more
        return bench

    def test_alone_as_a_worker_of_one(self) -> None:
        assert self.bench(1, 0.1).turns.claim_limits(1, 208) == ClaimLimits(8, 40, 208)
        assert self.bench(1, 0.1, seen=False).turns.claim_limits(1, 208) == ClaimLimits(8, 0, 208)
        assert self.bench(1, 0.1).turns.claim_limits(1, 30, is_given=True).most == 30

    def test_none_while_others_have_the_handlers_for_long(self) -> None:
        bench = self.bench(0.01, 60)
        bench.put(*[1] * 8)
        assert bench.turns.claim_limits(0, 208)[:3] == (0, 0, 208)
        bench.step()
        assert bench.turns.claim_limits(0, 208).slots == 1

    def test_one_is_enough_to_be_next_when_something_waits(self) -> None:
        bench = self.bench(0.01, 60)
        bench.put(*[1] * 9)
        assert bench.turns.claim_limits(0, 208)[:3] == (1, 0, 208)

    def test_what_soon_gets_a_handler(self) -> None:
        bench = self.bench(0.01, 0.01)
        bench.put(*[1] * 100)
        slots, ahead, *_ = bench.turns.claim_limits(0, 208)
        assert (slots, ahead) == (1, 355)  # half a second of 800 a second, of which 8/9 are its
        bench.put(*[0] * 100)
        while bench.starts[-8:].count(0) < 7:
            bench.step()
        slots, ahead, *_ = bench.turns.claim_limits(1, 208)
        assert slots <= 3
        assert ahead < 200  # alone it is 400

    def test_batches_are_as_large_as_the_weights(self) -> None:
        """Where handlers take no time, messages are shared out as they are received."""
        bench = self.bench(0, 0)
        assert [bench.turns.claim_limits(index, 208).part for index in range(2)] == [1, 1]
        bench.turns.extend([Claimed(0, ClaimedDelivery("1.1", 0), 0)])
        assert [bench.turns.claim_limits(index, 208).part for index in range(2)] == [1, 1 / 8]

    def test_a_given_number_is_shared_out(self) -> None:
        bench = self.bench(0.01, 0.01)
        bench.put(*[0] * 50)
        bench.put(*[1] * 50)
        assert [bench.turns.claim_limits(index, 90, is_given=True).most for index in range(2)] == [80, 10]

    def test_what_may_be_kept_when_others_come(self) -> None:
        bench = self.bench(0.1, 0.1)
        bench.put(*[1] * 48)
        assert bench.turns.claim_limits(1, 208).fair == math.inf
        bench.turns.extend([Claimed(0, ClaimedDelivery("1.1", 0), 0)])
        assert bench.turns.claim_limits(1, 208).fair == pytest.approx(8 / 9 * 6)

    def test_one_that_was_there_lately_is_reckoned_with(self) -> None:
        bench = self.bench(0.01, 0.01)
        assert bench.turns.claim_limits(1, 208).ahead == 400
        bench.put(0)
        bench.run_dry()
        bench.now += 1
        assert bench.turns.claim_limits(1, 208).ahead == 45  # 8 handlers, half a second, of which 1/9 is its
        assert bench.turns.claim_limits(1, 180, is_given=True).most == 20
        assert bench.turns.claim_limits(1, 90, is_given=True).most == 16  # all handlers are its
        assert bench.turns.claim_limits(1, 8, is_given=True).most == 8
        bench.now += LATELY
        assert bench.turns.claim_limits(1, 208).ahead == 400

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.floats(0.001, 1000), min_size=2, max_size=4), st.integers(1, 20), st.data())
    def test_what_may_be_claimed_is_not_handed_back(self, weights: list[float], concurrency: int, data: Any) -> None:
        bench = Bench(weights, concurrency, [data.draw(seconds_of) for _ in weights])
        indexes = st.integers(0, len(weights) - 1)
        for index, count, steps in data.draw(st.lists(st.tuples(indexes, st.integers(0, 40), st.integers(0, 40)))):
            bench.put(*[index] * count)
            for _ in range(steps):
                if bench._running:
                    bench.step()
            for n in range(len(weights)):
                claim_limits = bench.turns.claim_limits(n, 10_000)
                in_flight = InFlight(WorkerSettings(concurrency=concurrency, batch_size=10_000), lambda: 0, {})
                in_flight.count = in_flight.room(claim_limits)
                assert in_flight.excess(claim_limits) == 0

    def test_a_free_handler_counts_for_one(self) -> None:
        """Of two that ask when a handler is free, the second one finds it taken."""
        bench = self.bench(60, 60)
        bench.put(*[1] * 8)
        bench.step()
        assert [bench.turns.claim_limits(index, 208).slots for index in range(2)] == [1, 8]
        bench.turns.extend([Claimed(0, ClaimedDelivery("1.1", 0), 0)])
        assert bench.turns.claim_limits(1, 208).slots == 7

    def test_who_is_asked_first(self) -> None:
        bench = self.bench(60, 60)
        bench.put(*[0, 1] * 30)
        assert [bench.starts[-8:].count(index) for index in range(2)] == [7, 1]
        assert bench.turns.order() == [0, 1]
        for _ in range(10):
            bench.step()
        assert bench.starts.count(1) == 2 + 1  # of 18, and the one of `bench`
        assert bench.turns.order() == [0, 1]


def test_a_message_costs_at_least_something() -> None:
    assert LEAST > 0
