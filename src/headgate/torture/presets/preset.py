"""What a history is about: a stream, its consumers, and how often its sessions do what.

A preset is data. `weights` says how often an operator does what beside the everyday calls; what is not named never
happens. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

STREAM = "s"

# How long transactions stay open, at most: most of them hardly, some past the deadline of what they received.
HOLDS = (0.0,) * 6 + (0.01,) * 6 + (0.03,) * 6 + (0.1, 0.1, 0.3, 1.0, 2.5, 2.5)
SHORT = (0.0, 0.01, 0.03, 0.1)
LONG = (0.03, 0.1, 0.3, 0.6)


@dataclass(frozen=True)
class ConsumerPlan:
    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ordered(self) -> bool:
        return self.settings.get("order") == "key"

    @property
    def leased(self) -> bool:
        return bool(self.settings.get("leased"))

    @property
    def ack_wait(self) -> float:
        return float(self.settings.get("ack_wait", 1.0))

    @property
    def max_deliver(self) -> int | None:
        return self.settings.get("max_deliver")

    @property
    def filter(self) -> str | None:
        """The first token of the keys that pass."""
        patterns = self.settings.get("filter")
        return str(patterns[0]).split(".")[0] if patterns else None

    def passes(self, key: str | None) -> bool:
        return self.filter is None or (key or "").startswith(self.filter + ".")


@dataclass(frozen=True)
class Preset:
    """The shape of a history."""

    name: str
    consumers: tuple[ConsumerPlan, ...]
    stream: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # of the operator's calls
    keys: int = 2  # of each sender
    families: tuple[str, ...] = ("a",)  # first tokens of keys
    keyless: float = 0.2  # how many messages have no key
    ids: float = 0.0  # how many messages have an id; some of them are sent again
    delays: float = 0.0
    batch: int = 4  # the largest send
    pace: float = 0.005  # of senders: how long they rest between steps, at most
    rest: float = 0.005  # the same of workers
    holds: tuple[float, ...] = HOLDS
    senders: int = 3
    workers: int = 5
    faults: dict[str, float] = field(default_factory=dict)  # weights of what is done to server and network
    fault_every: float = 0.4  # seconds between faults, at most twice that
    clients: dict[str, int] = field(default_factory=dict)  # processes of their own, by kind: sdk, loop, http
    powers: float = 0.0  # how many of their steps discard or replay something
    staged: float = 0.0  # how many steps of a sender stage a batch, and send it exactly once
    operators: int = 1
    operators_open: float = 0.35
    maintainers: int = 0
    readers: int = 0
    observers: int = 0
    archivers: int = 0
    prepared: float = 0.0  # how many transactions are prepared, and ended by another session
    widened: tuple[str, ...] = ()  # first tokens that filters are widened by, for a while
    open: float = 0.35  # how many steps are a transaction
    sizes: tuple[int, ...] = (1, 3, 10, 50)  # of receives
    answers: float = 0.15  # how many steps of a worker's transaction send something
    misuse: float = 0.0  # how many receives inside transactions claim that they are alone (open => false)
    deaf: float = 0.05  # how many batches a worker forgets about, so that they expire
    share: float = 0.3  # how many batches workers pass on, so that several of them settle parts of it
    nack: float = 0.15
    long_nack: float = 0.0  # how many of these come back only after a while
    longest_nack: float = 2.0

    @property
    def upsert(self) -> bool:
        return bool(self.stream.get("one_message_per_key"))

    @property
    def loses(self) -> bool:
        """Whether its retention removes what nobody has read."""
        return "retain_up_to" in self.stream or (
            "max_storage" in self.stream and self.stream.get("retain", "forever") == "forever"
        )

    @property
    def lane_by(self) -> str:
        return str(self.stream.get("lane_by", "hash"))

    def consumer(self, name: str) -> ConsumerPlan:
        return next(c for c in self.consumers if c.name == name)


def plan(name: str, **settings: Any) -> ConsumerPlan:
    return ConsumerPlan(name, settings)


def channel_of(key: str | None) -> str:
    """The channel of a key's messages, always the same one; also of those without a key."""
    return "t0" if key is None else f"t{key[-1]}"


def set_up(db: psycopg.Connection, preset: Preset) -> None:
    """Make the stream and its consumers."""
    _create(db, "headgate.create_stream", [STREAM], preset.stream)
    for consumer in preset.consumers:
        settings: dict[str, Any] = {"ack_wait": 1.0} | consumer.settings
        _create(db, "headgate.create_consumer", [STREAM, consumer.name], settings)


SECONDS = ("ack_wait", "lease_time", "release_interval", "retain_up_to")


def named(settings: dict[str, Any]) -> tuple[str, list[Any]]:
    """`name => %s` of each setting, and the values; lengths of time are given in seconds."""
    parts = [f'"{k}" => ' + ("make_interval(secs => %s)" if k in SECONDS else "%s") for k in settings]
    return ", ".join(parts), list(settings.values())


def _create(db: psycopg.Connection, function: str, names: list[str], settings: dict[str, Any]) -> None:
    text, values = named(settings)
    marks = ", ".join(["%s"] * len(names))
    db.execute(f"select {function}({marks}{', ' if text else ''}{text})", names + values)
