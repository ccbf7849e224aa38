"""Presets changed by hand, as `--set` says it: `workers=2`, `weights.seek=0`, `sizes=1,3`, `consumers=free`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from headgate.settings import STREAM

from ..sessions.operators import OperatorSession
from .catalogue import PRESETS
from .preset import Preset

GROUPS = ("weights", "stream")  # these have entries: weights.seek
STREAM_SETTINGS = (*STREAM, "if_not_exists")
# How often something is done: of all transactions, messages, calls.
SHARES = (
    "open",
    "operators_open",
    "keyless",
    "ids",
    "delays",
    "prepared",
    "powers",
    "staged",
    "answers",
    "misuse",
    "deaf",
    "share",
    "nack",
    "long_nack",
)
NAMES = tuple(f.name for f in fields(Preset) if f.name not in ("name", *GROUPS))


def changed(preset: Preset, settings: Sequence[str]) -> Preset:
    """The preset with these settings; a ValueError says what is wrong with one."""
    for setting in settings:
        name, equals, text = setting.partition("=")
        group, _, entry = name.partition(".")
        if not equals:
            raise ValueError(f"{setting}: a setting is given as NAME=VALUE")
        change: dict[str, Any]
        if name == "consumers":
            change = {name: tuple(_consumers(preset, text))}
        elif group in GROUPS and entry:
            change = {group: _entry(preset, group, entry, text)}
        elif name in NAMES:
            change = {name: _value(setting, getattr(preset, name), text)}
        else:
            raise ValueError(f"{name} is not a setting; there are {', '.join(NAMES)}, weights.CALL, stream.SETTING")
        preset = replace(preset, **change)
    return preset


def differences(base: Preset, preset: Preset) -> list[str]:
    """The settings that make the one of the other."""
    found: list[str] = []
    for name in NAMES:
        was, now = getattr(base, name), getattr(preset, name)
        if was == now:
            continue
        if name == "consumers":
            now = tuple(c.name for c in now)
        found.append(f"{name}={','.join(map(str, now)) if isinstance(now, tuple) else now}")
    for group in GROUPS:
        was, now = getattr(base, group), getattr(preset, group)
        for entry in [*was, *(e for e in now if e not in was)]:
            if was.get(entry) != now.get(entry):
                value = now.get(entry, 0 if group == "weights" else None)
                found.append(f"{group}.{entry}={value if isinstance(value, str) else json.dumps(value)}")
    return found


def again(preset: Preset, seed: int, seconds: float | None = None) -> str:
    """The line that runs such a history again."""
    settings = differences(PRESETS[preset.name], preset) if preset.name in PRESETS else []
    length = [] if seconds is None else ["--seconds", f"{seconds:g}"]
    more = [word for setting in settings for word in ("--set", shlex.quote(setting))]
    return " ".join(["headgate torture", preset.name, "--seed", str(seed), *length, *more])


def _consumers(preset: Preset, text: str) -> Iterator[Any]:
    for name in text.split(","):
        if name not in [c.name for c in preset.consumers]:
            there = ", ".join(c.name for c in preset.consumers)
            raise ValueError(f"{preset.name} has no consumer {name}; there are {there}")
        yield preset.consumer(name)


def _entry(preset: Preset, group: str, entry: str, text: str) -> dict[str, Any]:
    """The group with that entry: 0 takes a weight away, null a setting of the stream."""
    value: Any
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if group == "weights":
        if not isinstance(value, (int, float)) or value < 0:
            raise ValueError(f"weights.{entry}={text}: a weight is a number, 0 or more")
        if not callable(getattr(OperatorSession, entry, None)):
            raise ValueError(f"weights.{entry}: operators do nothing of that name")
        value = float(value) or None
    elif entry not in STREAM_SETTINGS:
        raise ValueError(f"stream.{entry}: streams have no such setting; there are {', '.join(STREAM_SETTINGS)}")
    entries = {k: v for k, v in getattr(preset, group).items() if k != entry or value is not None}
    return entries if value is None else entries | {entry: value}


def _value(setting: str, now: Any, text: str) -> Any:
    """As what is there: a whole number, a number, or several of one kind."""
    kind = type(now[0]) if isinstance(now, tuple) else type(now)
    try:
        values = tuple(kind(part) for part in text.split(","))
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}.get(kind, f"a {kind.__name__}")
        raise ValueError(f"{setting}: it is {wanted}, such as {now}") from None
    if kind in (int, float) and min(values) < 0:
        raise ValueError(f"{setting}: it is 0 or more")
    if setting.partition("=")[0] in SHARES and max(values) > 1:
        raise ValueError(f"{setting}: it is a share, from 0 to 1")
    if isinstance(now, tuple):
        return values
    if len(values) > 1:
        raise ValueError(f"{setting}: it is one value, such as {now}")
    return values[0]
