"""report: what went through streams, by channel and hour, as one HTML file.

Counted by Spark over the messages that the streams still have (with `history` also over what their archives have),
their dead letters, and what is in flight and parked at this moment. Headgate keeps no record of messages that were
acked: how long those took is known as far as workers took samples (their option `timing`), and where they did not, the
report says so instead of guessing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, StreamNotFound
from .run import Job, Progress
from .spec import Report

PERCENTILES = (0.5, 0.95, 0.99)
REASONS = 20  # of dead letters, the most frequent

DEAD = """
failed_at timestamp, sent_at timestamp, attempts int, last_error string, source_consumer string, source_channel string
"""
# seconds that messages which are in flight now had waited for their delivery
IN_FLIGHT = """
select x.consumer, count(*),
       percentile_cont(array[0.5, 0.95, 0.99]) within group (order by extract(epoch from x.waited)),
       percentile_cont(array[0.5, 0.95, 0.99]) within group (order by extract(epoch from x.busy))
  from (select d.consumer, d.delivered_at - m.created_at as waited, clock_timestamp() - d.delivered_at as busy
          from headgate.deliveries d cross join unnest(d.seqs) s (seq) join headgate."{log}" m on m.seq = s.seq
         where d.stream = %s) x group by x.consumer
"""
TIMED = """
select date_trunc('hour', at at time zone 'utc'), consumer, channel, count(*), avg((attempt > 1)::int)::float8,
       percentile_cont(array[0.5, 0.95, 0.99]) within group (order by waited + handled),
       percentile_cont(array[0.5, 0.95, 0.99]) within group (order by handled)
  from headgate.timings
 where stream = %s and at >= coalesce(%s::text::timestamptz, '-infinity')
   and at < coalesce(%s::text::timestamptz, 'infinity')
 group by 1, 2, 3 order by 1, 2, 3
"""
WAITING = """
select consumer, count(*) filter (where attempt > 0), coalesce(max(attempt), 0), count(*)
  from headgate.parked_messages where stream = %s group by consumer order by consumer
