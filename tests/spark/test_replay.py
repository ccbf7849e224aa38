"""Replays: which messages come back, under which keys, how fast, and each of them once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate
from headgate.errors import Error
from headgate.pipeline.kinds import replay
from headgate.spark.keys import pattern
from support.calls import Db, call

from .lakes import fill, go, messages

DAYS = ("2026-03-01T10:00:00Z", "2026-03-01T23:59:59.999999Z", "2026-03-02T00:00:00Z", "2026-03-05T12:00:00Z")


def spec(path: Path, *lines: str, name: str = "back") -> str:
    return "\n".join([f'kind = "replay"\nname = "{name}"\nsource = "{path}"\nstream = "again"', *lines])


@pytest.fixture
def lake(hg: headgate.Headgate, spark: Any, tmp_path: Path, db: Db) -> Path:
    """An archive of 400 messages, 100 of each of four days; and an empty stream."""
    hg.stream("orders", create=True, lanes=4)
    hg.stream("again", create=True, lanes=4)
    fill(hg, 1, 400)
    for n, day in enumerate(DAYS):
        db.execute(
            "update headgate.message_1 set created_at = %s where seq between %s and %s",
            [day, n * 100 + 1, n * 100 + 100],
        )
    go(
        hg,
        spark,
        tmp_path,
        f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{tmp_path / "t"}"\nrows_per_batch = 250',
    )
    return tmp_path / "t"


def test_time_keys_and_conditions(hg: headgate.Headgate, spark: Any, tmp_path: Path, lake: Path) -> None:
    wanted = 'since = "2026-03-01T23:59:59.999999Z"\nuntil = "2026-03-05T12:00:00"'
    go(hg, spark, tmp_path, spec(lake, wanted, 'keys = ["orders.1.>", "*.2.k"]', "where = \"data like '%1%'\""))
    expected = [
        m for m in messages(hg, "orders")[100:300] if m[0] in ("orders.1.k", "orders.2.k") and "1" in m[1]
    ]  # fmt: skip
    assert expected
    assert messages(hg, "again") == expected


def test_new_keys_and_the_order_stays(hg: headgate.Headgate, spark: Any, tmp_path: Path, lake: Path) -> None:
    go(
        hg,
        spark,
        tmp_path,
        spec(lake, "rows_per_batch = 70", 'new_keys = { "orders.1.k" = "one", "orders.>" = "old.>" }'),
    )
    new = {"orders.1.k": "one"}
    expected = [
        (new.get(k, k.replace("orders.", "old.")) if k else None, d, h) for k, d, h in messages(hg, "orders")
    ]  # fmt: skip
    assert messages(hg, "again") == expected


def test_a_key_by_sql(hg: headgate.Headgate, spark: Any, tmp_path: Path, lake: Path) -> None:
    go(hg, spark, tmp_path, spec(lake, "key = \"concat('day.', day(date))\"", 'since = "2026-03-05"'))
    assert [m[0] for m in messages(hg, "again")] == ["day.5"] * 100


def test_a_crash_between_the_batch_and_the_next_neither_doubles_nor_loses(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> int:
        raise RuntimeError("power cut")

    for sent in (150, 300):
        with monkeypatch.context() as patch:
            patch.setattr(replay, "_sent", crash)
            with pytest.raises(Error, match="power cut"):
                go(hg, spark, tmp_path, spec(lake, "rows_per_batch = 150"))
        assert len(messages(hg, "again")) == sent
    go(hg, spark, tmp_path, spec(lake, "rows_per_batch = 99"))  # the cut of the first start counts
    assert messages(hg, "again") == messages(hg, "orders")


def test_rate(hg: headgate.Headgate, spark: Any, tmp_path: Path, lake: Path) -> None:
    began = time.monotonic()
    go(hg, spark, tmp_path, spec(lake, "rate = 100"))
    assert time.monotonic() - began >= 4
    assert messages(hg, "again") == messages(hg, "orders")


def test_channels(hg: headgate.Headgate, spark: Any, tmp_path: Path, db: Db) -> None:
    for name in ("orders", "again"):
        hg.stream(name, create=True, lanes=4, lane_by="channel")
    call(db, "send_batch", "orders", ["1", "2", "3"], channels=["a", None, "b"])
    path = tmp_path / "t"
    go(hg, spark, tmp_path, f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{path}"')
    go(hg, spark, tmp_path, spec(path))
    found = db.execute("select data, channel from headgate.read_2 order by seq").fetchall()
    assert found == [("1", "a"), ("2", None), ("3", "b")]


def test_what_is_wrong_is_said(hg: headgate.Headgate, spark: Any, tmp_path: Path, lake: Path) -> None:
    go(hg, spark, tmp_path, spec(lake, 'until = "2026-03-02"'))
    for text, problem in (
        (spec(tmp_path / "nothing", name="a"), "there is no Delta table at"),
        (spec(lake, 'since = "yesterday"', name="b"), "which is not a time"),
        (spec(lake, 'keys = ["orders.>.k"]', name="c"), '"orders.>.k" is not a key filter'),
        (spec(lake, 'new_keys = { "a.>" = "b" }', name="d"), '"a.>" cannot become "b"'),
        (spec(lake, 'where = "color = 1"', name="e"), "color"),
        (spec(lake), "was changed after it had begun"),
    ):
        with pytest.raises(Error, match=problem) as caught:
            go(hg, spark, tmp_path, text)
        assert caught.value.hint
    (tmp_path / "state-back" / "replay.json").unlink()
    with pytest.raises(Error, match="has sent 1 batches already"):
        go(hg, spark, tmp_path, spec(lake, 'until = "2026-03-02"'))


@pytest.mark.parametrize("given", [">", "*", "a.*", "a.>", "*.b.>", "a", "a.b-c", "a.*.c", "ä.>", "a+.>", "$.b"])
def test_filters_mean_what_they_mean_to_consumers(db: Db, given: str) -> None:
    keys = ["a", "b", "a.b", "a.b.c", "a.b-c", "x.b.c", "ä.ö", "a+.b", "aa.b", "$.b", "a\n.b", "a.b\n", "", "a."]
    found = db.execute(
        "select array_agg(k ~ headgate.filter_pattern(array[%s]) order by n) "
        "from unnest(%s::text[]) with ordinality u (k, n)",
        [given, keys],
    ).fetchone()
    assert found is not None
    assert pc.match_substring_regex(pa.array(keys), pattern([given])).to_pylist() == found[0]
