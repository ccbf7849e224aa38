"""Everything at a glance, what is wrong, and pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ... import trouble
from ...database import statements
from ...types import ConsumerInfo, Finding, StreamInfo
from ..http.routing import Call, Routes
from .consumers import Consumer
from .fields import Body, Limit, Milliseconds, Name, Seq
from .streams import Stream

routes = Routes()


class OverviewQuery(Body):
    """Which streams and consumers: with this in their names, or of this stream; how many, after how many; sorted how.

    `only`: consumers that push, that have dead letters, or whose streams have lanes by key or channel (tenants).
    """

    search: Annotated[str, Meta(max_length=200)] | None = None
    stream: Name | None = None
    only: Literal["push", "dead", "tenants"] | None = None
    sort: Literal["trouble", "name", "lag", "age", "rate", "dead"] = "trouble"
    limit: Limit = 100
    after: Seq = 0


class Totals(Struct):
    """What streams and consumers make together. Rates are messages a second, sent and first delivered."""

    streams: int
    consumers: int
    sent: float
    delivered: float
    lag: int
    in_flight: int
    parked: int
    dead: int
    bytes: int

    @classmethod
    def of(cls, streams: Sequence[StreamInfo], consumers: Sequence[ConsumerInfo]) -> Totals:
        """The sums."""
        return cls(
            len(streams),
            len(consumers),
            sum(s.rate or 0.0 for s in streams),
            sum(c.rate for c in consumers),
            sum(c.lag for c in consumers),
            sum(c.in_flight for c in consumers),
            sum(c.parked for c in consumers),
            sum(c.dead for c in consumers),
            sum(s.bytes for s in streams),
        )


class Troubled(Struct):
    """A consumer and what is the matter with it: lost, stuck, failing, behind, dead, paused or fine.

    `age`: seconds that its oldest message has waited.
    """

    consumer: Consumer
    trouble: str
    about: str
    age: float | None


class Overview(Struct):
    """Everything at a glance, as it was at `at`; how many streams and consumers fit in all."""

    at: datetime
    totals: Totals
    streams: list[Stream]
    streams_found: int
    consumers: list[Troubled]
    consumers_found: int


class DoctorQuery(Body):
    """What is reported lasts longer than this. Where it is not given: five minutes."""

    patience_ms: Milliseconds | None = None


class Pipeline(Struct):
    """What a pipeline last said of itself. One that runs and was not heard of for a minute is `lost`."""

    name: str
    kind: str
    state: str
    process: str
    spec: Any
    progress: Any
    error: str | None
    started_at: datetime
    seen_at: datetime


@routes.route("GET", "/api/overview", scope="monitor", query=OverviewQuery, response=Overview)
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


@routes.route("GET", "/api/doctor", scope="monitor", everywhere=True, query=DoctorQuery, response=list[Finding])
async def get_doctor(call: Call) -> list[Finding]:
    """What is wrong with the database and what to do about it, the worst first. At most some seconds old, unless it is
    said for how long things may last."""
    if call.query.patience_ms is None:
        return await call.server.findings.get()
    return await call.server.hg.doctor(call.query.patience_ms / 1000)


@routes.route("GET", "/api/pipelines", scope="monitor", everywhere=True, response=list[Pipeline])
async def list_pipelines(call: Call) -> list[Pipeline]:
    """What pipelines last said of themselves."""
    return [Pipeline(*row) for row in await call.server.hg.run(statements.PIPELINES, ())]
