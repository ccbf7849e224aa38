"""A stream with its history: the lake and the live stream read as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import headgate
from headgate.pipeline import parse
from headgate.pipeline.run import run as run_pipeline
from headgate.spark.history import HistoryReader
from headgate.spark.options import reading
from support.command_line import CommandLine
from support.waiting import wait_until


def send(hg: headgate.Headgate, first: int, last: int) -> None:
    hg.run(
        "select headgate.send_batch('orders', array_agg('data ' || g order by g), "
        "array_agg('orders.' || g %% 5 order by g), array_agg(jsonb_build_object('n', g) order by g)) "
        "from generate_series(%s::int, %s::int) g",
        (first, last),
    )


def archive(hg: headgate.Headgate, spark: Any, directory: Path, name: str = "lake", **more: Any) -> None:
    """Copies what is there into the lake, a few rows at a time."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in more.items()]
    text = f'kind = "archive"\nname = "{name}"\nstream = "orders"\nto = "{directory}/{name}"\nrows_per_batch = 40\n'
    run_pipeline(parse(text + "\n".join(lines)), hg, spark, directory=directory / f"state-{name}")


def archive_and_drop(hg: headgate.Headgate, spark: Any, directory: Path) -> None:
    """Ends the segment that is written, copies it, and lets retention remove what the archive has."""

    def is_closed() -> bool:
        hg.run("select headgate.tick('orders')", ())
        hg.run("select count(*) from headgate.prepare_storage()", ())
        holding = "m.seq >= g.first_seq and m.seq < g.end_seq and g.state = 'open'"
        return not hg.run(f"select 1 from headgate.log_orders m join headgate.segments g on {holding}", ())

    def is_gone() -> bool:
        hg.maintain()
        return data(hg) == []

    wait_until(is_closed)
    archive(hg, spark, directory)
    wait_until(is_gone)


def last_commit(directory: Path) -> str:
    """What the archive said with its last batch."""
    return str(next(c["headgate"] for c in DeltaTable(directory / "lake").history() if "headgate" in c))


def data(hg: headgate.Headgate) -> list[str]:
    return [row[0] for row in hg.run("select data from headgate.log_orders order by seq", ())]


def history(spark: Any, hg: headgate.Headgate, **options: Any) -> Any:
    return spark.read.format("headgate").options(url=hg.url, stream="orders", history=True, **options).load()


def numbers(frame: Any) -> list[int]:
    """The messages of a frame by what was sent, sorted: one that comes twice is there twice."""
    return sorted(int(row.data.split()[1]) for row in frame.select("data").collect())


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4, retain="until_archived", segment_rows=1000, segment_age=0.000001)


def test_a_table_partitioned_by_columns_of_the_message(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream
) -> None:
    send(hg, 1, 30)
    hg.run("select headgate.send('orders', 'data 31')", ())  # without a key
    archive(hg, spark, tmp_path, partition_by=["key", "lane"])
    send(hg, 32, 40)
    found = history(spark, hg)
    assert numbers(found) == list(range(1, 41))
    live = spark.read.format("headgate").options(url=hg.url, stream="orders").load()
    assert {(r.seq, r.key, r.lane) for r in found.collect()} == {(r.seq, r.key, r.lane) for r in live.collect()}
    assert numbers(history(spark, hg, filter="orders.3", columns="data")) == list(range(3, 41, 5))


@pytest.fixture
def half(hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream) -> Path:
    """A hundred messages, of which the first sixty are in the lake only."""
    for first in (1, 21, 41):  # a file each
        send(hg, first, first + 19)
        archive_and_drop(hg, spark, tmp_path)
    send(hg, 61, 100)
    return tmp_path


