"""Plain data that Headgate gives back. No logic, no connections.

A module a noun: `streams`, `consumers`, `messages`, `sources`, and `server` (tokens, the audit log).
"""

from ..settings import Backoff, LaneBy, Order, Push, Retain
from .consumers import ChannelInfo, Channels, ChannelSort, ConsumerInfo, WorkerInfo
from .messages import (
    Attempt,
    DeadLetter,
    Discarded,
    LifeEvent,
    MessageState,
    Outgoing,
    Peek,
    PeekedMessage,
    Replayed,
    Settled,
    State,
    StoredMessage,
)
from .server import AuditInfo, TokenInfo
from .sources import BackfillInfo, PostgresSourceInfo, PostgresSourceState, Scheme, SourceCheck, SourceInfo, SourceKind
from .streams import ArchiveInfo, Finding, SegmentInfo, SegmentState, Severity, StreamInfo

__all__ = [
    "ArchiveInfo",
    "Attempt",
    "AuditInfo",
    "BackfillInfo",
    "Backoff",
    "ChannelInfo",
    "ChannelSort",
    "Channels",
    "ConsumerInfo",
    "DeadLetter",
    "Discarded",
    "Finding",
    "LaneBy",
    "LifeEvent",
    "MessageState",
    "Order",
    "Outgoing",
    "Peek",
    "PeekedMessage",
    "PostgresSourceInfo",
    "PostgresSourceState",
    "Push",
    "Replayed",
    "Retain",
    "Scheme",
    "SegmentInfo",
    "SegmentState",
    "Settled",
    "Severity",
    "SourceCheck",
    "SourceInfo",
    "SourceKind",
    "State",
    "StoredMessage",
    "StreamInfo",
    "TokenInfo",
    "WorkerInfo",
]
