"""`df.write` and `df.writeStream` into a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import headgate
from spark.frames import arriving, contents, copying, finish


def write(frame: Any, hg: headgate.Headgate, to: str = "copy", **options: Any) -> None:
    frame.write.format("headgate").options(url=hg.url, stream=to, **options).mode("append").save()


@pytest.fixture
def copy(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("copy", create=True, lanes=4)


def test_columns(spark: Any, hg: headgate.Headgate, copy: headgate.Stream) -> None:
    frame = spark.createDataFrame(
        [("k", '{"a":1}', {"h": "1"}, None), (None, "text", None, None)],
        "key string, data string, headers map<string,string>, deliver_at timestamp",
    )
    write(frame, hg)
    assert sorted(contents(hg, "copy"), key=str) == sorted(
        [("k", '{"a":1}', {"h": "1"}), (None, "text", None)], key=str
    )
    write(spark.sql("select 'later' as data, current_timestamp() + interval 1 hour as deliver_at"), hg)
    assert hg.run("select deliver_at > now() from headgate.log_copy where data = 'later'", ()) == [(True,)]
    write(spark.sql("""select 'x' as data, '{"b":2}' as headers"""), hg)
    assert ("x", {"b": 2}) in [(d, h) for _, d, h in contents(hg, "copy")]


def test_order_of_a_partition(spark: Any, hg: headgate.Headgate, copy: headgate.Stream) -> None:
    write(spark.range(5000).coalesce(1).selectExpr("cast(id % 3 as string) as key", "cast(id as string) as data"), hg)
    assert [int(d) for _, d, _ in contents(hg, "copy")] == list(range(5000))


def test_channels(spark: Any, hg: headgate.Headgate) -> None:
    hg.stream("jobs", create=True, lane_by="channel")
    write(spark.sql("select 'x' as data, 'acme' as channel"), hg, "jobs")
    assert hg.run("select channel from headgate.log_jobs", ()) == [("acme",)]


def test_a_batch_that_is_repeated(spark: Any, hg: headgate.Headgate, copy: headgate.Stream) -> None:
    frame = spark.sql("select 'x' as data")
    for batch in (1, 1, 2):
        write(frame, hg, writer="nightly", batch=batch)
    assert len(contents(hg, "copy")) == 2
    write(frame, hg)
    write(frame, hg)
    assert len(contents(hg, "copy")) == 4


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select 'k' as key", "the column data is missing"),
        ("select 1 as data", "is int and has to be a string"),
        ("select cast('x' as binary) as data", "is binary and has to be a string"),
        ("select 'x' as data, 2 as total", 'no column "total"'),
        ("select cast(null as string) as data", "a message without data"),
        ("select 'x' as data, 'no json' as headers", "have to be a JSON object"),
        ("select 'x' as data, 'acme' as channel", "has no channels"),
    ],
)
def test_bad_frames(spark: Any, hg: headgate.Headgate, copy: headgate.Stream, query: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        write(spark.sql(query), hg)
    assert contents(hg, "copy") == []


def test_bad_targets(spark: Any, hg: headgate.Headgate, copy: headgate.Stream) -> None:
    frame = spark.sql("select 'x' as data")
    for options, said in [({"writer": "w"}, "go together"), ({"writer": "w", "batch": "x"}, "is a number")]:
        with pytest.raises(Exception, match=said):
            write(frame, hg, **options)
    with pytest.raises(AnalysisException, match='StreamNotFound: stream "nowhere" does not exist') as caught:
        write(frame, hg, "nowhere")
    assert "org.apache.spark" not in str(caught.value)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("headgate").options(url=hg.url, stream="copy").mode("overwrite").save()


def test_a_crash_between_our_commit_and_sparks(
    spark: Any, hg: headgate.Headgate, copy: headgate.Stream, tmp_path: Path
) -> None:
    """Spark repeats the batch, because its own commit is missing; it is not sent again, and the query goes on."""
    orders = hg.stream("orders", create=True, lanes=4)
    orders.send_batch((f"k{i % 3}", str(i)) for i in range(30))
    finish(copying(arriving(spark, hg, maxRowsPerTrigger=10), hg, "copy", tmp_path))
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    assert json.loads(commits[-1].read_text().splitlines()[1]) is not None
    for hidden in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        hidden.unlink(missing_ok=True)
    orders.send_batch(["more"] * 5, key="k1")
    finish(copying(arriving(spark, hg, maxRowsPerTrigger=10), hg, "copy", tmp_path))
    assert sorted(contents(hg, "copy"), key=str) == sorted(contents(hg, "orders"), key=str)
    assert hg.run("select count(*) from headgate.staging", ()) == [(0,)]
