"""What the fields of requests and responses are made of: their limits, settings, the data classes of the SDK."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ...settings import Setting, Settings, http_field

MOST_SEQ = 2**63 - 1

Name = Annotated[str, Meta(min_length=1, max_length=55, pattern="^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Text = Annotated[str, Meta(max_length=10_000)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Large = Annotated[int, Meta(ge=1, le=MOST_SEQ)]
Seq = Annotated[int, Meta(ge=0, le=MOST_SEQ)]
Milliseconds = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
# Other ids that look like one are answered as stale: an ack_id is nothing that a caller should read.
AckId = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_.-]+$")]
AckIds = Annotated[list[AckId], Meta(min_length=1, max_length=10_000)]
Moment = Annotated[datetime, Meta(tz=True)]
Sort = Literal["seq_asc", "seq_desc"]
DataLimit = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # characters
Search = Annotated[str, Meta(min_length=1, max_length=200)]
Filter = Annotated[list[Text], Meta(min_length=1, max_length=100)]
Backoff = float | list[float] | dict[str, float]
PushUrl = Annotated[str, Meta(min_length=8, max_length=2000, pattern="^https?://")]
PostgresUrl = Annotated[str, Meta(max_length=2000, pattern="^postgres(ql)?://")]
Identifier = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[A-Za-z0-9_]+$")]
Secret = Annotated[str, Meta(min_length=8, max_length=1000)]
Secrets = Annotated[list[Secret], Meta(min_length=1, max_length=5)]
Where = Annotated[str, Meta(min_length=1, max_length=200)]
TableNames = Annotated[list[Where], Meta(min_length=1, max_length=1000)]
Columns = Annotated[list[Where], Meta(min_length=1, max_length=32)]
Amount = Annotated[int, Meta(ge=0, le=2**60)]
RowRate = Annotated[int, Meta(ge=0, le=2**31 - 1)]
HeaderName = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_-]+$")]
HeaderNames = Annotated[list[HeaderName], Meta(max_length=50)]


class Nothing(Struct):
    """An answer that says no more than that it was done."""


class Body(Struct, forbid_unknown_fields=True):
    """What a request carries: a field that is not known is an error."""


def new_body(name: str, doc: str, settings: Settings, *, push: type | None = None) -> type[Struct]:
    """The body that makes a stream or consumer: its name and its settings."""
    rows = [(http_field(n), _type(row, push) | None, None) for n, row in settings.items()]
    return defstruct(
        name, [("name", Name), *rows, ("if_not_exists", bool, False)], bases=(Body,), namespace={"__doc__": doc}
    )


def change_body(name: str, doc: str, settings: Settings, *, push: type | None = None) -> type[Struct]:
    """The body that changes settings: null puts one back to none, if it can be."""
    rows = [
        (http_field(n), _type(row, push) | UnsetType | (None if row.is_clearable else UnsetType), UNSET)
        for n, row in settings.items()
    ]
    return defstruct(name, rows, bases=(Body,), namespace={"__doc__": doc})


def _type(row: Setting, push: type | None) -> Any:
    match row.kind:
        case "length":
            return Milliseconds
        case "count" | "bytes":
            return Annotated[int, Meta(ge=row.least, le=2**row.bits - 1)]
        case "choice":
            return Literal[row.choices]
        case "flag":
            return bool
        case "filter":
            return Filter | Text
        case "backoff":
            return Backoff
        case "position":
            return Seq | Text
        case "push":
            return push


class Response(Struct):
    """A response with the fields of a dataclass: `class Stream(fields_of(StreamInfo), Response)`."""

    conversions: ClassVar[tuple[tuple[str, str, Callable[[Any], Any] | None], ...]] = ()

    @classmethod
    def of(cls, info: Any, /, **instead: Any) -> Self:
        """The response for what the SDK knows."""
        values = {}
        for name, shown, convert in cls.conversions:
            if shown not in instead:
                value = getattr(info, name)
                values[shown] = value if convert is None or value is None else convert(value)
        return cls(**values, **instead)


def fields_of(source: type, *, leave_out: Sequence[str] = (), **kinds: Any) -> Any:
    """A base with the fields of a dataclass. `kinds` are the types of those that are something else here.

    Lengths of time are in milliseconds, and named so; messages' data is as JSON shows it.
    """
    hints = {**get_type_hints(source), **kinds}
    rows: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    conversions: list[tuple[str, str, Callable[[Any], Any] | None]] = []
    for field in dataclasses.fields(source):
        if field.name in leave_out:
            continue
        name, kind = field.name, hints[field.name]
        convert: Callable[[Any], Any] | None = as_json_value if name == "data" else None
        if timedelta in (kind, *get_args(kind)):
            name, kind = f"{name}_ms", int if kind is timedelta else int | None
            convert = milliseconds
        rows.append((name, kind) if field.default is dataclasses.MISSING else (name, kind, field.default))
        conversions.append((field.name, name, convert))
    return defstruct(f"Of{source.__name__}", rows, bases=(Response,), namespace={"conversions": tuple(conversions)})


def milliseconds(value: timedelta) -> int:
    """A length of time in whole milliseconds."""
    return value // timedelta(milliseconds=1)


_encode = msgspec.json.Encoder(decimal_format="number").encode


def as_json_value(data: Any) -> Any:
    """Data that the SDK has decoded, as JSON shows it. Bytes are base64."""
    if isinstance(data, (bytes, bytearray)):
        return base64.b64encode(data).decode("ascii")
    if isinstance(data, str):
        return data
    try:
        return msgspec.Raw(_encode(data))
    except (ValueError, OverflowError, RecursionError):  # half a surrogate pair: who sends with SQL can write anything
        return json.dumps(data)


def seconds(milliseconds: int | None) -> float | None:
    """Milliseconds, as the SDK takes lengths of time."""
    return None if milliseconds is None else milliseconds / 1000


def settings_of(body: Any, settings: Settings) -> dict[str, Any]:
    """The settings of a new stream or consumer, as the SDK takes them."""
    values = {name: getattr(body, http_field(name)) for name in settings}
    return {name: seconds(v) if settings[name].kind == "length" else v for name, v in values.items()}


def changes(body: Any) -> dict[str, Any]:
    """The arguments of `alter` that a change stands for: null means to clear."""
    given: dict[str, Any] = {}
    clear = []
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if value is UNSET:
            continue
        plain = name.removesuffix("_ms")
        if value is None:
            clear.append(plain)
        else:
            given[plain] = value / 1000 if plain != name else value
    return {**given, "clear": clear}
