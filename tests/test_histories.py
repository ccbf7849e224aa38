"""Random histories of sessions that do whatever they like to one stream; see `headgate torture`."""

from __future__ import annotations

import random

import pytest

from headgate.torture.check import judge
from headgate.torture.presets import PRESETS
from headgate.torture.run import run
from headgate.torture.story import tell

# One of each kind; all presets are run by test_long_history.
SHORT = [("plain", 1), ("keys", 1), ("many-channels", 1), ("seeks", 1), ("storage-lanes", 1), ("upsert", 1)]


def passes(url: str, preset: str, seed: int, seconds: float) -> None:
    history = run(url, PRESETS[preset], seed, seconds)
    findings = judge(history, PRESETS[preset])
    assert not findings, f"{preset}, seed {seed}\n" + tell(history, findings)


@pytest.mark.parametrize(("preset", "seed"), SHORT)
def test_history(database_url: str, preset: str, seed: int) -> None:
    passes(database_url, preset, seed, 4)


def test_fresh_history(database_url: str) -> None:
    """Another one on each run; what fails says how to repeat it."""
    seed = random.SystemRandom().randrange(1, 1_000_000)
    preset = random.Random(seed).choice(sorted(PRESETS))
    print(f"headgate torture {preset} --seed {seed}")
    passes(database_url, preset, seed, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_long_history(database_url: str, preset: str, seed: int) -> None:
    passes(database_url, preset, seed, 10)
