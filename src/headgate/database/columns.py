"""What a send writes: the columns of its messages, and arrays of text as PostgreSQL reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from .. import tracing
from ..errors import InvalidText
from . import statements
from .encoding import checked, dump_json

FIELDS = ("keys", "headers", "channels", "delays", "ids")  # the columns that need not be there, in their order


class Array(list[Any]):
    """A parameter that stands for a text[]."""


def literals(params: Sequence[Any]) -> list[Any]:
    """Parameters for drivers that take an array as text and leave its type to the server."""
    return [array_literal(p) if isinstance(p, Array) else p for p in params]


def array_literal(texts: list[str | None]) -> str:
    """A PostgreSQL text[] literal. Three passes over one string: much faster than a driver's element by element."""
    if None in texts:
        return "{" + ",".join("NULL" if t is None else f'"{_escape(checked(t))}"' for t in texts) + "}"
    if not texts:
        return "{}"
    joined = "\x00".join(texts)  # type: ignore[arg-type]
    if joined.count("\x00") != len(texts) - 1:
        for text in texts:
            checked(text or "")
    return '{"' + _escape(joined).replace("\x00", '","') + '"}'


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


class Columns:
    """Messages as the engine takes them, a column for each field. Where no message has one, it is None."""

    __slots__ = ("channels", "datas", "delays", "headers", "ids", "keys")

    def __init__(self) -> None:
        self.datas = Array()
        self.keys: Array | None = None
        self.headers: Array | None = None
        self.channels: Array | None = None
        self.delays: Array | None = None
        self.ids: Array | None = None

    def add(
        self,
        text: str,
        key: str | None = None,
        headers: dict[str, Any] | None = None,
        channel: str | None = None,
        delay: str | None = None,
        id: str | None = None,
        carried: tracing.Carried | None = None,
    ) -> None:
        """One more message. `carried` are headers of its trace, if it has none of its own."""
        self.datas.append(text)
        if carried:
            headers = tracing.carry(headers, carried)
        # a column begins with the first message that has something in it
        if key is not None or self.keys is not None:
            self.keys = self._with(self.keys, key)
        if headers or self.headers is not None:
            self.headers = self._with(self.headers, dump_json(headers) if headers else None)
        if channel is not None or self.channels is not None:
            self.channels = self._with(self.channels, channel)
        if delay is not None or self.delays is not None:
            self.delays = self._with(self.delays, delay)
        if id is not None or self.ids is not None:
            self.ids = self._with(self.ids, id)

    def _with(self, column: Array | None, value: str | None) -> Array:
        if column is None:
            column = Array([None] * (len(self.datas) - 1))
        column.append(value)
        return column

    @classmethod
    def joined(cls, group: Sequence[Columns]) -> Columns:
        """The messages of several, one after the other."""
        if len(group) == 1:
            return group[0]
        made = cls()
        made.datas = Array(chain.from_iterable(c.datas for c in group))
        for field in FIELDS:
            columns = [getattr(c, field) for c in group]
            if any(column is not None for column in columns):
                parts = ([None] * len(c.datas) if v is None else v for c, v in zip(group, columns, strict=True))
                setattr(made, field, Array(chain.from_iterable(parts)))
        return made

    def refuse_nul(self) -> None:
        """InvalidText for a NUL character beside the data: now, and not where others share the statement."""
        for field in FIELDS:
            column = getattr(self, field)
            if column is not None and any(value is not None and "\x00" in value for value in column):
                raise InvalidText("a NUL character cannot be stored", hint="remove the NUL")

    @property
    def parameters(self) -> tuple[Array | None, ...]:
        """The parameters of the statements that send, behind the stream."""
        return self.datas, self.keys, self.headers, self.channels, self.delays, self.ids

    @property
    def has_times(self) -> bool:
        """Whether a message is to be delivered at a time, so that the statement has to be one that knows these."""
        return self.delays is not None and any(d is not None and d.startswith(statements.AT) for d in self.delays)
