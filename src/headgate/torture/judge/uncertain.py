"""What a fault makes uncertain in a finished history."""

from __future__ import annotations

from ..environment.faults import ENDING
from ..record import COMMITTED, CRASHES, FAILED, UNKNOWN, Fault, HandedMessage, History

LOST_BRANCH = 10**12  # is added to seqs of messages that are gone
RELAXED = 1.0  # seconds until a relaxed commit is safe, at most


def mark_uncertain(history: History) -> None:
    """When a transaction that was cut off ended; whether a receive that said that it is alone, and so has a relaxed
    commit, outlived a crash right after it (ADR 5); and what an asynchronous standby did not get."""
    for transaction in history.transactions:
        if transaction.outcome in (FAILED, UNKNOWN):
            cut = [f.start for f in history.faults if f.kind in ENDING and f.end > transaction.began]
            transaction.ending = min([transaction.ending, *cut])
    crashes = [f for f in history.faults if f.kind in CRASHES]
    for event in history.events:
        if event.asked.get("open") is False and event.transaction is None and not event.problem:
            event.doubted = any(event.called < f.end and f.start < event.answered + RELAXED for f in crashes)
    for fault in history.faults:
        if fault.kind == "fail_over_late":
            mark_uncertain_between(history, fault)
            rename_replaced(history, fault)


def mark_uncertain_between(history: History, fault: Fault) -> None:
    """What was answered since `fault.start` may be gone; what began after `fault.end` is not concerned."""
    for transaction in history.transactions:
        if transaction.outcome == COMMITTED and transaction.ended > fault.start and transaction.ending < fault.end:
            transaction.outcome = UNKNOWN
    for event in history.events:
        if event.transaction is None and event.answered > fault.start and event.called < fault.end:
            event.doubted = not event.problem


def rename_replaced(history: History, fault: Fault) -> None:
    """The server that took over gives out again seqs and deliveries that the lost one had: tell these apart.

    (Somebody who still acks by an old ack_id may then ack another's message: see docs/guides/operating.md.)
    """
    since = [e for e in history.events if e.called >= fault.end and not e.problem]
    sends = [zip(e.asked["messages"], e.answer, strict=True) for e in since if e.kind == "send"]
    sent = {seq: s.data for pairs in sends for s, seq in pairs}
    given = {m.delivery for e in since if e.kind == "receive" for m in e.answer}
    for event in history.events:
        if event.called >= fault.end or event.answer is None:
            continue
        if event.kind == "send":
            pairs = zip(event.asked["messages"], event.answer, strict=True)
            event.answer = [seq + LOST_BRANCH if sent.get(seq, s.data) != s.data else seq for s, seq in pairs]
        elif event.kind == "receive":
            event.answer = [renamed(m, sent, given) for m in event.answer]


def renamed(message: HandedMessage, sent: dict[int, str], given: set[str]) -> HandedMessage:
    if sent.get(message.seq, message.data) != message.data:
        message = message._replace(seq=message.seq + LOST_BRANCH)
    if message.delivery in given:
        message = message._replace(ack_id=f"{message.lane}.lost-{message.ack_id}")
    return message


def as_of(history: History, dump: Fault) -> History:
    """The history as a dump has it, which was made between `dump.start` and `dump.end`."""
    mark_uncertain_between(history, dump)
    history.events = [e for e in history.events if e.called < dump.end]
    history.transactions = [t for t in history.transactions if t.began < dump.end]
    sent = {seq for e in history.events if e.kind == "send" for seq in e.answer or []}
    for event in history.events:
        if event.kind == "receive" and event.answered > dump.end and event.answer is not None:
            event.answer = [m for m in event.answer if m.seq in sent]  # the others were sent afterwards
    for transaction in history.transactions:
        if transaction.ending >= dump.end:
            transaction.outcome = FAILED
    history.starved.append((dump.start, history.now()))
    return history
