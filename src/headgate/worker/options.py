"""What a worker is told, what it counts, and how a handler asks for another attempt. No connections, no loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Any, TypedDict

from ..errors import InvalidArgument

Delay = float | timedelta
LanesChanged = Callable[[frozenset[int]], Any]  # a plain function, which runs in a thread, or a coroutine function


class WorkerOptions(TypedDict, total=False):
    """The options of `consumer.worker()` and `hg.worker()`; `WorkerSettings` has their defaults."""

    concurrency: int  # handlers that run at once
    batch_size: int  # messages that one receive asks for
    prefetch: int | None  # messages claimed and not finished, at most; None: what half a second's work needs
    timeout: float | None  # seconds that a handler may take; then its message is nacked
    retry_delay: Delay | Callable[[int], Delay] | None  # seconds, or a function of the attempt, until a failed message
    grace: float  # seconds that running handlers have to finish when the worker stops
    middleware: Sequence[Callable[..., Any]]  # f(message, call_next) around the handler, the first one outermost
    timing: float  # which part of the handled messages is timed, for reports: 0 (none) to 1 (all)
    signals: bool  # stop on SIGTERM and SIGINT (only where run() is called in the main thread)
    leased: bool | None  # handle only messages of lanes that are leased to this worker; None: as the consumer says
    on_lanes_gained: LanesChanged | None  # called with lanes before the first message of theirs is handled
    on_lanes_lost: LanesChanged | None  # called with lanes after the last message of theirs was handled


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`WorkerOptions` with defaults, checked."""

    concurrency: int = 8
    batch_size: int = 100
    prefetch: int | None = None
    timeout: float | None = None
    retry_delay: Delay | Callable[[int], Delay] | None = None
    grace: float = 30
    middleware: Sequence[Callable[..., Any]] = ()
    timing: float = 0
    signals: bool = True
    leased: bool | None = None
    on_lanes_gained: LanesChanged | None = None
    on_lanes_lost: LanesChanged | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "batch_size", "prefetch"):
            given = getattr(self, name)
            if given is not None and type(given) is not int:
                raise InvalidArgument(f"{name} {given!r} is not possible", hint="pass a whole number")
        for name in ("timeout", "grace", "timing"):
            given = getattr(self, name)
            if given is not None and (type(given) not in (int, float) or given != given):
                raise InvalidArgument(f"{name} {given!r} is not possible", hint="pass a number")
        middleware: Any = self.middleware
        if isinstance(middleware, str) or not isinstance(middleware, Iterable):
            raise InvalidArgument(f"{middleware!r} is no list of middleware", hint="pass middleware=[function]")
        if self.concurrency < 1:
            raise InvalidArgument(f"a concurrency of {self.concurrency} is not possible", hint="choose 1 or more")
        if not 1 <= self.batch_size <= 10_000:
            raise InvalidArgument(f"a batch of {self.batch_size} messages is not possible", hint="ask for 1 to 10,000")
        if self.prefetch is not None and self.prefetch < 1:
            raise InvalidArgument(f"a prefetch of {self.prefetch} is not possible", hint="choose 1 or more")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidArgument(f"a timeout of {self.timeout} s is not possible", hint="choose more than 0, or None")
        if isinstance(self.retry_delay, (int, float)) and not self.retry_delay >= 0:
            raise InvalidArgument(f"a retry_delay of {self.retry_delay} s is not possible", hint="choose 0 or more")
        if not self.grace >= 0:
            raise InvalidArgument(f"a grace of {self.grace} s is not possible", hint="choose 0 or more")
        if not 0 <= self.timing <= 1:
            raise InvalidArgument(f"a timing of {self.timing} is not possible", hint="choose 0 (none) to 1 (all)")
        if self.leased is False and (self.on_lanes_gained or self.on_lanes_lost):
            raise InvalidArgument("only a leased worker's lanes come and go", hint="leave out leased=False")

    @property
    def most_claimed(self) -> int:
        """How many messages may be claimed and not finished: the handlers', a batch that waits, and one on its way."""
        return self.prefetch or self.concurrency + 2 * self.batch_size


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker has done since it was made, and what it has in flight."""

    received: int
    acked: int
    nacked: int
    released: int  # handed back without an attempt
    lost: int  # taken from this worker because a deadline had passed, or not known to be settled
    reconnects: int
    running: int
    waiting: int
    settled: int = 0  # by their handlers, with m.ack(), m.nack() or m.extend(0)

    @classmethod
    def total(cls, parts: Iterable[WorkerStats], reconnects: int) -> WorkerStats:
        """What they make together."""
        sums = [sum(column) for column in zip(*(astuple(part) for part in parts), strict=True)]
        return replace(cls(*sums), reconnects=reconnects)


HEAVIEST, LIGHTEST = 1000, 0.001  # weights


def checked_weights(weights: Any, kind: type) -> dict[Any, float]:
    """Consumers of that kind and their weights, as floats."""
    if not isinstance(weights, Mapping) or not all(isinstance(consumer, kind) for consumer in weights):
        raise InvalidArgument(
            f"a worker of {_shown(weights)} is not possible",
            hint=f"pass a dict of consumers (headgate.{kind.__name__}) and their weights: {{urgent: 8, bulk: 1}}",
        )
    if not weights:
        raise InvalidArgument("a worker of no consumers is not possible", hint="pass a dict: {urgent: 8, bulk: 1}")
    names: set[tuple[str, str]] = set()
    hg = next(iter(weights)).hg
    for consumer, weight in weights.items():
        about = f'consumer "{consumer.name}" of stream "{consumer.stream}"'
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not LIGHTEST <= weight <= HEAVIEST:
            raise InvalidArgument(
                f"a weight of {weight!r} for {about} is not possible",
                hint=f"choose a number from {LIGHTEST:g} to {HEAVIEST:g}; a consumer to be left alone is left out",
            )
        if consumer.hg is not hg:
            raise InvalidArgument(f"{about} is of another client", hint="get all of them from one headgate.connect()")
        if (consumer.stream, consumer.name) in names:
            raise InvalidArgument(f"{about} is there twice", hint="give it one weight")
        names.add((consumer.stream, consumer.name))
    return {consumer: float(weight) for consumer, weight in weights.items()}


def _shown(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 200 else f"{text[:200]} …"


class Retry(Exception):
    """Raised by a handler: deliver the message again, after `delay` if given. It counts as an attempt."""

    def __init__(self, message: str = "", *, delay: Delay | None = None) -> None:
        super().__init__(message)
        self.delay = delay


LONGEST_DELAY = 1e9  # seconds, about 30 years


def default_delay(attempt: int) -> float:
    """Seconds until the next attempt, where neither the consumer nor the worker says it: 1, 2, 4 … 300."""
    return float(min(2 ** min(attempt - 1, 9), 300))


def as_seconds(delay: Delay) -> float:
    """A delay that the engine takes; ValueError for what is no number."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if seconds != seconds:
        raise ValueError(f"{delay!r} is not a number of seconds")
    return min(max(0.0, seconds), LONGEST_DELAY)
