"""The report: what is counted, and that the page is complete in itself."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from clients import running
from conftest import wait_until

import headgate
from headgate.pipeline import parse
from headgate.pipeline.run import run


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
        if self.open and self.open[-1] in ("td", "th"):
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

    hour = hg.run("select to_char(min(created_at) at time zone 'utc', 'YYYY-MM-DD HH24:00') from headgate.log_jobs", ())
    a = page.row(hour[0][0], "a<b>")
    assert a[2] == "100"
    assert [int(n) for n in a[5:]] == [50, 95, 99, 100]
    assert page.row(hour[0][0], "big")[2:] == ["1", "500", "500", "500", "500", "500", "500"]
    reason = page.row("no account #", "billing")
    assert int(reason[3]) == before == 3
    assert (reason[2], reason[4]) == ("a<b>", "2")
    assert [float(s.split()[0]) > 60 for s in reason[5].split(" / ")] == [True] * 3
    now = page.row("billing")
    assert (now[2], now[5], now[6], now[8]) == ("96", "1", "1", "3")
    assert re.fullmatch(r"[\d.e-]+ s / [\d.e-]+ s / [\d.e-]+ s", now[3])
    assert "There were no messages in this time." in page.text
    assert page.references == []
    assert "not in this report" in page.text


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
    [row] = [row for row in page.rows if row[1:4] == ["c", "-", "10"]]
    assert row[6] == "10.0%"
    work = [float(part.split()[0]) for part in row[5].split(" / ")]
    taken = [float(part.split()[0]) for part in row[4].split(" / ")]
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
    with pytest.raises(headgate.StreamNotFound):
        report(hg, spark, tmp_path, 'streams = ["nowhere"]')
    with pytest.raises(headgate.InvalidArgument, match="runs once"):
        report(hg, spark, tmp_path, 'run = "continuous"')
