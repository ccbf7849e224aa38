"""The report: what is counted, and that the page is complete in itself."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.pipeline import parse
from headgate.pipeline.report.units import NONE
from headgate.pipeline.run import run
from support.clients import running
from support.waiting import wait_until


class Page(HTMLParser):
    """The cells of the tables, and what the page refers to; tags must match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [str(v) for k, v in attrs if k in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, *first: str) -> list[str]:
        [found] = [row for row in self.rows if row[: len(first)] == list(first)]
        return found


def report(hg: headgate.Headgate, spark: Any, directory: Path, *lines: str) -> Page:
    target = directory / "out" / "report.html"
    text = "\n".join(['kind = "report"', 'name = "weekly"', f'to = "{target}"', *lines])
    run(parse(text), hg, spark, directory=directory / "state")
    return Page(target.read_text("utf-8"))


def test_volumes_sizes_dead_letters_and_consumers(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    jobs = hg.stream("jobs", create=True, lane_by="channel")
    jobs.send_batch([headgate.Outgoing("x" * n, channel="a<b>") for n in range(1, 101)])
    jobs.send("y" * 500, channel="big")
    hg.stream("quiet", create=True)
    hg.run(
        "with aged as (update headgate.message_1 set created_at = created_at - interval '2 minutes' returning 1) "
        "select count(*) from aged",
        (),
    )
    billing = jobs.consumer("billing", create=True, max_deliver=2)
    got = []
    while more := billing.receive(50):
        got += more
    for m in got[:3]:
        m.nack(error=f"no account {m.seq}\ntrace")
    got[3].ack()
    for m in billing.receive(10, wait=2):
        m.nack(error=f"no account {m.seq}\ntrace")
    got[4].nack(delay=3600, error="later")
    before = hg.run('select count(*) from headgate."log_jobs.dead"', ())[0][0]
    page = report(hg, spark, tmp_path)

    [a] = [row for row in page.rows if row[1:2] == ["a<b>"]]
    assert a[2:] == ["100", "5.05 KB", "50.5 B", "50 B", "95 B", "99 B", "100 B", "0"]
    [big] = [row for row in page.rows if row[1:2] == ["big"]]
    assert big[2:] == ["1", *["500 B"] * 6, "0"]
    reason = page.row("no account #", "billing")
    assert int(reason[3]) == before == 3
    assert (reason[2], reason[4]) == ("a<b>", "2")
    assert [s.split()[1] for s in reason[5].split(" / ")] == ["min"] * 3
    compared = page.row("jobs")
    assert (compared[2], compared[5:8], compared[9], compared[11]) == ("101", ["5.55 KB", "51 B", "100 B"], "97", "3")
    assert page.row("quiet")[2:9] == ["0", NONE, NONE, "0 B", NONE, NONE, "0"]
    now = page.row("billing")
    assert (now[2], now[5], now[6], now[8]) == ("96", "1", "1", "3")
    assert re.fullmatch(r"[\d.]+ (s|min) / [\d.]+ (s|min) / [\d.]+ (s|min)", now[3])
    assert "There were no messages in this time." in page.text
    assert page.references == ["#stream-1", "#stream-2"]
    assert "not in this report" in page.text


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 0.001, "s": 1, "min": 60}[unit]


def test_a_year_of_a_lake_by_week_and_an_hour_by_minute(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    """Real tables; the streams have their last messages, and what is older is in archives."""
    for n, (name, days) in enumerate((("orders", 365), ("clicks", 200)), 1):
        stream = hg.stream(name, create=True)
        stream.send_batch([(f"k{day % 40}", "x" * (100 + day)) for day in range(days)])
        hg.run(
            f"with aged as (update headgate.message_{n} set created_at = "
            "timestamptz '2026-11-01 12:00Z' - (seq - 1) * interval '1 day' returning 1) select count(*) from aged",
            (),
        )
        text = f'kind = "archive"\nname = "{name}"\nstream = "{name}"\nto = "{tmp_path / name}"\npartition_by = []'
        run(parse(text), hg, spark, directory=tmp_path / "state")
    page = report(hg, spark, tmp_path, "history = true")
    assert "Messages by week and stream" in page.text
    assert page.row("orders")[2:6] == ["365", "0.98/d", "1/d", "103 KB"]  # of 53 weeks
    assert page.row("orders")[9] == NONE  # nobody reads it
    assert page.row("clicks")[2] == "200"
    assert abs(int(page.row("orders")[8]) - 40) <= 4
    weeks = [row for row in page.rows if row[1:3] == ["no channel", "7"]]
    assert 70 < len(weeks) <= 81
    assert "Nov 2025" in page.text
    near = report(hg, spark, tmp_path, "history = true", 'since = "2026-11-01T11:30"', 'until = "2026-11-01T12:29"')
    assert near.row("orders")[2] == "1"
    assert "1 messages" in near.text


def test_latencies_of_a_sample(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    """A worker that takes samples of all messages; some succeed at the second attempt."""
    jobs = hg.stream("jobs", create=True)
    jobs.send_batch(["bad", *["good"] * 9])

    @jobs.consumer("c", create=True).worker(timing=1, signals=False, retry_delay=0.01)
    def handle(m: headgate.Message) -> None:
        time.sleep(0.02)
        if m.data == "bad" and m.attempt == 1:
            raise ValueError("not yet")

    with running(handle):
        wait_until(lambda: jobs.consumer("c").info().lag == 0)
    page = report(hg, spark, tmp_path)
    found = [row for row in page.rows if row[1:3] == ["c", "no channel"]]
    assert sum(int(row[3]) for row in found) == 10
    assert sum(int(row[3]) * float(row[6].removesuffix("%")) for row in found) == pytest.approx(100, abs=2)
    for row in found:
        work, taken = ([seconds(part) for part in row[n].split(" / ")] for n in (5, 4))
        assert all(0.02 <= w <= t for w, t in zip(work, taken, strict=True))
    assert "of the samples that workers took" in page.text


def test_some_streams_some_time_and_errors(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        hg.stream(name, create=True).send_batch(["x"] * 5)
    page = report(hg, spark, tmp_path, 'streams = ["a"]')
    assert "5 messages" in page.text
    assert "b" not in [row[0] for row in page.rows]
    late = report(hg, spark, tmp_path, 'streams = ["a"]', 'since = "2100-01-01"')
    assert "0 messages" in late.text
    with pytest.raises(headgate.errors.StreamNotFound):
        report(hg, spark, tmp_path, 'streams = ["nowhere"]')
    with pytest.raises(headgate.errors.InvalidArgument, match="runs once"):
        report(hg, spark, tmp_path, 'run = "continuous"')
