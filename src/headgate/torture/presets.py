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
    holds: tuple[float, ...] = HOLDS
    senders: int = 3
    workers: int = 5
    operators: int = 1
    operators_open: float = 0.35
    maintainers: int = 0
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
    def lane_by(self) -> str:
        return str(self.stream.get("lane_by", "hash"))

    def consumer(self, name: str) -> ConsumerPlan:
        return next(c for c in self.consumers if c.name == name)


def plan(name: str, **settings: Any) -> ConsumerPlan:
    return ConsumerPlan(name, settings)


MAINTENANCE = {"maintain": 3.0, "tick": 2.0}
SMALL_SEGMENTS = {"segment_rows": 1000, "segment_age": "200 ms", "compact_every": "300 ms"}
# Segments that fill up and are done for soon, but for a few parked messages; nobody else removes them.
QUICK: dict[str, Any] = {
    "batch": 150,
    "sizes": (100, 300),
    "operators": 3,
    "operators_open": 0.0,
    "senders": 1,
    "workers": 4,
    "pace": 0.02,
    "open": 0.03,
    "share": 0.0,
    "deaf": 0.0,
    "nack": 0.08,
    "long_nack": 1.0,
    "longest_nack": 4.0,
    "holds": LONG,
}
# Segments that everybody is done with after a while, but for a few parked messages.
STORED: dict[str, Any] = {"batch": 12, "maintainers": 1, "open": 0.15, "long_nack": 0.6, "nack": 0.08}
BOTH = (plan("free", ack_wait=0.6), plan("ordered", order="key", ack_wait=0.8))
MORTAL = (plan("free", ack_wait=0.4, max_deliver=2), plan("ordered", order="key", ack_wait=0.5, max_deliver=2))

