"""What `headgate torture` does with its arguments: one history after the other, judged, and told when it went wrong."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .check import judge
from .presets import PRESETS, Preset
from .run import run
from .server import Databases, databases_on, temporary_server
from .story import census, tell

_LARGEST_SEED = 1_000_000


def unknown(names: Sequence[str]) -> str | None:
    """What to say when some of the presets do not exist."""
    wrong = [name for name in names if name not in PRESETS]
    return f"no preset is called {', '.join(wrong)}; there are {', '.join(sorted(PRESETS))}" if wrong else None


def torture(args: argparse.Namespace, *, say: Callable[[Any], None], talk: Callable[[str], None]) -> int:
    """Runs the histories that were asked for, and returns how many findings there are."""
    first = args.seed or random.SystemRandom().randrange(1, _LARGEST_SEED)
    presets = [PRESETS[name] for name in args.names or sorted(PRESETS)]
    server: AbstractContextManager[Databases]
    server = databases_on(args.database) if args.database else temporary_server(args.postgres)
    results = []
    with server as databases:
        for preset, seed in histories(presets, first, args.count, args.minutes):
            result, text = one(databases, preset, seed, args.seconds)
            results.append(result)
            talk(text)
    found = sum(len(result["findings"]) for result in results)
    if args.json:
        say(results)
    else:
        calls = sum(result["calls"] for result in results)
        histories_run = "1 history" if len(results) == 1 else f"{len(results)} histories"
        say(f"{histories_run}, {calls} calls, {found} findings")
    return found


def histories(presets: list[Preset], seed: int, count: int, minutes: float | None) -> Iterator[tuple[Preset, int]]:
    """All presets with one seed, then with the next: so many times, or for so long."""
    end = time.monotonic() + 60 * minutes if minutes is not None else None
    turn = 0
    while turn < count if end is None else True:
        for preset in presets:
            if end is not None and time.monotonic() > end:
                return
            yield preset, seed + turn
        turn += 1


def one(databases: Databases, preset: Preset, seed: int, seconds: float) -> tuple[dict[str, Any], str]:
    """Runs and judges one history: what came of it, and how it is told."""
    with databases() as url:
        history = run(url, preset, seed, seconds)
    findings = judge(history, preset)
    head = f"{preset.name} seed {seed}: {len(history.events)} calls in {history.now():.0f} s"
    text = f"{head}\n  {census(history)}\n{tell(history, findings)}" if findings else f"{head}, nothing wrong"
    return {
        "preset": preset.name,
        "seed": seed,
        "calls": len(history.events),
        "findings": [{"check": f.check, "text": f.text, "at": round(f.at, 3), "seqs": f.seqs} for f in findings],
    }, text
