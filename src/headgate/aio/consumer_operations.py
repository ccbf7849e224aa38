"""What is done to a consumer as a whole: its settings and position, its channels, dead letters, what comes again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from ..database import statements
from ..database.columns import Array
from ..database.encoding import as_int, checked_text, interval
from ..database.parameters import as_filter, as_moment, as_position, as_seqs, as_settings
from ..settings import CONSUMER, ConsumerChanges, changeable
from ..types import (
    Attempt,
    Channels,
    ChannelSort,
    ConsumerInfo,
    DeadLetter,
    Discarded,
    Peek,
    Replayed,
    State,
)

if TYPE_CHECKING:
    from .client import AsyncHeadgate


class AsyncConsumerOperations:
    """The calls of a consumer that are not about messages in hand."""

    def __init__(self, hg: AsyncHeadgate, stream: str, name: str) -> None:
        self.hg = hg
        self.stream = stream
        self.name = name

    async def info(self) -> ConsumerInfo:
        """The consumer's settings and how far it is."""
        return await self.hg.insights.consumer(self.stream, self.name)

    async def peek(
        self,
        limit: int = 10,
        *,
        newest_first: bool = False,
        states: State | Sequence[State] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> Peek:
        """Messages with their state for this consumer, without any effect; `states`: only those in one of these.

        However long the stream is, about 20,000 messages are looked at: where that ends it, `next` of the answer says
        where to go on (`after=`, or `before=` with `newest_first`).
        """
        return await self.hg.insights.peek(
            self.stream,
            self.name,
            limit,
            newest_first=newest_first,
            states=[states] if isinstance(states, str) else states,
            before=before,
            after=after,
        )

    async def alter(self, *, clear: Sequence[str] = (), **settings: Unpack[ConsumerChanges]) -> None:
        """Changes the settings that are given, of `push` those in it; `clear` names settings to put back to none."""
        params = (self.stream, self.name, *as_settings(changeable(CONSUMER), settings), Array(clear))
        await self.hg.run(statements.ALTER_CONSUMER, params)

    async def drop(self) -> None:
        """Removes the consumer and its progress. Its dead letters stay."""
        await self.hg.run(statements.DROP_CONSUMER, (self.stream, self.name))

    async def pause(self) -> None:
        """Receives nothing until `resume`."""
        await self.hg.run(statements.PAUSE, (self.stream, self.name))

    async def resume(self) -> None:
        """Receives again."""
        await self.hg.run(statements.RESUME, (self.stream, self.name))

    async def set_channel(
        self,
        channel: str | None,
        *,
        max_concurrency: int | None = None,
        release_interval: float | timedelta | None = None,
        clear: Sequence[str] = (),
    ) -> None:
        """Changes the limits of one channel (or key, by the stream's lanes) that are given.

        `clear` names limits to put back to the consumer's own. `max_concurrency=0` holds the channel back.
        """
        limits = (as_int(max_concurrency, "max_concurrency"), interval(release_interval), Array(clear))
        await self.hg.run(statements.SET_CHANNEL, (self.stream, self.name, checked_text(channel, "channel"), *limits))

    async def channels(
        self,
        channel: str | None = None,
        limit: int = 100,
        *,
        sort: ChannelSort = "waiting",
        after: str | None = None,
    ) -> Channels:
        """What waits in each channel, since when, what is in flight, and its limits; of all, or of one.

        `sort` is by what is "waiting" (most first), by the "oldest" message, or by "name". With `next` of the answer
        set there may be more: call again with `after` it.
        """
        return await self.hg.insights.channels(self.stream, self.name, channel, limit, sort=sort, after=after)

    async def seek(self, target: str | int | datetime) -> None:
        """Moves to "beginning", "end", a seq or a time with a zone. What was in flight or parked is forgotten."""
        await self.hg.run(statements.SEEK, (self.stream, self.name, as_position(target)))

    async def dead_letters(self, limit: int = 100, *, after: int = 0) -> list[DeadLetter]:
        """The consumer's dead letters, oldest first."""
        return await self.hg.insights.dead_letters(self.stream, self.name, limit, after=after)

    async def redrive(
        self,
        *,
        seqs: Sequence[int] | None = None,
        filter: str | list[str] | None = None,
        limit: int | None = None,
        all: bool = False,
    ) -> int:
        """Gives dead letters back: these, those whose key passes the filter, the oldest so many, or (`all=True`) all.

        Returns how many. Of a stream with `one_message_per_key`, those of which a newer version was sent are counted
        and dropped instead.
        """
        return await self._count(statements.REDRIVE, as_seqs(seqs), as_filter(filter), as_int(limit, "limit"), all)

    async def purge_dead(
        self,
        *,
        seqs: Sequence[int] | None = None,
        filter: str | list[str] | None = None,
        limit: int | None = None,
        all: bool = False,
    ) -> int:
        """Throws dead letters away; chosen as in `redrive`. Returns how many."""
        return await self._count(statements.PURGE_DEAD, as_seqs(seqs), as_filter(filter), as_int(limit, "limit"), all)

    async def retry_now(self, seqs: Sequence[int] | None = None, *, all: bool = False) -> int:
        """Makes parked messages due at once: these, or (`all=True`) all. Returns how many."""
        return await self._count(statements.RETRY_NOW, as_seqs(seqs), all)

    async def replay(
        self,
        *,
        seqs: Sequence[int] | None = None,
        from_seq: int | None = None,
        to_seq: int | None = None,
        from_time: datetime | str | None = None,
        to_time: datetime | str | None = None,
        filter: str | list[str] | None = None,
    ) -> Replayed:
        """Hands messages to this consumer again, as if never delivered; it stays where it is.

        What is given must all hold: these seqs; `from_seq` to `to_seq`; sent at `from_time` or later, and before
        `to_time`; keys that pass the filter. At least one must be given: `from_seq=1` means all there are. Passed over
        is what the consumer has in flight or parked already, has not read yet, or does not let through its own filter.
        At most 10,000 messages a call: if that was not all, `next_seq` of the answer is the `from_seq` to go on with.
        """
        params = (
            self.stream,
            self.name,
            as_seqs(seqs),
            as_int(from_seq, "from_seq", 63),
            as_int(to_seq, "to_seq", 63),
            as_moment(from_time),
            as_moment(to_time),
            as_filter(filter),
        )
        return Replayed(*(await self.hg.run(statements.REPLAY, params))[0])

    async def attempts(self, seq: int | None = None, *, limit: int = 100, before: int | None = None) -> list[Attempt]:
        """Attempts of this consumer that failed, the newest first: of one message, or of all."""
        return await self.hg.insights.attempts(self.stream, seq, consumer=self.name, limit=limit, before=before)

    async def discard(
        self,
        seqs: Sequence[int] | None = None,
        *,
        filter: str | list[str] | None = None,
        channel: str | None = None,
        older_than: float | timedelta | None = None,
        all: bool = False,
    ) -> Discarded:
        """Gives up messages for good that are unread, delayed, parked or in flight and fit all of what is given.

        These seqs, keys that pass the filter, that channel (or key, by the stream's lanes), sent longer ago than that;
        at least one of them, or `all`. Acks of what was in flight are stale then; what waited behind goes on.
        What commits after the call is not discarded. It goes in steps, each a transaction: see `discard_some`.
        """
        discarded, held, go_on = 0, 0, None
        while True:
            step = await self.discard_some(
                seqs, filter=filter, channel=channel, older_than=older_than, all=all, go_on=go_on
            )
            discarded, held, go_on = discarded + step.discarded, held + step.held, step.more
            if go_on is None:
                return Discarded(discarded, held)

    async def discard_some(
        self,
        seqs: Sequence[int] | None = None,
        *,
        filter: str | list[str] | None = None,
        channel: str | None = None,
        older_than: float | timedelta | None = None,
        all: bool = False,
        go_on: str | None = None,
    ) -> Discarded:
        """One step of `discard`: up to 10,000 messages. When `more` is not None, pass it as `go_on` to go on."""
        params = (
            self.stream,
            self.name,
            as_seqs(seqs),
            as_filter(filter),
            checked_text(channel, "channel"),
            interval(older_than),
            all,
            checked_text(go_on, "go_on"),
        )
        return Discarded(*(await self.hg.run(statements.DISCARD, params))[0])

    async def _count(self, query: str, *params: Any) -> int:
        return int((await self.hg.run(query, (self.stream, self.name, *params)))[0][0])
