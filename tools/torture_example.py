"""The diagram of a finding in docs/guides/torture.md: a real one, of a fault that was planted in the engine.

torture_example.json was kept by `headgate torture many-lanes`, with "a span begins with what was read" of
tests/torture/mutants.py in the engine.
"""

from __future__ import annotations

from pathlib import Path

from headgate.torture.judge.check import judge
from headgate.torture.report.diagram import diagram
from headgate.torture.report.files import load
from headgate.torture.report.shrink import Smaller

FILE = Path(__file__).with_suffix(".json")


def example() -> Smaller:
    """The history, which has been shrunk, and its finding."""
    history, preset, _ = load(FILE)
    return Smaller(history, preset, judge(history, preset)[0])


def page() -> str:
    return diagram(example())
