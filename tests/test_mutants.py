"""Faults that are planted in the engine are found by `headgate torture`: see mutants.py."""

from __future__ import annotations

import psycopg
import pytest
from conftest import NewCluster
from mutants import MUTANTS, Mutant
from psycopg import sql

from headgate import schema
from headgate.torture.check import judge
from headgate.torture.presets import PRESETS
from headgate.torture.run import run

TRIES = 6


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_planted(mutant: Mutant) -> None:
    """The place is still there, so that what is run is a mutant."""
    assert schema.install_sql().count(mutant.old) in (1, 2)
    assert set(mutant.presets) <= set(PRESETS)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_found(new_cluster: NewCluster, mutant: Mutant) -> None:
    cluster = new_cluster()
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        for seed in range(1, TRIES + 1):
            name = f"mutant_{seed}"
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            with psycopg.connect(cluster.url(name)) as db:
                db.execute(mutant.sql().encode())
            preset = PRESETS[mutant.presets[seed % len(mutant.presets)]]
            if judge(run(cluster.url(name), preset, seed, 4), preset):
                return
    pytest.fail(f"not found in {TRIES} histories of {mutant.presets}")
