"""The reference of settings, docs/settings.md: options of streams, consumers and the server, with defaults."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

import click
import msgspec

import headgate
import sql_reference
from headgate.cli import app
from headgate.database import schema
from headgate.server.api.requests import NewConsumer, NewStream
from headgate.server.settings import Settings

HEAD = """\
# Settings

<!-- Generated from the program by `make docs`: do not edit. -->

The same names in SQL, Python and HTTP (where lengths of time end in `_ms`); on the command line with dashes. In SQL
a length of time is an `interval`, in Python seconds or a `timedelta`, on the command line a number with a unit such
as `30s`. `none` as a default means: no limit, or as the text says.

A setting that is left out, or null, is not given. Where a stream or consumer of the name exists (`if_not_exists`, in
Python `create=True`), it stays as it is, and a setting that is given and is not its own is an error that names both
values: `SettingsDiffer`, SQLSTATE HG015, HTTP 409. `start` is where a new consumer begins, and is not compared.
"""

STREAM = """
## Streams

`headgate.create_stream(name, …)`, `hg.stream(name, create=True, …)`, `POST /api/streams`, `headgate stream add`.
Those marked with ✎ can be changed later: `alter_stream`, `stream.alter(…)`, `PATCH`, `headgate stream edit`; the
number of lanes by `set_lanes`.
"""

CONSUMER = """
## Consumers

`headgate.create_consumer(stream, name, …)`, `stream.consumer(name, create=True, …)`, `POST …/consumers`, `headgate
consumer add`. Those marked with ✎ can be changed later: `alter_consumer`, `consumer.alter(…)`, `PATCH`, `headgate
consumer edit`.
"""

SERVER = """
## The server

What `headgate up` runs with. `--host`, `--port`, `--no-auth` and `--database` change
the first four; the rest is as here.

| setting | default |
|---|---|
"""

ENVIRONMENT = """
## Environment variables

| variable | meaning |
|---|---|
| `HEADGATE_DATABASE_URL` | the command line's database (or HTTP server), unless `--database` or a context says it |
| `HEADGATE_TOKEN` | the token of the SDK and the command line for an HTTP server, where none is given |
| `HEADGATE_CONTEXT` | the context of the command line, as `--context` does |
| `HEADGATE_EMBEDDED_DIR` | the directory of the embedded PostgreSQL; `.headgate` by default |
"""

TABLE = "\n| setting | default | HTTP | command line | meaning |\n|---|---|---|---|---|\n"


def arguments(function: str) -> dict[str, str]:
    """The optional arguments of an SQL function and their defaults; of those that are null, what the function takes."""
    signature = sql_reference.headers()[function][1]
    found = re.findall(r'"?(\w+)"? [\w\[\]]+ default (\'[^\']*\'|[^,]+)', signature)
    body = (
        schema.functions_script()
        .partition(f"create or replace function headgate.{function}(")[2]
        .partition("\nend $$")[0]
    )
    taken = dict(re.findall(r'coalesce\((?:create_\w+\.)?"?(\w+)"?, (\'[^\']*\'|\w+)\)', body))
    return {name: taken.get(name, default).strip().strip("'") for name, default in found}


def page() -> str:
    """The reference."""
    settings = [f"| `{f.name}` | `{f.default!r}` |\n" for f in dataclasses.fields(Settings)]
    return "".join(
        [
            HEAD, STREAM, TABLE, *_rows("stream", NewStream, headgate.Headgate.stream),
            CONSUMER, TABLE, *_rows("consumer", NewConsumer, headgate.Stream.consumer),
            SERVER, *settings, ENVIRONMENT,
        ]
    )  # fmt: skip


def _rows(noun: str, body: type[msgspec.Struct], method: object) -> Iterator[str]:
    group = app.load().commands[noun]
    assert isinstance(group, click.Group)
    options = {p.name: p for p in group.commands["add"].params if isinstance(p, click.Option)}
    in_python = set(inspect.signature(method).parameters)  # type: ignore[arg-type]
    changeable = arguments(f"alter_{noun}")
    for name, default in arguments(f"create_{noun}").items():
        field = name if name in body.__struct_fields__ else f"{name}_ms"
        assert field in body.__struct_fields__, f"HTTP has no {name}"
        python = "exist_ok" if name == "if_not_exists" else name
        assert python in in_python, f"Python has no {name}"
        option = options.get(name) or next(o for n, o in options.items() if (n or "").startswith(name))  # push: several
        note = " In Python `exist_ok`, which is true by default." if name == "if_not_exists" else ""
        shown = {"null": "none"}.get(default, f"`{default}`")
        meaning = (option.help or "").replace("|", "\\|") + note
        mark = " ✎" if name in changeable else ""
        yield f"| `{name}`{mark} | {shown} | `{field}` | `{option.opts[0]}` | {meaning} |\n"
