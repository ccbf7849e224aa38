"""Pipelines as they are declared: one TOML file each."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..errors import InvalidArgument

Name = Annotated[
    str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="letters, digits, _, - and .")
]
Period = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,4} (hour|day)s?$", description="for instance 7 days")]
SECONDS = re.compile(r"^every (\d+) (second|minute|hour|day)s?$")


class Pipeline(
    msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, tag_field="kind", omit_defaults=True
):
    """What every pipeline has."""

    name: Name
    """What it is called: in `headgate pipeline status`, and to tell its batches from those of others."""
    run: str = "once"
    """once (what is there now), continuous, or an interval: "every 5 minutes"."""
    checkpoint: str | None = None
    """Where its progress is kept; default: .headgate/pipelines/<name>."""
    rows_per_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """At most so many rows in one batch."""

    @property
    def kind(self) -> str:
        """The kind of pipeline."""
        return str(self.__struct_config__.tag)

    @property
    def trigger(self) -> dict[str, Any]:
        """When batches run, as Spark's `trigger` takes it."""
        if self.run == "once":
            return {"availableNow": True}
        if self.run == "continuous":
            return {"processingTime": "0 seconds"}
        return {"processingTime": self.run.removeprefix("every ")}


class Archive(Pipeline, tag="archive", kw_only=True, frozen=True, omit_defaults=True):
    """A stream to a Delta table."""

    stream: str
    """The stream that is read."""
    to: str
    """The table: a directory, or a URL such as s3://bucket/orders."""
    partition_by: list[str] = msgspec.field(default_factory=lambda: ["date", "hour"])
    """date and hour of created_at, or a column of the message."""
    filter: list[str] | None = None
    """Only these keys, as consumers filter them: orders.*.created, orders.>"""
    start: str = "beginning"
    """Where the first run starts: beginning, latest, a seq, a tick (tick:7), or a time."""
    schema: str | None = None
    """Columns with types, of fields of the JSON in data: id long, total double. data itself is always kept."""
    infer: bool = False
    """Whether fields of the JSON in data become columns by themselves: new ones are added, and types widened."""
    compact: bool = True
    """Whether small files are put together."""
    keep_files: Period = "7 days"
    """How long files stay that newer versions of the table do not need: readers of older ones have so much time."""
    skip_removed: bool = False
    """Whether to go on when retention removed messages before they were read; otherwise it fails and says so."""


class Replay(Pipeline, tag="replay", kw_only=True, frozen=True, omit_defaults=True):
    """A Delta table to a stream."""

    source: str
    """The table of an archive: a directory, or a URL."""
    stream: str
    """The stream that is written."""
    since: str | None = None
    """Messages from this time on (of created_at; UTC if no zone is said)."""
    until: str | None = None
    """Messages before this time."""
    keys: list[str] | None = None
    """Key filters, as consumers have them."""
    where: str | None = None
    """A condition in SQL over the columns of the table."""
    rate: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """At most so many messages a second."""
    key: str | None = None
    """The new key, in SQL; default: the old one."""
    new_keys: dict[str, str] | None = None
    """New keys for old ones: "orders.a" = "orders.b", or all below a beginning: "old.>" = "new.>"."""


class Transform(Pipeline, tag="transform", kw_only=True, frozen=True, omit_defaults=True):
    """A stream to another stream, a table of PostgreSQL, or a Delta table."""

    stream: str
    """The stream that is read."""
    to_stream: str | None = None
    """The stream that is written."""
    to_table: str | None = None
    """A table of PostgreSQL, in the same database: schema.table. It is made if it is not there."""
    table_keys: list[str] | None = None
    """Columns of to_table by which a row takes the place of an older one; without them rows are added."""
    to_lake: str | None = None
    """A Delta table: a directory, or a URL."""
    sql: str | None = None
    """A query over `messages`, in which `data` is decoded if there is a schema."""
    python: str | None = None
    """module:function, which is given a DataFrame and returns one."""
    schema: str | None = None
    """Of the JSON in data, for instance: id long, total double."""
    filter: list[str] | None = None
    """Only these keys, as consumers filter them: orders.*.created, orders.>"""
    start: str = "beginning"
    """Where the first run starts: beginning, latest, a seq, a tick (tick:7), or a time."""
    skip_removed: bool = False
    """Whether to go on when retention removed messages before they were read; otherwise it fails and says so."""


