"""The queries of routes that only look: which messages, how many, in which order, from where on."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .requests import Body, Limit, Milliseconds, Moment, Name, PageQuery, Seq, Sort, Text

DataLimit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Search = Annotated[str, Meta(min_length=1, max_length=200)]


class MessagesQuery(Body):
    """Which messages of a stream: with a `text` in data or headers, sent `since` or `until` a time.

    Of data that is longer than `data_limit` characters, so many come, as a string.
    """

    limit: Limit = 10
    sort: Sort = "seq_asc"
    key_pattern: Text | None = None
    text: Search | None = None
    since: Moment | None = None
    until: Moment | None = None
    before: Seq | None = None
    after: Seq | None = None
    data_limit: DataLimit | None = None


class PeekQuery(Body):
    """Which messages of a consumer: in some `states` (with commas between them), or as `visible` says.

    `visible`: those that could be received now, or (false) those that could not. `data_limit`: as in a stream's.
    """

    limit: Limit = 10
    sort: Sort = "seq_asc"
    states: Annotated[str, Meta(max_length=100, pattern="^[a-z]+(,[a-z]+)*$")] | None = None
    visible: bool | None = None
    before: Seq | None = None
    after: Seq | None = None
    data_limit: DataLimit | None = None


class MessageQuery(Body):
    """How much of its data."""

    data_limit: DataLimit | None = None


class DeadQuery(PageQuery):
    """How many, and after which; of one group alone; how much of their data."""

    group: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    data_limit: DataLimit | None = None


class KeyQuery(Body):
    """How many messages."""

    limit: Limit = 10


class FilterQuery(Body):
    """Patterns of keys, with commas between them, to be tried on so many messages, the newest."""

    filter: Text
    limit: Limit = 1000


class ChannelQuery(Body):
    """How many channels, in which order, and after which: `next` of the page before."""

    limit: Limit = 100
    sort: Literal["waiting", "oldest", "name"] = "waiting"
    after: Annotated[str, Meta(min_length=1, max_length=3000)] | None = None


class AttemptsQuery(Body):
    """Of which message, of which consumer; how many, and before which id."""

    seq: Seq | None = None
    consumer: Name | None = None
    limit: Limit = 100
    before: Seq | None = None


class DoctorQuery(Body):
    """What is reported lasts longer than this. Where it is not given: five minutes."""

    patience_ms: Milliseconds | None = None


class AuditQuery(Body):
    """How many, and before which."""

    limit: Limit = 100
    before: Seq | None = None


class OverviewQuery(Body):
    """Which streams and consumers: with this in their names, or of this stream; how many, after how many; sorted how.

    `only`: consumers that push, that have dead letters, or whose streams have lanes by key or channel (tenants).
    """

    search: Annotated[str, Meta(max_length=200)] | None = None
    stream: Name | None = None
    only: Literal["push", "dead", "tenants"] | None = None
    sort: Literal["trouble", "name", "lag", "age", "rate", "dead"] = "trouble"
    limit: Limit = 100
    after: Seq = 0


class HistoryQuery(Body):
    """Of how long: up to a day is kept."""

    minutes: Annotated[int, Meta(ge=1, le=1500)] = 60


class PositionQuery(Body):
    """Where: beginning, end, a seq, or a time."""

    at: Text


class SeekQuery(Body):
    """Where to go: beginning, end, a seq, or a time."""

    to: Text
