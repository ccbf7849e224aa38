# Generated from src/headgate/aio/insights.py by tools/generate_sync.py: do not edit, run `make sync`.
"""Looking without touching. A number that is shown in two places comes from one query here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..database import schema, statements
from ..database.columns import Array
from ..database.drivers import Row
from ..database.encoding import as_int, decode, interval
from ..errors import ConsumerNotFound, Error, NotAllowed, SchemaMissing, StreamNotFound
from ..types import (
    ArchiveInfo,
    Attempt,
    ChannelInfo,
    Channels,
    ChannelSort,
    ConsumerInfo,
    DeadLetter,
    Finding,
    LifeEvent,
    MessageState,
    Peek,
    PeekedMessage,
    SegmentInfo,
    State,
    StoredMessage,
    StreamInfo,
    WorkerInfo,
)
from .suggesting import suggest

if TYPE_CHECKING:
    from .client import Headgate


CREATE_STREAM = "create it with hg.stream(name, create=True); hg.streams() lists those that there are"
CREATE_CONSUMER = "create it with stream.consumer(name, create=True); stream.consumers() lists those that there are"


class Insights:
    """What is in the streams, how far consumers are, what state messages are in."""

    def __init__(self, hg: Headgate) -> None:
        self._hg = hg

    def streams(self) -> list[StreamInfo]:
        """All streams."""
        return [_stream(row) for row in self._hg.run(statements.STREAMS, (None, None))]

    def stream(self, name: str) -> StreamInfo:
        """One stream."""
        for row in self._hg.run(statements.STREAMS, (name, name)):
            return _stream(row)
        error = StreamNotFound(f'stream "{name}" does not exist', hint=CREATE_STREAM)
        suggest(self._hg, error, (name,))
        raise error

    def consumers(self, stream: str | None = None) -> list[ConsumerInfo]:
        """All consumers, or those of a stream."""
        found = [_consumer(row) for row in self._hg.run(statements.CONSUMERS, (stream, stream, None, None))]
        if not found and stream is not None:
            self._check_stream(stream)
        return found

    def consumer(self, stream: str, name: str) -> ConsumerInfo:
        """One consumer."""
        for row in self._hg.run(statements.CONSUMERS, (stream, stream, name, name)):
            return _consumer(row)
        self._check_stream(stream)
        error = ConsumerNotFound(f'stream "{stream}" has no consumer "{name}"', hint=CREATE_CONSUMER)
        suggest(self._hg, error, (stream, name))
        raise error

    def channels(
        self,
        stream: str,
        consumer: str,
        channel: str | None = None,
        limit: int = 100,
        *,
        sort: ChannelSort = "waiting",
        after: str | None = None,
    ) -> Channels:
        """The channels (or keys, by the stream's lanes) of a consumer and what waits in each, or one of them.

        `sort` is by what is "waiting" (most first), by the "oldest" message, or by "name".
        """
        params = (stream, consumer, sort, as_int(limit, "limit"), after, channel)
        rows = self._hg.run(statements.CHANNELS, params)
        found = Channels(ChannelInfo(stream, consumer, *row[:-1]) for row in rows)
        if rows and channel is None and len(rows) == limit:
            found.next = rows[-1][-1]
        return found

    def workers(self, stream: str | None = None, consumer: str | None = None) -> list[WorkerInfo]:
        """The workers of leased consumers and their lanes: all, or those of a stream, or of one consumer."""
        rows = self._hg.run(statements.WORKERS, (stream, stream, consumer, consumer))
        return [WorkerInfo(*row) for row in rows]

    def segments(self, stream: str) -> list[SegmentInfo]:
        """The segments of a stream's log, oldest first, and why closed ones are still kept."""
        self._check_stream(stream)
        return [SegmentInfo(*row) for row in self._hg.run(statements.SEGMENTS, (stream,))]

    def archives(self, stream: str) -> list[ArchiveInfo]:
        """The archives of a stream: where they are, and how far."""
        self._check_stream(stream)
        return [ArchiveInfo(*row) for row in self._hg.run(statements.ARCHIVES, (stream,))]

    def _check_stream(self, name: str) -> None:
        """StreamNotFound when there is none of this name. Its figures, which cost more, are not asked for."""
        self._hg.run(statements.STREAM_SETTINGS, (name,))

    def message(self, stream: str, seq: int) -> list[MessageState]:
        """The state of one message for each consumer of its stream."""
        return [MessageState(*row) for row in self._hg.run(statements.MESSAGE_STATES, (stream, seq))]

    def message_life(self, stream: str, seq: int) -> list[LifeEvent]:
        """Everything that is known of one message, in the order of time; nothing of a seq that was not drawn yet."""
        params = (stream, as_int(seq, "seq", 63))
        return [LifeEvent(*row) for row in self._hg.run(statements.MESSAGE_LIFE, params)]

    def attempts(
        self,
        stream: str,
        seq: int | None = None,
        *,
        consumer: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[Attempt]:
        """Attempts that failed, the newest first: of one message, of one consumer, or of a whole stream.

        The last 20 of a message and the last 100,000 of a stream are kept. `before` is the id to go on from.
        """
        params = (stream, as_int(seq, "seq", 63), consumer, as_int(limit, "limit"), as_int(before, "before", 63))
        return [Attempt(*row) for row in self._hg.run(statements.ATTEMPTS, params)]

    def messages(
        self,
        stream: str,
        limit: int = 10,
        *,
        newest_first: bool = False,
        filter: str | list[str] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> list[StoredMessage]:
        """Messages of a stream, whoever has read them."""
        wanted = None if filter is None else Array([filter] if isinstance(filter, str) else filter)
        rows = self._hg.run(statements.MESSAGES, (stream, as_int(limit, "limit"), newest_first, wanted, before, after))
        return [StoredMessage(*_decoded(row)) for row in rows]

    def peek(
        self,
        stream: str,
        consumer: str,
        limit: int = 10,
        *,
        newest_first: bool = False,
        states: Sequence[State] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> Peek:
        """Messages with their state for a consumer. `next` of the answer is set where it ended too early."""
        params = (
            stream,
            consumer,
            as_int(limit, "limit"),
            newest_first,
            None if states is None else Array(states),
            before,
            after,
        )
        rows = self._hg.run(statements.PEEK, params)
        more = rows.pop()[0] if rows and rows[-1][5] == "more" else None
        found = Peek(PeekedMessage(*_decoded(row)) for row in rows)
        found.next = more
        return found

    def dead_letters(
        self, stream: str, consumer: str, limit: int = 100, *, after: int = 0, group: str | None = None
    ) -> list[DeadLetter]:
        """A consumer's dead letters, oldest first: all, or those whose error, without what differs, is this `group`."""
        if group is None:
            rows = self._hg.run(statements.DEAD_LETTERS, (stream, consumer, as_int(limit, "limit"), after))
        else:
            params = (stream, consumer, group, as_int(limit, "limit"), after)
            rows = self._hg.run(statements.DEAD_OF_GROUP, params)
        return [DeadLetter(*_decoded(row)) for row in rows]

    def doctor(self, patience: float | timedelta = 300) -> list[Finding]:
        """What is wrong with the database and what to do about it, the worst first.

        What lasts longer than `patience` (seconds) is reported: an open transaction, a consumer that stands still.
        """
        if self._hg.http is not None:  # the server compares its own version, too
            return [Finding(*row) for row in self._hg.run(statements.DOCTOR, (interval(patience),))]
        [(server, *installed)] = self._hg.run(statements.VERSIONS, ())
        errors = (schema.check_server(server), schema.check(schema.Installed(*installed)))
        skew = [_ailment("version", e) for e in errors if e]
        try:
            rows = self._hg.run(statements.DOCTOR, (interval(patience),))
        except NotAllowed as error:
            return [*skew, _ailment("rights", error)]
        except SchemaMissing:  # of a time before there was a doctor
            if not skew:
                raise
            return skew
        return sorted([*skew, *(Finding(*row) for row in rows)], key=_rank)


def _decoded(row: Row) -> list[Any]:
    """A row that begins seq, key, text, headers: with the text decoded."""
    seq, key, text, headers, *rest = row
    return [seq, key, decode(text, headers), headers, *rest]


def _ailment(subject: str, error: Error) -> Finding:
    return Finding("problem", subject, error.message, error.hint or "")


def _rank(finding: Finding) -> int:
    return ("problem", "warning", "note").index(finding.severity)


def _stream(row: Row) -> StreamInfo:
    return StreamInfo(*row)


def _consumer(row: Row) -> ConsumerInfo:
    return ConsumerInfo(*row)
