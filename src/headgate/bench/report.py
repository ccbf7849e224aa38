"""The page of a run: tables, plots, and what the machine was like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.errors import Error

from .plan import LANES, MESSAGE_BYTES
from .results import HEADINGS, Result, Run, cells

SDK_TITLES = {
    "publish": ("Publishing", "One publisher process a connection; each batch is sent and committed on its own."),
    "consume": (
        "Consuming a backlog",
        "Received, read and acked. Workers are processes that share one consumer, or one pgmq queue.",
    ),
    "sql": (
        "Consuming by plain SQL",
        "Both by their SQL functions alone, with `synchronous_commit = on`, acking each message by its id: Headgate "
        "with the next receive, or in a call of its own as pgmq does.",
    ),
    "fanout": (
        "Fan-out",
        "Everything to three consumers, from the first send to the last ack. pgmq's topics write to three queues.",
    ),
    "latency": ("Latency", "From the confirmed commit to the handler; one publisher, one worker that waits."),
    "backlog": (
        "Deep backlog",
        "The speed while millions of messages wait; baseline is the same work on a nearly empty stream.",
    ),
    "pinned": (
        "Pinned snapshot",
        "The speed after another session held a snapshot open for a minute under load; baseline is the same work in "
        "another database at the same time.",
    ),
    "channels": (
        "Fair channels",
        "Lanes by channel, all of them with work, so that a batch is shared between many of them; baseline is a stream "
        "with hashed lanes, and of keys kept in order the same channels without order.",
    ),
    "idle": (
        "Idle lanes",
        "The speed of busy channels on a stream where many others once had a message; baseline is the same work in "
        "another database, without the others.",
    ),
    "active": (
        "Active channels",
        "How long a receive takes (p50) when many channels have work; baseline is the same with 10 channels.",
    ),
    "keys": (
        "Lanes by key",
        "Each key has its own lane and its messages are handed out in order. pgmq's keys are its message groups, "
        "read by plain SQL. Its queue was given an index that its grouped reads can use and that it does not come "
        "with: without it, a read compares every group with every message.",
    ),
    "looking": (
        "Looking",
        "Milliseconds of the SDK's calls that look at a large stream and its consumer, with messages unread, in "
        "flight, parked and done (median).",
    ),
    "streams": (
        "Many streams",
        "1,000 streams with three consumers each: a session that sends to, receives from and acks in all of them, a "
        "listing of all consumers with what is unread, and steps of maintenance.",
    ),
}


@dataclass(frozen=True)
class Page:
    """What a report says beside the figures."""

    titles: dict[str, tuple[str, str]]  # of benchmarks: title and text
    plots: dict[str, tuple[str, str]]  # of benchmarks: which parameter is along the axis, and which splits panels
    command: str  # that writes it
    notes: tuple[str, ...]


SDK_PAGE = Page(
    SDK_TITLES,
    {"publish": ("batch", "connections"), "consume": ("batch", "workers"), "latency": ("figure", "rate")},
    "`make bench` (`headgate bench --report docs/benchmarks`)",
    (
        f"Messages of {MESSAGE_BYTES} bytes, one stream with {LANES} hashed lanes where nothing else is said. Every "
        "contender sends dicts and reads dicts.",
        "The contenders take turns in short rounds; a figure is the median of its rounds. Absolute figures belong to "
        "this machine and hour: look at the ratios.",
        "pgmq is called through its own Python client, and as plain SQL with arrays and JSON written and read as fast "
        "as Headgate's SDK does it. The ratio is to the faster of the two; the last column is the ratio to its client.",
        "Headgate's SDK receives and acks with `synchronous_commit = off`: a crash of the database can repeat a "
        "delivery, never lose a message. Everything else commits durably.",
    ),
)
_COLOURS = {"headgate": "#1b6ca8", "pgmq": "#d98e04", "copy": "#8a8f98", "baseline": "#8a8f98"}


def require_matplotlib() -> Any:
    """matplotlib's Figure, or an error that says how to get it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Error("plots need matplotlib", hint="pip install 'headgate[bench]', or leave --report out") from error
    return Figure


def write(run: Run, directory: Path, about: Page = SDK_PAGE) -> Path:
    """Writes README.md and its plots; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    plots = {name: _bars(directory / f"{name}.png", run.results, name, *axes) for name, axes in about.plots.items()}
    page = directory / "README.md"
    page.write_text(_page(run, plots, about), encoding="utf-8")
    return page


def _page(run: Run, plots: dict[str, bool], about: Page) -> str:
    machine = run.machine
    settings = ", ".join(f"{name} = {value}" for name, value in machine["server_settings"].items())
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    checked = [r for r in run.results if r.ok is not None]
    lines = [
        "# Benchmarks",
        "",
        f"Written by {about.command}: do not edit.",
        "",
        f"- Machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, {machine['system']}, load "
        f"{machine['load_before']} before the run; clients and server share it.",
        f"- Versions: {versions}.",
        f"- Server: {settings}; the same for all.",
        *(f"- {note}" for note in about.notes),
        f"- Targets met: {sum(r.ok is True for r in checked)} of {len(checked)}.",
        "",
    ]
    for name, (title, text) in about.titles.items():
        results = [r for r in run.results if r.name == name]
        if results:
            lines += [f"## {title}", "", text, "", *_table(results), ""]
            if plots.get(name):
                lines += [f"![{title}]({name}.png)", ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(results: Sequence[Result]) -> list[str]:
    rows = [HEADINGS, *(cells(r) for r in results)]
    kept = [i for i in range(1, len(HEADINGS)) if any(row[i] for row in rows[1:])]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(kept), *lines[1:]]


def _bars(path: Path, results: Sequence[Result], name: str, along: str, split: str) -> bool:
    """Grouped bars of one benchmark, a panel for each value of `split`. False when it was not run."""
    chosen = [r for r in results if r.name == name]
    if not chosen:
        return False
    figure_class = require_matplotlib()
    panels = list(dict.fromkeys(r.params[split] for r in chosen))
    figure = figure_class(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    kinds = [s for s in _COLOURS if any(getattr(r, s) is not None for r in chosen)]
    for axis, panel in zip(axes, panels, strict=True):
        shown = {r.params[along]: r for r in chosen if r.params[split] == panel}
        for number, kind in enumerate(kinds):
            bars = [(i, getattr(r, kind)) for i, r in enumerate(shown.values()) if getattr(r, kind) is not None]
            width = 0.8 / len(kinds)
            axis.bar(
                [i + number * width for i, _ in bars],
                [v for _, v in bars],
                width,
                label=kind,
                color=_COLOURS[kind],
            )
        axis.set_xticks([i + 0.4 - 0.4 / len(kinds) for i in range(len(shown))], [str(v) for v in shown])
        axis.set_title(f"{split}: {panel}", fontsize=10)
        axis.set_xlabel(along)
        axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel(chosen[0].unit)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    return True
