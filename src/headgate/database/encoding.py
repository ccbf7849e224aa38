"""How data becomes a message's text and back.

A dict or list is JSON, a str is itself, bytes are base64. In JSON a datetime, date, time, timedelta, UUID or Decimal is
a string, an enum its value, a dataclass, msgspec Struct or pydantic model an object. JSON numbers that no int or float
holds (5,000 digits, 1e400) are kept as they are written, and read as Decimal. Only what could not be told apart on the
way back gets a header: bytes, JSON scalars, and text that looks like JSON.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import json
import math
import sys
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from json import encoder
from typing import Any

import msgspec

from ..errors import DataInvalid, DataNotSerializable, InvalidArgument, InvalidName, InvalidText

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # which psycopg needs there

T = TypeVar("T", default=Any)  # what a consumer's messages are read as

Hook = Callable[[Any], Any]

# What msgspec would turn into base64 inside an object: JSON has no bytes, and nobody could tell them from text.
_BYTES = (bytes, bytearray, memoryview)


def json_encoder(hook: Hook | None = None) -> Callable[[Any], str]:
    """What writes data as compact JSON, or raises DataNotSerializable. `hook` turns objects that it does not know into
    some that it does, or raises TypeError."""
    write = _writer(lambda value: _simpler(value, hook))

    def dump(value: Any) -> str:
        try:
            try:
                return write(value)
            except TypeError as error:
                if not str(error).startswith("keys must be"):
                    raise
                return write(msgspec.to_builtins(value, str_keys=True, builtin_types=_BYTES, enc_hook=_unknown(hook)))
        except (TypeError, ValueError, RecursionError) as error:
            raise DataNotSerializable(
                f"the data cannot be written as JSON: {error}",
                hint="send a dict or list of plain values, a str, or bytes; for other objects pass connect() an "
                "encoder that turns them into these",
            ) from error

    return dump


def _writer(default: Hook) -> Callable[[Any], str]:
    """json.dumps with our settings. It makes its C encoder anew for each value, which costs as much as the rest."""
    ours = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=default)
    try:
        make = encoder.c_make_encoder  # type: ignore[attr-defined]
        pieces = make(None, default, encoder.encode_basestring, None, ":", ",", False, False, False)
        "".join(pieces({}, 0))
    except (AttributeError, TypeError):  # not CPython, or one that does it in another way
        return ours.encode
    return lambda value: "".join(pieces(value, 0))


def _simpler(value: Any, hook: Hook | None) -> Any:
    """What stands for an object in JSON. It is asked for what the encoder itself does not know."""
    if isinstance(value, (*_BYTES, set, frozenset)):
        return _unknown(hook)(value)
    return msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=_unknown(hook))


def _unknown(hook: Hook | None) -> Hook:
    def plain(value: Any) -> Any:
        if callable(dump := getattr(value, "model_dump", None)):  # pydantic's, without importing it
            return dump(mode="json")
        if hook is None:
            raise TypeError(f"an object of type {type(value).__name__} is not JSON")
        return hook(value)

    return plain


dump_json = json_encoder()
_decode = msgspec.json.Decoder().decode  # what it takes it reads as json.loads does, numbers of any size too

CONTENT_TYPE = "content-type"
ENCODING = "content-encoding"
TRANSFER = "content-transfer-encoding"  # where the caller has a content-encoding
JSON = "application/json"


def encode(
    data: Any, headers: dict[str, Any] | None, dump: Callable[[Any], str] = dump_json
) -> tuple[str, dict[str, Any] | None]:
    """The text and headers that carry `data`."""
    if headers is not None and not isinstance(headers, dict):
        raise InvalidArgument(f"the headers are a {type(headers).__name__}, not a dict", hint="pass a dict")
    if isinstance(data, str):
        if data[:1] in ("{", "[") and not _has(headers, CONTENT_TYPE):
            return data, {**(headers or {}), CONTENT_TYPE: "text/plain"}
        return data, headers
    if isinstance(data, (dict, list)):
        return dump(data), headers
    if isinstance(data, _BYTES):
        # a content-encoding of the caller's is about the bytes: gzip stays gzip
        name = TRANSFER if _has(headers, ENCODING) else ENCODING
        return base64.b64encode(data).decode("ascii"), {**(headers or {}), name: "base64"}
    text = dump(data)
    return text, headers if text[:1] in ("{", "[") else {**(headers or {}), CONTENT_TYPE: JSON}


def decode(text: str, headers: dict[str, Any] | None) -> Any:
    """What was sent: the inverse of `encode`. Text that only looks like JSON is given back as text."""
    if headers and isinstance(headers, dict):  # who sends with SQL can write anything there
        if is_base64(headers):
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                return text
        if _is_text(headers):
            return text
        if headers.get(CONTENT_TYPE) == JSON:
            return _load(text)
    return _load(text) if text[:1] in ("{", "[") else text


def decoder(type: Any) -> Callable[[str, dict[str, Any] | None], Any]:
    """What reads messages as objects of one type, as `decode` does without one. DataInvalid: it is something else."""
    if callable(getattr(type, "model_validate_json", None)):  # pydantic's
        from_json, from_value = type.model_validate_json, type.model_validate
    else:
        try:
            from_json = msgspec.json.Decoder(type).decode
        except TypeError as error:
            raise InvalidArgument(
                f"messages cannot be read as {_name(type)}: {error}",
                hint="use a dataclass, a msgspec Struct, a TypedDict, a pydantic model or a plain type",
            ) from error

        def from_value(value: Any) -> Any:
            return msgspec.convert(value, type)

    def read(text: str, headers: dict[str, Any] | None) -> Any:
        try:
            is_json = text[:1] in ("{", "[") or (isinstance(headers, dict) and headers.get(CONTENT_TYPE) == JSON)
            if is_json and not (isinstance(headers, dict) and (_is_text(headers) or is_base64(headers))):
                return from_json(text)
            return from_value(decode(text, headers))
        except (ValueError, RecursionError) as error:  # of msgspec and of pydantic both are ValueErrors
            raise DataInvalid(
                f"the message is not of the type {_name(type)}: {error}",
                hint="`m.text` is what was sent; a worker counts it as failed, others nack it, or ack it to skip it",
            ) from error

    return read


def checked_text(text: str | None, what: str) -> str | None:
    """`text`, or InvalidText / InvalidArgument when PostgreSQL cannot store it."""
    if text is not None and not isinstance(text, str):
        raise InvalidArgument(f"the {what} is a {type(text).__name__}, not a str", hint=f"pass the {what} as a str")
    return None if text is None else checked(text)


def checked_name(name: str, of: str) -> str:
    """`name`, or InvalidName when it cannot be one of a stream or consumer."""
    if not isinstance(name, str):
        raise InvalidName(f"{name!r} is not a name for a {of}", hint="pass the name as a str")
    return checked(name)


def as_int(value: Any, what: str, bits: int = 31) -> int | None:
    """`value`, or InvalidArgument when it is no whole number that the engine's functions take (63 bits: a bigint)."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**bits):
        raise InvalidArgument(f"{what} {value!r} is not possible", hint="pass a whole number within reason")
    return None if value is None else int(value)


