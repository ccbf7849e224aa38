"""Tells what was found: who did what to the messages concerned, when, in which transaction, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ..judge.reading import Violation, removes
from ..presets.preset import Preset
from ..presets.settings import again
from ..record import COMMITTED, FAILED, OPEN, ROLLED_BACK, Event, History, TransactionRecord
from .shrink import ENDS, NO_ANSWER, Smaller, interferes, shrink

LINES = 60  # of one explanation
MOST_EXPLAINED = 3
SLOW = 0.1  # calls that took longer say when they were answered
AFTER = 1.0  # for so long it goes on after what was found


def first_of_each(findings: list[Violation], most: int = MOST_EXPLAINED) -> list[Violation]:
    """The first finding of each kind: these are explained."""
    firsts: dict[str, Violation] = {}
    for finding in findings:
        firsts.setdefault(finding.check, finding)
    return list(firsts.values())[:most]


def explain_all(history: History, preset: Preset, findings: list[Violation], repeat: str | None = None) -> str:
    """A summary, and the whole explanation of the first finding of each kind."""
    if not findings:
        return "  nothing wrong"
    explanations = [explain(shrink(history, preset, finding)) for finding in first_of_each(findings)]
    return "\n".join(
        [summary(findings), f"  again: {repeat or again(preset, history.seed)}", *(f"\n{s}" for s in explanations)]
    )


def summary(findings: list[Violation]) -> str:
    return "\n".join(f"  {n} x {check}" for check, n in Counter(f.check for f in findings).most_common())


def census(history: History) -> str:
    """What the history consists of: how often each call happened, and how often it was refused or taken back."""
    done = Counter(e.kind for e in history.events if e.happened)
    not_done = Counter(e.kind for e in history.events if not e.happened)
    parts = [f"{kind} {n}" + (f" (-{not_done[kind]})" if not_done[kind] else "") for kind, n in sorted(done.items())]
    return ", ".join([*parts, f"removals {sum(removes(e) for e in history.events)}"])


class ExplainedLine(NamedTuple):
    at: float
    session: str
    text: str
    is_inside: bool = False  # a transaction
    is_own: bool = False  # a call of the finding


def explain(smaller: Smaller) -> str:
    """One line for each call, begin and end, in the order of time. The calls of the finding itself are marked."""
    history, finding = smaller.history, smaller.finding
    own = {(e.session, e.kind, e.called) for e in finding.events}
    calls = shown_calls(smaller)
    shown = sorted(calls, key=lambda e: (interferes(e), -e.called))[:LINES]  # of too many, those of operators go first
    lines = [
        ExplainedLine(
            e.called, e.session, sentence(e, finding), e.transaction is not None, (e.session, e.kind, e.called) in own
        )
        for e in shown
    ]
    for transaction in {e.transaction for e in shown if e.transaction is not None}:
        isolation = f" ({transaction.isolation})"
        lines.append(
            ExplainedLine(transaction.began, transaction.session, f"begins transaction {transaction.number}{isolation}")
        )
        lines.append(ExplainedLine(end_of(transaction), transaction.session, ending(transaction)))
    if any(line.at >= history.drained_at for line in lines) or finding.at >= history.drained_at:
        lines.append(ExplainedLine(history.drained_at, "", "all sessions have ended; what is left is drained"))
    lines.sort(key=lambda line: line.at)
    width = max((len(line.session) for line in lines), default=0)
    of = f" (consumer {finding.consumer})" if finding.consumer else ""
    text = [f"  {finding.check}{of}: {finding.text}"]
    for line in lines:
        mark, indent = ">" if line.is_own else " ", "  " if line.is_inside else ""
        when = f"{line.at:9.3f}" if line.at != float("inf") else "    never"
        text.append(f"   {mark}{when}  {line.session:{width}}  {indent}{line.text}")
    more = sum(e.kind not in ENDS for e in history.events) - len(shown)
    if more:
        text.append(
            f"    ({_count(more, 'other call')} about it, mostly later, {'is' if more == 1 else 'are'} left out)"
        )
    return "\n".join(text)


def shown_calls(smaller: Smaller) -> list[Event]:
    """The calls up to a moment after the finding, without what ends transactions."""
    until = max([smaller.finding.at, *(e.called for e in smaller.finding.events)]) + AFTER
    return [e for e in smaller.history.events if e.kind not in ENDS and e.called <= until]


def end_of(transaction: TransactionRecord) -> float:
    """When its session ended it; a failed one is over for others before that."""
    return transaction.ended if transaction.outcome == FAILED else transaction.ending


def ending(transaction: TransactionRecord) -> str:
    """How a transaction ended, as its session knows it."""
    number, later = transaction.number, f", answered at {transaction.ended:.3f}"
    slow = later if SLOW < transaction.ended - transaction.ending < float("inf") else ""
    words = {
        COMMITTED: f"commits transaction {number}{slow}",
        ROLLED_BACK: f"rolls transaction {number} back{slow}",
        FAILED: f"rolls transaction {number} back, which has failed",
        OPEN: f"leaves transaction {number} open",
    }
    return words.get(transaction.outcome, f"asks to commit transaction {number}; no answer came")


def sentence(event: Event, finding: Violation | None = None) -> str:
    """A call in words, and what came of it."""
    words = PHRASES.get(event.kind, _any)(event)
    if event.consumer and (finding is None or finding.consumer is None):
        words += f" (consumer {event.consumer})"
    if event.problem is not None:
        said = event.problem.text.strip().splitlines() or [""]
        words += "; no answer came" if event.problem.state == NO_ANSWER else f": {event.problem.state} {said[0]}"
    if event.took > SLOW:
        words += "; never answered" if event.answered == float("inf") else f"; answered at {event.answered:.3f}"
    if event.undone is not None:
        words += f"; taken back at {event.undone:.3f} by a savepoint"
    return words


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _with_others(named: list[str], others: int, nothing: str = "nothing") -> str:
    if not named:
        return _count(others, "message") if others else nothing
    if others:
        return f"{', '.join(named)} and {_count(others, 'other')}"
    return ", ".join(named)


def _send(event: Event) -> str:
    parts = []
    seqs = event.answer if event.answer is not None else ["?"] * len(event.asked["messages"])
    for sent, seq in zip(event.asked["messages"], seqs, strict=True):
        about = [f"key {sent.key}" if sent.key is not None else ""]
        about += [f"channel {sent.channel}" if sent.channel else "", f"id {sent.id}" if sent.id else ""]
        about += [f"due after {sent.delay:g} s" if sent.delay else ""]
        known = ", ".join(a for a in about if a)
        parts.append(f"{seq} ({known})" if known else f"{seq}")
    return "sends " + _with_others(parts, event.asked.get("others", 0))


def _receive(event: Event) -> str:
    acks = event.asked.get("acks") or event.asked.get("other_acks")
    named = [f"{m.seq} (attempt {m.attempt}, delivery {_delivery(m.ack_id)})" for m in event.answer or []]
    got = f"receives {_with_others(named, event.asked.get('others', 0))}"
    return f"acks {_acks(event)}, and {got}" if acks else got


def _acks(event: Event) -> str:
    acks = event.asked.get("acks") or []
    named = [
        f"{_message(a)} of delivery {_delivery(a)}" if a.count(".") == 2 else f"all of delivery {_delivery(a)}"
        for a in acks
    ]
    return _with_others(named, event.asked.get("other_acks", 0))


def _delivery(ack: str) -> str:
    """The number of a delivery, out of an ack_id (lane.delivery.message) or its own id (lane.delivery)."""
    return ack.split(".")[1]


def _message(ack: str) -> str:
    return ack.split(".")[2]


def _settling(verb: str) -> Callable[[Event], str]:
    def phrase(event: Event) -> str:
        words = f"{verb} {_acks(event)}"
        if event.asked.get("delay") is not None:
            words += f", to come again after {event.asked['delay']:g} s"
        if event.asked.get("by") is not None:
            words += f" by {event.asked['by']:g} s"
        stale = event.answer[1] if event.answer else 0
        if not stale:
            return words
        return (
            f"{words}, which is stale"
            if event.answer[0] == 0
            else f"{words}; {stale} of these {'is' if stale == 1 else 'are'} stale"
        )

    return phrase


def _maintain(event: Event) -> str:
    done = ", ".join(f"{task} ({subject}: {n})" for task, subject, n in event.answer or [])
    return f"maintains: {done or 'nothing to do'}"


def _with_answer(words: Callable[[Event], str] | str) -> Callable[[Event], str]:
    def phrase(event: Event) -> str:
        text = words if isinstance(words, str) else words(event)
        return f"{text}: {event.answer}" if event.answer not in (None, "", []) else text

    return phrase


def _changes(event: Event) -> str:
    return ", ".join(f"{k} = {v}" for k, v in _flat(event.asked).items() if v is not None)


def _flat(asked: dict[str, Any]) -> dict[str, Any]:
    inner = asked.get("changes")
    return {k: v for k, v in asked.items() if k != "changes"} | (inner if isinstance(inner, dict) else {})


def _any(event: Event) -> str:
    asked = {k: v for k, v in event.asked.items() if v not in (None, [])}
    words = event.kind.replace("_", " ") + (f" {asked}" if asked else "")
    return f"{words}: {event.answer}" if event.answer not in (None, "", []) else words


PHRASES: dict[str, Callable[[Event], str]] = {
    "send": _send,
    "receive": _receive,
    "ack": _settling("acks"),
    "nack": _settling("nacks"),
    "release": _settling("gives back"),
    "extend": _settling("extends"),
    "maintain": _maintain,
    "seek": lambda e: f"seeks to {e.asked['target']}",
    "discard": _with_answer(lambda e: f"discards {e.asked.get('keys') or e.asked.get('seqs')}"),
    "redrive": _with_answer("redrives dead letters"),
    "replay": _with_answer(lambda e: f"replays {e.asked.get('seqs')}"),
    "purge_dead": _with_answer("purges dead letters"),
    "retry_now": _with_answer("retries what is parked"),
    "pause": lambda e: "pauses the consumer",
    "resume": lambda e: "resumes the consumer",
    "compact": _with_answer("compacts"),
    "set_lanes": lambda e: f"sets the number of lanes to {e.asked['lanes']}",
    "alter_consumer": lambda e: f"alters the consumer: {_changes(e)}",
    "alter_stream": lambda e: f"alters the stream: {_changes(e)}",
    "set_channel": lambda e: f"sets limits of a channel: {_changes(e)}",
}
