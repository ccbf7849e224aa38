"""Pipelines to begin with: a commented file of each kind."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .spec import KINDS

COMMON = """\
# When it runs: "once" (what is there now), "continuous", or an interval.
# run = "every 5 minutes"
# At most so many rows in one batch.
# rows_per_batch = 100000
# Where it keeps what it needs to go on after a stop. Default: .headgate/pipelines/<name>
# checkpoint = "state/{name}"
"""

READING = """\
# Only these keys: * stands for one token, > at the end for one or more.
# filter = ["orders.*.created", "orders.eu.>"]
# Where the first run starts: beginning, latest, a seq, or a time. Later ones go on where the last one ended.
# start = "2026-01-01T00:00:00Z"
# Whether to go on when retention removed messages before they were read.
# skip_removed = true
"""

BODIES: Mapping[str, str] = {
    "archive": """\
stream = {stream}
# The Delta table: a directory, or a URL such as s3://bucket/orders (credentials come from the environment).
to = {to}
# How it is partitioned: date and hour of created_at (UTC), key, channel or lane.
# partition_by = ["date", "hour"]
# Columns with types, of fields of the JSON in data (which is always kept as well) ...
# schema = "id long, total double"
# ... or found in the data: new fields become new columns, and types widen. Those of schema stay as they are.
# infer = true
# Whether small files are put together.
# compact = true
# How long files stay that newer versions of the table do not need.
# keep_files = "1 day"
"""
    + READING,
    "replay": """\
# The Delta table of an archive.
source = {to}
# The stream that is written; make it before with `headgate stream add`.
stream = {stream}
# Messages from this time on, and before this one (UTC, if no zone is said).
# since = "2026-01-01"
# until = "2026-02-01T12:00:00Z"
# Only these keys, as consumers filter them.
# keys = ["orders.>"]
# Only rows for which this SQL holds: seq, key, data, headers, channel, lane, created_at, tick.
# where = "get_json_object(data, '$.total') > 100"
# At most so many messages a second.
# rate = 1000
# New keys, in SQL ...
# key = "concat('replayed.', key)"
# ... or by a map.
# new_keys = {{ "orders.>" = "replayed.>" }}
""",
    "transform": """\
stream = {stream}
# The JSON in data, so that SQL can use its fields.
schema = "id long, total double"
# A query over messages. A stream takes key, data, headers, channel and deliver_at; a table takes any columns.
sql = "select key, to_json(struct(data.id, data.total * 2 as total)) as data from messages where data.total > 0"
# Or a Python function, which is given a DataFrame and returns one.
# python = "my_module:my_function"
# Where the result goes: one of
to_stream = {to}
# to_table = "public.totals"
# table_keys = ["id"]
# to_lake = "lake/totals"
"""  # noqa: S608 - an example
    + READING,
    "latest": """\
stream = {stream}
# The Delta table: key, seq, data, headers, channel, created_at of the latest message of each key.
# A message whose data is empty or null removes its key.
to = {to}
# Data decoded by a schema instead of JSON as text.
# schema = "id long, total double"
# In how many parts the table is kept, by a hash of the key: as many tasks merge at once. It cannot be changed later.
# buckets = 64
# How long files stay that newer versions of the table do not need.
# keep_files = "1 day"
"""
    + READING,
    "report": """\
# The HTML file.
to = {to}
# Which streams. Default: all.
# streams = [{stream}]
# since = "2026-01-01"
# until = "2026-02-01"
# Count what archives have as well.
# history = true
""",
}
TARGETS = {
    "archive": "lake/{stream}", "replay": "lake/{stream}", "transform": "{stream}.changed",
    "latest": "lake/{stream}-latest", "report": "report.html",
}  # fmt: skip


def template(kind: str, name: str, stream: str, to: str | None = None) -> str:
    """A pipeline of a kind, with what can be said commented out."""
    to = to or TARGETS[kind].format(stream=stream)
    summary = (KINDS[kind].__doc__ or "").splitlines()[0]
    common = COMMON.format(name=name)
    if kind in ("replay", "report"):  # these have an end of their own, and no interval
        common = "\n".join(line for line in common.splitlines() if "run" not in line.partition("=")[0]) + "\n"
    head = f"# {summary} Run it with `headgate pipeline run`.\nkind = {_quoted(kind)}\nname = {_quoted(name)}\n"
    body = BODIES[kind].format(stream=_quoted(stream), to=_quoted(to))
    return f"{head}\n{body}\n{common}"


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # which is also a string of TOML