"""


@dataclass(frozen=True)
class Hour:
    """What one channel got in one hour. Sizes are bytes of data."""

    hour: datetime
    channel: str | None
    messages: int
    bytes: int
    sizes: tuple[float, ...]
    largest: int


@dataclass(frozen=True)
class Failed:
    """Dead letters of one consumer, channel and reason in one hour. Ages are seconds from sending to giving up."""

    hour: datetime
    consumer: str
    channel: str | None
    reason: str
    messages: int
    attempts: float
    ages: tuple[float, ...]


@dataclass(frozen=True)
class Timed:
    """Samples of one consumer and channel in one hour, in seconds: from sending to the end of the work; the work."""

    hour: datetime
    consumer: str
    channel: str | None
    samples: int
    retried: float
    """The part that did not succeed at the first attempt."""
    taken: tuple[float, ...]
    handled: tuple[float, ...]


@dataclass(frozen=True)
class Moment:
    """A consumer at the moment of the report."""

    consumer: str
    lag: int
    in_flight: int
    waited: tuple[float, ...] | None
    """Seconds from sending to delivery, of what is in flight."""
    busy: tuple[float, ...] | None
    """Seconds since delivery, of what is in flight."""
    parked: int
    retried: int
    """Parked messages that failed before."""
    most_attempts: int
    dead: int
    lost: int


@dataclass
class Figures:
    """All that is known of one stream."""

    stream: str
    hours: list[Hour] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    consumers: list[Moment] = field(default_factory=list)
    history: bool = False

    @property
    def messages(self) -> int:
        """How many messages were counted."""
        return sum(h.messages for h in self.hours)


def run(pipeline: Report, job: Job) -> None:
    """Counts, and writes the file."""
    from .report_page import page

    known = {s.name: s for s in job.hg.insights.streams()}
    chosen = pipeline.streams or [name for name, info in known.items() if info.dead_of is None]
    for name in chosen:
        if name not in known:
            raise StreamNotFound(f'stream "{name}" does not exist', hint="`headgate stream list` shows them")
    found, total = [], 0
    for number, name in enumerate(chosen):
        if job.stopping():
            return
        began = time.monotonic()
        figures = Figures(name, history=pipeline.history and bool(job.hg.insights.archives(name)))
        figures.hours = _hours(pipeline, job, name, figures.history)
        dead = next((s.name for s in known.values() if s.dead_of == name), None)
        figures.failed = _failed(pipeline, job, dead) if dead is not None else []
        figures.timed = _timed(pipeline, job, name)
        figures.consumers = _consumers(job, name)
        found.append(figures)
        rows = figures.messages + sum(f.messages for f in figures.failed)
        total += rows
        job.say(Progress(number, rows, total, rows / max(time.monotonic() - began, 0.001), note=name))
    target = Path(pipeline.to).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(found, datetime.now(UTC), pipeline.since, pipeline.until), "utf-8")
    except OSError as error:
        raise InvalidArgument(f"the report cannot be written: {error}", hint="`to` names an HTML file") from error


def _messages(pipeline: Report, job: Job, stream: str, columns: str, *, history: bool = False) -> Any:
    options: dict[str, Any] = {"url": job.url, "stream": stream, "columns": columns, "history": history}
    if pipeline.since is not None:
        options["start"] = pipeline.since
    if pipeline.until is not None:
        options["end"] = pipeline.until
    return job.spark.read.format("headgate").options(**options).load()


def _hours(pipeline: Report, job: Job, stream: str, history: bool) -> list[Hour]:
    from pyspark.sql import functions as f

    messages = _messages(pipeline, job, stream, "channel,created_at,data", history=history)
    size = f.octet_length("data")
    counted = messages.groupBy(f.date_trunc("hour", "created_at").alias("hour"), "channel").agg(
        f.count("*").alias("messages"),
        f.sum(size).alias("bytes"),
        f.percentile_approx(size, list(PERCENTILES)).alias("sizes"),
        f.max(size).alias("largest"),
    )
    rows = [
        Hour(_utc(r.hour), r.channel, r.messages, r.bytes, tuple(map(float, r.sizes)), r.largest)
        for r in counted.collect()
    ]
    return sorted(rows, key=lambda h: (h.hour, h.channel or ""))


def _failed(pipeline: Report, job: Job, dead: str) -> list[Failed]:
    from pyspark.sql import functions as f

    letters = _messages(pipeline, job, dead, "headers").withColumn("h", f.from_json("headers", DEAD))
    # numbers and ids differ from one message to the next, the reason does not
    reason = f.regexp_replace(f.substring_index(f.coalesce("h.last_error", f.lit("")), "\n", 1), r"\d+", "#")
    age = f.col("h.failed_at").cast("double") - f.col("h.sent_at").cast("double")
    counted = letters.groupBy(
        f.date_trunc("hour", "h.failed_at").alias("hour"),
        f.col("h.source_consumer").alias("consumer"),
        f.col("h.source_channel").alias("channel"),
        f.substring(reason, 1, 200).alias("reason"),
    ).agg(
        f.count("*").alias("messages"),
        f.avg("h.attempts").alias("attempts"),
        f.percentile_approx(age, list(PERCENTILES)).alias("ages"),
    )
    rows = [
        Failed(_utc(r.hour), r.consumer or "", r.channel, r.reason, r.messages, r.attempts or 0, tuple(r.ages or ()))
        for r in counted.collect()
        if r.hour is not None
    ]
    return sorted(rows, key=lambda r: (r.hour, r.consumer, r.reason))


def _timed(pipeline: Report, job: Job, stream: str) -> list[Timed]:
    rows = job.hg.run(TIMED, (stream, pipeline.since, pipeline.until))
    return [
        Timed(_utc(hour), consumer, channel, samples, retried, tuple(map(float, taken)), tuple(map(float, handled)))
        for hour, consumer, channel, samples, retried, taken, handled in rows
    ]


def _consumers(job: Job, stream: str) -> list[Moment]:
    flying = _by_name(job.hg.run(IN_FLIGHT.format(log=f"log_{stream}"), (stream,)))
    parked = _by_name(job.hg.run(WAITING, (stream,)))
    found = []
    for c in job.hg.insights.consumers(stream):
        delivered, waiting = flying.get(c.name), parked.get(c.name)
        found.append(
            Moment(
                c.name, c.lag, c.in_flight,
                tuple(map(float, delivered[2])) if delivered else None,
                tuple(map(float, delivered[3])) if delivered else None,
                c.parked, waiting[1] if waiting else 0, waiting[2] if waiting else 0, c.dead, c.lost,
            )
        )  # fmt: skip
    return found


def _by_name(rows: Any) -> Mapping[str, Any]:
    return {row[0]: row for row in rows}


def _utc(hour: datetime) -> datetime:
    """A time as Spark gives it: without a zone, in that of the session."""
    return hour.replace(tzinfo=UTC) if hour.tzinfo is None else hour.astimezone(UTC)
