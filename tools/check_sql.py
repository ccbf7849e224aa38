"""The form of the engine's SQL: lines of at most 100 columns, and a header over each function and step.

A template and a step (`sql/templates`) has at most 60 lines. In the folders of DONE that holds for each function, too,
and a file has at most 400; headers there have the same fields (see `fields_missing`).

A line may be longer where a string in it, which cannot be broken, would not fit otherwise: less than one in fifty is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SQL = Path(__file__).resolve().parent.parent / "src" / "headgate" / "sql"
# The folders of sql/functions whose functions and files are short, and whose headers have all fields.
DONE = ("base", "write", "ticks", "read", "lanes", "storage", "outside", "operate")
COLUMNS = 100
STEP_LINES = 60
FILE_LINES = 400
STRING = re.compile(r"'(?:[^']|'')*'")
LONG_STRING = 40  # a shorter one fits on the next line
_HEADER = re.compile(r"(?:^--.*\n)+", re.MULTILINE)
_WHOLE = re.compile(
    r"((?:^--.*\n)*)(^create or replace function headgate\.(\w+)\((?:.|\n)*?(?:^(?:end )?\$\$;|return .*;$))",
    re.MULTILINE,
)
_FIELDS = (
    ("Locks", "locks rows", re.compile(r"\bfor (?:no key )?(?:update|key share|share)\b|pg_\w*advisory_xact_lock\(")),
    ("Writes", "writes", re.compile(r"\b(?:insert into|update|delete from) headgate\.")),
)
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
        if function and line.startswith("create or") and not before.startswith("--"):
            found.append(f"{where}: {function[1]} has no header: what it answers, locks and writes")
    return found


def form_problems(path: Path) -> list[str]:
    """What is wrong with the length and the headers of a file in a folder that is done."""
    text = path.read_text(encoding="utf-8")
    found = []
    if (lines := text.count("\n")) > FILE_LINES:
        found.append(f"{path.name}: {lines} lines, {FILE_LINES} are allowed")
    for header, source, name in _WHOLE.findall(text):
        where = f"{path.name}: {name}"
        if (lines := source.count("\n") + 1) > STEP_LINES:
            found.append(f"{where} has {lines} lines, {STEP_LINES} are allowed")
        found += [f"{where} {problem}" for problem in fields_missing(header, source)]
    return found


def template_problems(path: Path) -> list[str]:
    """What is wrong with the length and the header of a template or a step."""
    text = path.read_text(encoding="utf-8")
    header = _HEADER.match(text)
    found = []
    if not header:
        found.append(f"{path.name}: no header: what it gives or answers, needs, locks and writes")
    else:
        found += [f"{path.name} {problem}" for problem in fields_missing(header[0], text[header.end() :])]
    if (lines := text[header.end() if header else 0 :].count("\n")) > STEP_LINES:
        found.append(f"{path.name}: {lines} lines, {STEP_LINES} are allowed")
    return found


def fields_missing(header: str, source: str) -> list[str]:
    """The fields that a header lacks: a source that locks rows says so in a line `-- Locks:`, one that writes in
    `-- Writes:`."""
    code = re.sub(r"--.*", "", source)
    return [
        f"{what}, and its header has no line `-- {field}:`"
        for field, what, pattern in _FIELDS
        if pattern.search(code)
        and not re.search(rf"^-- (?:\w+, )*{field}(?:, \w+)*:", header, re.MULTILINE | re.IGNORECASE)
    ]


def main() -> int:
    """Says what is wrong; 1 if anything is."""
    found = [
        problem
        for path in [*sorted(SQL.glob("functions/*/*.sql")), SQL / "views.sql", SQL / "rights.sql"]
        for problem in problems(path)
    ]
    for folder in DONE:
        found += [problem for path in sorted(SQL.glob(f"functions/{folder}/*.sql")) for problem in form_problems(path)]
    for path in sorted(SQL.glob("templates/**/*.sql")):
        found += problems(path) + template_problems(path)
    for problem in found:
        print(problem)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
