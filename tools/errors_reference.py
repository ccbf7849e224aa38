"""The reference of errors, docs/errors.md: classes, SQLSTATEs, HTTP statuses and exit codes, from the program."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from headgate import errors, server
from headgate.cli.exit_codes import MEANINGS, code_of
from headgate.server.http.errors import problem

HEAD = """\
# Errors

<!-- Generated from the program by `make docs`: do not edit. -->

Every error has a message and a hint that says what to do. In Python they are classes under `headgate.Error`, with
`.message` and `.hint`; in SQL an SQLSTATE of class `HG` with a HINT; over HTTP a status and a code; in the shell a line
on stderr, then `hint:`, and an exit code. Programs look at the class, SQLSTATE or code, never at the text. Hints are in
the caller's words: Python, SQL, paths and fields of HTTP, or commands. When a stream or consumer is not there, those
with names close to it are named (`.similar` in Python), if the caller may list them; over HTTP those that the token may
use.

| Python | SQLSTATE | HTTP | code | exit | meaning |
|---|---|---|---|---|---|
"""

OTHER = """
`Conflict`, `ConnectionFailed`, `InvalidText`, `InvalidArgument` and `SchemaMissing` also stand for SQLSTATEs of
PostgreSQL's own: 40001, 40P01 and 55P03 are a `Conflict`; class 08, 57P01 to 57P03 and 53300 a `ConnectionFailed`;
22021 and 22P05 an `InvalidText`; 22003, 22007, 22008, 22023, 22P02 and 23502 an `InvalidArgument`; 3F000, 42P01 and
42883 a `SchemaMissing`. Other errors of the driver pass through as they are.

**What to repeat.** `Conflict` and `ConnectionFailed`: the call, after a moment. A send that is repeated wants an
`id`, so that it cannot happen twice. Everything else comes again until what the hint says is done.

**A stream that is dropped while others use it.** In Python and over HTTP they get `StreamNotFound`, or go on when it
was made again; inside a transaction of their own, `StreamNotFound`, or a `Conflict` when it was made again. A plain SQL
call that is under way at that moment may fail with 42P01, 42883, 23503 or XX000 instead of HG001: it has done nothing,
and can be repeated.

## Over HTTP

Besides the codes above:

| status | code | when |
|---|---|---|
"""

EXITS = """
## Exit codes of the command line

| code | meaning |
|---|---|
"""


def classes() -> list[type[errors.Error]]:
    """All error classes, the base first, in the order they are written."""
    return [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.Error)]


# What only clients over HTTP raise: the answers that it stands for.
OF_CLIENTS = {errors.NotOverHttp: " | ", errors.ServerBusy: "429 | `busy`, `rate_limited`, `too_many_waiting`"}


def problems() -> dict[str, tuple[int, str]]:
    """The codes that the HTTP server has of its own: status and message, as they stand in its source."""
    found: dict[str, tuple[int, str]] = {}
    files = Path(str(server.__file__)).parent.rglob("*.py")
    for file in sorted(files, key=lambda f: (f.parent.name != "http", f)):  # what holds for every route first
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                status, code, message = (*node.args[:3], None, None, None)[:3]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant) and message is not None:
                    found.setdefault(str(code.value), (int(str(status.value)), _text(message)))
    return found


def page() -> str:
    """The reference."""
    parts = [HEAD]
    for cls in classes():
        if cls is errors.Error:
            continue
        answer = problem(cls("", hint=""))
        state = f"`{cls.sqlstate}`" if cls.sqlstate else ""
        over_http = OF_CLIENTS.get(cls, f"{answer.status} | `{answer.code}`")
        parts.append(
            f"| `{cls.__name__}` | {state} | {over_http} | {code_of(cls(''))} "
            f"| {' '.join((cls.__doc__ or '').split())} |\n"
        )
    parts.append(OTHER)
    for code, (status, message) in sorted(problems().items(), key=lambda item: (item[1][0], item[0])):
        parts.append(f"| {status} | `{code}` | {message} |\n")
    parts.append(EXITS)
    parts += [f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items()]
    return "".join(parts)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return "the message says what"
