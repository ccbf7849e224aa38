"""`headgate stream`: streams, their settings and segments."""

from __future__ import annotations

from typing import Any

import click

from ..readable import size
from ..settings import STREAM, changeable, clearable
from .app import app
from .call import Call, command, given, options, stream_argument
from .output import about
from .settings import options_of, refusals

LANE_BY = click.Choice(STREAM["lane_by"].choices)
RETAIN = click.Choice(STREAM["retain"].choices)


@app.group("stream")
def streams() -> None:
    """Make, list, change and remove streams."""


@command(streams, "add", curl=True)
@click.argument("name", required=False, metavar="NAME")
@options(options_of(STREAM))
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Leave a stream of this name as it is; it must have the settings that are given.",
)
def add(call: Call, name: str | None, if_not_exists: bool, **settings: Any) -> None:
    """Make a stream."""
    if name is None:  # guided
        name = call.ask("name")
        lane_by = call.ask("lane by", default=settings["lane_by"] or "hash", type=LANE_BY)
        if lane_by == "hash":
            settings["lanes"] = call.ask("lanes", default=settings["lanes"] or 16, type=int)
        retain = call.ask("retain", default="forever", type=RETAIN)
        settings |= {"lane_by": lane_by, "retain": settings["retain"] or retain}
    chosen = given(settings)
    leave = {"if_not_exists": True} if if_not_exists else {}
    if call.curl("POST", "streams", body={"name": name, **chosen, **leave}):
        return
    call.hg.stream(name, create=True, exist_ok=if_not_exists, **chosen)
    call.print_data(call.hg.insights.stream(name), name)


@command(streams, "list", curl=True)
def show_all(call: Call) -> None:
    """List the streams."""
    if call.curl("GET", "streams"):
        return
    found = call.hg.insights.streams()
    rows = [
        {
            "name": s.name,
            "messages": about(s.messages, s.exact),
            "size": size(s.bytes),
            "rate": s.rate,
            "consumers": s.consumers,
            "last seq": s.last_seq,
            "newest": s.newest,
            "sampled_at": s.sampled_at,
        }
        for s in found
    ]
    columns: tuple[str, ...] = ("name", "messages", "size", "rate", "consumers", "last seq", "newest")
    if any(s.sampled_at for s in found):
        columns += ("sampled_at",)
    call.print_rows(found, rows, columns, "there are no streams yet")


@command(streams, "show", curl=True)
@stream_argument
def show(call: Call, stream: str | None) -> None:
    """Show a stream: its settings and what is in it."""
    stream = call.stream(stream)
    if call.curl("GET", "streams", stream):
        return
    call.print_data(call.hg.insights.stream(stream))


@command(streams, "edit", curl=True)
@stream_argument
@options(options_of(changeable(STREAM)), refusals(STREAM))
@click.option("--clear", type=click.Choice(clearable(STREAM)), multiple=True, help="Put a setting back to none.")
def edit(call: Call, stream: str | None, clear: tuple[str, ...], **settings: Any) -> None:
    """Change settings of a stream.

    What shares a lane, and whether only the latest message of a key is kept, are settled when it is made;
    `headgate stream set-lanes` changes the number of lanes.
    """
    stream = call.stream(stream)
    changed = given(settings)
    if not changed and not clear:
        raise click.UsageError("no setting was given")
    if call.curl("PATCH", "streams", stream, body={**changed, **dict.fromkeys(clear)}):
        return
    call.hg.stream(stream).alter(**changed, clear=clear)
    call.print_data(call.hg.insights.stream(stream))


@command(streams, "remove", curl=True)
@stream_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(call: Call, stream: str | None, yes: bool) -> None:
    """Remove a stream with its consumers, messages and dead letters."""
    stream = call.stream(stream)
    if call.curl("DELETE", "streams", stream):
        return
    found = call.hg.insights.stream(stream)
    call.confirm(f"remove {stream} with {about(found.messages, found.exact)} messages?", yes)
    call.hg.stream(stream).drop()
    call.print_data({"removed": stream}, stream)


@command(streams, "set-lanes", curl=True)
@stream_argument
@click.argument("lanes", type=int, required=False, metavar="LANES")
def set_lanes(call: Call, stream: str | None, lanes: int | None) -> None:
    """Change the number of a stream's lanes, while it is used."""
    stream = call.stream(stream)
    lanes = int(call.ask("lanes", type=int)) if lanes is None else lanes
    if call.curl("PATCH", "streams", stream, body={"lanes": lanes}):
        return
    call.hg.stream(stream).set_lanes(lanes)
    call.print_data({"lanes": lanes}, lanes)


@command(streams, "segments")
@stream_argument
def segments(call: Call, stream: str | None) -> None:
    """List a stream's segments, and why closed ones are still kept."""
    stream = call.stream(stream)
    found = call.direct.insights.segments(stream)
    columns = ("id", "state", "first_seq", "end_seq", "messages", "size", "created_at", "kept_by")
    rows = [{**{c: getattr(s, c, None) for c in columns}, "size": size(s.bytes)} for s in found]
    call.print_rows(found, rows, columns, "there are no segments")


@command(streams, "archives", curl=True)
@stream_argument
def archives(call: Call, stream: str | None) -> None:
    """List a stream's archives: where they are, and how far."""
    stream = call.stream(stream)
    if call.curl("GET", "streams", stream, "archives"):
        return
    found = call.hg.insights.archives(stream)
    columns = ("name", "place", "floor", "lag", "at", "waiting")
    call.print_rows(found, [{c: getattr(a, c) for c in columns} for a in found], columns, "there are no archives")


@command(streams, "drop-archive", curl=True)
@stream_argument
@click.argument("archive", metavar="ARCHIVE")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_archive(call: Call, stream: str, archive: str, yes: bool) -> None:
    """Forget an archive, so that retention waits for it no longer. What it has stays in the lake."""
    if call.curl("DELETE", "streams", stream, "archives", archive):
        return
    call.confirm(f"forget the archive {archive} of {stream}? what is not in it may then be removed", yes)
    call.hg.stream(stream).drop_archive(archive)
    call.print_data({"dropped": archive}, archive)


@command(streams, "compact")
@stream_argument
def compact(call: Call, stream: str | None) -> None:
    """Remove closed segments of which only parked messages are left, and keep these."""
    count = call.direct.stream(call.stream(stream)).compact()
    call.print_data({"compacted": count}, count)
