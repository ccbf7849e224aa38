"""What a preset or a world is about, in a line that is read off its settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .preset import ConsumerPlan, Preset

_OF_CONSUMERS = ("leased", "max_deliver", "max_concurrency", "release_interval", "max_ack_pending", "filter")
_SESSIONS = {"readers": "readers with marks", "observers": "people who look", "archivers": "archives"}
_SHARES = {
    "ids": "ids",
    "delays": "delays",
    "prepared": "prepared transactions",
    "misuse": "receives that claim to be alone",
}


def about(preset: Preset) -> str:
    return "; ".join(_parts(preset))


def _parts(preset: Preset) -> Iterator[str]:
    stream = dict(preset.stream)
    lanes = stream.pop("lanes", None)
    lane_by = stream.pop("lane_by", None)
    yield f"lanes by {lane_by}" if lane_by else f"{lanes} hashed lanes"
    if settings := list(_settings(stream)):
        yield ", ".join(settings)
    yield f"consumers {', '.join(map(_consumer, preset.consumers))}"
    if preset.weights:
        yield f"operators {_words(preset.weights)}"
    if preset.faults:
        yield f"faults {_words(preset.faults)}"
    if preset.clients:
        yield f"processes {_words(preset.clients)}"
    more = [text for field, text in (_SESSIONS | _SHARES).items() if getattr(preset, field)]
    if more:
        yield f"with {', '.join(more)}"


def _settings(stream: dict[str, Any]) -> Iterator[str]:
    for name, value in stream.items():
        yield name if value is True else f"{name} {value}"


def _consumer(consumer: ConsumerPlan) -> str:
    settings = [name for name in _OF_CONSUMERS if consumer.settings.get(name)]
    return f"{consumer.name} ({', '.join(settings)})" if settings else consumer.name


def _words(names: Iterable[str]) -> str:
    return ", ".join(names)
