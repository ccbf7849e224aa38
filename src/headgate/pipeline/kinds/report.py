"""report: what went through streams, by channel and time, as one HTML file.

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

from ...errors import InvalidArgument
from ...lake.table import files_of, find
from ..report.units import ORIGIN, Buckets, buckets
from ..run import Job, Progress
from ..spec import Report
from ..times import parse_time

PERCENTILES = (0.5, 0.95, 0.99)
ALL, ALL_CHANNELS = 3, 1  # what Spark's grouping_id() says of a sum of everything, and of one bucket
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
select date_bin(make_interval(secs => %s), at, '1970-01-05 00:00+00'), consumer, channel, count(*),
       avg((attempt > 1)::int)::float8,
       percentile_cont(array[0.5, 0.95, 0.99]) within group (order by waited + handled),
       percentile_cont(array[0.5, 0.95, 0.99]) within group (order by handled)
  from headgate.timings
 where stream = %s and at >= coalesce(%s::text::timestamptz, '-infinity')
   and at < coalesce(%s::text::timestamptz, 'infinity')
 group by 1, 2, 3 order by 1, 2, 3
"""
# about when the first and the last message were sent, by seq, which needs no scan; and when the last one was worked on:
# a backlog may be worked off long after
BOUNDS = """
select (select created_at from headgate."{log}" order by seq limit 1),
       (select created_at from headgate."{log}" order by seq desc limit 1),
       (select max(at) from headgate.timings where stream = %s)
"""
WAITING = """
select consumer, count(*) filter (where attempt > 0), coalesce(max(attempt), 0), count(*)
  from headgate.parked_messages where stream = %s group by consumer order by consumer
"""


@dataclass(frozen=True)
class Volume:
    """What came in some time, or from one channel. Sizes are bytes of data."""

    messages: int
    bytes: int
    sizes: tuple[float, ...]
    largest: int
    keys: int
    """About how many there were."""


NOTHING = Volume(0, 0, (0.0, 0.0, 0.0), 0, 0)


@dataclass(frozen=True)
class FailedMessages:
    """Dead letters of one consumer, channel and reason in one bucket. Ages are seconds from sending to giving up."""

    at: datetime
    consumer: str
    channel: str | None
    reason: str
    messages: int
    attempts: float
    ages: tuple[float, ...]


@dataclass(frozen=True)
class Timed:
    """Samples of one consumer and channel in one bucket, in seconds: from sending to the end of the work; the work."""

    at: datetime
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
class ReportFigures:
    """All that is known of one stream."""

    stream: str
    total: Volume = NOTHING
    buckets: dict[datetime, Volume] = field(default_factory=dict)
    channels: dict[tuple[datetime, str | None], Volume] = field(default_factory=dict)
    failed: list[FailedMessages] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    consumers: list[Moment] = field(default_factory=list)
    history: bool = False

    @property
    def lag(self) -> int | None:
        """That of the consumer which is furthest behind."""
        return max((c.lag for c in self.consumers), default=None)

    @property
    def dead(self) -> int:
        """Dead letters."""
        return sum(f.messages for f in self.failed)


def run(pipeline: Report, job: Job) -> None:
    """Counts, and writes the file."""
    from ..report.page import page

    known = {s.name: s for s in job.hg.insights.streams()}
    chosen = pipeline.streams or [name for name, info in known.items() if info.dead_of is None]
    archived = {name: pipeline.history and bool(job.hg.insights.archives(name)) for name in chosen}
    made = datetime.now(UTC)
    letters = {info.dead_of: name for name, info in known.items() if info.dead_of is not None}
    counted = {**archived, **{letters[name]: False for name in chosen if name in letters}}
    time_cut = buckets(*_bounds(pipeline, job, counted, made))
    found, total = [], 0
    for number, name in enumerate(chosen):
        if job.stopping():
            return
        began = time.monotonic()
        figures = ReportFigures(name, history=archived[name])
        _count(pipeline, job, figures, time_cut)
        dead = letters.get(name)
        figures.failed = _failed(pipeline, job, dead, time_cut) if dead is not None else []
        figures.timed = _timed(pipeline, job, name, time_cut)
        figures.consumers = _consumers(job, name)
        found.append(figures)
        rows = figures.total.messages + figures.dead
        total += rows
        job.say(Progress(number, rows, total, rows / max(time.monotonic() - began, 0.001), note=name))
    target = Path(pipeline.to).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(found, time_cut, made, pipeline.since, pipeline.until), "utf-8")
    except OSError as error:
        raise InvalidArgument(f"the report cannot be written: {error}", hint="`to` names an HTML file") from error


