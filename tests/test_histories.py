"""Random histories of sessions that do whatever they like to one stream; see `headgate torture`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.torture.catalogue import PRESETS
from headgate.torture.check import judge
from headgate.torture.run import run
from headgate.torture.server import Grounds, temporary_server
from headgate.torture.story import tell

# One of each kind; all presets are run by test_long_history.
SHORT = [
    ("plain", 1), ("keys", 1), ("many-channels", 1), ("seeks", 1), ("storage-lanes", 1), ("upsert", 1),
    ("crashes-storage", 1), ("network", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def grounds(bin_dir: Path) -> Iterator[Grounds]:
    """Databases on a server of their own: some histories kill it."""
    with temporary_server(bin_dir) as found:
        yield found


def passes(grounds: Grounds, preset: str, seed: int, seconds: float) -> None:
    with grounds(PRESETS[preset]) as ground:
        history = run(ground, PRESETS[preset], seed, seconds)
    findings = judge(history, PRESETS[preset])
    assert not findings, f"{preset}, seed {seed}\n" + tell(history, PRESETS[preset], findings)


@pytest.mark.parametrize(("preset", "seed"), SHORT)
def test_history(grounds: Grounds, preset: str, seed: int) -> None:
    passes(grounds, preset, seed, 4)


def test_fresh_history(grounds: Grounds) -> None:
    """Another one on each run; what fails says how to repeat it."""
    seed = random.SystemRandom().randrange(1, 1_000_000)
    preset = random.Random(seed).choice(sorted(PRESETS))
    print(f"headgate torture {preset} --seed {seed}")
    passes(grounds, preset, seed, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_long_history(grounds: Grounds, preset: str, seed: int) -> None:
    passes(grounds, preset, seed, 10)
