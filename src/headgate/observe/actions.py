"""What observe can do: each action says what it will do before it does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..sync import Headgate
from ..types import ConsumerInfo, PostgresSourceInfo
from .figures import clean

STEP = 500  # dead letters that one call gives back
LOOK_ONLY = (
    "this token may look, not act: it has no scope admin. `headgate token add NAME --scope admin` makes one that may"
)
ROLE_LOOKS_ONLY = "this database role may look, not act: grant it headgate_owner, or connect as another"


@dataclass(frozen=True)
class Action:
    """A question, what follows from yes, and the act itself, which says what it did."""

    question: str
    about: str
    act: Callable[[Headgate, Callable[[str], None]], str]


def pause(info: ConsumerInfo) -> Action:
    """Pauses a consumer, or lets it go on."""
    name = clean(info.name)

    def act(hg: Headgate, tell: Callable[[str], None]) -> str:
        consumer = hg.stream(info.stream).consumer(info.name)
        if info.paused:
            consumer.resume()
            return f"{name} goes on"
        consumer.pause()
        return f"{name} is paused"

    if info.paused:
        about = f"Its workers are handed messages again: {info.lag:,} wait." if info.lag else "Nothing waits for it."
        return Action(f"Resume {name} of {clean(info.stream)}?", about, act)
    about = (
        "It is handed nothing more until it is resumed; what is in flight "
        f"({info.in_flight:,}) may be finished. What is sent meanwhile waits."
    )
    return Action(f"Pause {name} of {clean(info.stream)}?", about, act)


def redrive(info: ConsumerInfo) -> Action:
    """Gives the dead letters of a consumer back to it, in steps."""
    name = clean(info.name)

    def act(hg: Headgate, tell: Callable[[str], None]) -> str:
        consumer = hg.stream(info.stream).consumer(info.name)
        left, done = info.dead, 0
        while left > 0 and (given := consumer.redrive(limit=min(STEP, left))):
            left, done = left - given, done + given
            tell(f"{done:,} of {info.dead:,} were redriven")
        return f"{done:,} dead letters of {name} were redriven"

    about = (
        f"{name} is handed these messages again, the oldest first, as if they had not failed. They leave "
        f"{clean(info.stream)}.dead. What is still the matter makes them fail again."
    )
    return Action(f"Redrive all {info.dead:,} dead letters of {name} of {clean(info.stream)}?", about, act)


def redrive_one(info: ConsumerInfo, seq: int, dead_seq: int) -> Action:
    """Gives one dead letter back."""
    name = clean(info.name)

    def act(hg: Headgate, tell: Callable[[str], None]) -> str:
        given = hg.stream(info.stream).consumer(info.name).redrive(seqs=[dead_seq])
        return f"message {seq:,} was redriven" if given else f"message {seq:,} is no dead letter any more"

    about = f"{name} is handed this message again, as if it had not failed. No other consumer sees it again."
    return Action(f"Redrive message {seq:,} to {name}?", about, act)


def retry(info: ConsumerInfo, seq: int) -> Action:
    """Makes a parked message due at once."""
    name = clean(info.name)

    def act(hg: Headgate, tell: Callable[[str], None]) -> str:
        due = hg.stream(info.stream).consumer(info.name).retry_now([seq])
        return f"message {seq:,} is due now" if due else f"message {seq:,} does not wait any more"

    about = f"{name} need not wait for its next attempt. One that waits for an earlier message of its key still does."
    return Action(f"Try message {seq:,} again now?", about, act)


def pause_source(info: PostgresSourceInfo) -> Action:
    """Pauses a source of tables, or lets it go on."""
    name = clean(info.name)
    is_paused = info.state == "paused"

    def act(hg: Headgate, tell: Callable[[str], None]) -> str:
        (hg.sources.resume if is_paused else hg.sources.pause)(info.name)
        return f"{name} goes on" if is_paused else f"{name} is paused"

    if is_paused:
        return Action(f"Resume the source {name}?", "It is read again, from where it was. Nothing is missing.", act)
    about = "Changes of its tables wait in the write-ahead log of their database, which takes room until it is resumed."
    return Action(f"Pause the source {name}?", about, act)