def _messages(pipeline: Report, job: Job, stream: str, columns: str, *, history: bool = False) -> Any:
    options: dict[str, Any] = {"url": job.url, "stream": stream, "columns": columns, "history": history}
    if pipeline.since is not None:
        options["start"] = pipeline.since
    if pipeline.until is not None:
        options["end"] = pipeline.until
    return job.spark.read.format("headgate").options(**options).load()


def _bounds(pipeline: Report, job: Job, streams: Mapping[str, bool], now: datetime) -> tuple[datetime, datetime]:
    """About the first and the last moment that is reported on: what is there, as far as it is asked for."""
    moments: list[datetime] = []
    for name, archived in streams.items():
        [known_times] = job.hg.run(BOUNDS.format(log=f"log_{name}"), (name,))
        moments += [at for at in known_times if at is not None]
        for known in job.hg.insights.archives(name) if archived else ():
            table = find(job.location(known.place))
            for file in files_of(table) if table is not None else ():
                moments += [at for at in (file.least.get("created_at"), file.greatest.get("created_at")) if at]
    since, until = parse_time(pipeline.since, "since"), parse_time(pipeline.until, "until")
    first, last = min(moments, default=now), max(moments, default=now)
    last = max(min(last, until or last), since or last)
    return min(max(first, since or first), last), last


def _bucket(column: Any, time: Buckets) -> Any:
    """The bucket that a time is in, as the seconds since 1970 at which it begins."""
    from pyspark.sql import functions as f

    step, origin = int(time.step.total_seconds()), int(ORIGIN.timestamp())
    return (f.floor((f.unix_timestamp(column) - origin) / step) * step + origin).cast("long")


def _count(pipeline: Report, job: Job, figures: ReportFigures, time: Buckets) -> None:
    """Counts messages in one pass: by bucket and channel, by bucket, and all."""
    from pyspark.sql import functions as f

    messages = _messages(pipeline, job, figures.stream, "key,channel,created_at,data", history=figures.history)
    size = f.octet_length("data")
    counted = (
        messages.withColumn("bucket", _bucket(f.col("created_at"), time))
        .rollup("bucket", "channel")
        .agg(
            f.grouping_id().alias("level"),
            f.count("*").alias("messages"),
            f.sum(size).alias("bytes"),
            f.percentile_approx(size, list(PERCENTILES)).alias("sizes"),
            f.max(size).alias("largest"),
            f.approx_count_distinct("key").alias("keys"),
        )
    )
    for r in counted.collect():
        if not r.messages:
            continue
        volume = Volume(r.messages, r.bytes, tuple(map(float, r.sizes)), r.largest, r.keys)
        if r.level == ALL:
            figures.total = volume
        elif r.level == ALL_CHANNELS:
            figures.buckets[_at(r.bucket)] = volume
        else:
            figures.channels[_at(r.bucket), r.channel] = volume


def _failed(pipeline: Report, job: Job, dead: str, time: Buckets) -> list[FailedMessages]:
    from pyspark.sql import functions as f

    letters = _messages(pipeline, job, dead, "headers").withColumn("h", f.from_json("headers", DEAD))
    # numbers and ids differ from one message to the next, the reason does not
    reason = f.regexp_replace(f.substring_index(f.coalesce("h.last_error", f.lit("")), "\n", 1), r"\d+", "#")
    age = f.col("h.failed_at").cast("double") - f.col("h.sent_at").cast("double")
    counted = letters.groupBy(
        _bucket(f.col("h.failed_at"), time).alias("bucket"),
        f.col("h.source_consumer").alias("consumer"),
        f.col("h.source_channel").alias("channel"),
        f.substring(reason, 1, 200).alias("reason"),
    ).agg(
        f.count("*").alias("messages"),
        f.avg("h.attempts").alias("attempts"),
        f.percentile_approx(age, list(PERCENTILES)).alias("ages"),
    )
    rows = [
        FailedMessages(
            _at(r.bucket), r.consumer or "", r.channel, r.reason, r.messages, r.attempts or 0, tuple(r.ages or ())
        )
        for r in counted.collect()
        if r.bucket is not None
    ]
    return sorted(rows, key=lambda r: (r.at, r.consumer, r.reason))


def _timed(pipeline: Report, job: Job, stream: str, time: Buckets) -> list[Timed]:
    rows = job.hg.run(TIMED, (time.step.total_seconds(), stream, pipeline.since, pipeline.until))
    return [
        Timed(
            at.astimezone(UTC),
            consumer,
            channel,
            samples,
            retried,
            tuple(map(float, taken)),
            tuple(map(float, handled)),
        )
        for at, consumer, channel, samples, retried, taken, handled in rows
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


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
