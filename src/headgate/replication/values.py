"""What a value is as JSON: nothing of it is lost, and what JSON can say is said in JSON. No I/O.

Integers are numbers, booleans are booleans, json and jsonb stand as they are, arrays are arrays and composites objects.
Floats are numbers, but "NaN", "Infinity" and "-Infinity". numeric is a string: a reader that takes numbers for doubles
would round it. Everything else is a string, in the form in which PostgreSQL reads it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring

Encoder = Callable[[str], str]  # the text of a value to the text of its JSON

BOOL, INT8, INT2, INT4, TEXT, OID, JSON, FLOAT4, FLOAT8, NUMERIC, JSONB = (
    16, 20, 21, 23, 25, 26, 114, 700, 701, 1700, 3802,
)  # fmt: skip

_NOT_NUMBERS = {"NaN", "Infinity", "-Infinity"}


_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?|NaN|-?Infinity")


class TypeChanged(Exception):
    """A composite value is not of the fields that its type had when it was looked up."""


@dataclass(frozen=True, slots=True)
class Type:
    """What is known of a type: of an array its elements', of a domain its base type, of a composite its fields."""

    oid: int
    element: int | None = None
    delimiter: str = ","
    base: int | None = None
    fields: tuple[tuple[str, int], ...] | None = None


def quoted(text: str) -> str:
    """A JSON string."""
    return encode_basestring(text)


def _as_is(text: str) -> str:
    return text


def _boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def _float(text: str) -> str:
    return f'"{text}"' if text in _NOT_NUMBERS else text


BUILT_IN: dict[int, Encoder] = {
    BOOL: _boolean, INT2: _as_is, INT4: _as_is, INT8: _as_is, OID: _as_is, FLOAT4: _float, FLOAT8: _float,
    JSON: _as_is, JSONB: _as_is, NUMERIC: quoted,
}  # fmt: skip


def encoder(oid: int, types: dict[int, Type], *, is_strict: bool = True) -> Encoder:
    """How values of a type are written. A type that is not known is text; so is a composite value of other fields than
    its type has now, unless that `is_strict`: then it is a TypeChanged."""
    if (found := BUILT_IN.get(oid)) is not None:
        return found
    if (type := types.get(oid)) is None:
        return quoted
    if type.base is not None:
        return encoder(type.base, types, is_strict=is_strict)
    if type.element is not None:
        return _array(encoder(type.element, types, is_strict=is_strict), type.delimiter)
    if type.fields is not None:
        fields = [
            (quoted(name), encoder(field, types, is_strict=is_strict), _check(field, types))
            for name, field in type.fields
        ]
        return _composite(fields, is_strict=is_strict)
    return quoted


def _array(element: Encoder, delimiter: str) -> Encoder:
    def encode(text: str) -> str:
        if not text.startswith("{"):  # [2:3]={a,b}: JSON has no bounds, so the text stays
            return quoted(text)
        return _read_array(text, element, delimiter)

    return encode


def _read_array(text: str, element: Encoder, delimiter: str) -> str:
    written: list[str] = []
    at, end = 0, len(text)
    while at < end:
        c = text[at]
        if c == "{":
            written.append("[")
            at += 1
        elif c == "}":
            written.append("]")
            at += 1
        elif c == delimiter:
            written.append(",")
            at += 1
        elif c == '"':
            value, at = _until_quote(text, at + 1)
            written.append(element(value))
        else:
            start = at
            while text[at] not in ("}", delimiter):
                at += 1
            plain = text[start:at]
            written.append("null" if plain == "NULL" else element(plain))
    return "".join(written)


def _until_quote(text: str, at: int) -> tuple[str, int]:
    """A quoted element of an array, whose quotes and backslashes have a backslash before them."""
    parts: list[str] = []
    while (c := text[at]) != '"':
        if c == "\\":
            at += 1
        parts.append(text[at])
        at += 1
    return "".join(parts), at + 1


def _composite(fields: list[tuple[str, Encoder, Callable[[str], bool]]], *, is_strict: bool) -> Encoder:
    """The log does not tell the fields of a type, and ALTER TYPE does not touch the rows that are in it."""

    def encode(text: str) -> str:
        values = read_record(text)
        if len(values) != len(fields) or not all(
            v is None or is_one(v) for (*_, is_one), v in zip(fields, values, strict=True)
        ):
            if is_strict:
                raise TypeChanged(text)
            return quoted(text)
        pairs = zip(fields, values, strict=True)
        return "{" + ",".join(f"{n}:{'null' if v is None else e(v)}" for (n, e, _), v in pairs) + "}"

    return encode


def _check(oid: int, types: dict[int, Type]) -> Callable[[str], bool]:
    """Whether a text can be of a type which is not written as a string: what is not would not be JSON."""
    while (type := types.get(oid)) is not None and type.base is not None:
        oid = type.base
    if oid in (JSON, JSONB):
        return _is_json
    if type is not None and type.element is not None:
        return lambda text: text[:1] in ("{", "[") and text[-1:] == "}"
    if type is not None and type.fields is not None:
        return lambda text: text[:1] == "(" and text[-1:] == ")"
    if oid in (NUMERIC, BOOL) or oid not in BUILT_IN:
        return lambda text: True
    return lambda text: _NUMBER.fullmatch(text) is not None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_record(text: str) -> list[str | None]:
    """The fields of a composite value. Quotes in one are doubled; an empty one without quotes is null."""
    values: list[str | None] = []
    if text == "()":
        return values
    at, end = 1, len(text) - 1
    while True:
        parts: list[str] = []
        is_quoted = was_quoted = False
        while at < end and (is_quoted or text[at] != ","):
            c = text[at]
            if c == '"':
                if is_quoted and text[at + 1] == '"':
                    parts.append('"')
                    at += 1
                else:
                    is_quoted, was_quoted = not is_quoted, True
            elif c == "\\":
                at += 1
                parts.append(text[at])
            else:
                parts.append(c)
            at += 1
        values.append("".join(parts) if parts or was_quoted else None)
        if at >= end:
            return values
        at += 1
