"""What a consumer may get, as a small model: the reference for test_model.py.

It knows nothing about lanes, ticks, spans or wake-ups. Of each message it says whether it is waiting, in flight, dead
or done, and from that what a receive may answer, and how much it has to.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from support.calls import Received

ACK_WAIT = 30  # minutes, as all times here


@dataclass
class Waiting:
    attempt: int  # deliveries so far
    due: float
    delivery: str | None = None  # in which it expired: by that it may still be acked


@dataclass
class Delivery:
    deadline: float
    attempts: dict[int, int]  # of each message in flight, by seq


@dataclass
class Consumer:
    """The model. `keys` and `commits` (which transaction a message came with) are those of the whole stream."""

    name: str
    ordered: bool
    filter: list[str] | None
    max_deliver: int | None
    max_ack_pending: int | None
    keys: dict[int, str | None]
    commits: dict[int, int]
    paused: bool = False
    first: int = 0  # after a seek to a seq nothing below it comes, however late it is committed
    now: float = 0
    waiting: dict[int, Waiting] = field(default_factory=dict)
    flying: dict[str, Delivery] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)  # twice, when it died again after a seek
    handed: list[str] = field(default_factory=list)  # every ack_id ever given

    def passes(self, seq: int) -> bool:
        return seq >= self.first and (self.filter is None or (self.keys[seq] or "").startswith("a."))

    def held(self, seq: int) -> str | None:
        return self.keys[seq] if self.ordered else None

    def in_flight(self) -> dict[int, int]:
        return {seq: attempt for d in self.flying.values() for seq, attempt in d.attempts.items()}

    def fail(self, seq: int, attempt: int, due: float, delivery: str | None = None) -> None:
        if self.max_deliver and attempt >= self.max_deliver:
            self.dead.append(seq)
        else:
            self.waiting[seq] = Waiting(attempt, due, delivery)

    def take_apart(self, delivery: str) -> set[int]:
        gone = self.flying.pop(delivery).attempts
        for seq, attempt in gone.items():
            self.fail(seq, attempt, self.now, delivery)
        return set(gone)

    def overdue(self) -> list[str]:
        return [id for id, d in self.flying.items() if d.deadline <= self.now]

    def at_least(self, parked: set[int]) -> int:
        """How many messages a receive must be able to give. Of a key: what is parked, up to the first that is not due,
        or else the first unread one (more may come, but what was read in an earlier span of the same call is in flight
        by then); nothing while one of them is in flight."""
        count = 0
        runs: dict[str, list[int]] = defaultdict(list)
        for seq in sorted(self.waiting):
            key = self.held(seq)
            if key is None:
                count += self.waiting[seq].due <= self.now
            else:
                runs[key].append(seq)
        busy = {self.held(seq) for seq in self.in_flight()}
        for key, seqs in runs.items():
            if key not in busy:
                first = [s for s in seqs if s in parked] or seqs[:1]
                count += len(list(itertools.takewhile(lambda s: self.waiting[s].due <= self.now, first)))
        return count

    def check(self, got: list[Received], parked: set[int]) -> None:
        """Every message was one that may be handed out."""
        flying = self.in_flight()
        before: set[int] = set()
        for m in got:
            assert m.seq not in flying, f"{m.seq} is in flight already"
            assert m.seq not in before, f"{m.seq} came twice"
            assert m.seq in self.waiting, f"{m.seq} is not to be delivered"
            assert m.attempt == self.waiting[m.seq].attempt + 1, f"{m.seq}: attempt {m.attempt}"
            assert self.waiting[m.seq].due <= self.now, f"{m.seq} is not due"
            assert m.key == self.keys[m.seq]
            if key := self.held(m.seq):
                assert not [s for s in flying if s < m.seq and self.keys[s] == key], f"{m.seq} overtakes one in flight"
                earlier = {s for s in self.waiting if s < m.seq and self.keys[s] == key} - before
                # a message may overtake one with a lower seq that committed after it (and that is not parked yet)
                unread = (
                    {s for s in earlier if self.commits[s] <= self.commits[m.seq]} if m.seq not in parked else set()
                )
                assert not (earlier & parked) | unread, f"{m.seq} overtakes {earlier}"
            before.add(m.seq)
        if self.max_ack_pending:
            assert len(flying) + len(got) <= max(self.max_ack_pending, len(flying))

    def hand_out(self, got: list[Received]) -> None:
        for m in got:
            del self.waiting[m.seq]
            self.flying.setdefault(m.delivery, Delivery(self.now + ACK_WAIT, {})).attempts[m.seq] = m.attempt
            self.handed += [m.ack_id, m.delivery]

    def ack(self, ack_ids: list[str]) -> tuple[int, int]:
        """How many messages are done now, also of those that have expired and that nobody else got; how many ids are
        stale."""
        live, stale = self.pick(ack_ids)
        done = sum(len(self.settle(delivery, seqs)) for delivery, seqs in live.items() if seqs)
        for delivery in {".".join(i.split(".")[:2]) for i in ack_ids}:
            given = [i for i in set(ack_ids) if i == delivery or i.startswith(delivery + ".")]
            late = {s for s, w in self.waiting.items() if w.delivery == delivery}
            if delivery not in given:
                late &= {int(i.split(".")[2]) for i in given}
                stale -= len(late)
            elif late and not live.get(delivery):
                stale -= len(given)
            for seq in late:
                del self.waiting[seq]
            done += len(late)
        return done, stale

    def pick(self, ack_ids: list[str]) -> tuple[dict[str, set[int]], int]:
        """What ack_ids stand for: live messages by delivery, and how many ids are stale."""
        live: dict[str, set[int]] = defaultdict(set)
        stale = 0
        for delivery in {".".join(i.split(".")[:2]) for i in ack_ids}:
            given = [i for i in set(ack_ids) if i == delivery or i.startswith(delivery + ".")]
            if delivery not in self.flying:
                stale += len(given)
            elif delivery in given:
                live[delivery] = set(self.flying[delivery].attempts)
            else:
                wanted = {int(i.split(".")[2]) for i in given}
                live[delivery] = wanted & set(self.flying[delivery].attempts)
                stale += len(wanted - live[delivery])
        return live, stale

    def settle(self, delivery: str, seqs: set[int]) -> dict[int, int]:
        gone = {s: self.flying[delivery].attempts.pop(s) for s in seqs}
        if not self.flying[delivery].attempts:
            del self.flying[delivery]
        return gone
