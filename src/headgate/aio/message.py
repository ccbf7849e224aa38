"""A message as a worker receives it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal

from ..database.encoding import T

if TYPE_CHECKING:
    from .consumer import AsyncConsumer


class AsyncMessage(Generic[T]):
    """A message that was received and is to be settled: acked, nacked, or left to its deadline."""

    __slots__ = (
        "_consumer", "_tx", "ack_id", "attempt", "channel", "created_at", "headers", "key", "seq", "settled", "text",
    )  # fmt: skip

    def __init__(self, consumer: AsyncConsumer[T], row: Any) -> None:
        self._consumer = consumer
        self.ack_id: str
        self.seq: int
        self.key: str | None
        self.text: str
        self.headers: dict[str, Any] | None
        self.channel: str | None
        self.attempt: int
        self.created_at: datetime
        self._tx: Any = None  # while a block of `transaction()` has it
        # what this object was told ("returned": it was made visible at once); its consumer may know more
        self.settled: Literal["acked", "nacked", "returned"] | None = None
        (self.ack_id, self.seq, self.key, self.text, self.headers, self.channel, self.attempt, self.created_at) = row

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seq={self.seq}, key={self.key!r}, attempt={self.attempt})"

    @property
    def data(self) -> T:
        """What was sent: a dict or list, a str, or bytes; or an object of the consumer's `type`, else DataInvalid.

        `text` is what is stored.
        """
        return self._consumer._decode(self.text, self.headers)

    @property
    def stream(self) -> str:
        """The name of the stream that it is of."""
        return self._consumer.stream

    @property
    def consumer(self) -> str:
        """The name of the consumer that received it."""
        return self._consumer.name

    @property
    def lane(self) -> int:
        """The lane that the message lies in."""
        return int(self.ack_id.partition(".")[0])

    @property
    def delivery(self) -> str:
        """The ack_id of the whole delivery that the message came with."""
        return self.ack_id.rpartition(".")[0]

    async def ack(self, *, conn: Any = None) -> bool:
        """Done with it. False when it was too late: the deadline had passed and another worker got it."""
        answer = await self._consumer.ack([self], conn=self._tx if conn is None else conn)
        self.settled = "acked"
        return answer.settled == 1

    async def nack(self, *, delay: float | timedelta | None = None, error: str | None = None, conn: Any = None) -> bool:
        """Not done: deliver it again after `delay` (default: the consumer's backoff). False when it was too late."""
        conn = self._tx if conn is None else conn
        answer = await self._consumer.nack([self], delay=delay, error=error, conn=conn)
        self.settled = "nacked"
        return answer.settled == 1

    async def extend(self, by: float | timedelta) -> bool:
        """Moves this message's deadline to `by` seconds from now, also nearer. False when it was too late.

        0 gives it back, visible now: a worker then neither acks it nor, in order, runs the later ones of its key.
        """
        answer = await self._consumer.extend([self], by)
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if self.settled is None and round(seconds, 6) == 0:
            self.settled = "returned"
        return answer.settled == 1
