"""Workers: sessions that receive and settle, in every way there is."""

from __future__ import annotations

import json
from typing import Any

from ..presets.preset import STREAM
from ..record import HandedMessage, Sent
from .session import TortureSession

ACK_WAITS = (0.05, 0.4, 1.5)  # seconds, of single receives
EXTENSIONS = (0.0, 0.02, 0.3, 0.3, 0.8, 1.2)  # also nearer, and now


class WorkerSession(TortureSession):
    """Receives and settles, in every way there is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.longest_rest = self.preset.rest
        self.held: dict[str, list[HandedMessage]] = {c.name: [] for c in self.preset.consumers}
        self.joined: dict[str, float] = {}
        self.sent = 0

    def state(self) -> Any:
        return {consumer: list(mine) for consumer, mine in self.held.items()}

    def restore(self, state: Any) -> None:
        self.held = {consumer: list(mine) for consumer, mine in state.items()}

    def prepare(self) -> None:
        """Take over from others only before a transaction: its snapshot may be older than their deliveries."""
        consumer = self.random.choice(self.preset.consumers).name
        self.held[consumer] += self.pool.take(consumer, self.random.randint(1, 4))

    def step(self) -> None:
        consumer = self.random.choice(self.preset.consumers).name
        mine = self.held[consumer]
        if self.preset.consumer(consumer).leased and not self.stay(consumer):
            return
        if self.transaction is None and self.random.random() < 0.2:
            mine += self.pool.take(consumer, 3)
        if self.transaction is not None and self.random.random() < self.preset.answers:
            self.send_more()
        elif mine and self.random.random() < 0.6:
            self.settle(consumer)
        elif self.transaction is None and self.random.random() < 0.1:
            # as the part of a program that keeps messages alive while another part settles them. Alone in its
            # transaction: two who lock the same messages in opposite order would end in a deadlock of their own making
            self.in_transaction(lambda: self.extend(consumer, self.pool.recent(consumer)))
        elif self.transaction is None and self.random.random() < 0.05:
            # late, or beside the one who has them
            self.in_transaction(lambda: self.ack_some(consumer, self.pool.recent(consumer)))
        else:
            self.receive(consumer)

    def send_more(self) -> None:
        """What a handler sends in its own transaction: without a key, for others own the keys."""
        self.sent += 1
        data = json.dumps({"key": None, "n": self.sent, "by": self.name})
        self.send([Sent(None, data, "t0" if self.preset.lane_by == "channel" else None)])

    def stay(self, consumer: str) -> bool:
        """Join a leased consumer, and be seen again in time; whether that went well."""
        if consumer in self.joined and self.random.random() < 0.02:  # what it has in flight stays its own
            self.call(
                "leave_workers",
                "select headgate.leave_workers(%s, %s, %s)",
                [STREAM, consumer, self.name],
                lambda rows: rows[0][0],
                consumer=consumer,
            )
            del self.joined[consumer]
            return False
        if self.history.now() > self.joined.get(consumer, 0.0):
            function = "heartbeat" if consumer in self.joined else "join_workers"
            event = self.call(
                function,
                f"select headgate.{function}(%s, %s, %s)",
                [STREAM, consumer, self.name],
                lambda rows: rows[0][0],
                consumer=consumer,
            )
            if event.problem:
                return False
            self.joined[consumer] = self.history.now() + 0.3
        return True

    def receive(self, consumer: str) -> None:
        n = self.random.choice(self.preset.sizes)
        acks = self.pick(consumer, whole=True) if self.random.random() < 0.4 else []
        ack_wait = self.random.choice(ACK_WAITS) if self.random.random() < 0.15 else None
        misused = self.transaction is not None and self.random.random() < self.preset.misuse
        event = self.call(
            "receive",
            "select ack_id, seq, key, data, attempt from headgate.receive(%s, %s, %s, %s, %s::text[], %s, "
            "make_interval(secs => %s::float8))",
            [STREAM, consumer, n, self.name, acks or None, False if misused else None, ack_wait],
            lambda rows: [HandedMessage(*row) for row in rows],
            consumer=consumer,
            n=n,
            acks=acks,
            open=False if misused else None,
            ack_wait=ack_wait,
        )
        if event.problem or not event.answer:
            return
        got: list[HandedMessage] = event.answer
        if self.transaction is None:
            self.pool.notice(consumer, got)
        if self.random.random() < self.preset.deaf:
            return
        if self.transaction is None and len(got) > 1 and self.random.random() < self.preset.share:
            half = self.random.randint(1, len(got) - 1)
            self.pool.put(consumer, got[half:])
            got = got[:half]
        self.held[consumer] += got

    def pick(self, consumer: str, whole: bool, most: int = 8) -> list[str]:
        """Ids of messages, or of whole deliveries, which are then no more its own."""
        mine = self.held[consumer]
        if not mine:
            return []
        delivery = self.random.choice(mine).delivery
        if self.transaction is not None and delivery in self.pool.shared:
            whole = False  # it would settle what others are settling, in whatever order
        if whole and self.random.random() < 0.6:
            self.held[consumer] = [m for m in mine if m.delivery != delivery]
            return [delivery]
        if whole and self.random.random() < 0.3:
            most = len(mine)
        picked = self.random.sample(mine, self.random.randint(1, min(len(mine), most)))
        self.held[consumer] = [m for m in mine if m not in picked]
        return [m.ack_id for m in picked]

    def settle(self, consumer: str) -> None:
        draw = self.random.random()
        if draw < self.preset.nack:
            long = self.random.random() < self.preset.long_nack
            delay = (
                self.preset.longest_nack * (0.5 + 0.5 * self.random.random())
                if long
                else self.random.choice((0.0, 0.05, 0.3))
            )
            self.settle_by("nack", consumer, self.pick(consumer, whole=False, most=1 if long else 8), delay)
        elif draw < self.preset.nack + 0.08:
            self.settle_by("release", consumer, self.pick(consumer, whole=False))
        elif draw < self.preset.nack + 0.16:
            self.extend(consumer, self.held[consumer])
        else:
            self.settle_by("ack", consumer, self.pick(consumer, whole=True))

    def settle_by(self, kind: str, consumer: str, acks: list[str], delay: float | None = None) -> None:
        if not acks:
            return
        more = ", make_interval(secs => %s)" if delay is not None else ""
        self.call(
            kind,
            f"select * from headgate.{kind}(%s, %s, %s::text[]{more})",
            [STREAM, consumer, acks] + ([delay] if delay is not None else []),
            lambda rows: tuple(rows[0]),
            consumer=consumer,
            acks=acks,
            delay=delay,
        )

    def ack_some(self, consumer: str, choices: list[HandedMessage]) -> None:
        if choices:
            some = self.random.sample(choices, self.random.randint(1, min(3, len(choices))))
            self.settle_by("ack", consumer, [m.ack_id for m in some])

    def extend(self, consumer: str, choices: list[HandedMessage]) -> None:
        if not choices:
            return
        by = self.random.choice(EXTENSIONS)
        acks = [m.ack_id for m in self.random.sample(choices, self.random.randint(1, min(3, len(choices))))]
        if self.transaction is None and self.random.random() < 0.2:
            acks = [acks[0].rpartition(".")[0]]
        self.call(
            "extend",
            "select * from headgate.extend(%s, %s, %s::text[], make_interval(secs => %s))",
            [STREAM, consumer, acks, by],
            lambda rows: tuple(rows[0]),
            consumer=consumer,
            acks=acks,
            by=by,
        )
