"""Streams: make, list, look at, change, drop."""

from __future__ import annotations

from msgspec import Struct

from ...database import statements
from ...settings import STREAM, changeable
from ...types import ArchiveInfo, SegmentInfo, StreamInfo
from ..http.routing import Call, Routes
from .fields import Body, Nothing, Response, Text, change_body, changes, fields_of, new_body, settings_of

routes = Routes()


NewStream = new_body(
    "NewStream",
    "A stream to make. Settings that are left out, or null, have their defaults; an existing one may have others.",
    STREAM,
)


StreamChange = change_body(
    "StreamChange",
    "Settings of a stream to change. null puts a setting back to none; what is left out stays.",
    {"lanes": STREAM["lanes"], **changeable(STREAM)},
)


class Stream(fields_of(StreamInfo), Response):  # type: ignore[misc]
    """A stream and what is in it. In a list of many, its figures may be what maintenance saw at `sampled_at`; null:
    they are of now."""


class Archive(fields_of(ArchiveInfo), Response):  # type: ignore[misc]
    """An archive of a stream: no message up to the seq `floor` is missing there."""


class Segment(fields_of(SegmentInfo, leave_out=["stream"]), Response):  # type: ignore[misc]
    """A segment of a stream's log: the seqs from `first_seq` to below `end_seq`, and why it is kept once closed."""


class StreamSettings(Struct):
    """What those who send and receive need to know of a stream."""

    lanes: int
    max_message_bytes: int


class PositionQuery(Body):
    """Where: beginning, end, a seq, or a time."""

    at: Text


class Position(Struct):
    """The first seq there."""

    seq: int


@routes.route("POST", "/api/streams", scope="admin", body=NewStream, response=Stream, status=201)
async def create_stream(call: Call) -> Stream:
    """Makes a stream."""
    new = call.body
    call.caller.check("admin", new.name, everywhere=False)
    settings = settings_of(new, STREAM)
    stream = await call.server.hg.stream(new.name, create=True, exist_ok=new.if_not_exists, **settings)
    return Stream.of(await stream.info())


@routes.route("GET", "/api/streams", scope="monitor", response=list[Stream])
async def list_streams(call: Call) -> list[Stream]:
    """The streams that the token is for."""
    return [Stream.of(s) for s in await call.server.hg.insights.streams() if call.caller.may_use(s.name)]


@routes.route("GET", "/api/streams/{stream}", scope="monitor", response=Stream)
async def get_stream(call: Call) -> Stream:
    """One stream."""
    return Stream.of(await call.server.stream(call.stream).info())


@routes.route("GET", "/api/streams/{stream}/settings", scope="any", response=StreamSettings)
async def get_stream_settings(call: Call) -> StreamSettings:
    """What those who send and receive need to know of a stream."""
    [row] = await call.server.hg.run(statements.STREAM_SETTINGS, (call.stream,))
    return StreamSettings(*row)


@routes.route("PATCH", "/api/streams/{stream}", scope="admin", body=StreamChange, response=Stream)
async def change_stream(call: Call) -> Stream:
    """Changes settings of a stream. The number of lanes is changed first, by itself."""
    stream = call.server.stream(call.stream)
    given = changes(call.body)
    if (lanes := given.pop("lanes", None)) is not None:
        await stream.set_lanes(lanes)
    if given != {"clear": []} or lanes is None:
        await stream.alter(**given)
    return Stream.of(await stream.info())


@routes.route("DELETE", "/api/streams/{stream}", scope="admin", response=Nothing)
async def drop_stream(call: Call) -> Nothing:
    """Removes a stream, its consumers, its messages and its dead letters."""
    await call.server.stream(call.stream).drop()
    return Nothing()


@routes.route("GET", "/api/streams/{stream}/archives", scope="monitor", response=list[Archive])
async def list_archives(call: Call) -> list[Archive]:
    """The archives of a stream: where they are, and how far."""
    return [Archive.of(a) for a in await call.server.stream(call.stream).archives()]


@routes.route("DELETE", "/api/streams/{stream}/archives/{archive}", scope="admin", response=Nothing)
async def drop_archive(call: Call) -> Nothing:
    """Forgets an archive, so that retention waits for it no longer. What it has stays in the lake."""
    await call.server.stream(call.stream).drop_archive(call.path["archive"])
    return Nothing()


@routes.route("GET", "/api/streams/{stream}/segments", scope="monitor", response=list[Segment])
async def list_segments(call: Call) -> list[Segment]:
    """The segments of a stream's log, oldest first, and why closed ones are still kept."""
    found = await call.server.hg.insights.segments(call.stream)
    return [Segment.of(s) for s in found if s.state != "dropped"]


@routes.route("GET", "/api/streams/{stream}/position", scope="monitor", query=PositionQuery, response=Position)
async def get_position(call: Call) -> Position:
    """The first seq at a time, or at the beginning or the end."""
    [(seq,)] = await call.server.hg.run(statements.SEQ_AT, (call.stream, call.query.at))
    return Position(seq)
