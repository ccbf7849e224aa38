"""`headgate bench spark` on a small scale."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.bench.results import table
from headgate.bench.spark.run import BENCHMARKS, run
from headgate.postgres.cluster import Cluster
from support.command_line import CommandLine


@pytest.mark.slow
def test_every_benchmark_gives_figures(spark: Any, cluster: Cluster) -> None:
    said: list[str] = []
    found = run(tuple(BENCHMARKS), 2000, database=cluster.url(), talk=said.append, spark=spark)
    assert {r.name for r in found.results} == set(BENCHMARKS)
    assert all(r.headgate and r.headgate > 0 and r.target and isinstance(r.ok, bool) for r in found.results)
    source = found.results[0]
    assert source.baseline
    assert source.ratio == pytest.approx((source.headgate or 0) / source.baseline)
    assert len(said) == 3
    assert "archive" in table(found.results)


def test_by_itself(run: CommandLine) -> None:
    done = run("bench", "spark", "publish")
    assert done.code == 2
    assert "by themselves" in done.err
