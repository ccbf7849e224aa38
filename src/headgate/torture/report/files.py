"""Histories in files: as JSON, one call a line, so that what went wrong can be kept, sent, and judged again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..presets.preset import ConsumerPlan, Preset
from ..record import CallError, Ending, Event, Fault, HandedMessage, History, Sent, TransactionRecord, Wait
from ..sessions.observers import Counts, FinalState
from ..sessions.readers import Mark, ReadSpan

FORMAT = 1
LISTS = ("events", "transactions", "waits", "endings")  # these of a history have a form of their own


class SavedHistory(NamedTuple):
    """A history, what it was a history of, and for how long its sessions were let loose."""

    history: History
    preset: Preset
    seconds: float


def to_json(history: History, preset: Preset, seconds: float) -> str:
    """A history with all that is needed to judge it and to run such a one again.

    One line for each call; fields that have their default are left out.
    """
    default = vars(History("", 0))
    more = {k: v for k, v in vars(history).items() if k[0] != "_" and k not in LISTS and v != default.get(k)}
    endings = {name: asdict(e) | {"dead": sorted(e.dead)} for name, e in history.endings.items()}
    parts = [
        _line("format", FORMAT),
        _line("preset", asdict(preset)),
        _line("seconds", seconds),
        _line("history", more),
        _line("endings", endings),
        _lines("transactions", (_said(t) for t in history.transactions)),
        _lines("waits", history.waits),
        _lines("events", (_call(e) for e in history.events)),
    ]
    return "{" + ",\n".join(parts) + "}\n"


def from_json(text: str) -> SavedHistory:
    """What `to_json` has written; a ValueError when it has not."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}")
        return SavedHistory(_history(data), _preset(data["preset"]), float(data["seconds"]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"not a history that this version of headgate torture has written: {error}") from error


def load(file: Path) -> SavedHistory:
    try:
        return from_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not a history that this version of headgate torture has kept") from error


def new_directory(parent: Path, name: str) -> Path:
    """A directory that was not there: what was found before stays."""
    turn, target = 1, parent / name
    while target.exists():
        turn += 1
        target = parent / f"{name}-{turn}"
    target.mkdir(parents=True)
    return target


def _final_state(answer: Any) -> FinalState:
    counts, states = answer
    return FinalState(Counts(*counts), {int(seq): state for seq, state in states.items()})


def _read(answer: Any) -> tuple[ReadSpan, list[int]]:
    data, twice, removed = answer
    span = ReadSpan({int(seq): text for seq, text in data.items()})
    span.removed = tuple((first, end) for first, end in removed)
    return span, twice


# How the answers of a call are made again from JSON; the others are numbers and text.
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "receive": lambda answer: [HandedMessage(*m) for m in answer],
    "count": lambda answer: {name: Counts(*c) for name, c in answer.items()},
    "final_state": _final_state,
    "read": _read,
    "mark": Mark,
    "next_mark": Mark,
    "end_mark": Mark,
}
MARKS = {"start", "end", "until"}  # what is asked between marks


def _line(name: str, value: Any) -> str:
    return f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, default=str)}"


def _lines(name: str, values: Any) -> str:
    lines = ",\n  ".join(json.dumps(v, ensure_ascii=False, default=str) for v in values)
    return f"{json.dumps(name)}: [\n  {lines}]" if lines else f"{json.dumps(name)}: []"


def _said(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    values = {f.name: (getattr(thing, f.name), f.default) for f in fields(thing)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}


def _call(event: Event) -> dict[str, Any]:
    said = _said(event)
    if event.transaction is not None:
        said["transaction"] = event.transaction.number
    if event.kind in ("commit", "rollback"):
        said.pop("answer", None)  # a cursor of the driver
    if event.kind == "read" and event.answer is not None:
        span, twice = event.answer
        said["answer"] = [span, twice, span.removed]
    return said


def _history(data: dict[str, Any]) -> History:
    history = History(data["history"].pop("preset", ""), data["history"].pop("seed", 0))
    for name, value in data["history"].items():
        setattr(history, name, [tuple(v) for v in value] if isinstance(value, list) else value)
    history.faults = [Fault(*f) for f in history.faults]
    history.transactions = [TransactionRecord(**t) for t in data["transactions"]]
    numbers = {t.number: t for t in history.transactions}
    history.events = [_event(e, numbers) for e in data["events"]]
    history.waits = [Wait(at, session, tuple(blockers)) for at, session, blockers in data["waits"]]
    history.endings = {
        name: Ending(set(e["dead"]), [tuple(x) for x in e["losses"]], [tuple(x) for x in e["left"]], e.get("lost"))
        for name, e in data["endings"].items()
    }
    return history


def _event(data: dict[str, Any], transactions: dict[int, TransactionRecord]) -> Event:
    event = Event(**data)
    if "transaction" in data:
        event.transaction = transactions[data["transaction"]]
    if "problem" in data:
        event.problem = CallError(*data["problem"])
    if "messages" in event.asked:
        event.asked["messages"] = [Sent(*m) for m in event.asked["messages"]]
    if "chain" in event.asked:
        event.asked["chain"] = tuple(event.asked["chain"])
    for mark in MARKS & event.asked.keys():
        event.asked[mark] = event.asked[mark] and Mark(event.asked[mark])
    if event.answer is not None and event.kind in ANSWERS:
        event.answer = ANSWERS[event.kind](event.answer)
    elif event.kind in ("ack", "nack", "release", "extend") and event.answer is not None:
        event.answer = tuple(event.answer)
    elif isinstance(event.answer, list):
        event.answer = list(_rows(event.answer))
    return event


def _rows(answer: list[Any]) -> Iterator[Any]:
    for row in answer:
        yield tuple(row) if isinstance(row, list) else row


def _preset(data: dict[str, Any]) -> Preset:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    values["consumers"] = tuple(ConsumerPlan(**c) for c in data["consumers"])
    return Preset(**values)
