"""What a history is about: a stream, its consumers, and how often its sessions do what.

A preset is data. `weights` says how often an operator does what beside the everyday calls; what is not named never
happens. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

STREAM = "s"


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
    senders: int = 3
    workers: int = 5
    operators: int = 1
    open: float = 0.35  # how many steps are a transaction
    misuse: float = 0.0  # how many receives inside transactions claim that they are alone (open => false)
    deaf: float = 0.05  # how many batches a worker forgets about, so that they expire
    share: float = 0.3  # how many batches workers pass on, so that several of them settle parts of it
    nack: float = 0.15
    long_nack: float = 0.0  # how many of these come back only after a second or two

    @property
    def upsert(self) -> bool:
        return bool(self.stream.get("one_message_per_key"))

    @property
    def lane_by(self) -> str:
        return str(self.stream.get("lane_by", "hash"))

    def consumer(self, name: str) -> ConsumerPlan:
        return next(c for c in self.consumers if c.name == name)


def plan(name: str, **settings: Any) -> ConsumerPlan:
    return ConsumerPlan(name, settings)


MAINTENANCE = {"maintain": 3.0, "tick": 2.0}
SMALL_SEGMENTS = {"segment_rows": 1000, "segment_age": "200 ms", "compact_every": "300 ms"}

PRESETS: dict[str, Preset] = {
    p.name: p
    for p in [
        Preset(
            "plain",
            (plan("free", ack_wait=0.6), plan("ordered", order="key", ack_wait=0.8)),
            {"lanes": 3},
            MAINTENANCE,
        ),
        Preset(
            "keys",
            (plan("free", ack_wait=0.6), plan("ordered", order="key", ack_wait=0.8)),
            {"lane_by": "key"},
            MAINTENANCE,
        ),
        Preset(
            "channels",
            (plan("free", ack_wait=0.6), plan("ordered", order="key", ack_wait=0.8)),
            {"lane_by": "channel"},
            MAINTENANCE,
        ),
    ]
}


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
