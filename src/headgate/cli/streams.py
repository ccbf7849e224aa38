"""`headgate stream`: streams, their settings and segments."""

from __future__ import annotations

from typing import Any

import click

from ..readable import size
from . import values
from .app import app
from .call import Call, command, fixed, given, options, stream_argument
from .output import about

LANE_BY = click.Choice(["hash", "key", "channel"])
RETAIN = click.Choice(["forever", "until_acked", "until_archived"])

NEW = (
    click.option("--lanes", type=int, help="How many lanes keys are spread over. Default: 16."),
    click.option(
        "--lane-by", type=LANE_BY,
        help="What shares a lane: keys of the same hash, one key, or one channel. Default: hash.",
    ),
    click.option("--one-message-per-key", is_flag=True, default=None, help="Keep only the latest message of a key."),
)  # fmt: skip

# of a stream that there is these can be changed too
SETTINGS = (
    click.option("--retain", type=RETAIN, help="How long messages are kept."),
    click.option("--retain-up-to", type=values.time, help="Remove what is older."),
    click.option("--retain-at-least", type=values.time, help="Never remove what is younger, to make room."),
    click.option("--max-storage", type=values.size, help="Remove the oldest above so many bytes."),
    click.option(
        "--process-unmodified/--ignore-unmodified", default=None,
        help="With --one-message-per-key: whether a message that equals the last one of its key counts.",
    ),
    click.option("--dedup-window", type=values.time, help="How long the ids of messages are remembered."),
    click.option("--max-message-bytes", type=values.size, help="The largest message: its data and headers."),
    click.option("--segment-rows", type=int, help="Close a segment at so many messages; at more, past 100 segments."),
    click.option("--segment-bytes", type=values.size, help="Close a segment at so many bytes."),
    click.option("--segment-age", type=values.time, help="Close a segment at this age."),
    click.option("--compact-every", type=values.time, help="How often segments are compacted."),
)  # fmt: skip
FIXED = fixed(
    lanes="`headgate stream set-lanes` does it",
    lane_by="make another stream with it: `headgate stream add NAME --lane-by channel`",
    one_message_per_key="make another stream with it: `headgate stream add NAME --one-message-per-key`",
)
CLEARABLE = ("retain_up_to", "retain_at_least", "max_storage", "segment_age")


@app.group("stream")
def streams() -> None:
    """Make, list, change and remove streams."""


@command(streams, "add", curl=True)
@click.argument("name", required=False, metavar="NAME")
@options(NEW, SETTINGS)
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
    call.say(call.hg.insights.stream(name), name)


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
    call.say_rows(found, rows, columns, "there are no streams yet")


@command(streams, "show", curl=True)
@stream_argument
def show(call: Call, stream: str | None) -> None:
    """Show a stream: its settings and what is in it."""
    stream = call.stream(stream)
    if call.curl("GET", "streams", stream):
        return
    call.say(call.hg.insights.stream(stream))


@command(streams, "edit", curl=True)
@stream_argument
@options(SETTINGS, FIXED)
@click.option("--clear", type=click.Choice(CLEARABLE), multiple=True, help="Put a setting back to none.")
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
    call.say(call.hg.insights.stream(stream))


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
    call.say({"removed": stream}, stream)


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
    call.say({"lanes": lanes}, lanes)


@command(streams, "segments")
@stream_argument
def segments(call: Call, stream: str | None) -> None:
    """List a stream's segments, and why closed ones are still kept."""
    stream = call.stream(stream)
    found = call.direct.insights.segments(stream)
    columns = ("id", "state", "first_seq", "end_seq", "messages", "size", "created_at", "kept_by")
    rows = [{**{c: getattr(s, c, None) for c in columns}, "size": size(s.bytes)} for s in found]
    call.say_rows(found, rows, columns, "there are no segments")


@command(streams, "archives", curl=True)
@stream_argument
def archives(call: Call, stream: str | None) -> None:
    """List a stream's archives: where they are, and how far."""
    stream = call.stream(stream)
    if call.curl("GET", "streams", stream, "archives"):
        return
    found = call.hg.insights.archives(stream)
    columns = ("name", "place", "floor", "lag", "at", "waiting")
    call.say_rows(found, [{c: getattr(a, c) for c in columns} for a in found], columns, "there are no archives")


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
    call.say({"dropped": archive}, archive)


@command(streams, "compact")
@stream_argument
def compact(call: Call, stream: str | None) -> None:
    """Remove closed segments of which only parked messages are left, and keep these."""
    count = call.direct.stream(call.stream(stream)).compact()
    call.say({"compacted": count}, count)
