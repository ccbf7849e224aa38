"""The judge of filters that change."""

from __future__ import annotations

from collections.abc import Iterator

from .reading import ConsumerHistory, Log, Violation


def against_filter(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """A message came whose key passes neither the consumer's filter nor any that it was given for a while."""
    token = reading.plan.filter
    if token is None:
        return
    passing = (token, *reading.preset.widened)
    for seq, handed in reading.handed.items():
        event, key = handed[0].event, handed[0].message.key
        if (key or "").split(".")[0] not in passing:
            text = f"message {seq} of key {key} came to {event.session}; keys that pass begin with {passing}"
            yield Violation("against its filter", text, event.called, reading.plan.name, (seq,), (event,))
