"""What only an archive still has, for a consumer that starts before what its stream has."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import headgate

from .call import Call
from .output import print_status


def offer_replay(call: Call, stream: str, consumer: str, settings: dict[str, Any], wanted: bool) -> None:
    """Offers to replay what a new consumer asked for and its stream no longer has.

    The consumer of the stream begins at the oldest message that is left. What is older goes, from the lake, into a
    stream of its own with a consumer of the same name: nobody else sees it again, and no message is in both.
    """
    asked = click.get_current_context().get_parameter_source("start") is click.core.ParameterSource.COMMANDLINE
    if not wanted and (not asked or call.hg.http is not None):  # what is left of the log, no server says
        return
    first = _first_seq(call.hg, stream)
    archives = [a for a in call.hg.insights.archives(stream) if a.floor >= 1]
    start = str(settings.get("start") or "beginning")
    condition = _missing(call.hg, stream, start, first)
    if condition is None or not archives:
        if wanted:
            why = f"{stream} has no archive" if condition else f"{stream} still has everything from there on"
            print_status(f"there is nothing to replay: {why}")
        elif condition is not None:
            print_status(f"{stream} no longer has everything from {start} on; it begins at seq {first}")
        return
    archive = archives[0]
    told = f"{stream} begins at seq {first}; what is older is in the archive {archive.name} at {archive.place}"
    if not wanted:
        if call.json or not sys.stdin.isatty():
            print_status(f"{told}; --from-lake prepares a replay of it")
            return
        print_status(told)
        if not click.confirm(f"replay it into the stream {stream}.{consumer}?", err=True):
            return
    file = _prepare(call.hg, stream, consumer, settings, archive, condition)
    print_status(
        f"the stream {stream}.{consumer} and its consumer {consumer} wait for it: headgate pipeline run {file}"
    )


def _first_seq(hg: headgate.Headgate, stream: str) -> int:
    return min((s.first_seq for s in hg.insights.segments(stream) if s.state != "dropped"), default=1)


def _missing(hg: headgate.Headgate, stream: str, start: str, first: int) -> list[str] | None:
    """What a replay has to bring, as lines of its file; None when nothing that was asked for is gone."""
    before = f'where = "seq < {first}"'
    if first <= 1 or start == "end":
        return None
    if start == "beginning":
        return [before]
    if re.fullmatch(r"\d+", start):
        return [f'where = "seq >= {start} and seq < {first}"'] if int(start) < first else None
    moment = datetime.fromisoformat(start)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    oldest = hg.insights.messages(stream, 1)
    if oldest and oldest[0].created_at <= moment:
        return None
    return [f"since = {json.dumps(moment.isoformat())}", before]


def _prepare(
    hg: headgate.Headgate,
    stream: str,
    consumer: str,
    settings: dict[str, Any],
    archive: headgate.types.ArchiveInfo,
    lines: list[str],
) -> Path:
    """Makes the stream, its consumer and the file of the pipeline; returns the file."""
    name = f"{stream}.{consumer}"
    file = Path(f"{name}.toml")
    if file.exists():
        raise headgate.Error(f"there is a file {file} already", hint="move it away, or run it: headgate pipeline run")
    original = hg.insights.stream(stream)
    made = hg.stream(name, create=True, lanes=original.lanes, lane_by=original.lane_by)
    made.consumer(consumer, create=True, **{**settings, "start": "beginning"})
    said = f"# What the consumer {consumer} of {stream} asked for and only the archive {archive.name} still has."
    keys = [f"keys = {json.dumps(settings['filter'])}"] if settings.get("filter") else []
    text = [said, 'kind = "replay"', f'name = "{name}"', f"source = {json.dumps(archive.place)}", f'stream = "{name}"']
    file.write_text("\n".join([*text, *lines, *keys]) + "\n", "utf-8")
    return file