_ALL = [
    Preset("plain", BOTH, {"lanes": 3}, MAINTENANCE, ids=0.2),
    Preset("keys", BOTH, {"lane_by": "key"}, MAINTENANCE),
    Preset("channels", BOTH, {"lane_by": "channel"}, MAINTENANCE),
    # many lanes, so that some are free while others are held
    Preset("many-keys", BOTH, {"lane_by": "key"}, {}, keys=40, keyless=0.0, sizes=(3, 10), batch=2, pace=0.1),
    Preset("many-channels", BOTH, {"lane_by": "channel"}, {}, keys=10, keyless=0.0, sizes=(3, 10), batch=2, pace=0.1),
    Preset("many-lanes", BOTH, {"lanes": 32}, {}, keys=40, sizes=(3, 10), batch=2, pace=0.1),
    # delays, and consumers that see a part of the keys
    Preset(
        "filters",
        (
            plan("all", ack_wait=0.6),
            plan("some", filter=["a.>"], order="key", ack_wait=0.6),
            plan("others", filter=["b.>"]),
        ),
        {"lanes": 2},
        MAINTENANCE,
        families=("a", "b"),
        delays=0.2,
    ),
    Preset(
        "delays",
        BOTH,
        {"lane_by": "channel"},
        MAINTENANCE,
        delays=0.3,
    ),
    # limits of channels and of whole consumers, which change
    Preset(
        "limits",
        (
            plan("capped", ack_wait=0.5, max_concurrency=2),
            plan("paced", order="key", ack_wait=0.5, max_concurrency=3, release_interval=0.005),
        ),
        {"lane_by": "channel"},
        MAINTENANCE | {"set_channel": 2.0, "alter_consumer": 2.0, "pause": 0.5},
        batch=2,
        pace=0.1,
    ),
    Preset(
        "capped",
        (
            plan("capped", ack_wait=0.5, max_concurrency=2),
            plan("paced", order="key", ack_wait=0.5, max_concurrency=3, release_interval=0.02),
        ),
        {"lane_by": "channel"},
        MAINTENANCE,
        batch=2,
        pace=0.1,
        keys=4,
    ),
    Preset(
        "pending",
        (
            plan("free", ack_wait=0.5, max_ack_pending=10),
            plan("ordered", order="key", ack_wait=0.5, max_ack_pending=10),
        ),
        {"lanes": 3},
        MAINTENANCE | {"alter_consumer": 1.0, "pause": 0.5},
    ),
    Preset(
        "leased",
        (
            plan("free", ack_wait=0.6, leased=True, lease_time=1.0),
            plan("ordered", order="key", leased=True, lease_time=1.0),
        ),
        {"lanes": 4},
        MAINTENANCE,
    ),
    Preset(
        "leased-keys",
        (plan("ordered", order="key", ack_wait=0.6, leased=True, lease_time=1.0),),
        {"lane_by": "key", "lanes": 4},
        MAINTENANCE,
    ),
    # replay and powers over what is parked
    Preset(
        "seeks",
        BOTH,
        {"lanes": 3},
        MAINTENANCE | {"seek": 1.0, "retry_now": 1.0, "discard": 1.0, "pause": 0.3},
        long_nack=0.3,
    ),
    Preset(
        "seeks-keys",
        BOTH,
        {"lane_by": "key"},
        MAINTENANCE | {"seek": 1.0, "retry_now": 1.0, "discard": 1.0},
        long_nack=0.3,
    ),
    Preset("dead", MORTAL, {"lanes": 3}, MAINTENANCE | {"redrive": 2.0, "purge_dead": 0.3, "retry_now": 1.0}, nack=0.3),
    Preset(
        "dead-channels",
        MORTAL,
        {"lane_by": "channel"},
        MAINTENANCE | {"redrive": 2.0, "purge_dead": 0.3},
        nack=0.3,
    ),
    # changing the number of lanes under traffic
    Preset("lanes", BOTH, {"lanes": 2}, MAINTENANCE | {"set_lanes": 1.0, "seek": 0.3}, open=0.25),
    # storage: what everybody has acked is removed, a few parked messages are kept elsewhere
    Preset(
        "storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "seek": 0.7, "alter_stream": 0.3},
        **STORED,
    ),
    Preset(
        "storage-lanes",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "seek": 0.7, "set_lanes": 0.7},
        **STORED,
    ),
    Preset(
        "storage-channels",
        BOTH,
        {"lane_by": "channel", "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "seek": 0.7},
        **STORED,
    ),
    Preset(
        "compaction",
        (plan("free", ack_wait=0.6),),
        {"lanes": 2, "retain": "until_acked", "segment_rows": 1000},
        {"compact_late": 0.5, "replay_slowly": 0.5, "tick": 6.0},
        **QUICK,
    ),
    Preset(
        "compaction-lanes",
        (plan("free", ack_wait=0.6),),
        {"lanes": 2, "retain": "until_acked", "segment_rows": 1000},
        {"compact": 3.0, "replay_slowly": 0.5, "replay": 0.3, "set_lanes": 1.0, "tick": 5.0},
        **QUICK,
    ),
    Preset(
        "aging",
        BOTH,
        {"lanes": 2, "retain_up_to": 2.0} | SMALL_SEGMENTS,
        {"maintain": 3.0, "compact": 1.0, "seek": 0.3},
        batch=12,
        maintainers=1,
        open=0.15,
    ),
    # upserts: a key has one message, its newest
    Preset(
        "upsert",
        (plan("newest", ack_wait=0.5),),
        {"lanes": 2, "one_message_per_key": True},
        MAINTENANCE,
        ids=0.6,
        keyless=0.0,
    ),
    Preset(
        "upsert-dead",
        (plan("newest", ack_wait=0.4, max_deliver=2),),
        {"lanes": 2, "one_message_per_key": True, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 2.0, "redrive": 2.0, "seek": 0.3},
        keyless=0.0,
        nack=0.4,
        maintainers=1,
        senders=2,
        pace=0.05,
        keys=3,
        open=0.15,
        holds=LONG,
    ),
    # calls that are cancelled in the middle
    Preset("cancels", BOTH, {"lanes": 3}, MAINTENANCE | {"cancel": 20.0, "seek": 0.3}, operators=2),
    Preset("cancels-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE | {"cancel": 20.0, "seek": 0.3}, operators=2),
    # a caller who says that it is alone in its transaction, and is not
    Preset("misuse", BOTH, {"lanes": 3}, MAINTENANCE, misuse=0.8, answers=0.4, open=0.7, pace=0.03, holds=LONG),
]
PRESETS: dict[str, Preset] = {p.name: p for p in _ALL}


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
