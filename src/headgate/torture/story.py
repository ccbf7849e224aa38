"""Tells what was found: what happened to the messages concerned, by whom, when, and in which transaction."""

from __future__ import annotations

from collections import Counter

from .reading import Finding, removes
from .record import Event, History

LINES = 40
ABOUT_ALL = ("seek", "redrive", "discard", "retry_now", "purge_dead", "set_lanes", "compact", "alter_consumer", "pause")


def tell(history: History, findings: list[Finding], stories: int = 3) -> str:
    """A summary, and the whole story of the first findings of each kind."""
    if not findings:
        return "  nothing wrong"
    repeat = f"headgate torture {history.preset} --seed {history.seed}"
    counts = Counter(f.check for f in findings)
    lines = [f"  {n} x {check}" for check, n in counts.most_common()] + [f"  again: {repeat}"]
    told: Counter[str] = Counter()
    for finding in findings:
        if told[finding.check] < 1 and sum(told.values()) < stories:
            told[finding.check] += 1
            lines += ["", f"  {finding.check}: {finding.text}", *("    " + line for line in story(history, finding))]
    return "\n".join(lines)


def census(history: History) -> str:
    """What the history consists of: how often each call happened, and how often it was refused or taken back."""
    done = Counter(e.kind for e in history.events if e.happened)
    not_done = Counter(e.kind for e in history.events if not e.happened)
    parts = [f"{kind} {n}" + (f" (-{not_done[kind]})" if not_done[kind] else "") for kind, n in sorted(done.items())]
    return ", ".join([*parts, f"removals {sum(removes(e) for e in history.events)}"])


def story(history: History, finding: Finding) -> list[str]:
    """The last events that concern the finding's messages, its own among them."""
    seqs = set(finding.seqs)
    events = [e for e in history.events if e in finding.events or concerns(e, finding, seqs)]
    events = [e for e in events if e.called <= finding.at + 0.5]
    events.sort(key=lambda e: e.called)
    return [line(e, seqs) for e in events[-LINES:]]


def concerns(event: Event, finding: Finding, seqs: set[int]) -> bool:
    if event.consumer is not None and event.consumer != finding.consumer:
        return False
    if event.kind in ABOUT_ALL and not event.problem:
        return bool(event.answer != 0)
    if event.kind == "maintain":
        return any(task in ("remove segments", "compact") for task, _, _ in event.answer or [])
    if finding.check == "stopped":
        return False
    named = {int(a.split(".")[2]) for a in event.asked.get("acks") or [] if a.count(".") == 2}
    deliveries = {a for a in event.asked.get("acks") or [] if a.count(".") == 1}
    own = {m.delivery for e in finding.events if e.kind == "receive" for m in e.answer or [] if m.seq in seqs}
    if event.kind == "extend":  # of any message of the delivery: they share its deadline
        deliveries |= {a.rpartition(".")[0] for a in event.asked["acks"]}
    own |= {a for e in finding.events for a in e.asked.get("acks") or [] if a.count(".") == 1}
    return bool(seqs & (set(event.seqs) | named)) or bool(deliveries & own)


def line(event: Event, seqs: set[int]) -> str:
    asked = {k: v for k, v in event.asked.items() if v is not None and v != [] and k not in ("messages",)}
    if event.kind == "receive":
        answer = f"{len(event.answer or [])} messages, of them " + str(
            [f"{m.ack_id} attempt {m.attempt}" for m in event.answer or [] if m.seq in seqs]
        )
    elif event.kind == "send":
        answer = str([(s, m.key, m.id) for s, m in zip(event.answer or [], event.asked["messages"], strict=False)])
    else:
        answer = str(event.answer)
    if event.problem:
        answer = f"{event.problem.state} {event.problem.text.splitlines()[0]}"
    where = "" if event.transaction is None else f"  in {event.transaction} until {event.transaction.ended:.3f}"
    undone = "" if event.undone is None else f", undone at {event.undone:.3f}"
    when = f"{event.called:8.3f} .. {event.answered:.3f}"
    return f"{when}  {event.session:9} {event.kind} {asked} -> {answer}{where}{undone}"
