"""Archives: a stream in a Delta table, each message once, whatever crashes; and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.table import TableOptimizer

import headgate
from headgate.errors import Conflict, Error, InvalidArgument, MessagesRemoved
from headgate.lake import table as lake
from headgate.lake.files import read_files, write_files
from headgate.lake.secrets import Secret
from headgate.lake.storage import Location
from headgate.pipeline import compaction, parse
from headgate.pipeline.kinds import archive
from headgate.pipeline.run import Progress, run
from support.calls import Db, value
from support.storage import end_segment, maintain

from .lakes import fill, go, messages, rows


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    """A stream that messages soon leave, once it is told to keep them for a moment only."""
    return hg.stream("orders", create=True, lanes=4, segment_rows=10_000, segment_age=0.000001)


def spec(path: Path, *lines: str, name: str = "lake") -> str:
    return "\n".join([f'kind = "archive"\nname = "{name}"\nstream = "orders"\nto = "{path}"', *lines])


def test_what_the_stream_loses_comes_back_from_the_lake_as_it_was(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    fill(hg, 1, 3000)
    before = messages(hg, "orders")
    assert len(before) == 3000
    said = go(hg, spark, tmp_path, spec(tmp_path / "t"))
    assert [(p.batch, p.rows, p.lag) for p in said] == [(0, 3000, 0)]
    end_segment(db, "orders")
    orders.alter(retain_up_to=0.000001)
    maintain(db)
    assert messages(hg, "orders") == []
    hg.stream("again", create=True, lanes=8)
    replay = f'kind = "replay"\nname = "back"\nsource = "{tmp_path / "t"}"\nstream = "again"\nrows_per_batch = 1100'
    said = go(hg, spark, tmp_path, replay)
    assert messages(hg, "again") == before
    assert [p.rows for p in said] == [1100, 1100, 800]
    assert go(hg, spark, tmp_path, replay) == []  # once is once
    assert len(messages(hg, "again")) == 3000


def test_a_run_goes_on_where_the_last_one_ended_and_the_database_knows(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    path = tmp_path / "t"
    for n in range(2):
        fill(hg, n * 100 + 1, n * 100 + 100)
        go(hg, spark, tmp_path, spec(path))
    found = rows(path, ["seq", "key", "data", "headers", "date", "hour", "created_at"])
    assert sorted(r["seq"] for r in found) == list(range(1, 201))
    assert {(r["created_at"].date(), r["created_at"].hour) for r in found} == {(r["date"], r["hour"]) for r in found}
    location, floor = db.execute("select place, floor from headgate.archive where name = 'lake'").fetchone() or ()
    assert (location, floor) == (str(path), 200)
    assert value(db, "select headgate.archive_mark('orders', 'lake')") == _mark(path)


def _mark(path: Path) -> Any:
    """How far the table says that it is."""
    said = [json.loads(c["headgate"]) for c in DeltaTable(str(path)).history() if "headgate" in c]
    return said[0]["state"]["mark"]


@pytest.mark.parametrize("crash", ["before", "after", "noted"])
def test_a_crash_around_the_commit_neither_doubles_nor_loses(
    hg: headgate.Headgate,
    spark: Any,
    tmp_path: Path,
    orders: headgate.Stream,
    db: Db,
    monkeypatch: pytest.MonkeyPatch,
    crash: str,
) -> None:
    path = tmp_path / "t"
    fill(hg, 1, 200)
    real = lake.LakeTable.add

    def add(self: lake.LakeTable, *given: Any) -> bool:
        if crash == "after":
            real(self, *given)
        raise RuntimeError("power cut")

    def note(*_: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        if crash == "noted":
            patch.setattr(archive, "_record_position", note)
        else:
            patch.setattr(lake.LakeTable, "add", add)
        with pytest.raises(Error, match="power cut"):
            go(hg, spark, tmp_path, spec(path, "rows_per_batch = 150"))
    assert value(db, "select count(*) from headgate.archive") == 0
    assert len(list(path.rglob("*.parquet"))) == 1
    assert len(rows(path, ["seq"])) == (0 if crash == "before" else 150)
    go(hg, spark, tmp_path, spec(path, "rows_per_batch = 150"))
    assert sorted(r["seq"] for r in rows(path, ["seq"])) == list(range(1, 201))
    assert value(db, "select headgate.archive_mark('orders', 'lake')") == _mark(path)


def test_a_batch_that_is_there_is_not_added_again(tmp_path: Path) -> None:
    table = lake.LakeTable(Location(str(tmp_path / "t")), archive.ARROW)
    assert [table.add([], "w", batch, {"mark": batch}) for batch in (0, 0, 2, 1, 3)] == [True, False, True, False, True]
    assert table.writer("w") == lake.Writer("w", 3, {"mark": 3})
    assert table.writer("other") == lake.Writer("other")


def test_two_at_once_do_not_both_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.LakeTable(Location(str(tmp_path / "t")), archive.ARROW)
    before = table.open()
    assert table.add([], "w", 0)
    monkeypatch.setattr(lake.LakeTable, "open", lambda _: before)
    with pytest.raises(Conflict, match="the pipeline w runs somewhere else too"):
        table.add([], "w", 0)


def test_small_files_are_put_together(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream
) -> None:
    fill(hg, 1, 450)
    path = tmp_path / "t"
    go(hg, spark, tmp_path, spec(path, "rows_per_batch = 50", 'partition_by = ["date"]'))
    assert len(DeltaTable(str(path)).file_uris()) < 8 < len(list(path.rglob("part-*.parquet")))
    assert [r["seq"] for r in sorted(rows(path, ["seq"]), key=lambda r: r["seq"])] == list(range(1, 451))
    go(hg, spark, tmp_path, spec(path, 'partition_by = ["date"]'))  # a compaction does not hide how far it was
    assert len(rows(path, ["seq"])) == 450


def test_compaction_is_done_by_tasks_some_files_at_a_time(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hg.stream("orders", create=True, lanes=4, lane_by="channel")
    tenants = [None, "b/ü %2F"]
    stream.send_batch([headgate.Outgoing(str(n), channel=tenants[n % 2]) for n in range(36)])
    path = tmp_path / "t"
    parted = spec(path, 'partition_by = ["channel"]')
    monkeypatch.setattr(compaction, "AT_ONCE", 10)
    go(hg, spark, tmp_path, parted + "\ncompact = false\nrows_per_batch = 4")
    assert len(DeltaTable(str(path)).file_uris()) == 18

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("rows are put together in the driver")

    monkeypatch.setattr(TableOptimizer, "compact", refused)
    go(hg, spark, tmp_path, parted)
    assert len(DeltaTable(str(path)).file_uris()) == 18 - 9 + 1  # of ten, one would be alone
    log = [json.loads(line) for f in (path / "_delta_log").glob("*.json") for line in f.read_text().splitlines()]
    assert [action["remove"]["dataChange"] for action in log if "remove" in action] == [False] * 9
    found = rows(path, ["seq", "data", "channel"])
    assert sorted(int(r["data"]) for r in found) == list(range(36))
    assert all(r["channel"] == tenants[int(r["data"]) % 2] for r in found)
    stream.send("36", channel=None)
    go(hg, spark, tmp_path, parted)
    assert len(rows(path, ["seq"])) == 37


def test_partitions_by_a_column(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    stream = hg.stream("orders", create=True, lanes=4, lane_by="channel")
    tenants = [None, "a", "b/ü %2F", "c=d"]
    stream.send_batch([headgate.Outgoing(str(n), channel=tenants[n % 4]) for n in range(40)])
    path = tmp_path / "t"
    go(hg, spark, tmp_path, spec(path, 'partition_by = ["channel"]'))
    found = rows(path, ["seq", "data", "channel"])
    assert len(found) == 40
    assert all(r["channel"] == tenants[int(r["data"]) % 4] for r in found)
    assert {next(iter(p.values())) for p in DeltaTable(str(path)).partitions()} == set(tenants)


def test_continuous_and_late_transactions(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, database_url: str
) -> None:
    path, found = tmp_path / "t", []
    fill(hg, 1, 50)
    with psycopg.connect(database_url) as late:
        late.execute("select headgate.send('orders', 'late', 'k')")
        fill(hg, 51, 100)

        def say(progress: Progress) -> None:
            found.append(progress.rows)
            if sum(found) == 100:  # what the open transaction has sent, before half of these, is still to come
                late.commit()
                fill(hg, 101, 150)

        pipeline = parse(spec(path, 'run = "continuous"'))
        run(pipeline, hg, spark, say=say, stopping=lambda: sum(found) >= 151, directory=tmp_path)
    archived = rows(path, ["seq", "data"])
    assert sorted(r["seq"] for r in archived) == list(range(1, 152))
    assert [r["seq"] for r in archived if r["data"] == "late"] == [51]


def test_what_retention_took_before_it_was_read_is_told(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    path = tmp_path / "t"
    fill(hg, 1, 10)
    go(hg, spark, tmp_path, spec(path))
    fill(hg, 11, 20)
    end_segment(db, "orders")
    orders.alter(retain_up_to=0.000001)
    maintain(db)
    fill(hg, 21, 30)
    with pytest.raises(MessagesRemoved, match="no longer has the messages") as caught:
        go(hg, spark, tmp_path, spec(path))
    assert "skip_removed = true" in (caught.value.hint or "")
    go(hg, spark, tmp_path, spec(path, "skip_removed = true"))
    assert sorted(json.loads(r["data"])["n"] for r in rows(path, ["data"])) == [*range(1, 11), *range(21, 31)]


def test_a_segment_that_the_archive_has_is_not_missed(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    path = tmp_path / "t"
    fill(hg, 1, 10)
    go(hg, spark, tmp_path, spec(path))
    segment = end_segment(db, "orders")  # early: the rest of its seqs are left out
    go(hg, spark, tmp_path, spec(path))
    assert value(db, "select floor from headgate.archive") >= segment["end_seq"] - 1
    orders.alter(retain_up_to=0.000001)
    maintain(db)
    fill(hg, 11, 20)
    go(hg, spark, tmp_path, spec(path))
    assert sorted(json.loads(r["data"])["n"] for r in rows(path, ["data"])) == list(range(1, 21))


def test_files_of_an_object_store(tmp_path: Path) -> None:
    """The store is a directory here, but reached in the way of object stores."""
    store = Location(f"file://{tmp_path}", Secret('{"AWS_SECRET_ACCESS_KEY": "hush"}'))
    assert not store.local
    assert "hush" not in repr(store)
    given = pa.RecordBatch.from_pydict({"seq": [3, 1, 2], "channel": ["a", None, "a"]})
    written = sorted(write_files(store, given.schema, ["channel"], iter([given])), key=lambda file: file.rows)
    assert [(f.rows, f.partition, f.least, f.greatest) for f in written] == [
        (1, {"channel": None}, {"seq": 1}, {"seq": 1}),
        (2, {"channel": "a"}, {"seq": 2}, {"seq": 3}),
    ]
    assert all((tmp_path / f.path).stat().st_size == f.size for f in written)
    found = pa.Table.from_batches(read_files(store, given.schema, written, ["channel", "seq"], pc.field("seq") < 3))
    assert found.to_pylist() == [{"channel": None, "seq": 1}, {"channel": "a", "seq": 2}]


def test_an_archive_of_some_keys_is_none_to_retention(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    fill(hg, 1, 100)
    go(hg, spark, tmp_path, spec(tmp_path / "t", 'filter = ["orders.1.>"]'))
    assert {r["key"] for r in rows(tmp_path / "t", ["key"])} == {"orders.1.k"}
    assert value(db, "select count(*) from headgate.archive") == 0


def test_what_does_not_fit_is_said(hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream) -> None:
    path = tmp_path / "t"
    fill(hg, 1, 10)
    go(hg, spark, tmp_path, spec(path))
    hg.stream("other", create=True)
    for text, problem in (
        (spec(path, 'partition_by = ["channel"]'), "partitioned by date, hour, not by channel"),
        (spec(path, 'partition_by = ["color"]'), 'cannot be partitioned by "color"'),
        (spec(path).replace('"orders"', '"other"'), "is of the stream orders, not of the stream other"),
        (spec(path, name="second"), "is of the pipeline lake, not of the pipeline second"),
        (spec(tmp_path / "u").replace('"orders"', '"nowhere"'), 'stream "nowhere" does not exist'),
    ):
        with pytest.raises(Error, match=problem) as caught:
            go(hg, spark, tmp_path, text)
        assert caught.value.hint
    with pytest.raises(InvalidArgument, match="must not hold credentials"):
        go(hg, spark, tmp_path, spec(Path("x")).replace('"x"', '"s3://id:secret@bucket/t"'))
