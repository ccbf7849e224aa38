"""`headgate stream`, `consumer` and `channel`: the things there are, and their settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

import headgate
from support.calls import Db, value
from support.clients import take
from support.command_line import CommandLine


class TestStreams:
    def test_add_and_show(self, run: CommandLine, hg: headgate.Headgate) -> None:
        done = run("stream", "add", "orders", "--lanes", 4, "--retain", "until_acked", "--retain-up-to", "7d",
                   "--max-storage", "10GB", "--segment-bytes", "2.5g", "--dedup-window", "90s")  # fmt: skip
        assert (done.code, done.out) == (0, "orders\n")
        info = hg.insights.stream("orders")
        assert (info.lanes, info.retain, info.retain_up_to) == (4, "until_acked", timedelta(days=7))
        assert (info.max_storage, info.dedup_window) == (10 << 30, timedelta(seconds=90))
        shown = run("stream", "show", "orders", "--json").json
        assert (shown["name"], shown["retain_up_to"], shown["max_storage"]) == ("orders", 604800, 10 << 30)
        assert ["retain_up_to", "7d"] in [line.split() for line in run("stream", "show", "orders").out.splitlines()]

    def test_add_fails_when_it_exists(self, run: CommandLine) -> None:
        assert run("stream", "add", "orders", "--lanes", 4).code == 0
        again = run("stream", "add", "orders")
        assert (again.code, again.out) == (1, "")
        assert again.err.startswith('error: stream "orders" exists already\nhint: ')
        assert run("stream", "add", "orders", "--if-not-exists", "--json").json["lanes"] == 4
        assert run("stream", "add", "orders", "--if-not-exists", "--lanes", 4, "--json").json["lanes"] == 4
        other = run("stream", "add", "orders", "--lanes", 8, "--retain", "until_acked", "--if-not-exists")
        assert (other.code, other.out) == (1, "")
        assert "lanes is 4, not 8; retain is forever, not until_acked" in other.err
        assert "`headgate stream edit`" in other.err

    def test_a_consumer_that_exists(self, run: CommandLine, orders: headgate.Stream) -> None:
        push = ("--push-url", "https://example.com/hook")
        assert run("consumer", "add", "orders", "c", "--ack-wait", "1m", *push).code == 0
        assert run("consumer", "add", "orders", "c", "--if-not-exists", "--ack-wait", "60s", *push).code == 0
        other = run("consumer", "add", "orders", "c", "--if-not-exists", "--ack-wait", "61s", "--leased")
        assert other.code == 1
        assert "ack_wait is 00:01:00, not 00:01:01; leased is false, not true" in other.err

    def test_list(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.send_batch(["a", "b"])
        orders.consumer("c", create=True)
        header, line = run("stream", "list").out.splitlines()
        assert header.split()[:3] == ["NAME", "MESSAGES", "SIZE"]
        assert line.split()[:2] == ["orders", "2"]
        [found] = run("stream", "list", "--json").json
        assert (found["name"], found["messages"], found["consumers"]) == ("orders", 2, 1)

    def test_an_empty_list(self, run: CommandLine) -> None:
        done = run("stream", "list")
        assert (done.code, done.out, done.err) == (0, "", "there are no streams yet\n")
        assert run("stream", "list", "--json").json == []

    def test_edit(self, run: CommandLine, orders: headgate.Stream) -> None:
        changed = run("stream", "edit", "orders", "--retain-up-to", "1h", "--max-storage", "3GB", "--json").json
        assert (changed["retain_up_to"], changed["max_storage"]) == (3600, 3 << 30)
        assert run("stream", "edit", "orders", "--clear", "max_storage", "--json").json["max_storage"] is None
        assert orders.info().retain_up_to == timedelta(hours=1)
        assert run("stream", "edit", "orders").code == 2

    def test_set_lanes(self, run: CommandLine, orders: headgate.Stream) -> None:
        assert run("stream", "set-lanes", "orders", 8).out == "8\n"
        assert orders.info().lanes == 8
        assert run("stream", "set-lanes", "orders", 5000).code == 1
        assert run("stream", "set-lanes", "orders").code == 2

    def test_remove(self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        refused = run("stream", "remove", "orders")
        assert (refused.code, hg.streams()) == (2, ["orders"])
        assert "--yes" in refused.err
        assert run("stream", "remove", "orders", "--yes", "--json").json == {"removed": "orders"}
        assert hg.streams() == []
        assert run("stream", "remove", "orders", "--yes").code == 3

    def test_segments_and_compact(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.send("a")
        [first, *_] = run("stream", "segments", "orders", "--json").json
        assert (first["stream"], first["state"], first["first_seq"]) == ("orders", "open", 1)
        assert run("stream", "segments", "orders").out.splitlines()[0].split()[:2] == ["ID", "STATE"]
        assert run("stream", "compact", "orders").out == "0\n"
        assert run("stream", "compact", "orders", "--json").json == {"compacted": 0}

    def test_errors_of_the_engine(self, run: CommandLine) -> None:
        done = run("stream", "add", "orders", "--lanes", 5000)
        assert (done.code, done.out) == (1, "")
        assert "5000 lanes" in done.err
        assert "\nhint: " in done.err


class TestConsumers:
    def test_add_and_show(self, run: CommandLine, orders: headgate.Stream) -> None:
        done = run("consumer", "add", "orders", "billing", "--filter", "a.>", "--filter", "b.*", "--order", "key",
                   "--ack-wait", "1m", "--max-deliver", 3, "--backoff", "[1, 10]", "--start", "end")  # fmt: skip
        assert (done.code, done.out) == (0, "billing\n")
        shown = run("consumer", "show", "orders", "billing", "--json").json
        assert shown["filter"] == ["a.>", "b.*"]
        assert (shown["order"], shown["ack_wait"], shown["max_deliver"]) == ("key", 60, 3)
        assert shown["backoff"] == [1, 10]
        assert run("consumer", "edit", "orders", "billing", "--backoff", "500ms,1m").code == 0
        assert run("consumer", "show", "orders", "billing", "--json").json["backoff"] == [0.5, 60]
        lines = run("consumer", "show", "orders", "billing").out.splitlines()
        assert ["ack_wait", "1m"] in [line.split() for line in lines]
        assert run("consumer", "add", "orders", "billing").code == 1
        assert run("consumer", "add", "orders", "billing", "--if-not-exists").code == 0

    def test_list(self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        orders.consumer("b", create=True)
        orders.send("x")
        hg.stream("other", create=True).consumer("a", create=True)
        assert [c["name"] for c in run("consumer", "list", "orders", "--json").json] == ["b"]
        rows = [line.split()[:3] for line in run("consumer", "list").out.splitlines()]
        assert rows == [["STREAM", "NAME", "LAG"], ["orders", "b", "1"], ["other", "a", "0"]]
        assert run("consumer", "list", "missing").code == 3

    def test_edit(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.consumer("c", create=True, max_deliver=2)
        assert run("consumer", "edit", "orders", "c", "--ack-wait", "2h", "--clear", "max_deliver").code == 0
        info = orders.consumer("c").info()
        assert (info.ack_wait, info.max_deliver) == (timedelta(hours=2), None)

    def test_pause_and_resume(self, run: CommandLine, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)
        assert run("consumer", "pause", "orders", "c").code == 0
        assert consumer.info().paused
        assert run("consumer", "resume", "orders", "c", "--json").json == {"paused": False}
        assert not consumer.info().paused

    @pytest.mark.parametrize(("position", "left"), [("beginning", 3), ("end", 0), ("2", 2), ("2020-01-01T00:00Z", 3)])
    def test_seek(self, run: CommandLine, orders: headgate.Stream, position: str, left: int) -> None:
        consumer = orders.consumer("c", create=True)
        orders.send_batch(["a", "b", "c"])
        consumer.ack(take(consumer, 3))
        assert run("consumer", "seek", "orders", "c", position).code == 0
        assert consumer.info().lag == left

    def test_seek_to_nowhere(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.consumer("c", create=True)
        assert "not a position" in run("consumer", "seek", "orders", "c", "soon").err

    def test_remove(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.consumer("c", create=True)
        assert run("consumer", "remove", "orders", "c").code == 2
        assert run("consumer", "remove", "orders", "c", "--yes").out == "c\n"
        assert orders.consumers() == []
        missing = run("consumer", "remove", "orders", "c", "--yes")
        assert missing.code == 3
        assert "hint: `headgate consumer list`" in missing.err


class TestChannels:
    def test_limits(self, run: CommandLine, hg: headgate.Headgate) -> None:
        run("stream", "add", "jobs", "--lane-by", "channel")
        run("consumer", "add", "jobs", "mailer", "--max-concurrency", 5)
        assert run("channel", "set", "jobs", "mailer", "acme", "--max-concurrency", 2).out == "acme\n"
        one = run("channel", "set", "jobs", "mailer", "trial", "--release-interval", "200ms", "--json").json
        assert (one["channel"], one["max_concurrency"], one["release_interval"]) == ("trial", 5, 0.2)
        both = run("channel", "set", "jobs", "mailer", "trial", "--max-concurrency", 3, "--json").json
        assert (both["max_concurrency"], both["release_interval"]) == (3, 0.2)
        back = run("channel", "set", "jobs", "mailer", "trial", "--clear", "max_concurrency", "--json").json
        assert (back["max_concurrency"], back["release_interval"]) == (5, 0.2)
        assert run("channel", "set", "jobs", "mailer", "trial").code == 2
        for n in range(4):
            run("send", "jobs", f"m{n}", "--channel", "acme")
        assert len(hg.stream("jobs").consumer("mailer").receive(10, wait=5)) == 2
        listed = {c["channel"]: c for c in run("channel", "list", "jobs", "mailer", "--json").json}
        assert (listed["acme"]["in_flight"], listed["acme"]["max_concurrency"]) == (2, 2)
        assert listed["trial"]["release_interval"] == 0.2
        shown = run("channel", "show", "jobs", "mailer", "acme").out
        assert "state             full\n" in shown
        assert run("channel", "list", "jobs", "mailer").out.splitlines()[1].split()[0] == "acme"

    def test_what_waits(self, run: CommandLine, hg: headgate.Headgate) -> None:
        run("stream", "add", "jobs", "--lane-by", "channel")
        run("consumer", "add", "jobs", "mailer")
        hg.stream("jobs").send_batch([headgate.Outgoing(n, channel=f"t{n % 4}") for n in range(10)])
        listed = run("channel", "list", "jobs", "mailer", "--sort", "waiting", "--json").json
        assert [c["waiting"] for c in listed] == [3, 3, 2, 2]
        assert {c["channel"] for c in listed[:2]} == {"t0", "t1"}
        page = run("channel", "list", "jobs", "mailer", "--sort", "name", "-n", 3)
        assert [line.split()[0] for line in page.out.splitlines()] == ["CHANNEL", "t0", "t1", "t2"]
        after = page.err.split("'")[1]
        rest = run("channel", "list", "jobs", "mailer", "--sort", "name", "--after", after)
        assert [line.split()[:3] for line in rest.out.splitlines()[1:]] == [["t3", "ready", "2"]]
        assert rest.err == ""

    def test_nothing_known(self, run: CommandLine) -> None:
        run("stream", "add", "jobs", "--lane-by", "channel")
        run("consumer", "add", "jobs", "mailer")
        done = run("channel", "show", "jobs", "mailer", "nobody")
        assert (done.code, done.out) == (3, "")
        assert run("channel", "list", "jobs", "mailer").err == "nothing is known of any channel\n"


class TestOperating:
    def test_maintain(self, run: CommandLine, orders: headgate.Stream, db: Db) -> None:
        orders.send("a")
        done = run("maintain", "--json").json
        assert all(set(step) == {"task", "subject", "done"} for step in done)
        assert value(db, "select count(*) from headgate.maintenance_run") == 1
        assert run("maintain").code == 0
