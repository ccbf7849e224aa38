"""How the tests are shared out to the worker processes of pytest-xdist, and who has the machine for itself.

A worker has its own PostgreSQL (conftest.py) and is given the tests of one file after the other. The groups are made
here and not by `--dist loadgroup`, which pytest 9.2 and xdist 3.8 silently leave without effect together.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

ALONE, SPARK = "alone", "spark"

# These take minutes and come first: else one worker is still at such a file when the others are done.
LONG = [
    SPARK, "docs/test_pages", "engine/test_upgrade", "operate/test_availability", "server/test_processes",
    "sdk/test_embedded", "torture/test_mutants", "worker/test_stopping", "worker/test_hangs",
    "server/test_schemathesis",
    "engine/test_many_streams", "engine/test_discard", "engine/test_own_deadlines", "engine/test_stress",
    "sdk/test_integrations", "server/test_crash", "engine/test_crash",
]  # fmt: skip

MEMORY = 2 * 1024**3  # bytes, generously, for a worker with its servers


def count() -> int:
    """One more than processors, because the one that has run Spark's tests ends; fewer where memory is short."""
    return max(1, min((os.cpu_count() or 1) + 1, psutil.virtual_memory().available // MEMORY))


def group(item: pytest.Item) -> str:
    """What a worker is given at once: the tests of a file, which share servers; all of Spark's, which share a JVM."""
    return ALONE if item.get_closest_marker("alone") else _group_of_file(item.nodeid)


def order(item: pytest.Item) -> int:
    """Where a test comes. Spark changes the log's format of its process: where it is the only one, it comes last."""
    name = group(item)
    if name == SPARK and getattr(item.config, "workerinput", {}).get("workercount", 1) == 1:
        return len(LONG) + 2
    return LONG.index(name) if name in LONG else len(LONG) + (name == ALONE)


def _group_of_file(nodeid: str) -> str:
    path = Path(nodeid.partition("::")[0])
    return SPARK if path.parent.name == SPARK else "/".join(path.with_suffix("").parts[-2:])


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _shared(config: pytest.Config) -> Path:
    """The directory that the workers of a run share; that of each is within it."""
    own = Path(config.option.basetemp)
    return own.parent if is_worker(config) else own


@contextmanager
def quiet(item: pytest.Item) -> Iterator[None]:
    """Run a test marked `alone` while no other worker runs one."""
    if not is_worker(item.config):
        yield
        return
    # Programs that are started do not inherit it, and the kernel unlocks it when the worker dies.
    with (_shared(item.config) / "quiet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if group(item) == ALONE else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # also for processes that were forked meanwhile


def tell_alone(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell the controller, which sees no markers, what runs alone: each worker says the same."""
    if is_worker(config):
        told = _shared(config) / f"alone-{os.environ['PYTEST_XDIST_WORKER']}.json"
        told.write_text(json.dumps([item.nodeid for item in items if group(item) == ALONE]))


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives workers whole files, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._alone: set[str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._alone is None:  # by now all workers have collected
            told = next(_shared(self.config).glob("alone-*.json"))
            self._alone = set(json.loads(told.read_text()))
        return ALONE if nodeid in self._alone else _group_of_file(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        super()._assign_work_unit(node)
        if self.numnodes > 1 and SPARK in self.assigned_work[node]:
            node.shutdown()  # when it has run what it has: nothing comes after Spark, see `order`

    def remove_node(self, node: Any) -> str | None:
        """Pass on what a dead worker had still to do, without the test that it died in, which xdist starts for ever."""
        units = self.assigned_work[node]
        died_in: str | None = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        if died_in is not None:
            units[self._split_scope(died_in)][died_in] = True
            for name in [name for name, unit in units.items() if all(unit.values())]:
                del units[name]
        super().remove_node(node)
        return died_in

    def schedule(self) -> None:
        begun = self.collection is not None
        super().schedule()
        if begun:  # a worker that replaces a dead one: it keeps its last test until it is given another
            super().schedule()


def stop_orphans(directory: Path) -> None:
    """Stop the PostgreSQLs of workers that died."""
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == "postgres" and Path(process.cwd()).is_relative_to(directory):
                process.send_signal(signal.SIGQUIT)
