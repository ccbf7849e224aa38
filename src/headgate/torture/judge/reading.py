"""A finished history as one consumer met it: which messages it was given, what it did with them, where it was moved."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..presets.preset import ConsumerPlan, Preset
from ..record import CRASHES, Event, HandedMessage, History, Sent
from .choosing import chooses, concerns, discards, may_skip

FOREVER = float("inf")
ACKING = ("ack", "receive")  # a receive acks what its worker has finished


class Violation(NamedTuple):
    """Something that is certainly wrong."""

    check: str
    text: str
    at: float
    consumer: str | None = None
    seqs: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(eq=False)
class Handed:
    """A message that a receive answered, whether or not its transaction committed."""

    event: Event
    message: HandedMessage
    place: int  # in the answer
    settled: list[Event] = field(default_factory=list)  # acks, nacks, releases that name it or its whole delivery
    extended: list[Event] = field(default_factory=list)


@dataclass(eq=False)
class Written:
    """A message of the log. A message with an id may have been sent more than once."""

    seq: int
    sent: Sent
    events: list[Event]

    @property
    def is_committed(self) -> bool:
        return any(e.happened for e in self.events)

    @property
    def is_possible(self) -> bool:
        return any(e.possible for e in self.events)

    @property
    def is_uncertain(self) -> bool:
        """Whether a send of it may have happened or not, so that nobody knows when it was sent."""
        return any(e.unknown for e in self.events)

    @property
    def written_from(self) -> float:
        """Its time, as the log has it, is not before this."""
        sends = [e for e in self.events if e.possible]
        return min((e.called if e.transaction is None else e.transaction.began for e in sends), default=FOREVER)

    @property
    def seen_from(self) -> float:
        return min((e.seen_from for e in self.events if e.possible), default=FOREVER)

    @property
    def seen_by(self) -> float:
        return min((e.seen_by for e in self.events if e.happened), default=FOREVER)


Log = dict[int, Written]


def written(history: History) -> Log:
    """Everything that was sent, by seq; what was sent without an answer is known by its contents when it comes.

    A sequence may go back in a crash, to behind the last seq that was committed: a transaction that ended then, and
    whoever sends next, are answered the same seq. It is the message of the one that happened.
    """
    log: Log = {}
    goes_back = any(f.kind in CRASHES for f in history.faults)
    unanswered: dict[tuple[str | None, str], list[tuple[Sent, Event]]] = defaultdict(list)
    for event in history.events:
        if event.kind != "send":
            continue
        if not event.problem:
            for sent, seq in zip(event.asked["messages"], event.answer, strict=True):
                there = log.setdefault(seq, Written(seq, sent, []))
                if goes_back and there.events and sent.data != there.sent.data:
                    if not there.is_committed:
                        log[seq] = Written(seq, sent, [event])
                        continue
                    if not event.happened:
                        continue
                there.events.append(event)
        elif event.unknown:
            for sent in event.asked["messages"]:
                unanswered[sent.key, sent.data].append((sent, event))
    if unanswered:
        for event in history.events:
            for message in event.answer or [] if event.kind == "receive" else []:
                for sent, send in unanswered.get((message.key, message.data), []):
                    of = log.setdefault(message.seq, Written(message.seq, sent, []))
                    if send not in of.events and send.called < event.answered:
                        of.events.append(send)
    return log


def names(event: Event) -> list[str]:
    return list(event.asked.get("acks") or [])


def removes(event: Event) -> bool:
    if not event.happened:
        return event.unknown and event.kind in ("maintain", "compact")
    if event.kind == "maintain":
        return any(task in ("remove segments", "compact") for task, _, _ in event.answer or [])
    return event.kind == "compact" and bool(event.answer)


def is_alone(extend: Event, handed: Handed) -> bool:
    """Whether an extend is about the message, and not about its whole delivery."""
    return handed.message.ack_id in names(extend)


def overlap(one: Event, other: Event) -> bool:
    """Whether it is not known which of two calls was first."""
    return one.called < other.seen_by and other.called < one.seen_by


def is_inside(event: Event, handed: Handed) -> bool:
    """Whether the event is part of the transaction that received the message."""
    return event.transaction is not None and event.transaction is handed.event.transaction


class ConsumerHistory:
    """The history of one consumer."""

    def __init__(self, history: History, preset: Preset, plan: ConsumerPlan) -> None:
        self.history = history
        self.preset = preset
        self.plan = plan
        events = [e for e in history.events if e.consumer == plan.name and (e.unknown or not e.problem)]
        self.events = sorted(events, key=lambda e: e.called)
        self.kinds: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            self.kinds[event.kind].append(event)
        self._removed: dict[tuple[int, int], bool] = {}
        self.handed: dict[int, list[Handed]] = defaultdict(list)
        self.by_ack: dict[str, Handed] = {}
        self.by_delivery: dict[str, list[Handed]] = defaultdict(list)
        for event in self.of("receive"):
            for place, message in enumerate(event.answer or []):
                handed = Handed(event, message, place)
                self.handed[message.seq].append(handed)
                self.by_ack[message.ack_id] = handed
                self.by_delivery[message.delivery].append(handed)
        for event in self.events:
            for handed in self.named(event):
                (handed.extended if event.kind == "extend" else handed.settled).append(event)

    def named(self, event: Event) -> list[Handed]:
        """What an event settles or extends, whole deliveries taken apart."""
        found: list[Handed] = []
        for ack in names(event):
            if ack in self.by_ack:
                found.append(self.by_ack[ack])
            else:
                found += self.by_delivery.get(ack, [])
        return found

    def of(self, *kinds: str) -> list[Event]:
        return [e for kind in kinds for e in self.kinds.get(kind, [])]

    @cached_property
    def seeks(self) -> list[Event]:
        """Those that may have happened."""
        return [e for e in self.of("seek") if e.possible]

    @cached_property
    def redrives(self) -> list[Event]:
        return [e for e in self.of("redrive") if e.effective]

    @cached_property
    def replays(self) -> list[Event]:
        return [e for e in self.of("replay") if e.effective]

    def given_back_at(self, seq: int) -> float:
        """When it was last replayed, as far as that is sure; 0: it was not. Then it has to be finished again."""
        sure = [e.called for e in self.replays if e.happened and concerns(e, seq) and e.answer == e.asked.get("given")]
        return max(sure, default=0.0)

    @cached_property
    def removals(self) -> list[Event]:
        """Calls that removed messages from the log."""
        return [e for e in self.history.events if removes(e)]

    def may_be_removed(self, message: Written, seek: Event) -> bool:
        """Whether it was finished before a seek and may have been removed by then, so that it cannot come again."""
        known = self._removed.get((message.seq, id(seek)))
        if known is None:
            over = self._over_from(message, seek)
            # (before it was finished, too: compaction keeps what is parked of a segment, and that goes once it is done)
            first = min((h.event.called for h in self.handed.get(message.seq, [])), default=FOREVER)
            known = over < seek.seen_by and any(
                min(over, first) < r.seen_by and r.called < seek.seen_by for r in self.removals
            )
            self._removed[message.seq, id(seek)] = known
        return known

    def _over_from(self, message: Written, seek: Event) -> float:
        """When the consumer may have been done with it, that seek apart."""
        settings, seq = self.preset.stream, message.seq
        if settings.get("retain", "forever") == "forever" and "retain_up_to" not in settings:
            return FOREVER  # nothing is removed
        done = [e.seen_from for h in self.handed.get(seq, []) for e in h.settled if e.possible and e.kind in ACKING]
        done += [s.seen_from for s in self.seeks if s is not seek and may_skip(s, message)]
        done += [e.seen_from for e in self.of("discard") if e.effective and discards(e, message)]
        if self.maybe_dead(seq, seek.seen_by):
            done += [h.event.called for h in self.handed[seq]]
        if "retain_up_to" in settings:  # it may go without having been read, and a seek does not bring it back
            done += [e.called + settings["retain_up_to"] for e in message.events]
        return min(done, default=FOREVER)

    def moved(self, after: float, before: float) -> bool:
        """Whether a seek may have been between these."""
        return any(s.seen_by > after and s.seen_from < before for s in self.seeks)

    def may_come_again(self, seq: int, over: Event, receive: Event) -> bool:
        """Whether a seek, a replay or a redrive may have brought a message back that was over."""
        if self.moved(over.called, receive.answered) or self.moved_inside(receive, over.called):
            return True
        replays = [r for r in self.of("replay") if concerns(r, seq)]
        if any(r.seen_by > over.called and r.called < receive.answered for r in replays):
            return True
        return self.maybe_dead(seq, receive.called) and any(
            r.seen_by > over.called and r.called < receive.answered for r in self.of("redrive")
        )

    def moved_inside(self, event: Event, after: float) -> bool:
        """Whether the transaction of an event has moved the consumer itself."""
        return event.transaction is not None and any(
            s.transaction is event.transaction and after < s.called < event.called for s in self.of("seek")
        )

    @property
    def clock_jumps(self) -> bool:
        """Whether nobody can say when something is due, or has expired."""
        return "jump" in self.preset.faults

    # how long a message was surely its worker's

    def ack_wait(self, receive: Event) -> float:
        """How long what a receive handed out is its worker's."""
        asked = receive.asked.get("ack_wait")
        return self.plan.ack_wait if asked is None else float(asked)

    def own_deadline(self, handed: Handed, at: float) -> float:
        """When, as far as is known at `at`, the message's deadline is at the earliest."""
        deadline = handed.event.called + self.ack_wait(handed.event)
        for e in sorted(handed.extended, key=lambda e: e.called):
            until = e.called + e.asked["by"]
            is_sure = e.happened and e.answered <= at and e.answer[1] == 0 and e.answered < deadline
            if not is_alone(e, handed):  # a whole delivery: never nearer, unless it is ended
                if is_sure or e.asked["by"] == 0:
                    deadline = max(deadline, until) if e.asked["by"] else min(deadline, until)
            elif is_sure and not any(o is not e and overlap(o, e) for o in handed.extended):
                deadline = until
            else:
                deadline = min(deadline, until)
        return deadline

    def deadline(self, handed: Handed, at: float) -> float:
        """The same where order is kept, too: one before it whose deadline passes takes it back."""
        before = [h for h in self.fellows(handed) if h.message.seq <= handed.message.seq]
        return min(self.own_deadline(h, at) for h in before)

    def live_until(self, handed: Handed, at: float, *, inside: bool = False) -> float:
        """Until when the message, seen from `at`, is surely not to be given to others, its settling apart.

        Past the deadline the transaction that received it keeps it from others, but not from what it does itself
        (`inside`).
        """
        event = handed.event
        held_until = 0.0 if inside else event.held_until
        if not event.happened or self.clock_jumps:
            return held_until
        deadline = self.deadline(handed, at)
        if self.plan.leased:
            deadline = min(deadline, self.leased_until(event, at))
        return max(deadline, held_until) if event.transaction else deadline

    def leased_until(self, receive: Event, at: float) -> float:
        """Until when the worker surely counts as alive all the time since it received, as far as is known at `at`."""
        lease_time = float(self.plan.settings.get("lease_time", 10.0))
        beats = [e for e in self.of("join_workers", "heartbeat") if e.session == receive.session and e.happened]
        until = max((e.called for e in beats if e.seen_by <= receive.called), default=0.0) + lease_time
        for beat in sorted(beats, key=lambda e: e.seen_by):
            if beat.seen_by <= min(until, at):  # one that comes too late does not bring back what it had
                until = max(until, beat.called + lease_time)
        return until

    def fellows(self, handed: Handed) -> list[Handed]:
        """The messages whose failure gives this one back: where order is kept, those of its key in its delivery."""
        if not self.plan.ordered and not self.preset.upsert:
            return [handed]
        return [h for h in self.by_delivery[handed.message.delivery] if h.message.key == handed.message.key]

    def given_back(self, handed: Handed, event: Event) -> bool:
        """Whether a nack, a release, a discard or a seek may have ended it before `event` was answered."""
        for h in self.fellows(handed):
            for e in h.settled:
                inside = e.transaction is not None and e.transaction is event.transaction
                if e.kind in ("nack", "release") and (inside or (e.possible and e.seen_from < event.answered)):
                    return True
        message = handed.message
        if any(
            e.possible and e.seen_from < event.answered and chooses(e, message.seq, message.key)
            for e in self.of("discard")
        ):
            return True  # from there a replay may have brought it back
        return self.moved(handed.event.called, event.answered) or self.moved_inside(event, handed.event.called)

    # acks

    def surely_acked(self, handed: Handed, ack: Event) -> bool:
        """Whether the engine has said, or cannot deny, that this ack settled the message."""
        if ack.problem:
            return False
        if ack.kind == "ack" and handed.message.ack_id in names(ack):
            return bool(ack.answer[1] == 0)
        if any(e is not ack and e.kind in ACKING and e.possible and e.called < ack.answered for e in handed.settled):
            return False  # that may have been the one: this one says nothing of a message that was replayed meanwhile
        if ack.kind == "ack":  # the whole delivery, whatever was left of it
            others = [e for h in self.fellows(handed) for e in h.settled if e.kind in ("nack", "release")]
            if ack.answer[1] or any(e.called < ack.answered and (e.possible or e.seen_by > ack.called) for e in others):
                return False
            # after the deadline only what nobody else had got
            everything = ack.answer[0] >= len(self.by_delivery[handed.message.delivery])
            return everything or ack.answered < self.live_until(handed, ack.called, inside=is_inside(ack, handed))
        if ack.kind == "receive":  # it does not say what was stale: judge only what cannot have been
            is_live = ack.answered < self.live_until(handed, ack.called, inside=is_inside(ack, handed))
            return is_live and not self.given_back(handed, ack)
        return False

    @cached_property
    def acks(self) -> dict[int, list[tuple[Handed, Event]]]:
        """Acks that surely settled a message, whether or not their transactions committed."""
        found: dict[int, list[tuple[Handed, Event]]] = defaultdict(list)
        for seq, all_handed in self.handed.items():
            for handed in all_handed:
                for event in handed.settled:
                    if event.kind in ("ack", "receive") and self.surely_acked(handed, event):
                        found[seq].append((handed, event))
        return found

    def maybe_dead(self, seq: int, before: float) -> bool:
        """Whether it may have become a dead letter: it was handed out as often as it may be."""
        most = self.plan.max_deliver
        if most is None:
            return False
        if any(e.unknown and e.called < before for e in self.of("receive")):  # nobody knows what it got
            return True
        return any(h.message.attempt >= most and h.event.called < before for h in self.handed.get(seq, []))
