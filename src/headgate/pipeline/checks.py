"""What can be known to be wrong before Spark starts, which takes seconds, and before anything is made.

A table that a mistyped pipeline has made would be that pipeline's: the one that is put right would be refused.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import InvalidArgument, StreamNotFound
from ..lake.secrets import Secret
from ..lake.storage import Location, location_of
from ..lake.table import LakeTable, existing, find, schema_of
from ..spark.keys import check_names, pattern
from ..sync import Headgate
from .ddl import check_schema_text
from .kinds import archive, latest
from .sinks.table import check_schema, table
from .spec import Archive, Latest, Pipeline, Replay, Report, Transform
from .times import parse_time

BEFORE = ("beginning", "latest")  # where a stream can always be started


def check(pipeline: Pipeline, hg: Headgate, directory: Path) -> None:
    """An error when the pipeline cannot run as it is declared."""
    _writable(directory, "checkpoint")
    match pipeline:
        case Archive():
            _reads(pipeline, hg, begun=find(location_of(pipeline.to)) is not None)
            archive.columns(pipeline)
            _target(LakeTable(
                location_of(pipeline.to), NOTHING, pipeline.partition_by, stream=pipeline.stream, pipeline=pipeline.name
            ))  # fmt: skip
        case Latest():
            found = find(location_of(pipeline.to))
            _reads(pipeline, hg, begun=found is not None)
            cut = latest.partitions(found)
            _target(LakeTable(location_of(pipeline.to), NOTHING, cut, stream=pipeline.stream, pipeline=pipeline.name))
        case Transform():
            _reads(pipeline, hg, begun=(directory / "checkpoint" / "offsets").exists())
            _transform(pipeline, hg)
        case Replay():
            stream_exists(hg, pipeline.stream)
            _replay(pipeline)
        case Report():
            for name in pipeline.streams or ():
                stream_exists(hg, name)
            parse_time(pipeline.since, "since")
            parse_time(pipeline.until, "until")
            _writable(Path(pipeline.to).expanduser().absolute().parent, "to")


NOTHING = pa.schema([])


def stream_exists(hg: Headgate, name: str) -> None:
    """An error when there is no such stream; it names those that may have been meant."""
    try:
        hg.stream(name).info()
    except StreamNotFound:
        known = [s.name for s in hg.insights.streams()]
        raise StreamNotFound(f'stream "{name}" does not exist', hint=meant(name, known)) from None


def meant(name: str, known: Sequence[str]) -> str:
    """What to do about a stream that is not there."""
    close = difflib.get_close_matches(name, known, 3, 0.7)
    if close:
        return "is it " + " or ".join(f'"{each}"' for each in close) + "?"
    return f"make it: `headgate stream add {name}`; `headgate stream list` shows those that there are"


def replayable(pipeline: Replay, table: Location, columns: pa.Schema) -> None:
    """An error when a replay needs a column that the table has not."""
    for name in ("seq", "data", *(["key"] if pipeline.keys or pipeline.new_keys else [])):
        if name not in columns.names:
            raise InvalidArgument(
                f"the table at {table.uri} has no column {name}",
                hint="a table that a pipeline of kind archive wrote has all that is needed",
            )


def function(given: str) -> Any:
    """The function that module:function names."""
    module, _, name = given.partition(":")
    try:
        return getattr(importlib.import_module(module), name or "transform")
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"{given} cannot be found: {error}", hint="write module:function") from error


def _reads(pipeline: Archive | Latest | Transform, hg: Headgate, *, begun: bool) -> None:
    """What is read: the stream, its keys, the columns of data, and where the first run starts."""
    stream_exists(hg, pipeline.stream)
    if pipeline.schema is not None:
        check_schema_text(pipeline.schema)
    if pipeline.filter:
        pattern(pipeline.filter)
    if not begun and pipeline.start not in BEFORE:
        hg.run("select headgate.mark(%s, %s)", (pipeline.stream, pipeline.start))


def _target(lake: LakeTable) -> None:
    """The table that is written: another pipeline's is not, and one that is not there can be made."""
    found = find(lake.location)
    if found is not None:
        lake.check_owner(found)
    elif lake.location.local:
        _writable(Path(lake.location.uri), "to")


def _transform(pipeline: Transform, hg: Headgate) -> None:
    if pipeline.python is not None:
        function(pipeline.python)
    if pipeline.to_stream is not None:
        stream_exists(hg, pipeline.to_stream)
    elif pipeline.to_lake is not None:
        where = location_of(pipeline.to_lake)
        if find(where) is None and where.local:
            _writable(Path(where.uri), "to_lake")
    elif pipeline.to_table is not None:
        check_schema(table(Secret(hg.url), pipeline.to_table, pipeline.table_keys))


def _replay(pipeline: Replay) -> None:
    where = location_of(pipeline.source)
    replayable(pipeline, where, schema_of(existing(where)))
    parse_time(pipeline.since, "since")
    parse_time(pipeline.until, "until")
    if pipeline.keys:
        pattern(pipeline.keys)
    check_names(pipeline.new_keys or {})


def _writable(path: Path, setting: str) -> None:
    """An error when a directory is not there and cannot be made."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        problem = "is not a directory" if not there.is_dir() else "may not be written to"
        raise InvalidArgument(f"{setting} is {path}, and {there} {problem}", hint="choose another place")
