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

import collections.abc
import importlib
import typing

if typing.TYPE_CHECKING:
    from .aio import AsyncConsumer, AsyncHeadgate, AsyncInsights, AsyncMessage, AsyncSources, AsyncStream
    from .database.schema import install_sql
    from .errors import (
        ArchiveNotFound,
        Conflict,
        ConnectionFailed,
        ConsumerExists,
        ConsumerNotFound,
        DatabaseUnavailable,
        DataInvalid,
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
        NotOverHttp,
        PoolerInTheWay,
        SchemaMissing,
        SchemaOutdated,
        SchemaTooNew,
        ServerBusy,
        ServerTooOld,
        SettingsDiffer,
        SourceBlocked,
        SourceExists,
        SourceNotFound,
        SourceTaken,
        StagingLost,
        StaleDelivery,
        StreamExists,
        StreamFull,
        StreamNotFound,
        WrongIsolation,
    )
    from .maintenance import AsyncMaintenance, Maintenance
    from .sync import Consumer, Headgate, Insights, Message, Sources, Stream
    from .types import (
        ArchiveInfo,
        Attempt,
        BackfillInfo,
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
        PostgresSourceInfo,
        Push,
        Replayed,
        SegmentInfo,
        Settled,
        SourceCheck,
        SourceInfo,
        StoredMessage,
        StreamInfo,
        WorkerInfo,
    )
    from .worker.lifecycle import AsyncWorker, Worker
    from .worker.options import Retry, WorkerOptions, WorkerStats

__version__ = "0.1.0"


def connect(
    url: str | None = None,
    *,
    migrate: bool | None = None,
    directory: str | None = None,
    max_connections: int = 16,
    timeout: float = 30,
    pooler: bool = False,
    token: str | None = None,
    encoder: collections.abc.Callable[[typing.Any], typing.Any] | None = None,
) -> Headgate:
    """Connects to a database with Headgate in it, or, without a URL, to a private PostgreSQL in `./.headgate`.

    `migrate=True` installs or upgrades the schema first; by default only an embedded server's schema is. With a URL
    such as https://host it calls the HTTP server there, with `token` (default: $HEADGATE_TOKEN). `encoder` turns
    objects in data that JSON has no form for into some that it has.
    """
    from .sync import Headgate

    hg = Headgate(
        url,
        directory=directory,
        max_connections=max_connections,
        timeout=timeout,
        pooler=pooler,
        token=token,
        encoder=encoder,
    )
    return hg.open(migrate=migrate)


async def connect_async(
    url: str | None = None,
    *,
    migrate: bool | None = None,
    directory: str | None = None,
    max_connections: int = 16,
    timeout: float = 30,  # noqa: ASYNC109 - of the pool's connections, not of this call
    pooler: bool = False,
    token: str | None = None,
    encoder: collections.abc.Callable[[typing.Any], typing.Any] | None = None,
) -> AsyncHeadgate:
    """`connect` for asyncio."""
    from .aio import AsyncHeadgate

    hg = AsyncHeadgate(
        url,
        directory=directory,
        max_connections=max_connections,
        timeout=timeout,
        pooler=pooler,
        token=token,
        encoder=encoder,
    )
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
    "BackfillInfo",
    "ChannelInfo",
    "Channels",
    "Conflict",
    "ConnectionFailed",
    "Consumer",
    "ConsumerExists",
    "ConsumerInfo",
    "ConsumerNotFound",
    "DataInvalid",
    "DataNotSerializable",
    "DatabaseUnavailable",
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
    "NotOverHttp",
    "Outgoing",
    "Peek",
    "PeekedMessage",
    "PoolerInTheWay",
    "PostgresSourceInfo",
    "Push",
    "Replayed",
    "Retry",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SegmentInfo",
    "ServerBusy",
    "ServerTooOld",
    "SettingsDiffer",
    "Settled",
    "SourceBlocked",
    "SourceCheck",
    "SourceExists",
    "SourceInfo",
    "SourceNotFound",
    "SourceTaken",
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

# Names are loaded when they are first used, so that a command that only prints its help, or an error class, does not
# cost the driver and asyncio. The cheapest homes come first: they are looked through in this order.
_HOMES = ("errors", "types", "worker.options", "database.schema", "sync", "aio", "maintenance", "worker.lifecycle")


def __getattr__(name: str) -> typing.Any:
    if name in _HOMES:
        return importlib.import_module(f".{name}", __name__)
    if name in __all__:
        for home in _HOMES:
            found = getattr(importlib.import_module(f".{home}", __name__), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
