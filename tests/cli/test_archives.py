"""Archives on the command line and over HTTP, and consumers that start before what their stream has."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import headgate
from cli.test_usage import Terminal
from engine.test_archives import copy
from support.calls import Db, call, send
from support.command_line import CommandLine
from support.servers import data, error, replica
from support.storage import create, end_segment, exists, maintain


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list_and_drop(run: CommandLine, db: Db) -> None:
    create(db, retain="until_archived")
    assert run("stream", "archives", "s").err == "there are no archives\n"
    send(db, "s", "x")
    mark = copy(db)
    header, line = run("stream", "archives", "s").out.splitlines()
    assert (header.split()[:4], line.split()[:4]) == (
        ["NAME", "PLACE", "FLOOR", "LAG"],
        ["lake", "lake/lake", str(mark["floor"]), "0"],
    )
    [known] = run("stream", "archives", "s", "--json").json
    assert (known["name"], known["waiting"]) == ("lake", 0)
    assert "/api/streams/s/archives" in run("stream", "archives", "s", "--as-curl").out
    assert run("stream", "drop-archive", "s", "lake", "--yes").out == "lake\n"
    again = run("stream", "drop-archive", "s", "lake", "--yes")
    assert (again.code, again.err.splitlines()[0]) == (1, 'error: stream "s" has no archive "lake"')


@pytest.fixture
def gone(db: Db) -> int:
    """A stream whose first messages are in the lake only; where it begins."""
    create(db, retain="until_archived")
    send(db, "s", "1", "2")
    first = end_segment(db)
    copy(db)
    maintain(db)
    assert not exists(db, first["id"])
    send(db, "s", "3")
    return int(first["end_seq"])


class TestStartingBeforeTheStream:
    def test_from_the_lake(self, run: CommandLine, hg: headgate.Headgate, gone: int) -> None:
        done = run("consumer", "add", "s", "c", "--start", "2020-01-01", "--filter", "a.>", "--from-lake", "--json")
        assert done.json["name"] == "c"
        assert "headgate pipeline run s.c.toml" in done.err
        assert tomllib.loads(Path("s.c.toml").read_text()) == {
            "kind": "replay", "name": "s.c", "source": "lake/lake", "stream": "s.c",
            "since": "2020-01-01T00:00:00+00:00", "where": f"seq < {gone}", "keys": ["a.>"],
        }  # fmt: skip
        assert (hg.insights.stream("s.c").lanes, hg.insights.consumer("s.c", "c").filter) == (2, ["a.>"])
        assert hg.insights.consumer("s", "c").filter == ["a.>"]

    @pytest.mark.parametrize(("start", "where"), [("beginning", "seq < {}"), ("2", "seq >= 2 and seq < {}")])
    def test_by_seq(self, run: CommandLine, gone: int, start: str, where: str) -> None:
        assert run("consumer", "add", "s", "c", "--start", start, "--from-lake").code == 0
        assert tomllib.loads(Path("s.c.toml").read_text())["where"] == where.format(gone)

    def test_without_a_terminal_it_says_so(self, run: CommandLine, hg: headgate.Headgate, gone: int) -> None:
        done = run("consumer", "add", "s", "c", "--start", "2020-01-01")
        assert (done.code, done.out) == (0, "c\n")
        assert f"s begins at seq {gone}" in done.err
        assert "--from-lake" in done.err
        assert [s.name for s in hg.insights.streams()] == ["s"]
        assert not Path("s.c.toml").exists()

    def test_on_a_terminal_it_asks(self, run: CommandLine, hg: headgate.Headgate, gone: int) -> None:
        terminal = Terminal(run, "consumer", "add", "s", "c", "--start", "2020-01-01")
        terminal.expect("replay it into the stream s.c?")
        terminal.answer("y")
        assert terminal.end() == (0, "c\n")
        assert [s.name for s in hg.insights.streams()] == ["s", "s.c"]

    def test_nothing_is_said_when_nothing_is_missing(self, run: CommandLine, db: Db, gone: int) -> None:
        assert run("consumer", "add", "s", "default").err == ""
        assert run("consumer", "add", "s", "end", "--start", "end").err == ""
        assert run("consumer", "add", "s", "seq", "--start", gone).err == ""
        assert run("consumer", "add", "s", "future", "--start", "2100-01-01").err == ""
        nothing = run("consumer", "add", "s", "x", "--start", gone, "--from-lake")
        assert (nothing.code, nothing.err) == (0, "there is nothing to replay: s still has everything from there on\n")
        call(db, "drop_archive", "s", "lake")
        assert f"begins at seq {gone}" in run("consumer", "add", "s", "lost", "--start", "1").err


def test_over_http(db: Db, database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path) as server, server.client() as http:
        made = data(http.post("/api/streams", json={"name": "s", "retain": "until_archived"}))
        assert made["retain"] == "until_archived"
        assert data(http.get("/api/streams/s/archives")) == []
        mark = copy(db)
        [known] = data(http.get("/api/streams/s/archives"))
        assert (known["name"], known["place"], known["floor"]) == ("lake", "lake/lake", mark["floor"])
        assert error(http.get("/api/streams/x/archives"), 404) == "stream_not_found"
        data(http.delete("/api/streams/s/archives/lake"))
        assert error(http.delete("/api/streams/s/archives/lake"), 404) == "archive_not_found"
