"""A schema as Spark takes it (`id long, address struct<town string>`), looked at before Spark starts.

What is sure to be wrong is found: a type that there is not, a column without one, a bracket that stays open. All else
is for Spark to judge.
"""

from __future__ import annotations

import difflib
import re

from ..errors import InvalidArgument

TYPES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "decimal", "dec", "numeric", "date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "string", "char",
    "character", "varchar", "binary", "variant", "void", "interval", "geometry", "geography", "array", "map", "struct",
)  # fmt: skip
TOKEN = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w+|[^\w\s]")


def check_schema_text(ddl: str) -> None:
    """An error when this is sure to be no schema."""
    tokens = TOKEN.findall(ddl)
    if not tokens or tokens[0] == "{" or tokens[1:2] == ["<"] or (len(tokens) == 1 and tokens[0].lower() in TYPES):
        return  # JSON, or one type
    try:
        _Reading(ddl, tokens).columns()
    except _Unsure:
        return


class _Unsure(Exception):
    """Something that Spark may know."""


class _Reading:
    def __init__(self, ddl: str, tokens: list[str]) -> None:
        self._ddl, self._left = ddl, tokens[::-1]

    def columns(self) -> None:
        """name type, name type, … to the end or a closing bracket."""
        while True:
            name = self._next("a column")
            if self._peek() == ":":
                self._left.pop()
            self._type(f"column {name}")
            while self._peek() not in (",", ">", ""):  # NOT NULL, COMMENT '…' and so on
                self._left.pop()
            if self._peek() != ",":
                return
            self._left.pop()

    def _type(self, of: str) -> None:
        if self._peek() in (",", ">", ""):
            raise self._wrong(f"{of} has no type")
        kind = self._left.pop().lower()
        if kind not in TYPES:
            if not re.fullmatch(r"[a-z]\w*", kind):
                raise _Unsure
            close = difflib.get_close_matches(kind, TYPES, 1)
            raise self._wrong(f"{of} has the type {kind}, which there is not", close)
        if kind == "struct" and self._opened():
            if self._peek() != ">":
                self.columns()
            self._close()
        elif kind in ("array", "map") and self._opened():
            self._type(f"{kind} of {of}")
            if kind == "map" and self._peek() == ",":
                self._left.pop()
                self._type(f"{kind} of {of}")
            self._close()
        elif self._peek() == "(":
            while self._left and self._left.pop() != ")":
                pass

    def _opened(self) -> bool:
        return self._peek() == "<" and bool(self._left.pop())

    def _close(self) -> None:
        if self._peek() == "":
            raise self._wrong("a > is missing")
        if self._left.pop() != ">":
            raise _Unsure

    def _peek(self) -> str:
        return self._left[-1] if self._left else ""

    def _next(self, what: str) -> str:
        if not self._left:
            raise self._wrong(f"{what} is missing at the end")
        return self._left.pop()

    def _wrong(self, problem: str, close: list[str] | None = None) -> InvalidArgument:
        hint = f"is it {close[0]}?" if close else 'for instance "id long, total double"'
        return InvalidArgument(f'"{self._ddl}" is not a schema: {problem}', hint=hint)
