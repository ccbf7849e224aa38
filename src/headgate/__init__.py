"""Headgate: a message queue and an event stream that live inside PostgreSQL.

import headgate

hg = headgate.connect()                                   # an embedded PostgreSQL in ./.headgate, or connect(url)
orders = hg.stream("orders", create=True)
orders.send({"quantity": 4}, key="orders.cus_a.ord_1")
billing = orders.consumer("billing", create=True)
for m in billing.receive(10, wait=5):
    print(m.data)
    m.ack()

What is raised is in `headgate.errors`, what is given back in `headgate.types`.
"""

from __future__ import annotations

import collections.abc
import importlib
import typing

if typing.TYPE_CHECKING:
    from . import errors as errors
    from . import types as types
    from .aio import AsyncConsumer, AsyncHeadgate, AsyncMessage, AsyncStream
    from .database.schema import install_sql
    from .errors import Error
    from .sync import Consumer, Headgate, Message, Stream
    from .types import Outgoing
    from .worker.lifecycle import AsyncWorker, Worker
    from .worker.options import Retry

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
    "AsyncConsumer",
    "AsyncHeadgate",
    "AsyncMessage",
    "AsyncStream",
    "AsyncWorker",
    "Consumer",
    "Error",
    "Headgate",
    "Message",
    "Outgoing",
    "Retry",
    "Stream",
    "Worker",
    "connect",
    "connect_async",
    "install_sql",
]

# Names and modules are loaded when they are first used, so that a command that only prints its help, or an error
# class, does not cost the driver and asyncio.
_HOMES = {
    "AsyncConsumer": "aio",
    "AsyncHeadgate": "aio",
    "AsyncMessage": "aio",
    "AsyncStream": "aio",
    "AsyncWorker": "worker.lifecycle",
    "Consumer": "sync",
    "Error": "errors",
    "Headgate": "sync",
    "Message": "sync",
    "Outgoing": "types",
    "Retry": "worker.options",
    "Stream": "sync",
    "Worker": "worker.lifecycle",
    "install_sql": "database.schema",
}
_MODULES = {"aio", "errors", "maintenance", "sync", "types", "webhooks"}


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if (home := _HOMES.get(name)) is not None:
        found = globals()[name] = getattr(importlib.import_module(f".{home}", __name__), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
