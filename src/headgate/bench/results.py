"""Figures, targets, and how they are written."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

from headgate import __version__

Given = TypeVar("Given")


@dataclass(frozen=True)
class Result:
    """One line of a run. `pgmq` is the faster of its two, `ratio` is Headgate's figure over that of `against`."""

    name: str
    params: dict[str, int | str]
    unit: str
    headgate: float | None = None
    pgmq: float | None = None
    pgmq_sql: float | None = None
    pgmq_client: float | None = None
    copy: float | None = None
    baseline: float | None = None  # the same contender without what the benchmark puts on it
    against: str | None = None
    ratio: float | None = None
    target: float | None = None
    target_is: str = "ratio at least"  # or "value at least"; or "value at most", "ratio at most": then less is better

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None when there is none, or nothing to compare with."""
        if self.target is None:
            return None
        if self.target_is.startswith("value"):
            if self.headgate is None:
                return False
            return self.headgate <= self.target if self.target_is == "value at most" else self.headgate >= self.target
        if self.ratio is None:
            return None
        return self.ratio <= self.target if self.target_is == "ratio at most" else self.ratio >= self.target

    @property
    def client_ratio(self) -> float | None:
        """Headgate's figure over that of pgmq's own Python client: what somebody gains who changes to Headgate."""
        if self.against != "pgmq" or self.headgate is None or not self.pgmq_client:
            return None
        return self.headgate / self.pgmq_client

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "client_ratio": self.client_ratio, "ok": self.ok}


@dataclass(frozen=True)
class Run:
    """Everything that a run found out."""

    machine: dict[str, Any]
    versions: dict[str, str]
    results: list[Result]

    def as_json(self) -> dict[str, Any]:
        return {"machine": self.machine, "versions": self.versions, "results": [r.as_json() for r in self.results]}

    @property
    def below(self) -> list[Result]:
        """The results that miss their target."""
        return [r for r in self.results if r.ok is False]


def compare(
    name: str, params: dict[str, int | str], found: dict[str, float], *, unit: str, against: str,
    target: float | None = None, target_is: str = "ratio at least",
) -> Result:  # fmt: skip
    """The result of one figure for each contender. `against` is "pgmq", "copy" or "baseline"."""
    figures: dict[str, float] = dict(found)
    called = [found[kind] for kind in ("pgmq_sql", "pgmq_client") if kind in found]
    if called:
        figures["pgmq"] = max(called) if target_is == "ratio at least" else min(called)
    own = figures["headgate"] if "headgate" in figures else figures["pgmq"]
    ratio = own / figures[against] if figures.get(against) else None
    return Result(name, params, unit, against=against, ratio=ratio, target=target, target_is=target_is, **figures)


def measure(
    names: Iterable[str],
    benchmarks: Mapping[str, Callable[[Given], list[Result]]],
    bench: Given,
    talk: Callable[[str], None],
) -> list[Result]:
    """Runs the benchmarks of these names one after the other, and says how long each took."""
    results: list[Result] = []
    for name in names:
        start = time.monotonic()
        results += benchmarks[name](bench)
        talk(f"{name}: {time.monotonic() - start:.0f} s")
    return results


def own_versions() -> dict[str, str]:
    """What is measured in every run, and with what."""
    return {"headgate": __version__, "psycopg": psycopg.__version__, "python": platform.python_version()}


def machine(settings: dict[str, str]) -> dict[str, Any]:
    """What the machine is like: nothing that names it."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "system": platform.system(),
        "load_before": round(os.getloadavg()[0], 1),
        "server_settings": settings,
    }


HEADINGS = (
    "benchmark",
    "parameters",
    "headgate",
    "pgmq, SQL",
    "pgmq, client",
    "COPY",
    "baseline",
    "unit",
    "ratio",
    "target",
    "",
    "to its client",
)


def cells(result: Result) -> tuple[str, ...]:
    """A result as the cells of a table."""
    r = result
    target = ""
    if r.target is not None:
        sign = "≥" if r.target_is.endswith("at least") else "≤"
        target = f"{sign} {r.target:g} {r.unit if r.target_is.startswith('value') else f'x {r.against}'}"
    params = " ".join(f"{name}={value}" for name, value in r.params.items())
    missed = "below" if r.target_is.endswith("at least") else "above"
    verdict = {True: "ok", False: missed, None: ""}[r.ok]
    return (
        r.name, params, number(r.headgate), number(r.pgmq_sql), number(r.pgmq_client), number(r.copy),
        number(r.baseline), r.unit,
        f"{r.ratio:.2f} x {r.against}" if r.ratio is not None else "", target, verdict,
        f"{r.client_ratio:.2f} x" if r.client_ratio is not None else "",
    )  # fmt: skip


def table(results: list[Result]) -> str:
    """Aligned plain text."""
    rows = [HEADINGS, *(cells(r) for r in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    kept = [i for i in range(len(HEADINGS)) if any(row[i] for row in rows[1:])]
    left = {0, 1, 7, 9, 10}
    lines = [
        "  ".join(row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in kept).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def number(value: float | None) -> str:
    """A figure with three digits that mean something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
