"""Headgate: a message queue and an event stream that live inside PostgreSQL.

import headgate

hg = headgate.connect()                                   # an embedded PostgreSQL in ./.headgate, or connect(url)
orders = hg.stream("orders", create=True)
orders.send({"quantity": 4}, key="orders.cus_a.ord_1")
billing = orders.consumer("billing", create=True)
for m in billing.receive(10, wait=5):
    print(m.data)
    m.ack()
"""

from __future__ import annotations

from .aio import AsyncConsumer, AsyncHeadgate, AsyncInsights, AsyncMessage, AsyncSources, AsyncStream
from .errors import (
    ArchiveNotFound,
    Conflict,
    ConnectionFailed,
    ConsumerExists,
    ConsumerNotFound,
    DataNotSerializable,
    EmbeddedServerError,
    Error,
    InvalidAckId,
    InvalidArgument,
    InvalidFilter,
    InvalidLanes,
    InvalidName,
    InvalidPosition,
    InvalidText,
    MessagesRemoved,
    MessageTooLarge,
    NotAllowed,
    NotJoined,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    ServerTooOld,
    SettingsDiffer,
    SourceExists,
    SourceNotFound,
    StagingLost,
    StaleDelivery,
    StreamExists,
    StreamFull,
    StreamNotFound,
    WrongIsolation,
)
from .maintenance import AsyncMaintenance, Maintenance
from .schema import install_sql
from .sync import Consumer, Headgate, Insights, Message, Sources, Stream
from .types import (
    ArchiveInfo,
    Attempt,
    ChannelInfo,
    Channels,
    ConsumerInfo,
    DeadLetter,
    Discarded,
    Finding,
    LifeEvent,
    MessageState,
    Outgoing,
    Peek,
    PeekedMessage,
    Push,
    Replayed,
    SegmentInfo,
    Settled,
    SourceInfo,
    StoredMessage,
    StreamInfo,
    WorkerInfo,
)
from .worker import AsyncWorker, Worker
from .worker_options import Retry, WorkerOptions, WorkerStats

__version__ = "0.1.0"


def connect(
    url: str | None = None,
    *,
    migrate: bool | None = None,
    directory: str | None = None,
    max_connections: int = 16,
    timeout: float = 30,
    pooler: bool = False,
) -> Headgate:
    """Connects to a database with Headgate in it, or, without a URL, to a private PostgreSQL in `./.headgate`.

    `migrate=True` installs or upgrades the schema first; by default only an embedded server's schema is.
    """
    hg = Headgate(url, directory=directory, max_connections=max_connections, timeout=timeout, pooler=pooler)
    return hg.open(migrate=migrate)


async def connect_async(
    url: str | None = None,
    *,
    migrate: bool | None = None,
    directory: str | None = None,
    max_connections: int = 16,
    timeout: float = 30,  # noqa: ASYNC109 - of the pool's connections, not of this call
    pooler: bool = False,
) -> AsyncHeadgate:
    """`connect` for asyncio."""
    hg = AsyncHeadgate(url, directory=directory, max_connections=max_connections, timeout=timeout, pooler=pooler)
    return await hg.open(migrate=migrate)


__all__ = [
    "ArchiveInfo",
    "ArchiveNotFound",
    "AsyncConsumer",
    "AsyncHeadgate",
    "AsyncInsights",
    "AsyncMaintenance",
    "AsyncMessage",
    "AsyncSources",
    "AsyncStream",
    "AsyncWorker",
    "Attempt",
    "ChannelInfo",
    "Channels",
    "Conflict",
    "ConnectionFailed",
    "Consumer",
    "ConsumerExists",
    "ConsumerInfo",
    "ConsumerNotFound",
    "DataNotSerializable",
    "DeadLetter",
    "Discarded",
    "EmbeddedServerError",
    "Error",
    "Finding",
    "Headgate",
    "Insights",
    "InvalidAckId",
    "InvalidArgument",
    "InvalidFilter",
    "InvalidLanes",
    "InvalidName",
    "InvalidPosition",
    "InvalidText",
    "LifeEvent",
    "Maintenance",
    "Message",
    "MessageState",
    "MessageTooLarge",
    "MessagesRemoved",
    "NotAllowed",
    "NotJoined",
    "Outgoing",
    "Peek",
    "PeekedMessage",
    "Push",
    "Replayed",
    "Retry",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SegmentInfo",
    "ServerTooOld",
    "SettingsDiffer",
    "Settled",
    "SourceExists",
    "SourceInfo",
    "SourceNotFound",
    "Sources",
    "StagingLost",
    "StaleDelivery",
    "StoredMessage",
    "Stream",
    "StreamExists",
    "StreamFull",
    "StreamInfo",
    "StreamNotFound",
    "Worker",
    "WorkerInfo",
    "WorkerOptions",
    "WorkerStats",
    "WrongIsolation",
    "connect",
    "connect_async",
    "install_sql",
]
