"""Streams: sending, and the consumers of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from .. import tracing
from ..database import statements
from ..database.columns import Array
from ..database.encoding import T, as_int, checked_name, checked_text, decoder
from ..database.outgoing import columns_of
from ..database.parameters import as_settings
from ..settings import CONSUMER, STREAM, ConsumerOptions, StreamChanges, changeable
from ..types import (
    ArchiveInfo,
    Attempt,
    LifeEvent,
    Outgoing,
    SegmentInfo,
    StoredMessage,
    StreamInfo,
)
from .consumer import AsyncConsumer

if TYPE_CHECKING:
    from .client import AsyncHeadgate


class AsyncStream:
    """A stream: a log of messages that consumers read, each at its own pace."""

    def __init__(self, hg: AsyncHeadgate, name: str) -> None:
        self.hg = hg
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def send(
        self,
        data: Any,
        *,
        key: str | None = None,
        headers: dict[str, Any] | None = None,
        channel: str | None = None,
        delay: float | timedelta | None = None,
        id: str | None = None,
        deliver_at: datetime | str | None = None,
        conn: Any = None,
    ) -> int:
        """Sends one message; returns its seq. With `conn` it joins the caller's transaction.

        A message with an `id` that was sent before, within the stream's dedup window, is not appended again: the first
        one's seq is returned. It is delivered `delay` seconds from now at the earliest, or at `deliver_at`, a time with
        a zone. In a stream with lanes by channel, `channel` is the tenant it belongs to.
        """
        message = Outgoing(data, key, headers, delay, id, channel, deliver_at)
        seqs = await self._send([message], None, conn, batch=False)
        return seqs[0]

    async def send_batch(self, messages: Iterable[Any], *, key: str | None = None, conn: Any = None) -> list[int]:
        """Sends up to 10,000 messages in one go; returns their seqs in order.

        With `conn` it joins the caller's transaction. An element is the data itself (with `key` for all of them), a
        (key, data) pair, or an `Outgoing`.
        """
        return await self._send(messages, checked_text(key, "key"), conn, batch=True)

    async def _send(self, messages: Iterable[Any], key: str | None, conn: Any, *, batch: bool) -> list[int]:
        with tracing.sending(self.name) as span:
            columns = columns_of(messages, key, None if span is None else span.carried, self.hg._dump)
            query = statements.SEND_BATCH_AT if columns.has_times else statements.SEND_BATCH
            seqs = list((await self.hg.run(query, (self.name, *columns.parameters), conn))[0][0])
            if span is not None:
                span.sent(seqs, batch=batch)
            return seqs

    async def consumer(
        self,
        name: str,
        *,
        create: bool = False,
        exist_ok: bool = True,
        type: type[T] | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[T]:
        """A consumer by name. `create=True` makes it if it is missing; the settings are for a new consumer.

        An existing one is left as it is, wherever it stands: SettingsDiffer when a setting that is given is not its
        own. With `exist_ok=False` an existing one is an error. Settings that are left out: order "none", `ack_wait` and
        `lease_time` 30 and 10 seconds, `start` at the beginning, nothing else.

        `filter` keeps keys like `orders.*.created` or `orders.>`. `order="key"` hands out a message of a key only once
        the earlier ones of that key are done. `backoff` is seconds, a list of seconds, or {"first", "factor", "max",
        "jitter"}. `start` is "beginning", "end", a seq, or a time with a zone.

        Of each channel (or key, by the stream's `lane_by`) at most `max_concurrency` messages are in flight, and one is
        handed out per `release_interval`; `set_channel` gives one its own limits. `leased` gives each lane to one
        worker at a time, which must be seen every `lease_time`.

        At most `max_waiting` long polls wait at one HTTP server. With `push` the HTTP server posts each message to a
        URL: {"url", "secret"}, and perhaps "concurrency", "timeout" (seconds) and "headers".

        With `type` the data of its messages are objects of it: a dataclass, a msgspec Struct, a TypedDict, a pydantic
        model or a plain type. `m.data` of a message that is something else raises DataInvalid; it stays unsettled.
        """
        name = checked_name(name, "consumer")
        decode = None if type is None else decoder(type)
        if create:
            params = (self.name, name, *as_settings(CONSUMER, settings), exist_ok)
            await self.hg.run(statements.CREATE_CONSUMER, params)
        rows = await self.hg.run(statements.CONSUMER_SETTINGS, (self.name, name))
        stream_id, kept, wait, delays, is_leased, lease, modulus, waiting = rows[0]
        return AsyncConsumer(
            self.hg,
            self.name,
            name,
            stream_id=stream_id,
            order=kept,
            ack_wait=wait,
            backoff=delays,
            leased=is_leased,
            lease_time=lease,
            slot_modulus=modulus,
            max_waiting=waiting,
            decode=decode,
        )

    async def consumers(self) -> list[str]:
        """The names of the stream's consumers."""
        return [c.name for c in await self.hg.insights.consumers(self.name)]

    async def alter(self, *, clear: Sequence[str] = (), **settings: Unpack[StreamChanges]) -> None:
        """Changes the settings that are given; `clear` names settings to put back to none."""
        params = (self.name, *as_settings(changeable(STREAM), settings), Array(clear))
        await self.hg.run(statements.ALTER_STREAM, params)

    async def set_lanes(self, lanes: int) -> None:
        """Changes the number of lanes, under traffic; consumers with order="key" keep the order of each key.

        Raises Conflict while transactions from before the last change are still open. Not for `lane_by` key or channel.
        """
        await self.hg.run(statements.SET_LANES, (self.name, as_int(lanes, "lanes")))

    async def drop(self) -> None:
        """Removes the stream, its consumers, its messages and its dead letters."""
        await self.hg.run(statements.DROP_STREAM, (self.name,))

    async def messages(
        self,
        limit: int = 10,
        *,
        newest_first: bool = False,
        filter: str | list[str] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> list[StoredMessage]:
        """Messages of the stream, whoever has read them."""
        return await self.hg.insights.messages(
            self.name, limit, newest_first=newest_first, filter=filter, before=before, after=after
        )

    async def message_life(self, seq: int) -> list[LifeEvent]:
        """Everything that is known of one message: sent, delivered, failed, parked, dead, done, for each consumer."""
        return await self.hg.insights.message_life(self.name, seq)

    async def attempts(self, seq: int | None = None, *, limit: int = 100, before: int | None = None) -> list[Attempt]:
        """Attempts that failed, the newest first: of one message, or of all; whichever consumer's."""
        return await self.hg.insights.attempts(self.name, seq, limit=limit, before=before)

    async def info(self) -> StreamInfo:
        """The stream's settings and what is in it."""
        return await self.hg.insights.stream(self.name)

    async def segments(self) -> list[SegmentInfo]:
        """The segments of the stream's log, oldest first, and why closed ones are still kept."""
        return await self.hg.insights.segments(self.name)

    async def archives(self) -> list[ArchiveInfo]:
        """The archives of the stream: where they are, and how far."""
        return await self.hg.insights.archives(self.name)

    async def drop_archive(self, name: str) -> None:
        """Forgets an archive, so that retention waits for it no longer. What it has stays in the lake."""
        await self.hg.run(statements.DROP_ARCHIVE, (self.name, name))

    async def compact(self) -> int:
        """Removes closed segments of which only parked messages are left, and keeps these; returns how many.

        For streams with `retain="until_acked"` or `"until_archived"`. Maintenance does it every `compact_every`.
        """
        return int((await self.hg.run(statements.COMPACT, (self.name,)))[0][0])

    async def tick(self) -> int:
        """Records what has committed, if anything can have changed; returns the newest tick's id."""
        return int((await self.hg.run(statements.TICK, (self.name,)))[0][0])