class Latest(Pipeline, tag="latest", kw_only=True, frozen=True, omit_defaults=True):
    """The latest message of each key, as a Delta table."""

    stream: str
    """The stream that is read."""
    to: str
    """The table: a directory, or a URL."""
    filter: list[str] | None = None
    """Only these keys, as consumers filter them: orders.*.created, orders.>"""
    start: str = "beginning"
    """Where the first run starts: beginning, latest, a seq, a tick (tick:7), or a time."""
    skip_removed: bool = False
    """Whether to go on when retention removed messages before they were read; otherwise it fails and says so."""
    schema: str | None = None
    """Of the JSON in data, which then is a structure and not text."""
    buckets: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """In how many parts the table is kept, by a hash of the key: as many tasks merge at once. Default: 16."""
    keep_files: Period = "7 days"
    """How long files stay that newer versions of the table do not need: readers of older ones have so much time."""


class Report(Pipeline, tag="report", kw_only=True, frozen=True, omit_defaults=True):
    """Volumes, sizes, latencies, retries and dead letters by stream, channel and hour, as HTML."""

    streams: list[str] | None = None
    """Which streams; default: all."""
    to: str
    """The HTML file."""
    since: str | None = None
    """From this time on."""
    until: str | None = None
    """Before this time."""
    history: bool = False
    """Whether what archives have is counted as well, of streams that have one."""


AnyPipeline = Archive | Replay | Transform | Latest | Report
KINDS: dict[str, type[Pipeline]] = {
    "archive": Archive, "replay": Replay, "transform": Transform, "latest": Latest, "report": Report,
}  # fmt: skip


def load(path: Path) -> AnyPipeline:
    """The pipeline in a file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"the pipeline cannot be read: {error}", hint="`headgate pipeline new` writes one"
        ) from error
    return parse(text, path.name)


def parse(text: str, where: str = "the pipeline") -> AnyPipeline:
    """The pipeline in a TOML text. An error says what is wrong and where."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{where} is not TOML: {error}", hint="https://toml.io") from error
    if raw.get("kind") not in KINDS:
        raise InvalidArgument(f"{where}: kind is {raw.get('kind')!r}", hint="kind is one of " + ", ".join(KINDS))
    try:
        found = msgspec.convert(raw, AnyPipeline)
    except msgspec.ValidationError as error:
        names = ", ".join(["kind", *(f.name for f in msgspec.structs.fields(KINDS[raw["kind"]]))])
        raise InvalidArgument(f"{where}: {error}", hint=f"a pipeline of kind {raw['kind']} has {names}") from error
    return _sensible(found, where)


def resolved(pipeline: Pipeline) -> dict[str, Any]:
    """All settings of a pipeline, with those that it leaves to their defaults."""
    found = {name: getattr(pipeline, name) for name in pipeline.__struct_fields__}
    if found["checkpoint"] is None:
        found["checkpoint"] = f".headgate/pipelines/{pipeline.name}"
    return {"kind": pipeline.kind, **found}


def schema() -> dict[str, Any]:
    """The JSON schema of a pipeline's file."""
    made: dict[str, Any] = msgspec.json.schema(AnyPipeline)
    for kind in KINDS.values():
        for name, text in meanings(kind).items():
            made["$defs"][kind.__name__]["properties"][name].setdefault("description", text)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Headgate pipeline",
        **made,
    }


def meanings(kind: type[Pipeline]) -> dict[str, str]:
    """What the settings of a kind mean: the docstrings below them."""
    found: dict[str, str] = {}
    for each in (Pipeline, kind):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in itertools.pairwise(body.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    found[name] = meaning
    return {name: text for name, text in found.items() if name in kind.__struct_fields__}


def _sensible(found: AnyPipeline, where: str) -> AnyPipeline:
    every = SECONDS.match(found.run)
    if found.run not in ("once", "continuous") and (every is None or int(every[1]) == 0):
        raise InvalidArgument(
            f'{where}: run is "{found.run}"', hint='run is once, continuous, or for instance "every 5 minutes"'
        )
    if isinstance(found, Replay):
        if found.run != "once":
            raise InvalidArgument(
                f"{where}: a replay has an end, so it runs once", hint="leave run out; rate makes a replay slower"
            )
        if found.key is not None and found.new_keys is not None:
            raise InvalidArgument(f"{where}: which key is meant is not clear", hint="give one of key and new_keys")
    if isinstance(found, Report) and found.run != "once":
        raise InvalidArgument(f"{where}: a report runs once", hint="leave run out, and start it as often as you like")
    if isinstance(found, Transform):
        if sum(x is not None for x in (found.to_stream, found.to_table, found.to_lake)) != 1:
            raise InvalidArgument(
                f"{where}: where the result goes is not clear", hint="give one of to_stream, to_table and to_lake"
            )
        if found.table_keys and found.to_table is None:
            raise InvalidArgument(f"{where}: table_keys says nothing without to_table", hint="leave it out")
        if (found.sql is None) == (found.python is None):
            raise InvalidArgument(f"{where}: what is done is not clear", hint="give one of sql and python")
    return found
