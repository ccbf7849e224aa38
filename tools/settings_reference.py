"""The reference of settings, docs/settings.md: options of streams, consumers and the server, with defaults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import click

import sql_reference
from headgate.cli import app
from headgate.server.settings import Settings as ServerSettings
from headgate.settings import CONSUMER, STREAM, Settings, http_field

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

STREAM_HEAD = """
## Streams

`headgate.create_stream(name, …)`, `hg.stream(name, create=True, …)`, `POST /api/streams`, `headgate stream add`.
Those marked with ✎ can be changed later: `alter_stream`, `stream.alter(…)`, `PATCH`, `headgate stream edit`; the
number of lanes by `set_lanes`.
"""

CONSUMER_HEAD = """
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


def arguments(function: str) -> list[str]:
    """The names of the optional arguments of an SQL function, in their order."""
    signature = sql_reference.headers()[function][1]
    return re.findall(r'"?(\w+)"? [\w\[\]]+ default ', signature)


def page() -> str:
    """The reference."""
    settings = [f"| `{f.name}` | `{f.default!r}` |\n" for f in dataclasses.fields(ServerSettings)]
    return "".join(
        [
            HEAD, STREAM_HEAD, TABLE, *_rows("stream", STREAM),
            CONSUMER_HEAD, TABLE, *_rows("consumer", CONSUMER),
            SERVER, *settings, ENVIRONMENT,
        ]
    )  # fmt: skip


def _rows(noun: str, settings: Settings) -> Iterator[str]:
    group = app.load().commands[noun]
    assert isinstance(group, click.Group)
    leave = next(p for p in group.commands["add"].params if p.name == "if_not_exists")
    assert isinstance(leave, click.Option)
    for name in arguments(f"create_{noun}"):  # in SQL's order
        if name == "if_not_exists":
            field, option, mark, default = name, "if-not-exists", "", "false"
            meaning = f"{leave.help} In Python `exist_ok`, which is true by default."
        else:
            row = settings[name]
            default = row.default or ""
            field, option, mark = http_field(name), name.replace("_", "-"), "" if row.fixed else " ✎"
            option = "push-url" if row.kind == "push" else option  # it has several
            meaning = row.help.replace("|", "\\|")
        shown = f"`{default}`" if default else "none"
        yield f"| `{name}`{mark} | {shown} | `{field}` | `--{option}` | {meaning} |\n"
