"""A database with Headgate in it: its streams, and what looks after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

from ..database import statements
from ..database.encoding import checked_name
from ..database.parameters import as_settings
from ..errors import (
    InvalidArgument,
)
from ..settings import STREAM, StreamOptions
from ..types import Finding
from .consumer import AsyncConsumer
from .database import AsyncDatabase, needs_database
from .insights import AsyncInsights
from .message import AsyncMessage
from .stream import AsyncStream

if TYPE_CHECKING:
    from ..maintenance import AsyncMaintenance
    from ..worker.lifecycle import AsyncWorker
    from ..worker.options import WorkerOptions
    from .sources import AsyncSources


class AsyncHeadgate(AsyncDatabase):
    """A database with Headgate in it. Making one connects to nothing; `open` (or `headgate.connect_async`) does.

    Without a URL it starts or joins a private PostgreSQL in `./.headgate`, or in `directory`. `pooler=True` is for a
    transaction-mode pooler that does not know prepared statements. `encoder` turns objects in data that JSON has no
    form for into some that it has, or raises TypeError: see "Data" in docs/guides/python.md. With an http or https URL
    it calls a server, with `token` or that of $HEADGATE_TOKEN: for services that may not reach the database. `conn=`,
    `transaction()`, `run()` and what looks after the database are NotOverHttp there.
    """

    # headgate.maintenance and headgate.worker set them when they are first used: those layers stand above this one
    maintenance_type: ClassVar[type[AsyncMaintenance]]
    worker_type: ClassVar[type[AsyncWorker]]

    @cached_property
    def insights(self) -> AsyncInsights:
        """What is in the streams, how far consumers are, what state messages are in."""
        return AsyncInsights(self)

    @cached_property
    def sources(self) -> AsyncSources:
        """The sources of the database."""
        from .sources import AsyncSources  # here: it brings all that reading tables needs

        return AsyncSources(self)

    async def stream(
        self,
        name: str,
        *,
        create: bool = False,
        exist_ok: bool = True,
        **settings: Unpack[StreamOptions],
    ) -> AsyncStream:
        """A stream by name. `create=True` makes it if it is missing; the settings are for a new stream.

        An existing one is left as it is: SettingsDiffer when a setting that is given is not its own. With
        `exist_ok=False` an existing one is an error. Settings that are left out have the defaults of docs/settings.md:
        16 lanes by hash, messages stay for ever, ids are remembered for 5 minutes.

        `lane_by` says what shares a lane: keys of the same hash, one key, or one channel. Messages stay for ever, or
        until every consumer has acked them (`retain`), no longer than `retain_up_to`; at `max_storage` bytes the oldest
        go, but none younger than `retain_at_least`: then sending fails. `one_message_per_key` keeps only the latest.
        """
        name = checked_name(name, "stream")
        if create:
            params = (name, *as_settings(STREAM, settings), exist_ok)
            await self.run(statements.CREATE_STREAM, params)
        else:
            await self.run(statements.STREAM_SETTINGS, (name,))
        return AsyncStream(self, name)

    async def streams(self) -> list[str]:
        """The names of all streams."""
        return [s.name for s in await self.insights.streams()]

    async def maintain(self) -> list[tuple[str, str, int]]:
        """One bounded step of maintenance. Safe to run from many processes at once."""
        return [(task, subject, done) for task, subject, done in await self.run(statements.MAINTAIN, ())]

    def maintenance(self, interval: float = 1.0) -> AsyncMaintenance:
        """A service that maintains the database every `interval` seconds: `async with hg.maintenance(): …`.

        Workers do it too, where their role may, and `headgate up`. Any number may run at once.
        """
        if self.http is not None:
            raise needs_database("maintenance is done")
        import_module("headgate.maintenance")
        return self.maintenance_type(self, interval)

    @overload
    def worker(
        self,
        consumers: Mapping[AsyncConsumer, float],
        handler: Callable[[AsyncMessage], Any] | Mapping[AsyncConsumer, Callable[[AsyncMessage], Any]],
        **options: Unpack[WorkerOptions],
    ) -> AsyncWorker: ...

    @overload
    def worker(
        self, consumers: Mapping[AsyncConsumer, float], handler: None = None, **options: Unpack[WorkerOptions]
    ) -> Callable[[Callable[[AsyncMessage], Any]], AsyncWorker]: ...

    def worker(
        self,
        consumers: Mapping[AsyncConsumer, float],
        handler: Callable[[AsyncMessage], Any] | Mapping[AsyncConsumer, Callable[[AsyncMessage], Any]] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> AsyncWorker | Callable[[Callable[[AsyncMessage], Any]], AsyncWorker]:
        """A worker of several consumers, by weight: `@hg.worker({urgent: 8, bulk: 1}, concurrency=8)`.

        They share its handlers. While all have messages, each gets its weight's share of the handlers' time; what uses
        less than its share goes first, and what the others leave anyone may have. One handler is for all, and
        `m.consumer` tells which it is; or pass a dict of consumers and handlers. The rest is as in `consumer.worker`.
        """

        import_module("headgate.worker.lifecycle")

        def make(handler: Any) -> AsyncWorker:
            worker = self.worker_type(consumers, handler, **options)
            if worker.consumer.hg is not self:
                raise InvalidArgument(
                    f"{worker.consumer!r} is of another client", hint="get all consumers from the client of the worker"
                )
            return worker

        return make if handler is None else make(handler)

    async def doctor(self, patience: float | timedelta = 300) -> list[Finding]:
        """What is wrong with the database and what to do about it, the worst first; see `insights.doctor`."""
        return await self.insights.doctor(patience)
