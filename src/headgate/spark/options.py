"""The options of `format("headgate")`, read from what the user gave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidArgument
from ..lake.secrets import Secret
from .messages import MESSAGE, STREAM

DATABASE = "HEADGATE_DATABASE_URL"
READING = ("url", "stream", "streams", "streamPattern", "start", "end", "filter", "columns", "tasks", "lanesPerTask",
           "rowsPerTask", "maxRowsPerTrigger", "failOnDataLoss", "pushFilters", "history", "archive")  # fmt: skip
WRITING = ("url", "stream", "writer", "batch", "checkpointLocation", "queryName", "path")


@dataclass(frozen=True)
class StreamTarget:
    """Which stream of which database."""

    url: Secret
    stream: str


@dataclass(frozen=True)
class ReadOptions:
    """What is read, and how."""

    target: StreamTarget
    start: str = "beginning"
    end: str = "latest"
    filter: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    tasks: int | None = None
    lanes_per_task: int | None = None
    rows_per_task: int | None = None
    """Lanes in which more is to be read are shared out by ranges of seqs: a key is then in several tasks."""
    max_rows: int | None = None
    fail_on_data_loss: bool = True
    push_filters: bool = False
    history: bool = False
    """Whether what an archive has is read as well, from the lake."""
    archive: str | None = None
    """Which one, when there are several."""
    streams: tuple[str, ...] | None = None
    """Several of them, each by its name ..."""
    pattern: tuple[str, ...] | None = None
    """... or all whose names pass: messages then also have a column `stream`."""

    @property
    def several(self) -> bool:
        """Whether more than one stream may be read."""
        return self.streams is not None or self.pattern is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, in their order."""
        return self.columns or ((STREAM.name,) if self.several else ()) + tuple(MESSAGE.names)


def target(options: Mapping[str, str], *, several: bool = False) -> StreamTarget:
    """The stream that the options name. The URL comes from the option, or from the environment of the driver."""
    url = options.get("url") or os.environ.get(DATABASE)
    if not url:
        raise InvalidArgument(
            "which database is meant is not known",
            hint=f'set {DATABASE} where the driver runs, or .option("url", "postgresql://…")',
        )
    stream = options.get("stream")
    if several:
        if stream:
            raise InvalidArgument("which stream is meant is not clear", hint="leave the option stream out")
        return StreamTarget(Secret(url), "")
    if not stream:
        raise InvalidArgument("which stream is meant is not known", hint='.option("stream", "orders")')
    return StreamTarget(Secret(url), stream)


def reading(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of a read."""
    _known(options, READING)
    columns, streams, pattern = _names(options, "columns"), _names(options, "streams"), _names(options, "streamPattern")
    several = streams is not None or pattern is not None
    there = [*((STREAM.name,) if several else ()), *MESSAGE.names]
    for name in columns or ():
        if name not in there:
            raise InvalidArgument(f'a message has no column "{name}"', hint="choose of " + ", ".join(there))
    if several and _yes(options, "history", False):
        raise InvalidArgument("the history of several streams is not read as one", hint="read each with its history")
    if streaming and "end" in options:
        raise InvalidArgument("a streaming read has no end", hint="leave the option end out, or use spark.read")
    return ReadOptions(
        target(options, several=several),
        start=options.get("start", "beginning"),
        end=options.get("end", "latest"),
        filter=_names(options, "filter"),
        columns=columns,
        tasks=_number(options, "tasks"),
        lanes_per_task=_number(options, "lanesPerTask"),
        rows_per_task=_number(options, "rowsPerTask"),
        max_rows=_number(options, "maxRowsPerTrigger"),
        fail_on_data_loss=_yes(options, "failOnDataLoss", True),
        push_filters=_yes(options, "pushFilters", False),
        history=_yes(options, "history", False),
        archive=options.get("archive"),
        streams=streams,
        pattern=pattern,
    )


def writing(options: Mapping[str, str]) -> StreamTarget:
    """The options of a write."""
    _known(options, WRITING)
    return target(options)


def _known(options: Mapping[str, str], names: tuple[str, ...]) -> None:
    lower = {name.lower() for name in names}
    for name in options:
        if name.lower() not in lower:
            raise InvalidArgument(f'the option "{name}" is not known', hint="the options are " + ", ".join(names))


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    given = options.get(name)
    return tuple(part.strip() for part in given.split(",")) if given else None


def _number(options: Mapping[str, str], name: str) -> int | None:
    given = options.get(name)
    if given is None:
        return None
    if not given.strip().isdigit() or int(given) < 1:
        raise InvalidArgument(f'the option {name} is a number from 1 on, not "{given}"', hint=f'.option("{name}", 4)')
    return int(given)


def _yes(options: Mapping[str, str], name: str, default: bool) -> bool:
    given = options.get(name)
    if given is None:
        return default
    if given.lower() not in ("true", "false"):
        raise InvalidArgument(f'the option {name} is true or false, not "{given}"', hint=f'.option("{name}", True)')
    return given.lower() == "true"
