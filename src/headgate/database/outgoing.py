"""Messages as callers of the SDK pass them, as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .. import tracing
from ..errors import InvalidArgument
from ..types import Outgoing
from .columns import Columns
from .encoding import checked_text, encode
from .parameters import as_delay


def columns_of(
    messages: Iterable[Any], key: str | None, carried: tracing.Carried | None, dump: Callable[[Any], str]
) -> Columns:
    """The columns of messages: data alone (with `key`), (key, data) pairs, or `Outgoing`."""
    if isinstance(messages, (str, bytes, bytearray, memoryview, dict)) or not isinstance(messages, Iterable):
        raise InvalidArgument(
            f"send_batch takes several messages, not a single {type(messages).__name__}",
            hint="pass a list of them, or send() this one",
        )
    columns = Columns()
    add = columns.add
    for m in messages:
        if type(m) is dict and not carried:  # the usual case
            add(dump(m), key)
            continue
        headers, channel, delay, id = None, None, None, None
        if isinstance(m, Outgoing):
            data, own_key, headers = m.data, key if m.key is None else m.key, m.headers
            channel, delay, id = m.channel, as_delay(m.delay, m.deliver_at), m.id
        elif isinstance(m, tuple):
            if len(m) != 2:
                raise InvalidArgument("a tuple in a batch is not a (key, data) pair", hint="use headgate.Outgoing")
            own_key, data = m
        else:
            data, own_key = m, key
        text, headers = encode(data, headers, dump)
        own_key, channel, id = checked_text(own_key, "key"), checked_text(channel, "channel"), checked_text(id, "id")
        add(text, own_key, headers, channel, delay, id, carried)
    return columns
