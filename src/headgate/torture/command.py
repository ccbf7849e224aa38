"""What `headgate torture` does with its arguments: one history, or meeting, after the other, judged, and told when it
went wrong."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .clients.processes import missing_for
from .environment.faults import needs_cluster
from .environment.server import Environments, databases_on, temporary_server
from .judge.check import judge
from .meetings.meetings import Meeting, Met, all_meetings, stage
from .meetings.points import stopping_build
from .meetings.worlds import WORLDS
from .presets.catalogue import PRESETS
from .presets.listing import about
from .presets.preset import Preset
from .presets.settings import again, changed
from .report.diagram import diagram
from .report.explain import census, explain, explain_all, first_of_each, summary
from .report.files import load as load
from .report.files import new_directory, to_json
from .report.shrink import shrink
from .report.simpler import FailingHistory, fresh, simplify

_LARGEST_SEED = 1_000_000
_A_ROUND = 150  # meetings in a world, before the next world has its turn, when time is limited

Say = Callable[[Any], None]
Talk = Callable[[str], None]
Watch = Callable[[Sequence[Meeting], str], Iterable[Meeting]]  # the same ones, while somebody sees how far it is


def unknown(names: Sequence[str], meetings: bool, has_database: bool) -> str | None:
    """What to say when some of the presets, or worlds, do not exist, or cannot be run here."""
    kind, known = ("world", WORLDS) if meetings else ("preset", PRESETS)
    wrong = [name for name in names if name not in known]
    if wrong:
        return f"no {kind} is called {', '.join(wrong)}; there are {', '.join(sorted(known))}"
    if meetings:
        return None
    harmful = [name for name in names if has_database and needs_cluster(PRESETS[name])]
    if harmful:
        return f"{', '.join(harmful)} would stop your server: leave --database out"
    return next((missing for name in names if (missing := missing_for(PRESETS[name]))), None)


def chosen(names: Sequence[str], settings: Sequence[str], older: Path | None = None) -> list[Preset]:
    """The presets, as the settings change them; a ValueError says what is wrong with one. An older schema is for those
    that upgrade it."""
    upgrading = [name for name, preset in sorted(PRESETS.items()) if "upgrade" in preset.faults]
    if older is not None and not set(names) <= set(upgrading):
        raise ValueError(f"an older schema is for presets that upgrade it: {', '.join(upgrading)}")
    return [changed(PRESETS[name], settings) for name in names or (sorted(PRESETS) if older is None else upgrading)]


def catalogue(names: Sequence[str], meetings: bool) -> list[dict[str, Any]]:
    """The presets, or worlds, that there are, and what each is about."""
    known = WORLDS if meetings else PRESETS
    return [{"name": name, "about": about(known[name])} for name in names or sorted(known)]


def torture(args: argparse.Namespace, *, say: Say, talk: Talk) -> int:
    """Runs the histories that were asked for, or judges the kept one, and returns how many findings there are."""
    if args.judge is not None:
        history, preset, seconds = args.judge
        kept = FailingHistory(preset, history.seed, seconds, history, judge(history, preset))
        return report_all([report_one(kept, None, talk)], args.json, say)
    first = args.seed or random.SystemRandom().randrange(1, _LARGEST_SEED)
    results = []
    presets = [p for p in args.presets if not (args.database and needs_cluster(p))]
    for missing in filter(None, map(missing_for, presets)):
        talk(f"left out: {missing}")
    presets = [p for p in presets if not missing_for(p)]
    with server(args, args.older.read_text() if args.older else None) as environments:
        run_one = fresh(environments)
        for preset, seed in histories(presets, first, args.count, args.minutes):
            one = run_one(preset, seed, args.seconds)
            results.append(report_one(one, args.keep, talk))
            if one.findings and args.shrink:
                simple = simplify(one, run_one, talk)
                line = again(simple.preset, simple.seed, simple.seconds)
                talk(f"  the simplest that went wrong: {line}")
                results[-1]["simplest"] = line
                if simple is not one:
                    results[-1]["kept_simplest"] = report_one(simple, args.keep, talk)["kept"]
    return report_all(results, args.json, say)


def report_all(results: list[dict[str, Any]], as_json: bool, say: Say) -> int:
    found = sum(len(result["findings"]) for result in results)
    if as_json:
        say(results)
    else:
        calls = sum(result["calls"] for result in results)
        histories_run = "1 history" if len(results) == 1 else f"{len(results)} histories"
        say(f"{histories_run}, {calls} calls, {found} findings")
    return found


def server(args: argparse.Namespace, script: str | None = None) -> AbstractContextManager[Environments]:
    return databases_on(args.database, script) if args.database else temporary_server(args.postgres, script)


def meet(args: argparse.Namespace, *, say: Say, talk: Talk, watch: Watch) -> int:
    """Runs the meetings of the worlds that were asked for, and returns how many findings there are."""
    first = args.seed or random.SystemRandom().randrange(1, _LARGEST_SEED)
    end = time.monotonic() + 60 * args.minutes if args.minutes is not None else float("inf")
    results: list[dict[str, Any]] = []
    with server(args, stopping_build()) as environments:
        for preset, seed in histories([WORLDS[n] for n in args.names or WORLDS], first, args.count, args.minutes):
            held, wrong = 0, []
            with environments(preset) as environment, stage(environment.url, preset) as place:
                meetings = all_meetings(preset, place.stops(), seed)
                random.Random(seed).shuffle(meetings)
                for meeting in watch(meetings if args.minutes is None else meetings[:_A_ROUND], preset.name):
                    if time.monotonic() > end:
                        break
                    met = place.meet(meeting)
                    held += 1
                    if met.findings:
                        wrong.append(met)
                        repeat = f"headgate torture --meetings {preset.name} --seed {seed}"
                        talk(f"{meeting}\n{explain_all(met.history, preset, met.findings, repeat)}")
            talk(f"{preset.name} seed {seed}: {held} of {len(meetings)} meetings, {len(wrong)} of them wrong")
            results.append({"world": preset.name, "seed": seed, "meetings": held, "findings": shown(wrong)})
    found = sum(len(result["findings"]) for result in results)
    count = sum(result["meetings"] for result in results)
    say(results if args.json else f"{count} meetings, {found} findings")
    return found


def shown(wrong: list[Met]) -> list[dict[str, Any]]:
    return [{"meeting": str(met.meeting), "check": f.check, "text": f.text} for met in wrong for f in met.findings]


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


def report_one(one: FailingHistory, keep: Path | None, talk: Talk) -> dict[str, Any]:
    """Tells what came of a history, and keeps what went wrong; answers the same for a program."""
    history, findings = one.history, one.findings
    end = max((e.answered for e in history.events if e.answered != float("inf")), default=0.0)
    head = f"{one.preset.name} seed {one.seed}: {len(history.events)} calls in {end:.0f} s"
    result: dict[str, Any] = {
        "preset": one.preset.name,
        "seed": one.seed,
        "calls": len(history.events),
        "findings": [{"check": f.check, "text": f.text, "at": round(f.at, 3), "seqs": f.seqs} for f in findings],
        "kept": None,
    }
    if not findings:
        talk(f"{head}, nothing wrong")
        return result
    parts = [head, f"  {census(history)}", summary(findings), f"  again: {again(one.preset, one.seed, one.seconds)}"]
    diagrams = {}
    for finding in first_of_each(findings):
        smaller = shrink(history, one.preset, finding)
        parts.append(f"\n{explain(smaller)}")
        name = "".join(c if c.isalnum() else "-" for c in finding.check.replace(",", ""))
        diagrams[f"{name}.svg"] = diagram(smaller)
        diagrams[f"{name}.json"] = to_json(smaller.history, smaller.preset, one.seconds)
    if keep is not None:
        directory = new_directory(keep, f"{one.preset.name}-{one.seed}")
        files = {
            "explanation.txt": "\n".join(parts) + "\n",
            "history.json": to_json(history, one.preset, one.seconds),
        } | diagrams
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
        parts.append(f"\n  kept in {directory}: {', '.join(files)}")
        result["kept"] = str(directory)
    talk("\n".join(parts))
    return result
