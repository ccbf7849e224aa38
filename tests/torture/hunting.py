"""Runs mutants: each in histories of its presets until the judge finds it.

`PYTHONPATH=tests python -m torture.hunting --help` says more.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psycopg

from headgate.torture.environment.server import Environments, temporary_server
from headgate.torture.judge.check import judge
from headgate.torture.presets.catalogue import PRESETS
from headgate.torture.run import run
from torture.mutants import MUTANTS, Mutant
from torture.mutants_readers import MUTANTS as OF_READERS

ALL = MUTANTS + OF_READERS
SECONDS = 4.0  # of a history


class Hunt(NamedTuple):
    """What came of one history of a mutant."""

    mutant: Mutant
    preset: str
    seed: int
    took: float
    findings: Counter[str]

    def __str__(self) -> str:
        said = ", ".join(f"{n} x {check}" for check, n in self.findings.most_common()) or "-"
        return f"{self.mutant.name} | {self.preset} seed {self.seed}, {self.took:.0f} s | {said}"


def hunt(environments: Environments, mutant: Mutant, preset: str, seed: int, seconds: float = SECONDS) -> Hunt:
    """One history in a fresh database with the mutant in it."""
    began = time.monotonic()
    with environments(PRESETS[preset]) as environment:
        with psycopg.connect(environment.url) as db:
            db.execute(mutant.functions().encode())
        history = run(environment, PRESETS[preset], seed, seconds)
    findings = Counter(f.check for f in judge(history, PRESETS[preset]))
    return Hunt(mutant, preset, seed, time.monotonic() - began, findings)


def hunts(environments: Environments, mutant: Mutant, seeds: Iterable[int], seconds: float = SECONDS) -> Iterator[Hunt]:
    """One history after the other, its presets in turn."""
    for turn, seed in enumerate(seeds):
        yield hunt(environments, mutant, mutant.presets[turn % len(mutant.presets)], seed, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the mutants' names; none: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tries", type=int, default=6, help="histories of a mutant, at most")
    parser.add_argument("--all", action="store_true", help="go on when it is found, to know how often it is")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--postgres", type=Path, help="binaries of another PostgreSQL")
    args = parser.parse_args()
    chosen = [m for m in ALL if m.presets and (not args.names or any(name in m.name for name in args.names))]

    def one(environments: Environments, mutant: Mutant) -> str:
        tried = found = 0
        for result in hunts(environments, mutant, range(args.seed, args.seed + args.tries), args.seconds):
            tried, found = tried + 1, found + bool(result.findings)
            print(result, flush=True)
            if found and not args.all:
                break
        return f"{'found' if found else 'NOT FOUND'} in {found} of {tried}: {mutant.name}"

    with temporary_server(args.postgres) as environments, ThreadPoolExecutor(args.jobs) as pool:
        print(*pool.map(lambda m: one(environments, m), chosen), sep="\n")


if __name__ == "__main__":
    main()
