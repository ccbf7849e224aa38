"""Random histories of sessions that do whatever they like to one stream; see `headgate torture`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headgate.database import schema
from headgate.torture.environment.server import Environments, temporary_server
from headgate.torture.judge.check import judge
from headgate.torture.presets.catalogue import PRESETS
from headgate.torture.report.explain import explain_all
from headgate.torture.run import run

# One of each kind; all presets are run by test_long_history.
SHORT = [
    ("plain", 1), ("keys", 1), ("many-channels", 1), ("seeks", 1), ("storage-lanes", 1), ("upsert", 1),
    ("crashes-storage", 1), ("network", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def environments(bin_dir: Path) -> Iterator[Environments]:
    """Databases on a server of their own: some histories kill it."""
    with temporary_server(bin_dir) as found:
        yield found


def passes(environments: Environments, preset: str, seed: int, seconds: float) -> None:
    with environments(PRESETS[preset]) as environment:
        history = run(environment, PRESETS[preset], seed, seconds)
    findings = judge(history, PRESETS[preset])
    assert not findings, f"{preset}, seed {seed}\n" + explain_all(history, PRESETS[preset], findings)


@pytest.mark.parametrize(("preset", "seed"), SHORT)
def test_history(environments: Environments, preset: str, seed: int) -> None:
    passes(environments, preset, seed, 4)


def test_fresh_history(environments: Environments) -> None:
    """Another one on each run; what fails says how to repeat it."""
    seed = random.SystemRandom().randrange(1, 1_000_000)
    preset = random.Random(seed).choice(sorted(PRESETS))
    print(f"headgate torture {preset} --seed {seed}")
    passes(environments, preset, seed, 5)


def test_batches(environments: Environments) -> None:
    """Everything is staged and sent in batches; some are sent again, and not there twice."""
    preset = replace(PRESETS["staged"], staged=1.0)
    with environments(preset) as environment:
        history = run(environment, preset, 1, 2)
    findings = judge(history, preset)
    assert not findings, explain_all(history, preset, findings)
    sent = [(e.session, e.asked.get("batch")) for e in history.events if e.kind == "send" and not e.problem]
    assert [s for s in sent if s[1]], "nothing was staged"


def test_an_older_schema(bin_dir: Path) -> None:
    """Functions of before are replaced by those of today, whatever goes on, and at the latest when all are gone."""
    older = schema.install_sql() + "update headgate.functions_digest set version = 0, digest = 'older';"
    preset = PRESETS["upgrades"]
    with temporary_server(bin_dir, older) as environments, environments(preset) as environment:
        history = run(environment, preset, 1, 2)
        with psycopg.connect(environment.url) as db:
            there = db.execute("select version from headgate.functions_digest").fetchall()
    findings = judge(history, preset)
    assert not findings, explain_all(history, preset, findings)
    assert there == [(schema.functions_version(),)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_long_history(environments: Environments, preset: str, seed: int) -> None:
    passes(environments, preset, seed, 10)
