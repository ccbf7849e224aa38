"""`spark.read` and `spark.readStream` of a stream."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

import headgate
from headgate.spark import with_data
from spark.frames import arriving, contents, copying, finish, messages


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    stream = hg.stream("orders", create=True, lanes=4)
    stream.send_batch((f"o.{i % 5}", {"id": i}) for i in range(20))
    return stream


class TestBatch:
    def test_all_columns(self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        orders.send("text", headers={"a": "b"})
        rows = messages(spark, hg).orderBy("seq").collect()
        assert [r.seq for r in rows] == list(range(1, 22))
        assert rows[3].key == "o.3"
        assert rows[3].data == '{"id":3}' or rows[3].data == '{"id": 3}'
        assert rows[20].asDict()["headers"] == '{"a": "b"}'
        assert rows[20].key is None
        assert rows[0].channel is None
        (created,) = hg.run("select created_at from headgate.log_orders where seq = 1", ())[0]
        assert rows[0].created_at.astimezone(UTC) == created.astimezone(UTC)
        assert len({r.lane for r in rows if r.key == "o.1"}) == 1
        assert len({r.tick for r in rows}) == 1

    def test_positions_filter_and_columns(self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        found = messages(spark, hg, start="seq:5", end="seq:9", columns="seq,key")
        assert found.columns == ["seq", "key"]
        assert sorted(r.seq for r in found.collect()) == [5, 6, 7, 8]
        assert messages(spark, hg, filter="o.1,o.2").count() == 8
        assert messages(spark, hg, start="latest").count() == 0
        assert messages(spark, hg, lanesPerTask=1).rdd.getNumPartitions() == 4

    def test_columns_that_are_the_same_in_all_rows(self, spark: Any, hg: headgate.Headgate) -> None:
        """They are made where they are read."""
        orders = hg.stream("orders", create=True, lane_by="channel")
        for data in "ab":
            orders.send(data, channel="c")
        rows = messages(spark, hg, columns="tick,channel,seq").orderBy("seq").collect()
        assert [(r.channel, r.seq) for r in rows] == [("c", 1), ("c", 2)]
        (newest,) = hg.run("select max(id) from headgate.tick", ())[0]
        assert {r.tick for r in rows} == {newest}
        assert [tuple(r) for r in messages(spark, hg, columns="tick").collect()] == [(newest,)] * 2
        assert messages(spark, hg, pushFilters=True).where(f"tick = {newest} and channel = 'c'").count() == 2
        hg.stream("plain", create=True).send("x")
        assert [tuple(r) for r in messages(spark, hg, stream="plain", columns="channel").collect()] == [(None,)]

    def test_json(self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        orders.send("not json")
        read = with_data(messages(spark, hg), "id long")
        assert read.agg(f.sum("data.id")).collect()[0][0] == sum(range(20))
        with pytest.raises(Exception, match="MALFORMED_RECORD"):
            with_data(messages(spark, hg), "id long", on_error="fail").collect()

    def test_filters_are_pushed_down(self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        read = messages(spark, hg, pushFilters=True)
        for condition, count in [
            ("seq > 15", 5), ("key = 'o.1' and seq < 10", 2), ("key in ('o.1', 'o.4')", 8), ("key is null", 0),
            ("key like 'o.%'", 20), ("created_at > timestamp '2020-01-01 00:00:00' and lane >= 0", 20),
            ("key > 'o.3'", 4), ("data = 'it''s'", 0),
        ]:  # fmt: skip
            assert read.where(condition).count() == count, condition
        plan = read.where("seq > 15 and key > 'o.3'")._jdf.queryExecution().toString()
        assert "(seq#" not in plan.rpartition("Physical Plan")[2].partition("BatchScan")[0]

    def test_no_secret_is_in_a_plan(self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        url = hg.url + "&password=tellnobody"
        read = spark.read.format("headgate").options(url=url, stream="orders").load()
        assert read.count() == 20
        assert "tellnobody" not in read._jdf.queryExecution().toString()
        with pytest.raises(Exception, match="no column") as caught:
            spark.read.format("headgate").options(url=url, stream="orders", columns="nope").load().count()
        assert "tellnobody" not in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"stream": "nowhere"}, "does not exist"),
            ({"start": "once upon a time"}, "not a position"),
            ({"columns": "seq,nope"}, 'no column "nope"'),
            ({"filter": "a.>.b"}, "not a key filter"),
            ({"tasks": "none"}, "a number from 1 on"),
            ({"failOnDataLoss": "perhaps"}, "true or false"),
            ({"strat": "beginning"}, 'option "strat" is not known'),
        ],
    )
    def test_bad_options(
        self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream, options: dict[str, str], said: str
    ) -> None:
        with pytest.raises(Exception, match=said):
            messages(spark, hg, **options).count()

    def test_no_database(self, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HEADGATE_DATABASE_URL", raising=False)
        with pytest.raises(Exception, match="which database is meant"):
            spark.read.format("headgate").option("stream", "s").load().count()


class TestStreaming:
    def test_goes_on_where_it_stopped(
        self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream, tmp_path: Path
    ) -> None:
        hg.stream("copy", create=True)
        query = finish(copying(arriving(spark, hg, maxRowsPerTrigger=8), hg, "copy", tmp_path / "c"))
        assert [p["numInputRows"] for p in query.recentProgress] == [8, 8, 4]
        orders.send("more", key="o.1")
        finish(copying(arriving(spark, hg, maxRowsPerTrigger=8), hg, "copy", tmp_path / "c"))
        before, after = contents(hg, "orders"), contents(hg, "copy")
        assert sorted(before, key=str) == sorted(after, key=str)
        for key in {k for k, _, _ in before}:
            assert [d for k, d, _ in before if k == key] == [d for k, d, _ in after if k == key]

    def test_start_and_what_is_lost(
        self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream, tmp_path: Path
    ) -> None:
        hg.stream("copy", create=True)
        finish(copying(arriving(spark, hg, start="seq:18"), hg, "copy", tmp_path / "c"))
        assert len(contents(hg, "copy")) == 3
        orders.send_batch(["x"] * 5)
        # as if retention had removed a part of them before they were read
        gone = "with g as (update headgate.segment set first_seq = 24 where id = 1) update headgate.stream"
        hg.run(f"{gone} set removed_to = 23 returning 1", ())
        with pytest.raises(Exception, match="no longer has the messages"):
            finish(copying(arriving(spark, hg), hg, "copy", tmp_path / "c"))
        finish(copying(arriving(spark, hg, failOnDataLoss=False), hg, "copy", tmp_path / "c"))
        assert len(contents(hg, "copy")) > 3

    def test_a_streaming_read_has_no_end(self, spark: Any, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        with pytest.raises(Exception, match="has no end"):
            arriving(spark, hg, end="seq:4").writeStream.format("noop").start().awaitTermination(60)
