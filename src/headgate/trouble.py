"""What is wrong with a consumer, in a word: by it lists are ordered that people look at first."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .types import ConsumerInfo

Word = Literal["lost", "stuck", "failing", "behind", "dead", "paused", "fine"]
WORDS: tuple[Word, ...] = ("lost", "stuck", "failing", "behind", "dead", "paused", "fine")  # the worst first
SORTS = ("trouble", "name", "lag", "age", "rate", "dead")  # what lists of consumers are sorted by
PATIENCE = 60.0  # seconds that the oldest message may wait
MANY_FAILURES = 3  # of one message that is not done


class Trouble(NamedTuple):
    """The word for a consumer, and a sentence that says what makes it so."""

    word: Word
    about: str

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return WORDS.index(self.word)


def age(info: ConsumerInfo, now: datetime) -> float | None:
    """Seconds that its oldest message has waited, if one waits."""
    return None if info.oldest_unacked is None else max(0.0, (now - info.oldest_unacked).total_seconds())


def of(info: ConsumerInfo, now: datetime) -> Trouble:
    """What is the matter with a consumer at this moment."""
    waited = age(info, now) or 0.0
    if info.paused:
        return Trouble("paused", f"it is paused, and {info.lag:,} wait" if info.lag else "it is paused")
    if info.lost:
        return Trouble("lost", f"retention removed {info.lost:,} messages that it was not done with")
    if info.unread + info.due and not info.in_flight and not info.rate and waited > PATIENCE:
        return Trouble("stuck", "messages wait, and nobody receives any")
    if info.most_failures >= MANY_FAILURES:
        return Trouble("failing", f"a message has failed {info.most_failures:,} times")
    if info.unread and waited > PATIENCE:
        return Trouble("behind", "the oldest message has waited for longer than a minute")
    if info.dead:
        return Trouble("dead", f"{info.dead:,} dead letters")
    return Trouble("fine", "")
