"""A streaming query beside the writers of the engine's own test: commits out of order, rollbacks, long transactions."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import headgate
from engine.test_stress import Stress
from spark.frames import arriving
from support.waiting import wait_until


def test_nothing_is_skipped(spark: Any, hg: headgate.Headgate, tmp_path: Path) -> None:
    stress = Stress(hg.url, seconds=5, longest=2.5, seed=11, lane_by="hash")
    stress.consumers = []
    writing = threading.Thread(target=lambda: asyncio.run(stress.run()))
    writing.start()
    wait_until(lambda: hg.run("select count(*) from headgate.stream", ())[0][0] == 1)
    read: list[list[tuple[int, str]]] = []

    def keep(batch: Any, _: int) -> None:
        read.append([(r.seq, r.key) for r in batch.select("seq", "key").collect()])

    writer = arriving(spark, hg, "s", columns="seq,key", maxRowsPerTrigger=200).writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        writing.join()
        wait_until(lambda: sum(map(len, read)) >= len(stress.sent) or not query.isActive, timeout=60)
        hg.stream("s").send("last", key="a.1")
        wait_until(lambda: sum(map(len, read)) > len(stress.sent) or not query.isActive, timeout=60)
    finally:
        query.stop()
    assert query.exception() is None
    seqs = [seq for batch in read for seq, _ in batch]
    assert len(seqs) == len(set(seqs))
    assert set(seqs) > stress.sent.keys()
    assert len(seqs) == len(stress.sent) + 1
    place = {seq: i for i, seq in enumerate(seqs)}
    for key in {m.key for m in stress.sent.values()}:
        mine = sorted((m for m in stress.sent.values() if m.key == key), key=lambda m: m.seq)
        for a in mine[::7]:
            assert all(place[a.seq] < place[b.seq] for b in mine if b.started > a.committed)
