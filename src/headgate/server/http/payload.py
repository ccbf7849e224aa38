"""A message's data between JSON on the wire and text in the stream, by the rules of `headgate.database.encoding`.

Objects and lists are stored as they were written, and given back so; nothing is parsed on the way in that the decoder
of the request has not looked at already.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...database.encoding import CONTENT_TYPE, is_base64
from ...errors import InvalidText
from .errors import Problem

_load = msgspec.json.decode
_check = msgspec.json.Decoder(msgspec.Raw).decode


def to_text(raw: msgspec.Raw, headers: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
    """The text and headers that carry a JSON value."""
    try:
        text = bytes(raw).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise Problem(400, "bad_json", "the data is not UTF-8", "send JSON in UTF-8") from None
    if text[:1] in ("{", "["):
        if headers and CONTENT_TYPE in headers and headers[CONTENT_TYPE] != "application/json":
            return text, {**headers, CONTENT_TYPE: "application/json"}  # else it would come back as a string
        return text, headers
    if text[:1] == '"':
        value: str = _load(text, type=str)
        if "\x00" in value:
            raise InvalidText("the data contains a NUL character, which PostgreSQL cannot store", hint="remove the NUL")
        if value[:1] in ("{", "[") and not (headers and CONTENT_TYPE in headers):
            return value, {**(headers or {}), CONTENT_TYPE: "text/plain"}
        return value, headers
    return text, {**(headers or {}), CONTENT_TYPE: "application/json"}


def to_json(text: str, headers: dict[str, Any] | None) -> msgspec.Raw | str:
    """The JSON value that a message's text stands for; text that only looks like JSON is a string."""
    kind = headers.get(CONTENT_TYPE) if isinstance(headers, dict) else None
    if isinstance(headers, dict) and is_base64(headers):
        return text
    if isinstance(kind, str) and kind.startswith("text/"):
        return text
    if kind == "application/json" or text[:1] in ("{", "["):
        try:
            # Who sends with SQL can write anything. Numbers are not converted: those that no int or float holds stay
            # as they are written.
            return _check(text)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return text
    return text
