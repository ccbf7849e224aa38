"""A simpler setting under which it still goes wrong: what went wrong once is tried again with less of everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..environment.server import Environments
from ..judge.check import judge
from ..judge.reading import Violation
from ..presets.preset import Preset
from ..presets.settings import changed
from ..record import History
from ..run import run

MINUTES = 3.0
TRIES = 3  # seeds, before it counts as not failing any more
SHORTEST = 0.5


class FailingHistory(NamedTuple):
    """A history that went wrong, and what it was a history of."""

    preset: Preset
    seed: int
    seconds: float
    history: History
    findings: list[Violation]


Again = Callable[[Preset, int, float], FailingHistory]  # runs and judges a history


def fresh(environments: Environments) -> Again:
    """Runs histories in fresh databases."""

    def again(preset: Preset, seed: int, seconds: float) -> FailingHistory:
        with environments(preset) as environment:
            history = run(environment, preset, seed, seconds)
        return FailingHistory(preset, seed, seconds, history, judge(history, preset))

    return again


def simplify(
    failing: FailingHistory,
    again: Again,
    talk: Callable[[str], None],
    minutes: float = MINUTES,
    clock: Callable[[], float] = time.monotonic,
) -> FailingHistory:
    """The simplest failing history that is found in that time: the same kind of finding, whatever the seed."""
    check, end = failing.findings[0].check, clock() + 60 * minutes

    def try_it(preset: Preset, seconds: float, words: str) -> FailingHistory | None:
        for seed in range(failing.seed, failing.seed + TRIES):
            if clock() > end:
                return None
            result = again(preset, seed, seconds)
            if any(f.check == check for f in result.findings):
                talk(f"  simpler: {words}: {check} with seed {seed}, {len(result.history.events)} calls")
                return result
        talk(f"  simpler: {words}: not seen with {TRIES} seeds")
        return None

    while failing.seconds / 2 >= SHORTEST:
        shorter = try_it(failing.preset, failing.seconds / 2, f"--seconds {failing.seconds / 2:g}")
        if shorter is None:
            break
        failing = shorter
    done: set[str] = set()
    while step := next((s for s in steps(failing) if s not in done), None):
        done.add(step)
        failing = try_it(changed(failing.preset, step.split()), failing.seconds, step) or failing
        if clock() > end:
            talk(f"  simpler: {minutes:g} minutes are over")
            break
    return failing


def steps(failing: FailingHistory) -> Iterator[str]:
    """What may be left out, the largest parts first; several settings stand for a group that is tried at once."""
    preset, consumer = failing.preset, failing.findings[0].consumer
    if len(preset.consumers) > 1:
        yield f"consumers={consumer or preset.consumers[0].name}"
    if preset.operators and preset.weights:
        yield "operators=0"
        for kind in preset.weights if len(preset.weights) > 1 else ():
            yield f"weights.{kind}=0"
    fractions = ("open", "operators_open", "ids", "delays", "misuse", "deaf", "share", "nack", "long_nack", "answers")
    used = [name for name in fractions if getattr(preset, name)]
    if len(used) > 1:
        yield " ".join(f"{name}=0.0" for name in used)
    yield from (f"{name}=0.0" for name in used)
    for name in ("maintainers", "senders", "workers", "operators", "keys", "batch"):
        yield from _less(name, getattr(preset, name), least=0 if name == "maintainers" else 1)
    if len(preset.sizes) > 1:
        yield f"sizes={preset.sizes[0]}"
        yield f"sizes={preset.sizes[-1]}"
    if max(preset.holds) > 0:
        yield "holds=0.0"
    if preset.keyless not in (0.0, 1.0):
        yield "keyless=0.0"
        yield "keyless=1.0"
    if preset.stream.get("lanes", 1) > 1:
        yield "stream.lanes=1"


def _less(name: str, now: int, least: int) -> Iterator[str]:
    if now > least:
        yield f"{name}={least}"
        if now // 2 > least:
            yield f"{name}={now // 2}"
