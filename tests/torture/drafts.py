"""Small histories written by hand, for tests of the judge of `headgate torture`."""

from __future__ import annotations

from typing import Any

from headgate.torture.judge.check import judge
from headgate.torture.presets.preset import Preset, plan
from headgate.torture.record import (
    COMMITTED,
    Ending,
    Event,
    HandedMessage,
    History,
    Sent,
    TransactionRecord,
)

ACK_WAIT = 1.0
PLAIN = Preset("test", (plan("c", ack_wait=ACK_WAIT),))
ORDERED = Preset("test", (plan("c", ack_wait=ACK_WAIT, order="key"),))
MORTAL = Preset("test", (plan("c", ack_wait=ACK_WAIT, max_deliver=1),))
UPSERT = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"one_message_per_key": True})
KEPT = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"retain": "until_acked"})
AGING = Preset("test", (plan("c", ack_wait=ACK_WAIT),), {"retain_up_to": 1.0})


class Draft:
    """Writes a small history by hand. Each call is made at a time and answered a hundredth of a second later."""

    def __init__(self) -> None:
        self.history = History("test", 1)
        self.history.drained_at = 100.0
        self.deliveries = 0

    def event(self, session: str, kind: str, at: float, answer: Any = None, tx: Any = None, **asked: Any) -> Event:
        consumer = None if kind in ("send", "maintain", "compact", "tick") else "c"
        event = Event(session, kind, consumer, asked, at, tx, at + 0.01, answer)
        self.history.events.append(event)
        return event

    def transaction(self, session: str, began: float, ended: float, outcome: str = COMMITTED) -> TransactionRecord:
        number = len(self.history.transactions) + 1
        tx = TransactionRecord(number, session, "read committed", began, ended, ended + 0.01, outcome)
        self.history.transactions.append(tx)
        return tx

    def send(
        self, at: float, *seqs: int, key: str | None = None, tx: Any = None, ids: Any = None, data: str = ""
    ) -> None:
        messages = [Sent(key, data or f"data {seq}", id=(ids or {}).get(seq)) for seq in seqs]
        self.event("sender", "send", at, list(seqs), tx, messages=messages)

    def receive(
        self,
        at: float,
        *seqs: int,
        by: str = "w1",
        tx: Any = None,
        attempt: int = 1,
        key: str | None = None,
        **asked: Any,
    ) -> list[str]:
        self.deliveries += 1
        got = [HandedMessage(f"0.{self.deliveries}.{s}", s, key, asked.get("data", f"data {s}"), attempt) for s in seqs]
        asked.pop("data", None)
        self.event(by, "receive", at, got, tx, n=10, **asked)
        return [m.ack_id for m in got]

    def ack(self, at: float, acks: list[str], by: str = "w1", tx: Any = None, stale: int = 0) -> None:
        self.event(by, "ack", at, (len(acks) - stale, stale), tx, acks=acks)

    def found(self, preset: Preset = PLAIN) -> list[str]:
        self.history.endings.setdefault("c", Ending())
        return [f.check for f in judge(self.history, preset)]
