"""What the server answers, as the rows that the statement in its place would have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from ..database.encoding import CONTENT_TYPE, ENCODING
from ..types import (
    ArchiveInfo,
    Attempt,
    AuditInfo,
    ChannelInfo,
    ConsumerInfo,
    Finding,
    LifeEvent,
    SourceInfo,
    StreamInfo,
    TokenInfo,
    WorkerInfo,
)

Row = tuple[Any, ...]
T = TypeVar("T")

_text = msgspec.json.Decoder(str).decode


class Answer(Struct, Generic[T]):
    """Of every call that succeeded. `next` says where to go on."""

    data: T
    next: int | str | None = None


class Message(Struct):
    """A message of whichever listing; its data is left as it was written."""

    seq: int
    key: str | None
    data: Raw
    headers: Any  # an object, or null; but who sends with SQL can write anything there
    channel: str | None = None
    deliver_at: datetime | None = None
    created_at: datetime | None = None

    @property
    def text(self) -> str:
        """What is stored."""
        return as_text(self.data, self.headers)


class ReceivedMessage(Struct):
    """A message that was received."""

    ack_id: str
    message: Message
    attempt: int

    @property
    def row(self) -> Row:
        """As `receive` has it."""
        m = self.message
        return self.ack_id, m.seq, m.key, m.text, m.headers, m.channel, self.attempt, m.created_at


class Peeked(Struct):
    """A message and its state for a consumer."""

    message: Message
    state: str
    deliver_count: int
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None

    @property
    def row(self) -> Row:
        """As `peek` has it."""
        m = self.message
        return (
            m.seq, m.key, m.text, m.headers, m.created_at, self.state, self.deliver_count, self.not_visible_until,
            self.worker, self.reason, self.last_error,
        )  # fmt: skip


class Dead(Struct):
    """A dead letter."""

    seq: int
    key: str | None
    data: Raw
    headers: Any
    failed_at: datetime
    attempts: int
    last_error: str | None
    source_seq: int | None

    @property
    def row(self) -> Row:
        """As `dead_letters` has it."""
        text = as_text(self.data, self.headers)
        return self.seq, self.key, text, self.headers, self.failed_at, self.attempts, self.last_error, self.source_seq


class State(Struct):
    """The state of a message for one consumer."""

    consumer: str
    state: str
    attempt: int
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


class States(Struct):
    """The states of a message for all consumers."""

    consumers: list[State]


def as_text(data: Raw, headers: Any) -> str:
    """The text of a message whose data is this JSON value: the inverse of what the server does."""
    written = bytes(data).decode()
    kind = headers.get(CONTENT_TYPE) if isinstance(headers, dict) and headers.get(ENCODING) != "base64" else None
    return _text(written) if written[:1] == '"' and kind != "application/json" else written


def from_text(text: str, headers: Raw | None) -> Raw | str:
    """The JSON value to send, so that the server stores exactly this text and these headers.

    It stores objects and lists as they are written, and strings as they are; but a string that looks like an object it
    would mark as text, unless its headers say what it is.
    """
    is_json = text[:1] in ("{", "[") and (
        headers is None or CONTENT_TYPE not in msgspec.json.decode(headers, type=dict)
    )
    return Raw(text.encode()) if is_json else text


def stored(data: list[Message], next: Any) -> list[Row]:
    """As `messages` has them."""
    return [(m.seq, m.key, m.text, m.headers, m.deliver_at, m.created_at) for m in data]


def rows(data: list[Any], next: Any) -> list[Row]:
    """Of answers that know their row."""
    return [each.row for each in data]


def peeked(data: list[Peeked], next: Any) -> list[Row]:
    """The last row says where to go on, if there is more to look at."""
    more: list[Row] = [] if next is None else [(next, None, None, None, None, "more", None, None, None, None, None)]
    return [*rows(data, next), *more]


def states(data: States, next: Any) -> list[Row]:
    """As `message_states` has them."""
    return [tuple(getattr(s, name) for name in s.__struct_fields__) for s in data.consumers]


def counts(*names: str) -> Callable[[Any, Any], list[Row]]:
    """One row with these fields of the answer."""
    return lambda data, next: [tuple(data[name] for name in names)]


def nothing(data: Any, next: Any) -> list[Row]:
    """Of calls whose answer nobody reads."""
    return []


def listed(kind: type) -> Callable[[Any, Any], list[Row]]:
    """A list of things, or one, as rows with the fields of the dataclass that the SDK makes of them."""

    def make(data: Any, next: Any) -> list[Row]:
        return [_row(kind, each) for each in (data if isinstance(data, list) else [data])]

    return make


def channels(data: Any, next: Any) -> list[Row]:
    """As `channel_backlog` has them: without stream and consumer, and with where to go on at the end."""
    found = [(*row[2:], None) for row in listed(ChannelInfo)(data, None)]
    return [*found[:-1], (*found[-1][:-1], next)] if found else []


def consumers(data: Any, next: Any) -> list[Row]:
    """As the view `consumers` has them."""
    for each in data if isinstance(data, list) else [data]:
        if (push := each.get("push")) is not None:
            push["timeout"] = push.pop("timeout_ms") / 1000
    return listed(ConsumerInfo)(data, None)


def sources(data: Any, next: Any) -> list[Row]:
    """As the view `sources` has them: what is no column of its own is a setting."""
    own = {f.name for f in fields(SourceInfo)}
    found = []
    for each in data if isinstance(data, list) else [data]:
        if each["kind"] != "webhook":
            continue
        if (tolerance := each.pop("tolerance_ms")) is not None:
            each["tolerance"] = tolerance / 1000
        settings = {name: value for name, value in each.items() if name not in own and value is not None}
        found.append(_row(SourceInfo, {**each, "settings": settings}))
    return found


def consumer_settings(data: Any, next: Any) -> list[Row]:
    """As `consumer_settings` has them. (The stream's id is not needed: no function is called by it.)"""
    return [
        (
            0, data["order"], _length(data["ack_wait_ms"]), data["backoff"], data["leased"],
            _length(data["lease_time_ms"]), data["slot_modulus"], data["max_waiting"],
        )
    ]  # fmt: skip


def _row(kind: type, data: dict[str, Any]) -> Row:
    named = {
        name.removesuffix("_ms"): _length(value) if name.endswith("_ms") else value for name, value in data.items()
    }
    made: Any = msgspec.convert(named, kind, builtin_types=(timedelta,), strict=True)
    return tuple(getattr(made, f.name) for f in fields(kind))


def _length(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


STREAMS, WORKERS, ARCHIVES = listed(StreamInfo), listed(WorkerInfo), listed(ArchiveInfo)
TOKENS, AUDIT = listed(TokenInfo), listed(AuditInfo)
ATTEMPTS, LIFE, FINDINGS = listed(Attempt), listed(LifeEvent), listed(Finding)