def error_text(error: object) -> str | None:
    """What is kept of an error: any text, without what PostgreSQL cannot store. Reporting a failure must not fail."""
    return None if error is None else str(error).replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def interval(value: Any) -> str | None:
    """Seconds or a timedelta as a PostgreSQL interval."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds != seconds or abs(seconds) > 1e9:
        raise InvalidArgument(f"{value!r} is not a length of time", hint="give seconds as a number, or a timedelta")
    return f"{seconds:.6f} seconds"


def checked(text: str) -> str:
    """`text`, or InvalidText when it has a NUL in it."""
    if "\x00" in text:
        raise InvalidText(
            "the text contains a NUL character, which PostgreSQL cannot store",
            hint="remove the NUL, or send the data as bytes",
        )
    return text


def is_base64(headers: dict[str, Any]) -> bool:
    """Whether a message's text stands for bytes."""
    return headers.get(ENCODING) == "base64" or headers.get(TRANSFER) == "base64"


def _is_text(headers: dict[str, Any]) -> bool:
    kind = headers.get(CONTENT_TYPE)
    return isinstance(kind, str) and kind.startswith("text/")


def _name(type: Any) -> str:
    return type.__name__ if isinstance(type, builtins.type) else repr(type)


def _has(headers: dict[str, Any] | None, name: str) -> bool:
    return bool(headers) and name in (headers or {})


def _load(text: str) -> Any:
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        pass
    try:
        # which takes a little more: NaN, halves of surrogate pairs
        return json.loads(text, parse_int=_whole, parse_float=_fraction)
    except (ValueError, RecursionError):
        return text


def _whole(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:  # more digits than Python converts
        return Decimal(text)


def _fraction(text: str) -> float | Decimal:
    value = float(text)
    return Decimal(text) if math.isinf(value) else value
