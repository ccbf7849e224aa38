"""The form of the engine's SQL: lines of at most 100 columns, and a header over each function.

A line may be longer where a string in it, which cannot be broken, would not fit otherwise: less than one in fifty is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SQL = Path(__file__).resolve().parent.parent / "src" / "headgate" / "sql"
COLUMNS = 100
STRING = re.compile(r"'(?:[^']|'')*'")
LONG_STRING = 40  # a shorter one fits on the next line
SHARED = {"resume"}  # its header is that of the function before it
FUNCTION = re.compile(r"create (?:or replace )?function headgate\.(\w+)\(")


def too_wide(line: str) -> bool:
    """Whether the line is too long without need."""
    return len(line) > COLUMNS and not any(len(found) > LONG_STRING for found in STRING.findall(line))


def problems(path: Path) -> list[str]:
    """What is wrong with one file, a sentence each."""
    found = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, (before, line) in enumerate(zip(["", *lines], lines, strict=False), 1):
        where = f"{path.name}:{number}"
        if too_wide(line):
            found.append(f"{where}: {len(line)} columns, {COLUMNS} are allowed")
        if line != line.rstrip():
            found.append(f"{where}: white space at the end")
        function = FUNCTION.match(line)
        if function and function[1] not in SHARED and line.startswith("create or") and not before.startswith("--"):
            found.append(f"{where}: {function[1]} has no header: what it answers, locks and writes")
    return found


def main() -> int:
    """Says what is wrong; 1 if anything is."""
    found = [
        problem
        for path in [*sorted(SQL.glob("functions/*/*.sql")), SQL / "views.sql", SQL / "rights.sql"]
        for problem in problems(path)
    ]
    for problem in found:
        print(problem)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
