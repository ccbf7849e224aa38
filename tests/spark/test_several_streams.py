"""Several streams in one query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate
from spark.frames import finish


@pytest.fixture
def streams(hg: headgate.Headgate) -> list[headgate.Stream]:
    found = [hg.stream(name, create=True, lanes=2) for name in ("orders.eu", "orders.us", "other")]
    for stream in found:
        stream.send_batch([(f"k{n % 3}", f"{stream.name} {n}") for n in range(10)])
    return found


def read(spark: Any, hg: headgate.Headgate, **options: Any) -> Any:
    return spark.read.format("headgate").options(url=hg.url, **options).load()


class Copy:
    """A streaming query with a checkpoint, run until it has read what is there."""

    def __init__(self, spark: Any, hg: headgate.Headgate, path: Path, **options: Any) -> None:
        self.got: dict[int, list[tuple[str, str]]] = {}
        self.path, self._spark, self._options = path, spark, {"url": hg.url, **options}

    def run(self, **options: Any) -> Any:
        frame = self._spark.readStream.format("headgate").options(**{**self._options, **options}).load()
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.path))
        return finish(writer.trigger(availableNow=True).start())

    def _keep(self, batch: Any, number: int) -> None:
        self.got[number] = [(r.stream, r.data) for r in batch.collect()]

    @property
    def rows(self) -> list[tuple[str, str]]:
        return sorted(row for batch in self.got.values() for row in batch)


def expected(*names: str, first: int = 0, last: int = 9) -> list[tuple[str, str]]:
    return sorted((name, f"{name} {n}") for name in names for n in range(first, last + 1))


def test_a_batch_read(spark: Any, hg: headgate.Headgate, streams: list[headgate.Stream]) -> None:
    found = read(spark, hg, streams="orders.eu, other")
    assert found.columns == ["stream", "seq", "key", "data", "headers", "channel", "lane", "created_at", "tick"]
    assert sorted((r.stream, r.data) for r in found.collect()) == expected("orders.eu", "other")
    some = read(spark, hg, streamPattern="orders.*", columns="data,stream", filter="k1", start="seq:3")
    assert sorted(tuple(r) for r in some.collect()) == sorted(
        (f"{name} {n}", name) for name in ("orders.eu", "orders.us") for n in (4, 7)
    )
    assert read(spark, hg, streamPattern=">", columns="stream").groupBy("stream").count().count() == 3
    pushed = read(spark, hg, streamPattern=">", pushFilters=True).where("stream = 'other' and seq > 8")
    assert [r.data for r in pushed.orderBy("seq").collect()] == ["other 8", "other 9"]
    assert read(spark, hg, streamPattern="nothing.>").count() == 0
    for options, said in (
        ({"streams": "orders.eu,nowhere"}, 'stream "nowhere" does not exist'),
        ({"streams": "other", "stream": "other"}, "is not clear"),
        ({"streams": "other", "history": True}, "read each with its history"),
        ({"stream": "other", "columns": "stream"}, 'no column "stream"'),
        ({"streamPattern": "a.>.b"}, "not a key filter"),
    ):
        with pytest.raises(Exception, match=said):
            read(spark, hg, **options).count()


def test_streams_come_and_go(spark: Any, hg: headgate.Headgate, streams: list[headgate.Stream], tmp_path: Path) -> None:
    copy = Copy(spark, hg, tmp_path / "c", streamPattern="orders.*", maxRowsPerTrigger=8)
    query = copy.run()
    assert copy.rows == expected("orders.eu", "orders.us")
    assert all(p["numInputRows"] <= 9 for p in query.recentProgress)
    streams[0].send_batch([("k0", f"orders.eu {n}") for n in (10, 11)])
    asia = hg.stream("orders.asia", create=True)
    asia.send_batch([f"orders.asia {n}" for n in range(12)])
    copy.run()
    everything = expected("orders.eu", "orders.asia", last=11) + expected("orders.us")
    assert copy.rows == sorted(everything)
    copy.run()
    assert copy.rows == sorted(everything)
    asia.drop()
    with pytest.raises(Exception, match=r'stream "orders.asia" was dropped while it was being read'):
        copy.run()
    streams[0].send("orders.eu 12")
    copy.run(failOnDataLoss=False)
    # another one that has its name is read from its beginning
    hg.stream("orders.asia", create=True).send("anew")
    copy.run(failOnDataLoss=False)
    assert copy.rows == sorted([*everything, ("orders.eu", "orders.eu 12"), ("orders.asia", "anew")])


def test_a_batch_that_is_repeated_has_the_same_rows(
    spark: Any, hg: headgate.Headgate, streams: list[headgate.Stream], tmp_path: Path
) -> None:
    copy = Copy(spark, hg, tmp_path / "c", streamPattern="orders.*")
    copy.run()
    hg.stream("orders.new", create=True).send_batch([f"orders.new {n}" for n in range(10)])
    copy.run()
    last = max(copy.got)
    before = sorted(copy.got[last])
    assert before == expected("orders.new")
    (tmp_path / "c" / "commits" / str(last)).unlink()  # as after a crash
    for stream in [*streams, hg.stream("orders.new")]:
        stream.send(f"{stream.name} 10")
    copy.run()
    assert sorted(copy.got[last]) == before
    assert copy.rows == expected("orders.eu", "orders.us", "orders.new", last=10)


def test_one_of_the_named_streams_is_dropped(
    spark: Any, hg: headgate.Headgate, streams: list[headgate.Stream], tmp_path: Path
) -> None:
    copy = Copy(spark, hg, tmp_path / "c", streams="orders.eu,other", start="latest")
    copy.run()
    assert copy.rows == []
    streams[2].send("other 10")
    copy.run()
    assert copy.rows == [("other", "other 10")]
    streams[2].drop()
    with pytest.raises(Exception, match='stream "other" does not exist'):
        copy.run()