class TestBatch:
    def test_no_gap_and_no_overlap(self, hg: headgate.Headgate, spark: Any, half: Path) -> None:
        found = history(spark, hg)
        assert numbers(found) == list(range(1, 101))
        rows = {row.data: row for row in found.collect()}
        assert found.columns == ["seq", "key", "data", "headers", "channel", "lane", "created_at", "tick"]
        for n in (7, 77):
            row = rows[f"data {n}"]
            assert (row.key, json.loads(row.headers), row.channel) == (f"orders.{n % 5}", {"n": n}, None)
            assert row.lane in range(4)
        assert len({row.seq for row in rows.values()}) == 100

    @pytest.mark.parametrize("archived", [False, True])
    def test_the_seam_does_not_depend_on_what_was_noted(
        self, hg: headgate.Headgate, spark: Any, half: Path, archived: bool
    ) -> None:
        """A crash between the commit of the table and the note; and a stream that was archived up to its end."""
        before = hg.run("select mark::text, floor from headgate.archive", ())[0]
        if archived:
            archive(hg, spark, half)
        hg.run("update headgate.archive set mark = %s::jsonb, floor = %s returning 1", tuple(before))
        assert numbers(history(spark, hg)) == list(range(1, 101))

    def test_what_goes_after_the_tasks_were_planned_is_missed(
        self, hg: headgate.Headgate, spark: Any, half: Path
    ) -> None:
        """Not silently: the task fails."""
        reader = HistoryReader(reading({"url": hg.url, "stream": "orders", "history": "true"}, streaming=False), 2)
        tasks = reader.partitions()
        assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 100
        archive_and_drop(hg, spark, half)
        with pytest.raises(headgate.errors.MessagesRemoved):
            list(reader.read(tasks[-1]))
        assert numbers(history(spark, hg)) == list(range(1, 101))

    def test_a_note_ahead_of_the_last_commit(self, hg: headgate.Headgate, spark: Any, half: Path) -> None:
        """Where there was nothing to copy the table need not say so, but segments go: nothing is missed there."""
        archive_and_drop(hg, spark, half)
        committed = last_commit(half)
        hg.run("select count(nextval('headgate.seq_' || s.id)) from headgate.stream s, generate_series(1, 2500)", ())
        hg.run(
            "select headgate.note_archive(a.stream, a.name, a.place, headgate.next_mark(a.stream, "
            "headgate.archive_mark(a.stream, a.name))) from headgate.archives a",
            (),
        )
        assert last_commit(half) == committed
        assert hg.insights.archives("orders")[0].floor > json.loads(committed)["state"]["mark"]["floor"]
        hg.maintain()
        send(hg, 101, 110)
        assert numbers(history(spark, hg)) == list(range(1, 111))
        archive(hg, spark, half)
        assert numbers(history(spark, hg)) == list(range(1, 111))

    def test_positions_filters_and_columns(self, hg: headgate.Headgate, spark: Any, half: Path) -> None:
        rows = {int(r.data.split()[1]): r for r in history(spark, hg).collect()}
        assert numbers(history(spark, hg, start=rows[50].seq, end=f"seq:{rows[91].seq}")) == list(range(50, 91))
        since = rows[61].created_at.isoformat() + "+00:00"
        assert numbers(history(spark, hg, start=since)) == list(range(61, 101))
        assert numbers(history(spark, hg, end=since)) == list(range(1, 61))
        assert numbers(history(spark, hg, filter="orders.3")) == list(range(3, 101, 5))
        assert numbers(history(spark, hg, filter="*.3,orders.4", start=rows[58].seq)) == sorted(
            n for n in range(58, 101) if n % 5 in (3, 4)
        )
        assert numbers(history(spark, hg, start="latest")) == []
        assert numbers(history(spark, hg, columns="data", filter="orders.3")) == list(range(3, 101, 5))
        few = history(spark, hg, columns="data,key", start=rows[59].seq)
        assert few.columns == ["data", "key"]
        assert numbers(few) == list(range(59, 101))

    def test_what_cannot_be_read_is_said(self, hg: headgate.Headgate, spark: Any, half: Path) -> None:
        def said(**options: Any) -> headgate.Error:
            with pytest.raises(headgate.Error) as error:
                given = {"url": hg.url, "stream": "orders", "history": "true", **options}
                HistoryReader(reading(given, streaming=False), 2).partitions()
            assert error.value.hint
            return error.value

        assert isinstance(said(start="tick:7"), headgate.errors.InvalidPosition)
        assert "no archive" in said(archive="other").message
        archive(hg, spark, half, "second")
        assert "several archives" in said().message
        assert numbers(history(spark, hg, archive="second")) != []
        hg.run("update headgate.archive set place = 'nowhere' where name = 'lake' returning 1", ())
        assert "cannot be opened" in said(archive="lake").message
        hg.stream("orders").drop_archive("lake")
        hg.stream("orders").drop_archive("second")
        assert "no archive" in said().message


def test_streaming_goes_from_the_lake_into_the_stream(hg: headgate.Headgate, spark: Any, half: Path) -> None:
    """Several batches of the lake; a restart in the middle, while the archive went on, and retention behind it."""
    got: dict[int, list[int]] = {}

    def copy() -> None:
        options = {"url": hg.url, "stream": "orders", "history": True, "maxRowsPerTrigger": 15}
        frame = spark.readStream.format("headgate").options(**options).load()
        writer = frame.writeStream.foreachBatch(lambda batch, number: got.__setitem__(number, numbers(batch)))
        query = writer.option("checkpointLocation", str(half / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def numbered(part: str) -> list[Path]:
        return sorted((half / "checkpoint" / part).glob("[0-9]*"), key=lambda p: int(p.name))

    def everything() -> list[int]:
        return sorted(n for batch in got.values() for n in batch)

    copy()
    assert everything() == list(range(1, 101))
    offsets = [p.read_text() for p in numbered("offsets")]
    assert '"lake"' in offsets[1]
    assert '"lake"' not in offsets[-1]
    # as after a crash in the second batch of the lake, when all the rest was removed from the database since
    for path in (*numbered("commits")[1:], *numbered("offsets")[2:]):
        path.unlink()
    second = got[1]
    got = {0: got[0]}
    archive_and_drop(hg, spark, half)
    send(hg, 101, 120)
    copy()
    assert got[1] == second
    assert everything() == list(range(1, 121))


def test_a_consumer_that_starts_in_the_past_gets_it_from_the_lake(
    hg: headgate.Headgate, spark: Any, half: Path, run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stream has no longer, and nothing else, in the order in which it was sent."""
    monkeypatch.chdir(half)
    assert run("consumer", "add", "orders", "audit", "--start", "2020-01-01", "--from-lake").code == 0
    run_pipeline(parse(Path("orders.audit.toml").read_text()), hg, spark, directory=half / "replay")
    assert hg.insights.consumer("orders.audit", "audit").lag == 60
    assert hg.insights.consumer("orders", "audit").lag == 40
    assert data(hg) == [f"data {n}" for n in range(61, 101)]
    sent = hg.run('select data from headgate."log_orders.audit" order by seq', ())
    assert [row[0] for row in sent] == [f"data {n}" for n in range(1, 61)]
