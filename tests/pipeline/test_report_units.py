"""How a report cuts time and writes its numbers: something is to be seen of a second as of a decade."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

import headgate
from headgate.pipeline import parse
from headgate.pipeline.kinds.report import _bounds
from headgate.pipeline.report.charts import bars, lines
from headgate.pipeline.report.units import FEWEST, MOST, NONE, amount, buckets, duration, each, rate, size
from headgate.pipeline.run import Job
from headgate.pipeline.spec import Report

NOW = datetime(2026, 11, 18, 8, 23, 41, tzinfo=UTC)


@pytest.mark.parametrize(
    ("span", "called"),
    [
        (timedelta(0), "second"),
        (timedelta(minutes=1), "second"),
        (timedelta(minutes=15), "10 seconds"),
        (timedelta(hours=1), "minute"),
        (timedelta(hours=8), "5 minutes"),
        (timedelta(days=1), "15 minutes"),
        (timedelta(days=3), "hour"),
        (timedelta(days=28), "6 hours"),
        (timedelta(days=90), "day"),
        (timedelta(days=365), "week"),
        (timedelta(days=3650), "4 weeks"),
    ],
)
def test_buckets_fit_the_span(span: timedelta, called: str) -> None:
    time = buckets(NOW - span, NOW)
    assert time.called == called
    assert FEWEST <= time.count <= MOST or called == "4 weeks"
    assert time.starts[0] <= NOW - span
    assert time.starts[-1] <= NOW < time.starts[-1] + time.step
    assert time.start_of(NOW) == time.starts[-1]


def test_numbers_have_units() -> None:
    assert [size(n) for n in (0, 12, 999.9, 1500, 2_500_000, 3e12)] == [
        "0 B", "12 B", "1 KB", "1.5 KB", "2.5 MB", "3 TB",
    ]  # fmt: skip
    assert [duration(s) for s in (0, 0.00025, 0.0123, 2, 90, 7200, 200_000)] == [
        "0 s", "250 µs", "12.3 ms", "2 s", "1.5 min", "2 h", "2.31 d",
    ]  # fmt: skip
    assert [rate(r) for r in (0, 1200, 0.5, 0.001, 1e-5)] == [NONE, "1.2k/s", "30/min", "3.6/h", "0.86/d"]
    assert [amount(n) for n in (0, 7, 999, 999.9, 12_345, 2.5e9)] == ["0", "7", "999", "1k", "12.3k", "2.5G"]
    assert each(duration, None) == NONE
    assert each(duration, (0.1, 2)) == "100 ms / 2 s"


def test_a_single_point_is_seen_and_does_not_fill_the_plot() -> None:
    time = buckets(NOW, NOW)
    drawn = bars([("a<b>", {time.start_of(NOW): 5.0})], time, "messages", amount)
    assert drawn.count("<rect") == 1
    assert 'width="0.8"' in drawn
    assert f'viewBox="0 0 {FEWEST} 100"' in drawn
    assert "a&lt;b&gt;" in drawn
    assert 'points="11.50,' in lines([("p50", {time.start_of(NOW): 5.0})], time, "size", size)


def test_a_backlog_that_was_worked_off_after_the_last_message(hg: headgate.Headgate) -> None:
    """Its latencies are in the plot, too."""
    orders = hg.stream("orders", create=True)
    orders.consumer("c", create=True)
    orders.send("a")
    hg.run("with x as (update headgate.message_1 set created_at = created_at - interval '2 days' returning 1) "
           "select count(*) from x", ())  # fmt: skip
    hg.run("with x as (insert into headgate.timing (consumer, attempt, waited, handled) "
           "select c.id, 1, 1, 1 from headgate.consumer c returning 1) "
           "select count(*) from x", ())  # fmt: skip
    job = cast("Job", SimpleNamespace(hg=hg))
    asked = parse('kind = "report"\nname = "r"\nto = "r.html"')
    first, last = _bounds(cast("Report", asked), job, {"orders": False}, datetime.now(UTC))
    assert last - first > timedelta(days=1)
