"""Faults that are planted in the engine are found by `headgate torture`: see mutants.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.torture.environment.server import Environments, databases_on
from headgate.torture.presets.catalogue import PRESETS
from torture.hunting import ALL, hunt, hunts
from torture.mutants import Mutant

TRIES = 15
FOUND = [m for m in ALL if m.presets]
# Some of several kinds that two seconds find in five of five tries.
AT_ONCE = (
    "keys in flight are unparked",
    "one more than max_concurrency",
    "a delay is half as long",
    "a version removes itself",
    "E20: an upsert is compared with what its id drops",
)


@pytest.fixture(scope="module")
def environments(cluster: Cluster) -> Iterator[Environments]:
    with databases_on(cluster.url(), cluster=cluster) as made:
        yield made


@pytest.mark.parametrize("mutant", ALL, ids=lambda m: m.name)
def test_planted(mutant: Mutant) -> None:
    """The place is still there, so that what is run is a mutant."""
    first, *others = mutant.places(schema.functions_script())
    assert first in (1, 2)
    assert all(others)
    assert set(mutant.presets) <= set(PRESETS)


@pytest.mark.parametrize("mutant", [m for m in FOUND if m.name in AT_ONCE], ids=lambda m: m.name)
def test_found_at_once(environments: Environments, mutant: Mutant) -> None:
    """In the first history, mostly; on a busy machine little happens in two seconds."""
    assert any(hunt(environments, mutant, mutant.presets[0], seed, 2).findings for seed in range(1, 7))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for m in FOUND if m.name not in AT_ONCE], ids=lambda m: m.name)
def test_found(environments: Environments, mutant: Mutant) -> None:
    if not any(result.findings for result in hunts(environments, mutant, range(1, TRIES + 1))):
        pytest.fail(f"not found in {TRIES} histories of {mutant.presets}")
