"""From stream to stream, exactly once, though the driver is killed again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

import headgate
from spark.frames import arriving, copying, finish

JOB = Path(__file__).with_name("copy_job.py")


class Job:
    """A process that copies a stream, in a session of its own, so that its JVM and workers die with it."""

    def __init__(self, hg: headgate.Headgate, checkpoint: Path, rows: int, master: str = "local[2]") -> None:
        self.process = subprocess.Popen(
            [sys.executable, JOB, hg.url, "orders", "copy", str(checkpoint), str(rows), master],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: Queue[str] = Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put("ended")

    def next_line(self, timeout: float = 180) -> str:
        return self.lines.get(timeout=timeout)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def fill(hg: headgate.Headgate, count: int, keys: int) -> None:
    hg.run(
        "select count(*) from (select headgate.send_batch('orders', array_agg(i::text order by i), "
        "array_agg('k' || i %% %s order by i)) from generate_series(1, %s) i group by i / 10000) x",
        (keys, count),
    )


def check(hg: headgate.Headgate, count: int) -> None:
    """Everything is there once, and each key's messages in their order."""
    by_key = defaultdict(list)
    for key, data in hg.run("select key, data::int from headgate.log_copy order by seq", ()):
        by_key[key].append(data)
    assert sum(map(len, by_key.values())) == count
    for key, datas in by_key.items():
        assert datas == sorted(set(datas)), key


def copy_and_kill(hg: headgate.Headgate, checkpoint: Path, rows: int, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    killed = 0
    while True:
        job = Job(hg, checkpoint, rows)
        try:
            assert job.next_line() == "started"
            if killed < kills:
                # after some batches, and at any moment of the next one
                for _ in range(rng.randint(1, 2)):
                    if job.next_line() in ("done", "ended"):
                        return
                with contextlib.suppress(Empty):
                    job.lines.get(timeout=rng.uniform(0, 1.0))
                killed += 1
                continue
            while (line := job.next_line()) != "done":
                assert line != "ended", "the job failed"
            return
        finally:
            job.kill()


def test_a_killed_driver(spark: Any, hg: headgate.Headgate, tmp_path: Path) -> None:
    for name in ("orders", "copy"):
        hg.stream(name, create=True, lanes=4)
    fill(hg, 15_000, 50)
    job = Job(hg, tmp_path / "c", 3_000)
    try:
        assert [job.next_line(), job.next_line()] == ["started", "0"]
    finally:
        job.kill()
    before = hg.run("select count(*) from headgate.log_copy", ())[0][0]
    assert 3_000 <= before < 15_000
    finish(copying(arriving(spark, hg, maxRowsPerTrigger=3_000), hg, "copy", tmp_path / "c"))
    check(hg, 15_000)


@pytest.mark.slow
def test_a_driver_killed_many_times_over_a_million_messages(hg: headgate.Headgate, tmp_path: Path) -> None:
    for name in ("orders", "copy"):
        hg.stream(name, create=True, lanes=16)
    fill(hg, 1_000_000, 1000)
    copy_and_kill(hg, tmp_path / "c", 60_000, kills=6, seed=2)
    check(hg, 1_000_000)
