"""Running a pipeline, and saying how far it is."""

from __future__ import annotations

import datetime
import importlib
import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import AnalysisException

from ..errors import Error, InvalidArgument
from ..lake.secrets import Secret, keep_secret
from ..lake.storage import Location, location_of
from ..sync import Headgate
from .spec import Pipeline

NOTE_EVERY = 5.0  # seconds between two notes of a pipeline that has nothing new to say


@dataclass(frozen=True)
class Progress:
    """How far a pipeline is: after a batch, or after a step of work that has no batches."""

    batch: int = 0
    rows: int = 0
    """In this batch."""
    total: int = 0
    """Since this run began."""
    rate: float = 0
    """Rows a second, of this batch."""
    lag: int | None = None
    """Messages still to be read."""
    note: str | None = None
    behind: float | None = None
    """Seconds for which the first of them has been there."""
    files: int | None = None
    """Of the table that is written."""
    committed_at: str | None = None
    """When the batch was done; a time with its zone, as text."""
    next_run: str | None = None
    """When it looks again, if it waits."""


@dataclass
class Job:
    """What a kind of pipeline works with."""

    spark: Any
    hg: Headgate
    url: Secret
    directory: Path
    """Where this pipeline keeps its checkpoint and other things of its own."""
    say: Callable[[Progress], None]
    stopping: Callable[[], bool] = field(default=lambda: False)
    alive: Callable[[], None] = field(default=lambda: None)
    """To be called now and then while there is nothing to say."""
    waiting: Callable[[float], None] = field(default=lambda _: None)
    """To be called before a wait of so many seconds."""

    def source(self, stream: str, **options: Any) -> Any:
        """A streaming DataFrame of a stream's messages."""
        chosen = {name: str(value) for name, value in options.items() if value is not None}
        return self.spark.readStream.format("headgate").options(url=self.url, stream=stream, **chosen).load()

    def location(self, given: str) -> Location:
        """The place of a table that a directory or a URL names."""
        found = location_of(given)
        return found if found.local else replace(found, credentials=keep_secret(self.spark, found.credentials))

    def lag(self, stream: str, mark: dict[str, Any]) -> dict[str, Any]:
        """How far behind a reader at a mark is: a part of Progress."""
        call = "select messages, seconds from headgate.reading_lag(%s, %s)"
        ((messages, seconds),) = self.hg.run(call, (stream, msgspec.json.encode(mark).decode()))
        return {"lag": int(messages), "behind": round(float(seconds), 1)}


def run(
    pipeline: Pipeline,
    hg: Headgate,
    spark: Any,
    *,
    say: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    directory: Path | None = None,
) -> Progress:
    """Runs a pipeline until it is done, or told to stop; returns how far it came.

    `spark` is a session, or a function that starts one: it is called once all else is known to be right.
    """
    where = directory or Path(pipeline.checkpoint or Path(".headgate") / "pipelines" / pipeline.name)
    where = where.absolute()  # a Spark Connect server has another working directory
    notes = _StatusWriter(pipeline, hg)

    def tell(progress: Progress) -> None:
        notes.say(progress)
        say(progress)

    # they import this module
    kind, checks = (importlib.import_module(f".{name}", __package__) for name in (f"kinds.{pipeline.kind}", "checks"))
    notes.note("running")
    try:
        checks.check(pipeline, hg, where)
        session = spark() if callable(spark) else spark
        job = Job(session, hg, keep_secret(session, hg.url), where, tell, stopping, notes.alive, notes.waiting)
        kind.run(pipeline, job)
    except Exception as error:
        if stopping() and not isinstance(error, Error):
            # the signal has ended Spark too (systemd sends it to all processes): what was under way is done next time
            notes.note("stopped")
            return notes.last
        notes.note("failed", _reason(error))
        if isinstance(error, Error):
            raise
        if isinstance(error, AnalysisException):
            raise InvalidArgument(
                f"{pipeline.name}: {_reason(error)}", hint="what is written in SQL does not fit: is every name right?"
            ) from error
        raise Error(
            f"the pipeline {pipeline.name} failed: {_reason(error)}", hint="run it again: it goes on where it stopped"
        ) from error
    notes.last = replace(notes.last, next_run=None)
    notes.note("stopped" if stopping() else "done")
    return notes.last


def follow(query: Any, job: Job, stream: str | None = None) -> None:
    """Watches a streaming query until it ends or is to be stopped, and says what each batch did."""
    total, last = 0, -1
    while True:
        active = query.isActive
        for batch in [p for p in query.recentProgress if p["batchId"] > last]:
            last = batch["batchId"]
            rows = sum(source["numInputRows"] for source in batch["sources"])  # Spark Connect has no total
            total += rows
            seconds = max(batch["durationMs"].get("triggerExecution", 0), 1) / 1000
            end = batch["sources"][0].get("endOffset") if batch["sources"] else None
            if isinstance(end, str):
                end = msgspec.json.decode(end)
            lag = job.lag(stream, end) if stream is not None and isinstance(end, dict) else {}
            job.say(Progress(last, rows, total, rows / seconds, committed_at=now(), **lag))
        if not active:
            break
        if job.stopping():
            query.stop()
        query.awaitTermination(0.2)
        job.alive()
    error = query.exception()
    if error is not None:
        raise error


class _StatusWriter:
    """What is written down for `headgate pipeline status`."""

    def __init__(self, pipeline: Pipeline, hg: Headgate) -> None:
        self._pipeline = pipeline
        self._hg = hg
        self._process = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:8]}"
        self._spec = msgspec.json.encode(pipeline).decode()
        self.last = Progress()
        self._noted = 0.0

    def say(self, progress: Progress) -> None:
        """Notes progress, though not more often than is useful."""
        self.last = progress
        if time.monotonic() > self._noted + 0.5:
            self.note("running")

    def alive(self) -> None:
        """Notes that the pipeline is there, when it has not said so for a while."""
        if time.monotonic() > self._noted + NOTE_EVERY:
            self.note("running")

    def waiting(self, seconds: float) -> None:
        """Notes when it goes on."""
        self.last = replace(self.last, next_run=now(seconds))
        self.note("running")

    def note(self, state: str, error: str | None = None) -> None:
        """Notes the state."""
        self._noted = time.monotonic()
        progress = msgspec.json.encode(msgspec.to_builtins(self.last)).decode()
        self._hg.run(
            "select headgate.note_pipeline(%s, %s, %s, %s, %s, %s, %s)",
            (self._pipeline.name, self._pipeline.kind, state, self._process, self._spec, progress, error),
        )


def now(ahead: float = 0) -> str:
    """The time, or that in some seconds."""
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead)).isoformat(timespec="seconds")


def _reason(error: BaseException) -> str:
    """The cause, without the stack traces of Java that PySpark's errors are full of."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("headgate.errors.")]
    if said:
        return said[-1].partition(": ")[2] or said[-1]
    raised = [line for line in lines if re.match(r"(?!java|org|scala)[\w.]*(Error|Exception): ", line)]
    return ([*raised[-1:], *lines, type(error).__name__])[0][:500]
