# Generated from src/headgate/aio/stream.py by tools/generate_sync.py: do not edit, run `make sync`.
"""Streams: sending, and the consumers of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import statements
from ..connections import Array
from ..encoding import checked_text, dump_json, encode, interval, whole
from ..errors import InvalidArgument
from ..types import Backoff, Order, Outgoing, StoredMessage, StreamInfo
from .consumer import Consumer, as_filter

if TYPE_CHECKING:
    from .client import Headgate


class Stream:
    """A stream: a log of messages that consumers read, each at its own pace."""

    def __init__(self, hg: Headgate, name: str) -> None:
        self.hg = hg
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def send(
        self,
        data: Any,
        *,
        key: str | None = None,
        headers: dict[str, Any] | None = None,
        delay: float | timedelta | None = None,
        id: str | None = None,
        conn: Any = None,
    ) -> int:
        """Sends one message; returns its seq. With `conn` it joins the caller's transaction.

        A message with an `id` that was sent before, within the stream's dedup window, is not appended again: the first
        one's seq is returned. It is delivered `delay` seconds from now at the earliest.
        """
        seqs = self.send_batch([Outgoing(data, key, headers, delay, id)], conn=conn)
        return seqs[0]

    def send_batch(self, messages: Iterable[Any], *, key: str | None = None, conn: Any = None) -> list[int]:
        """Sends up to 10,000 messages in one go; returns their seqs in order.

        With `conn` it joins the caller's transaction. An element is the data itself (with `key` for all of them), a
        (key, data) pair, or an `Outgoing`.
        """
        key = checked_text(key, "key")
        datas: Array = Array()
        keys: Array = Array()
        rest: dict[int, tuple[str | None, str | None, str | None]] = {}  # headers, delay and id, of those that have any
        for i, m in enumerate(messages):
            if type(m) is dict:  # the usual case
                datas.append(dump_json(m))
                keys.append(key)
                continue
            headers, delay, id = None, None, None
            if isinstance(m, Outgoing):
                data, own_key, headers, delay, id = m.data, key if m.key is None else m.key, m.headers, m.delay, m.id
            elif isinstance(m, tuple):
                if len(m) != 2:
                    raise InvalidArgument("a tuple in a batch is not a (key, data) pair", hint="use headgate.Outgoing")
                own_key, data = m
            else:
                data, own_key = m, key
            text, headers = encode(data, headers)
            datas.append(text)
            keys.append(own_key if own_key is None or type(own_key) is str else checked_text(own_key, "key"))
            if headers or delay is not None or id is not None:
                rest[i] = (dump_json(headers) if headers else None, interval(delay), checked_text(id, "id"))
        columns: list[Array | None] = [None, None, None]
        if rest:
            for c in range(3):
                column = Array(rest[i][c] if i in rest else None for i in range(len(datas)))
                columns[c] = column if any(x is not None for x in column) else None
        params = (self.name, datas, keys if any(k is not None for k in keys) else None, *columns)
        rows = self.hg.run(statements.SEND_BATCH, params, conn)
        return list(rows[0][0])

    def consumer(
        self,
        name: str,
        *,
        create: bool = False,
        filter: str | list[str] | None = None,
        order: Order = "none",
        ack_wait: float | timedelta = 30,
        max_deliver: int | None = None,
        max_ack_pending: int | None = None,
        backoff: Backoff | None = None,
        start: str | int = "beginning",
    ) -> Consumer:
        """A consumer by name. `create=True` makes it if it is missing; the other arguments are for a new consumer.

        `filter` keeps keys like `orders.*.created` or `orders.>`. `order="key"` hands out a message of a key only once
        the earlier ones of that key are done. `backoff` is seconds, a list of seconds, or {"first", "factor", "max",
        "jitter"}.
        `start` is "beginning", "end", a seq, or a time.
        """
        if create:
            params = (
                self.name,
                name,
                as_filter(filter),
                order,
                interval(ack_wait),
                whole(max_deliver, "max_deliver"),
                whole(max_ack_pending, "max_ack_pending"),
                None if backoff is None else dump_json(backoff),
                str(start),
                True,
            )
            self.hg.run(statements.CREATE_CONSUMER, params)
        rows = self.hg.run(statements.CONSUMER_SETTINGS, (self.name, name))
        stream_id, kept, wait, delays = rows[0]
        return Consumer(self.hg, self.name, name, stream_id=stream_id, order=kept, ack_wait=wait, backoff=delays)

    def consumers(self) -> list[str]:
        """The names of the stream's consumers."""
        return [c.name for c in self.hg.insights.consumers(self.name)]

    def alter(
        self,
        *,
        dedup_window: float | timedelta | None = None,
        max_message_bytes: int | None = None,
        segment_rows: int | None = None,
    ) -> None:
        """Changes the settings that are given."""
        largest, rows = whole(max_message_bytes, "max_message_bytes"), whole(segment_rows, "segment_rows")
        params = (self.name, interval(dedup_window), largest, rows)
        self.hg.run(statements.ALTER_STREAM, params)

    def drop(self) -> None:
        """Removes the stream, its consumers, its messages and its dead letters."""
        self.hg.run(statements.DROP_STREAM, (self.name,))

    def messages(
        self,
        limit: int = 10,
        *,
        newest_first: bool = False,
        filter: str | list[str] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> list[StoredMessage]:
        """Messages of the stream, whoever has read them."""
        return self.hg.insights.messages(
            self.name, limit, newest_first=newest_first, filter=filter, before=before, after=after
        )

    def info(self) -> StreamInfo:
        """The stream's settings and what is in it."""
        return self.hg.insights.stream(self.name)

    def tick(self) -> int:
        """Records what has committed, if anything can have changed; returns the newest tick's id."""
        return int(self.hg.run(statements.TICK, (self.name,))[0][0])
