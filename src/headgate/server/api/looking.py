"""For people who look: everything at a glance, what is wrong, how it was, and what a step would do."""

from __future__ import annotations

from datetime import UTC, datetime

from ... import trouble
from ...database import statements
from ...types import ConsumerInfo, Finding, StreamInfo
from ..http.call import Call
from ..http.routing import Routes
from .answers import Consumer, Stream
from .answers_looking import Overview, Past, Pipeline, Position, SeekPreview, Segment, Totals, Troubled
from .answers_messages import Waiting
from .consumers import CONSUMER
from .requests_looking import DoctorQuery, HistoryQuery, KeyQuery, OverviewQuery, PositionQuery, SeekQuery

routes = Routes()


@routes.route("GET", "/api/overview", scope="monitor", query=OverviewQuery, answer=Overview)
async def get_overview(call: Call) -> Overview:
    """Streams and consumers, those in trouble first, and what they make together, as at `at`.

    That is a second ago, or, where looking takes long, up to sixty times as long.
    """
    q: OverviewQuery = call.query
    at, all_streams, all_consumers = await call.server.overview.get()
    streams = [s for s in all_streams if call.caller.may_use(s.name)]
    consumers = [c for c in all_consumers if call.caller.may_use(c[0].stream)]
    totals = Totals.of(streams, [c for c, _ in consumers])
    consumers = chosen(q, streams, consumers)
    if q.stream is not None:
        streams = [s for s in streams if s.name == q.stream]
    if q.search:
        wanted = q.search.lower()
        consumers = [c for c in consumers if wanted in f"{c[0].stream} {c[0].name}".lower()]
        streams = [s for s in streams if wanted in s.name.lower()]
    key = trouble_first if q.sort == "trouble" else ORDERS[q.sort]
    consumers = sorted(consumers, key=key)
    page, stream_page = consumers[q.after :], streams[q.after :]
    return Overview(
        at, totals,
        [Stream.of(s) for s in stream_page[: q.limit]], len(streams),
        [Troubled(Consumer.of(c), t.word, t.about, trouble.age(c, at)) for c, t in page[: q.limit]], len(consumers),
    )  # fmt: skip


Listed = tuple[ConsumerInfo, trouble.Trouble]


def chosen(q: OverviewQuery, streams: list[StreamInfo], consumers: list[Listed]) -> list[Listed]:
    """The consumers of the stream and of the kind that are asked for."""
    if q.stream is not None:
        consumers = [c for c in consumers if c[0].stream == q.stream]
    if q.only == "push":
        return [c for c in consumers if c[0].push]
    if q.only == "dead":
        return [c for c in consumers if c[0].dead]
    if q.only == "tenants":
        named = {s.name for s in streams if s.lane_by != "hash"}
        return [c for c in consumers if c[0].stream in named]
    return consumers


def trouble_first(found: Listed) -> tuple[object, ...]:
    """The worst first, then those with the most behind them."""
    info, what = found
    return what.rank, -info.lag, -info.dead, info.stream, info.name


ORDERS = {
    "name": lambda f: (f[0].stream, f[0].name),
    "lag": lambda f: (-f[0].lag, f[0].stream, f[0].name),
    "rate": lambda f: (-f[0].rate, f[0].stream, f[0].name),
    "dead": lambda f: (-f[0].dead, f[0].stream, f[0].name),
    "age": lambda f: (f[0].oldest_unacked or datetime.max.replace(tzinfo=UTC), f[0].stream, f[0].name),
}


@routes.route("GET", "/api/doctor", scope="monitor", everywhere=True, query=DoctorQuery, answer=list[Finding])
async def get_doctor(call: Call) -> list[Finding]:
    """What is wrong with the database and what to do about it, the worst first. At most some seconds old, unless it is
    said for how long things may last."""
    if call.query.patience_ms is None:
        return await call.server.findings.get()
    return await call.server.hg.doctor(call.query.patience_ms / 1000)


@routes.route("GET", "/api/pipelines", scope="monitor", everywhere=True, answer=list[Pipeline])
async def list_pipelines(call: Call) -> list[Pipeline]:
    """What pipelines last said of themselves."""
    return [Pipeline(*row) for row in await call.server.hg.run(statements.PIPELINES, ())]


@routes.route("GET", "/api/streams/{stream}/segments", scope="monitor", answer=list[Segment])
async def list_segments(call: Call) -> list[Segment]:
    """The segments of a stream's log, oldest first, and why closed ones are still kept."""
    found = await call.server.hg.insights.segments(call.stream)
    return [Segment.of(s) for s in found if s.state != "dropped"]


@routes.route("GET", "/api/history", scope="monitor", everywhere=True, query=HistoryQuery, answer=list[Past])
async def get_history(call: Call) -> list[Past]:
    """How all streams and consumers together were in the last hour or day, oldest first."""
    return await _past(call, None, None)


@routes.route("GET", "/api/streams/{stream}/history", scope="monitor", query=HistoryQuery, answer=list[Past])
async def get_stream_history(call: Call) -> list[Past]:
    """How a stream was in the last hour or day, oldest first."""
    return await _past(call, call.stream, None)


@routes.route("GET", CONSUMER + "/history", scope="monitor", query=HistoryQuery, answer=list[Past])
async def get_consumer_history(call: Call) -> list[Past]:
    """How a consumer was in the last hour or day, oldest first."""
    return await _past(call, call.stream, call.consumer)


async def _past(call: Call, stream: str | None, consumer: str | None) -> list[Past]:
    since = f"{call.query.minutes} minutes"
    return [Past(*row) for row in await call.server.histories.get(stream, consumer, since)]


@routes.route("GET", "/api/streams/{stream}/position", scope="monitor", query=PositionQuery, answer=Position)
async def get_position(call: Call) -> Position:
    """The first seq at a time, or at the beginning or the end."""
    [(seq,)] = await call.server.hg.run(statements.SEQ_AT, (call.stream, call.query.at))
    return Position(seq)


@routes.route("GET", CONSUMER + "/seek", scope="monitor", query=SeekQuery, answer=SeekPreview)
async def preview_seek(call: Call) -> SeekPreview:
    """What a seek would do, without doing it."""
    where = (call.stream, call.consumer, call.query.to)
    [row] = await call.server.hg.run(statements.SEEK_PREVIEW, where)
    return SeekPreview(*row)


@routes.route("GET", CONSUMER + "/keys/{key}", scope="monitor", query=KeyQuery, answer=list[Waiting])
async def list_waiting_of_key(call: Call) -> list[Waiting]:
    """The messages of a key that the consumer is not done with, oldest first: the first one holds the others up."""
    where = (call.stream, call.consumer, call.path["key"], call.query.limit)
    return [Waiting(*row) for row in await call.server.hg.run(statements.WAITING_OF_KEY, where)]
