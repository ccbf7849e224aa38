"""The hints in the engine's source: what stands behind the message in each call of headgate.fail()."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import headgate

SQL = Path(headgate.__file__).parent / "sql"
_CALL = re.compile(r"headgate\.fail\(\s*'(?P<state>\w{5})'")
_TOKEN = re.compile(r"'(?:[^']|'')*'|[(),]|[^'(),]+")


def hints() -> Iterator[tuple[str, str]]:
    """SQLSTATE and text; of a hint that is put together, each of its parts."""
    for file in sorted([*SQL.glob("functions/*/*.sql"), *SQL.glob("templates/**/*.sql")]):
        text = file.read_text(encoding="utf-8")
        for call in _CALL.finditer(text):
            depth, commas = 1, 0
            for token in _TOKEN.findall(text, call.end()):
                depth += (token == "(") - (token == ")")
                if depth == 0:
                    break
                commas += token == "," and depth == 1
                if commas == 2 and token.startswith("'"):
                    yield call["state"], token[1:-1].replace("''", "'")
