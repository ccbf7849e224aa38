"""Where sessions meet, and what they do there: small worlds in which every operation has something to do.

A world is a preset whose one consumer has, when two sessions meet, messages waiting, in flight, parked and, where it
has max_deliver, dead. Its `weights` name the operations that meet. It is cheap to bring back to that state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import psycopg

from ..presets.preset import STREAM, ConsumerPlan, Preset, named, plan, set_up
from ..record import COMMITTED, HandedMessage, Sent
from ..sessions.operators import OperatorSession, first
from ..sessions.workers import WorkerSession

CONSUMER = "c"
LONG = 30.0  # the delay of what is parked: nobody waits for it

EVERYDAY = (
    "send", "send and receive", "receive", "receive one", "receive with acks", "ack", "ack a part", "nack", "nack all",
    "release", "extend", "extend all", "extend one", "extend and ack", "extend and receive", "expire one",
    "expire and ack",
)  # fmt: skip
OPERATING = (
    "maintain",
    "tick",
    "seek",
    "seek the end",
    "retry_now",
    "replay",
    "discard",
    "discard all",
    "pass discarded",
    "alter",
    "pause",
    "resume",
)


def world(name: str, *more: str, stream: dict[str, Any], settings: dict[str, Any] | None = None) -> Preset:
    consumer = plan(CONSUMER, **({"ack_wait": 2.0} | (settings or {})))
    operations = EVERYDAY + OPERATING + more
    ids = 1.0 if "send ids" in operations else 0.0
    return Preset(name, (consumer,), stream, dict.fromkeys(operations, 1.0), ids=ids, delays=1.0)


ORDERED = {"order": "key"}
# Segments that end when they have to, with a few messages each; few are made ahead.
STORED = {"lanes": 2, "retain": "until_acked", "segment_rows": 20000, "segment_age": "1 ms", "compact_every": "1 ms"}

_ALL = [
    world("hash", "send ids", "set_lanes", "maintain and receive", stream={"lanes": 2}),
    world("hash-ordered", "set_lanes", stream={"lanes": 2}, settings=ORDERED),
    world("blocked", stream={"lanes": 2}, settings=ORDERED),
    world("layouts", "set_lanes", stream={"lanes": 2}, settings=ORDERED),
    world("keys", stream={"lane_by": "key"}, settings=ORDERED),
    world("discovered", stream={"lane_by": "key"}),
    world("channels", stream={"lane_by": "channel"}),
    world("capped", stream={"lane_by": "channel"}, settings={"max_concurrency": 3}),
    world("limits", "set_channel", stream={"lane_by": "channel"}, settings={"max_concurrency": 4}),
    world("channels-ordered", stream={"lane_by": "channel"}, settings=ORDERED),
    world("upsert", stream={"lanes": 1, "one_message_per_key": True}),
    world("storage", "compact", "maintain on", stream=STORED),
    world("storage-keys", "compact", stream=STORED | {"lane_by": "key"}, settings=ORDERED),
    world("removal", "maintain on", stream=STORED | {"compact_every": "1 hour"}),
    world("leased", "join_workers", "heartbeat", stream={"lanes": 2}, settings={"leased": True, "lease_time": 5.0}),
    world("dead", "redrive", "purge_dead", stream={"lanes": 2}, settings=ORDERED | {"max_deliver": 2}),
    world("expired", stream={"lanes": 2}, settings={"ack_wait": 0.03}),
    world("expired-keys", stream={"lane_by": "key"}, settings=ORDERED | {"ack_wait": 0.03}),
    world("pending", stream={"lanes": 2}, settings={"max_ack_pending": 6}),
    world("late", "commit the late one", stream={"lanes": 2}),
    world("late-keys", "commit the late one", stream={"lane_by": "key"}, settings=ORDERED),
]
HALF_READ = ("hash", "discovered", "dead", "expired")  # where lanes are in the middle of a span, or not known yet
WORLDS: dict[str, Preset] = {w.name: w for w in _ALL}


APART = """
select s from unnest(array['', 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i']) s
 order by (hashtextextended(%(p)s || s, 0) # hashtextextended(%(f)s, 0)) & 1 desc, s limit 1
"""

# A transaction is late once 10,000 seqs were drawn since a tick that found it open.
MANY_SEQS = """
select count(nextval(('headgate.seq_' || s.id)::regclass)) from headgate.stream s, generate_series(1, 10001)
 where s.name = %s
"""


class Actor(WorkerSession, OperatorSession):
    """A session that does what it is asked to. Its history is another one at each meeting."""

    number = 0  # of the meeting: keys are new in each
    shared_batch: list[HandedMessage]  # a delivery that both sessions settle
    first_seq = 1  # of the meeting
    parked: list[int]
    apart = ""  # the end of key p
    late: Actor | None = None  # a session whose transaction has been open for long

    @property
    def plan(self) -> ConsumerPlan:
        return self.preset.consumers[0]

    @property
    def pid(self) -> int:
        return self.db.info.backend_pid

    def do(self, *operations: str) -> None:
        for operation in operations:
            OPERATIONS[operation](self)

    def key(self, name: str) -> str:
        return f"a.{name}{self.number}" + (self.apart if name == "p" else "")

    def part_keys(self) -> None:
        """What is parked, key p, lies in another lane than what is in flight, key f, where lanes are hashed."""
        self.apart = self.db.execute(APART, {"p": f"a.p{self.number}", "f": self.key("f")}).fetchall()[0][0]

    def post(self, *names: str | None, ids: tuple[str | None, ...] = (), delay: float = 0.0) -> list[int]:
        """Send a message of each key; None is one without a key."""
        messages = []
        for place, name in enumerate(names):
            key = None if name is None else self.key(name)
            what: dict[str, Any] = {"key": key}
            what |= {"value": self.name} if self.preset.upsert else {"by": self.name, "n": place}
            channel = f"t{name or 0}" if self.preset.lane_by == "channel" else None
            messages.append(Sent(key, json.dumps(what), channel, ids[place] if ids else None, delay))
        return self.send(messages).answer or []

    def take(self, n: int, acks: list[str] | None = None) -> list[HandedMessage]:
        event = self.call(
            "receive",
            "select ack_id, seq, key, data, attempt from headgate.receive(%s, %s, %s, %s, %s::text[])",
            [STREAM, CONSUMER, n, self.name, acks or None],
            lambda rows: [HandedMessage(*row) for row in rows],
            consumer=CONSUMER,
            n=n,
            acks=acks or [],
        )
        return event.answer or []

    def prolong(self, acks: list[str], by: float) -> None:
        self.call(
            "extend",
            "select * from headgate.extend(%s, %s, %s::text[], make_interval(secs => %s))",
            [STREAM, CONSUMER, acks, by],
            lambda rows: tuple(rows[0]),
            consumer=CONSUMER,
            acks=acks,
            by=by,
        )

    def let_one_expire(self) -> None:
        """The deadline of one message passes, and others are received."""
        self.prolong(self.one, 0.001)
        time.sleep(0.002)
        self.take(10)

    def alter(self, **changes: Any) -> None:
        text, values = named(changes)
        query = f"select headgate.alter_consumer(%s, %s, {text})"
        self.call("alter_consumer", query, [STREAM, CONSUMER, *values], first, consumer=CONSUMER, changes=changes)

    def other_lanes(self) -> None:
        n = 2 + self.number % 2
        self.call("set_lanes", "select headgate.set_lanes(%s, %s)", [STREAM, n], first, lanes=n)

    def limit_channel(self) -> None:
        query = "select headgate.set_channel(%s, %s, 'tf', 3)"
        self.call("set_channel", query, [STREAM, CONSUMER], first, consumer=CONSUMER, channel="tf", max_concurrency=3)

    def go_to(self, target: str) -> None:
        self.of_consumer("seek", CONSUMER, [target], target=target)

    def ack_and_replay(self) -> None:
        """One is done, and comes again; the others are not."""
        self.settle_by("ack", CONSUMER, self.one)
        self.replay_these(CONSUMER, "from_seq => %s", [self.first_seq], None, given=None)

    def be_seen(self, function: str) -> None:
        self.of_consumer(function, CONSUMER, [self.name])

    # the state in which sessions meet

    def prepare_scene(self) -> None:
        """Messages of one key parked, of one in flight, of both and others waiting; what was left before is gone."""
        self.part_keys()
        name, twice = self.preset.name, not self.preset.upsert  # (there a key's second message would end the first)
        if self.plan.leased:
            self.be_seen("join_workers")
        if self.plan.max_deliver:
            self.post("d")
            for _ in range(self.plan.max_deliver):
                self.settle_by("nack", CONSUMER, [m.ack_id for m in self.take(10)], 0.0)
        if self.late is not None:
            self.late.fall_behind()
            self.pass_by()
        seqs = self.post("p", "f", "f" if twice else "g", None, "q", "w")
        self.first_seq, self.parked = min(seqs), seqs[:1]
        got = self.take(10)
        if self.preset.stream.get("retain") == "until_acked":  # a segment of which nothing, or one message, is left
            left = [] if name == "removal" else seqs[:1]
            self.settle_by("ack", CONSUMER, [m.ack_id for m in got if m.seq not in left])
            self.end_segment()
            self.post("f", "f", None)
            self.end_segment()
            got = [m for m in got if m.seq in left] + self.take(10)
        if self.plan.max_deliver:  # so that another failure is the last one
            self.settle_by("nack", CONSUMER, [m.ack_id for m in got if m.seq != seqs[0]], 0.0)
            got = [m for m in got if m.seq == seqs[0]] + self.take(10)
        self.settle_by("nack", CONSUMER, [m.ack_id for m in got if m.seq == seqs[0]], LONG)
        got.sort(key=lambda m: m.key != self.key("f"))
        self.shared_batch = [m for m in got if m.delivery == got[0].delivery and m.seq != seqs[0]]
        if name == "layouts":
            self.settle_by("ack", CONSUMER, [m.ack_id for m in got if m not in self.shared_batch and m.seq != seqs[0]])
            self.other_lanes()
        if name.startswith("expired"):
            time.sleep(self.plan.ack_wait)
        if twice:
            self.post("p", "f", "w", "f", "w", None)
        self.post("v", delay=0.02)
        if name in HALF_READ:
            self.take(1)
        if name == "blocked":
            self.take(10)
            self.post("w", "u", None)

    def fall_behind(self) -> None:
        """Send in a transaction that stays open while so many seqs go by that ticks no longer wait for it."""
        self.transaction = self.history.begin(self.name, "read committed")
        self.db.execute("begin")
        self.post("l", None)

    def pass_by(self) -> None:
        self.tick(CONSUMER)
        self.db.execute(MANY_SEQS, [STREAM])
        time.sleep(0.001)  # ticks are a millisecond apart
        self.tick(CONSUMER)

    def come_to_an_end(self) -> None:
        if self.transaction is not None:
            self.end(self.state(), COMMITTED)

    def share_scene(self, other: Actor) -> None:
        self.late = other.late
        self.shared_batch, self.parked, self.first_seq, self.apart = (
            other.shared_batch,
            other.parked,
            other.first_seq,
            other.apart,
        )

    def end_segment(self) -> None:
        """As maintenance does, but for the rest of what it does."""
        self.call("tick", "select headgate.tick(%s)", [STREAM], first)
        time.sleep(0.001)
        self.db.execute("select headgate.end_segment(s) from headgate.stream s where s.name = %s", [STREAM])

    @property
    def whole(self) -> list[str]:
        return [self.shared_batch[0].delivery] if self.shared_batch else []

    @property
    def one(self) -> list[str]:
        return [self.shared_batch[0].ack_id] if self.shared_batch else []

    @property
    def ids(self) -> list[str]:
        return [m.ack_id for m in self.shared_batch]


# A key has one writer, so that its order is known: A sends what is in flight, B what is waiting. Upserts know no order.
def _send(actor: Actor) -> None:
    actor.post("f" if actor.name == "A" or actor.preset.upsert else "w", None, "x" if actor.name == "A" else "y")


OPERATIONS: dict[str, Callable[[Actor], Any]] = {
    "send": _send,
    "send ids": lambda a: a.post(None, None, ids=(f"same-{a.number}", f"{a.name}-{a.number}")),
    "send and receive": lambda a: a.do("send", "receive"),
    "receive": lambda a: a.take(10),
    "receive one": lambda a: a.take(1),
    "receive with acks": lambda a: a.take(10, a.whole),
    "ack": lambda a: a.settle_by("ack", CONSUMER, a.whole),
    "ack a part": lambda a: a.settle_by("ack", CONSUMER, a.one),
    "nack": lambda a: a.settle_by("nack", CONSUMER, a.one, 0.0),
    "nack all": lambda a: a.settle_by("nack", CONSUMER, a.ids, 0.0),
    "release": lambda a: a.settle_by("release", CONSUMER, a.ids[-1:]),
    "extend": lambda a: a.prolong(a.ids, 0.5),
    "extend all": lambda a: a.prolong(a.whole, 0.5),
    "extend one": lambda a: a.prolong(a.one, 0.5),
    "extend and ack": lambda a: a.do("extend one", "ack"),
    "extend and receive": lambda a: a.let_one_expire(),
    "expire one": lambda a: a.prolong(a.one, 0.0),
    "expire and ack": lambda a: a.do("expire one", "ack a part"),
    "maintain": lambda a: a.maintain(CONSUMER),
    "maintain on": lambda a: a.do("maintain", "maintain", "maintain"),
    "maintain and receive": lambda a: a.do("maintain", "receive"),
    "compact": lambda a: a.compact(CONSUMER),
    "tick": lambda a: a.tick(CONSUMER),
    "seek": lambda a: a.go_to(str(a.first_seq)),
    "seek the end": lambda a: a.go_to("end"),
    "retry_now": lambda a: a.of_consumer("retry_now", CONSUMER, [None, True]),
    "replay": lambda a: a.ack_and_replay(),
    "discard": lambda a: a.discard_these(CONSUMER, a.parked),
    "discard all": lambda a: a.discard_these(CONSUMER, None, [a.key(k) for k in "pfqwv"]),
    "pass discarded": lambda a: a.do("discard all", "receive", "maintain"),
    "redrive": lambda a: a.of_consumer("redrive", CONSUMER, [None, None, None, True]),
    "purge_dead": lambda a: a.purge_dead(CONSUMER),
    "commit the late one": lambda a: a.late.come_to_an_end() if a.late is not None else None,
    "set_lanes": lambda a: a.other_lanes(),
    "set_channel": lambda a: a.limit_channel(),
    "alter": lambda a: a.alter(ack_wait=a.plan.ack_wait + 0.4),
    "pause": lambda a: a.of_consumer("pause", CONSUMER),
    "resume": lambda a: a.of_consumer("resume", CONSUMER),
    "join_workers": lambda a: a.be_seen("join_workers"),
    "heartbeat": lambda a: a.be_seen("heartbeat"),
}


def fresh_stream(db: psycopg.Connection, preset: Preset) -> None:
    """The world's stream as if it were new."""
    if db.execute("select from headgate.stream where name = %s", [STREAM]).fetchone() is not None:
        db.execute("select headgate.drop_stream(%s)", [STREAM])
        while any(row[0] == "drop segments" for row in db.execute("select task from headgate.maintain()")):
            pass
    set_up(db, preset)
    db.execute("select headgate.maintain()")  # which compacts now, and then when it is due
