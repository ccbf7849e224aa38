"""How data becomes a message's text and back.

A dict or list is JSON, a str is itself, bytes are base64. Only what could not be told apart on the way back gets a
header: bytes, JSON scalars, and text that looks like JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import timedelta
from json import encoder
from typing import Any

import msgspec

from .errors import DataNotSerializable, InvalidArgument, InvalidText


def _json_encoder() -> Callable[[Any], str]:
    """json.dumps with our settings. It makes its C encoder anew for each value, which costs as much as the rest."""
    ours = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        make = encoder.c_make_encoder  # type: ignore[attr-defined]
        pieces = make(None, ours.default, encoder.encode_basestring, None, ":", ",", False, False, False)
        "".join(pieces({}, 0))
    except (AttributeError, TypeError):  # not CPython, or one that does it in another way
        return ours.encode
    return lambda value: "".join(pieces(value, 0))


_json = _json_encoder()
_decode = msgspec.json.Decoder().decode  # what it takes it reads as json.loads does, numbers of any size too

CONTENT_TYPE = "content-type"
ENCODING = "content-encoding"


def encode(data: Any, headers: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
    """The text and headers that carry `data`."""
    if headers is not None and not isinstance(headers, dict):
        raise InvalidArgument(f"the headers are a {type(headers).__name__}, not a dict", hint="pass a dict")
    if isinstance(data, str):
        if data[:1] in ("{", "[") and not _has(headers, CONTENT_TYPE):
            return data, {**(headers or {}), CONTENT_TYPE: "text/plain"}
        return data, headers
    if isinstance(data, (dict, list)):
        return dump_json(data), headers
    if isinstance(data, (bytes, bytearray, memoryview)):
        return base64.b64encode(data).decode("ascii"), {**(headers or {}), ENCODING: "base64"}
    return dump_json(data), {**(headers or {}), CONTENT_TYPE: "application/json"}


def decode(text: str, headers: dict[str, Any] | None) -> Any:
    """What was sent: the inverse of `encode`. Text that only looks like JSON is given back as text."""
    if headers and isinstance(headers, dict):  # who sends with SQL can write anything there
        if headers.get(ENCODING) == "base64":
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                return text
        kind = headers.get(CONTENT_TYPE)
        if isinstance(kind, str) and kind.startswith("text/"):
            return text
        if kind == "application/json":
            return _load(text)
    return _load(text) if text[:1] in ("{", "[") else text


def dump_json(value: Any) -> str:
    """Compact JSON, or DataNotSerializable."""
    try:
        return _json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataNotSerializable(
            f"the data cannot be written as JSON: {error}",
            hint="send a dict or list of plain values, a str, or bytes; turn other objects into these first",
        ) from error


def array_literal(texts: list[str | None]) -> str:
    """A PostgreSQL text[] literal. Three passes over one string: much faster than a driver's element by element."""
    if None in texts:
        return "{" + ",".join("NULL" if t is None else f'"{_escape(_checked(t))}"' for t in texts) + "}"
    if not texts:
        return "{}"
    joined = "\x00".join(texts)  # type: ignore[arg-type]
    if joined.count("\x00") != len(texts) - 1:
        for text in texts:
            _checked(text or "")
    return '{"' + _escape(joined).replace("\x00", '","') + '"}'


def checked_text(text: str | None, what: str) -> str | None:
    """`text`, or InvalidText / InvalidArgument when PostgreSQL cannot store it."""
    if text is not None and not isinstance(text, str):
        raise InvalidArgument(f"the {what} is a {type(text).__name__}, not a str", hint=f"pass the {what} as a str")
    return None if text is None else _checked(text)


def whole(value: Any, what: str, bits: int = 31) -> int | None:
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


def _checked(text: str) -> str:
    if "\x00" in text:
        raise InvalidText(
            "the text contains a NUL character, which PostgreSQL cannot store",
            hint="remove the NUL, or send the data as bytes",
        )
    return text


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _has(headers: dict[str, Any] | None, name: str) -> bool:
    return bool(headers) and name in (headers or {})


def _load(text: str) -> Any:
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text)  # which takes a little more: NaN, halves of surrogate pairs
    except (ValueError, RecursionError):
        return text
