"""Draws what was found: the lanes concerned with their messages, the sessions with their calls, time to the right."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from ..judge.reading import ACKING, ConsumerHistory, Handed, Log, written
from ..record import COMMITTED, Event, TransactionRecord
from .explain import end_of, sentence, shown_calls
from .shrink import Smaller, interferes
from .svg import WORKERS, Drawing, Scale, width_of

LEFT, NARROWEST, WIDEST, ROW = 130.0, 900.0, 1500.0, 30.0
MOST = 12  # messages
LONGEST = 1.0  # of the last call; what goes on longer goes over the edge
NAMED_LANES = 2**56  # from there on the number of a lane stands for a channel or a key
MARKS = {"ack": ("ack", "✓"), "receive": ("ack", "✓"), "nack": ("nack", "✗"), "release": ("nack", "↩")}


@dataclass
class Bar:
    """A message with somebody."""

    handed: Handed
    start: float
    end: float
    settled: Event | None  # what ended it; none: its deadline, or its transaction's rollback


def diagram(smaller: Smaller) -> str:
    """An SVG."""
    return Diagram(smaller).draw()


class Diagram:
    def __init__(self, smaller: Smaller) -> None:
        self.history, self.preset, self.finding = smaller
        self.calls = sorted(shown_calls(smaller), key=lambda e: e.called)
        self.log: Log = written(self.history)
        plan = next((c for c in self.preset.consumers if c.name == self.finding.consumer), None)
        self.reading = ConsumerHistory(self.history, self.preset, plan) if plan else None
        self.own = {(e.session, e.kind, e.called) for e in self.finding.events}
        self.last = max([self.finding.at, *(min(e.answered, e.called + LONGEST) for e in self.calls)])
        transactions = {e.transaction for e in self.calls if e.transaction is not None}
        self.transactions = sorted(transactions, key=lambda t: t.began)
        times = [self.finding.at, *(t for e in self.calls for t in (e.called, min(e.answered, self.last)))]
        times += [t for x in self.transactions for t in (x.began, end_of(x)) if t <= self.last]
        bars = [b for seq in self.finding.seqs[:MOST] for b in self.bars(seq)]
        times += [b.end for b in bars if b.end <= self.last]
        self.scale = Scale([*times, max([self.last, *times]) + 0.02], LEFT, NARROWEST, WIDEST)
        workers = dict.fromkeys(b.handed.event.session for b in bars)
        self.colours = {name: WORKERS[i % len(WORKERS)] for i, name in enumerate(workers)}
        self.drawing = Drawing()

    def draw(self) -> str:
        title = f"{self.finding.check}: {self.finding.text}"
        width = self.scale.end + 40
        lines = textwrap.wrap(title, int((width - 40) / 8.6))
        for i, line in enumerate(lines):
            self.drawing.words("head wrong", 16, 26 + 19 * i, line)
        about = f"{self.history.preset}, seed {self.history.seed}"
        about += f", consumer {self.finding.consumer}" if self.finding.consumer else ""
        y = 26 + 19 * len(lines)
        self.drawing.words("soft", 16, y, f"{about}. Seconds since it began; quiet stretches are drawn shorter.")
        operated = [e for e in self.calls if interferes(e)]
        top = y + 22 + 15 * min(3, len(operated))
        bottom = self.sessions(self.messages(top + 24, width), width)
        self.axis(top, bottom)
        self.interference(operated, top, bottom)
        at = self.scale(self.finding.at)
        self.drawing.line("mark", at, top - 4, at, bottom)
        self.legend(bottom + 22)
        return self.drawing.svg(width, bottom + 52, title)

    # what surrounds it

    def axis(self, y: float, bottom: float) -> None:
        free = 0.0
        for time in self.scale.times:
            x = self.scale(time)
            if x >= free:
                self.drawing.line("grid", x, y + 4, x, y + 9)
                self.drawing.words("soft", x - 2, y, f"{time:.3f}")
                free = x + 48

    def interference(self, events: list[Event], top: float, bottom: float) -> None:
        """Operators' calls, each a line through everything; their names stand on up to three levels above it."""
        free = [0.0, 0.0, 0.0]
        for event in events:
            x, tip = self.scale(event.called), self.tip(event)
            self.drawing.line("operator", x, top + 4, x, bottom, tip)
            level = next((i for i, end in enumerate(free) if x >= end), None)
            if level is not None:
                name = sentence(event, self.finding).partition(":")[0]
                name = name if len(name) <= 32 else f"{name[:30]}…"
                self.drawing.words("operated", x, top - 14 - 15 * level, name, tip)
                free[level] = x + width_of(name) + 8

    def legend(self, y: float) -> None:
        signs = "● committed · bar: with a worker, #attempt · ✓ acked · ✗ nacked · ↩ given back · dashes: parked"
        boxes = "red: what is wrong · grey box: a transaction (dashed: not committed) · faint: did not happen"
        self.drawing.words("soft", 16, y, signs)
        self.drawing.words("soft", 16, y + 16, boxes)

    def tip(self, event: Event) -> str:
        inside = f"\nin {event.transaction}" if event.transaction else ""
        return f"{event.called:.3f} {event.session} {sentence(event, self.finding)}{inside}"

    def is_own(self, event: Event) -> bool:
        return (event.session, event.kind, event.called) in self.own

    # messages, by lanes

    def messages(self, y: float, width: float) -> float:
        """A row for each message, those of a lane together; answers where they end."""
        lanes: dict[str, list[int]] = {}
        for seq in self.finding.seqs[:MOST]:
            lanes.setdefault(self.lane(seq), []).append(seq)
        for lane, seqs in lanes.items():
            self.drawing.box("band", 8, y, width - 16, 20 + ROW * len(seqs), rx="6")
            self.drawing.words("soft", 16, y + 14, lane)
            for i, seq in enumerate(sorted(seqs)):
                self.message(seq, y + 20 + ROW * i + ROW / 2)
            y += 26 + ROW * len(seqs)
        return y

    def lane(self, seq: int) -> str:
        handed = self.handed(seq)
        if not handed:
            return "never received"
        number = handed[-1].message.lane
        if number < NAMED_LANES:
            return f"lane {number}"
        sent = self.log.get(seq)
        name = sent.sent.channel or sent.sent.key if sent else handed[-1].message.key
        return f"lane of {name}" if name else "lane of messages without a name"

    def handed(self, seq: int) -> list[Handed]:
        found = self.reading.handed.get(seq, []) if self.reading else []
        return [h for h in found if h.event.called <= self.last]

    def bars(self, seq: int) -> list[Bar]:
        found = []
        for handed in self.handed(seq):
            assert self.reading is not None
            end, settled = self.reading.live_until(handed, float("inf")), None
            for event in handed.settled:
                if event.happened and event.seen_by < end and event is not handed.event:
                    end, settled = event.seen_by, event
            found.append(Bar(handed, handed.event.called, end, settled))
        return found

    def message(self, seq: int, y: float) -> None:
        written, bars = self.log.get(seq), self.bars(seq)
        over = bars and bars[-1].settled is not None and bars[-1].settled.kind in ACKING
        end = bars[-1].end if over else self.last
        key = f" {written.sent.key}" if written and written.sent.key else ""
        self.drawing.words("", 16, y + 4, f"{seq}{key}"[:18])
        if written is not None:
            sent = min(e.called for e in written.events)
            tip = self.tip(written.events[0])
            self.drawing.line("open", self.x(sent), y, self.x(written.seen_by), y, tip)
            if written.is_committed:
                self.drawing.line("wait", self.x(written.seen_by), y, self.x(end), y)
                self.drawing.dot("sent", self.x(written.seen_by), y, f"{tip}\ncommitted by {written.seen_by:.3f}")
        if self.finding.check == "lost":
            self.drawing.words("wrong end", self.scale.end, y - 5, "never finished")
        for bar in bars:
            if bar.settled is not None and bar.settled.kind == "nack":
                later = [b.start for b in bars if b.start > bar.end]
                tip = f"parked until {bar.settled.called + bar.settled.asked['delay']:.3f}, at least"
                self.drawing.line("parked", self.x(bar.end), y, self.x(min(later, default=self.last)), y, tip)
        overlap = 0.0
        for bar in bars:  # one that comes while another is there is drawn below it
            low = bar.start < overlap
            self.bar(bar, y + 9 if low else y)
            overlap = max(overlap, bar.end)

    def bar(self, bar: Bar, y: float) -> None:
        event, x, end = bar.handed.event, self.x(bar.start), self.x(bar.end)
        void = "" if event.happened else " void"
        red = " red" if self.is_own(event) else ""
        until = "its deadline" if bar.settled is None else f"the {bar.settled.kind} of {bar.settled.session}"
        tip = f"{self.tip(event)}\nuntil {bar.end:.3f}: {until}" if event.happened else f"{self.tip(event)}\ntaken back"
        self.drawing.box(
            f"bar{void}{red}", x, y - 8, max(end - x, 4), 15, tip, rx="3", fill=self.colours[event.session]
        )
        words = f"{event.session} #{bar.handed.message.attempt}"
        if width_of(words) < end - x - 4:
            self.drawing.words("on", x + 4, y + 3, words, tip)
        for settling in bar.handed.settled:
            if settling.called <= self.last and settling is not event:
                kind, sign = MARKS.get(settling.kind, ("nack", "?"))
                at = self.x(settling.seen_by) + 3 if settling.happened else self.x(settling.called)
                self.drawing.words(kind if settling.happened else "on void", at, y + 4, sign, self.tip(settling))

    def x(self, time: float) -> float:
        """What is later than anything that is shown runs over the edge."""
        return self.scale(time) if time <= self.scale.times[-1] else self.scale.end + 16

    # sessions

    def sessions(self, y: float, width: float) -> float:
        """A row for each session with its transactions and calls; answers where they end."""
        names = dict.fromkeys(e.session for e in self.calls)
        self.drawing.words("soft", 16, y + 10, "sessions")
        y += 16
        for name in names:
            self.drawing.line("grid", 8, y + ROW, width - 8, y + ROW)
            self.drawing.words("", 16, y + ROW / 2 + 4, name)
            for transaction in self.transactions:
                if transaction.session == name:
                    self.transaction(transaction, y)
            calls = [e for e in self.calls if e.session == name]
            ends = [self.x(e.called) for e in calls[1:]] + [self.scale.end + 60]
            for event, free in zip(calls, ends, strict=True):
                self.call(event, y, free)
            y += ROW
        return y + 4

    def transaction(self, transaction: TransactionRecord, y: float) -> None:
        x, end = self.x(transaction.began), self.x(end_of(transaction))
        kind = "tx" if transaction.outcome == COMMITTED else "undone"
        tip = f"{transaction}: {transaction.began:.3f} to {end_of(transaction):.3f}"
        self.drawing.box(kind, x, y + 3, max(end - x, 4), ROW - 6, tip, rx="5")

    def call(self, event: Event, y: float, free: float) -> None:
        """A bar from the call to its answer, and its name where there is room before the next one."""
        x, end, tip = self.x(event.called), self.x(min(event.answered, self.last)), self.tip(event)
        void = "" if event.happened else " void"
        width = max(end - x, 4)
        self.drawing.box(("own" if self.is_own(event) else "call") + void, x, y + 18, width, 6, tip)
        if width_of(event.kind) + 2 < free - x:
            self.drawing.words("soft", x, y + 14, event.kind, tip)
