"""Sending, receiving, settling and looking at messages, and dead letters."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

import headgate
from support.clients import take
from support.command_line import CommandLine


@pytest.fixture
def billing(orders: headgate.Stream) -> headgate.Consumer:
    return orders.consumer("billing", create=True, max_deliver=1)


class TestSending:
    def test_one(self, run: CommandLine, billing: headgate.Consumer) -> None:
        assert run("send", "orders", '{"quantity": 4}', "--key", "k", "--headers", '{"trace": "x"}').out == "1\n"
        assert run("send", "orders", "just text", "--json").json == {"seq": 2}
        assert run("send", "orders", "[1", "--id", "same").out == "3\n"  # no JSON: text
        assert run("send", "orders", "[1", "--id", "same").out == "3\n"
        one, two, three = take(billing, 3)
        assert (one.data, one.key, one.headers) == ({"quantity": 4}, "k", {"trace": "x"})
        assert (two.data, three.data) == ("just text", "[1")

    def test_a_delay(self, run: CommandLine, orders: headgate.Stream) -> None:
        run("send", "orders", "later", "--delay", "1h")
        [m] = orders.messages()
        assert m.deliver_at is not None
        assert 3590 < (m.deliver_at - m.created_at).total_seconds() < 3610

    def test_lines(self, run: CommandLine, billing: headgate.Consumer) -> None:
        lines = [
            {"data": {"n": 1}, "key": "own"},
            {"data": "text", "headers": {"a": 1}, "ack_id": "1.2.3", "seq": 9, "attempt": 1, "created_at": "then"},
            {"data": 3, "id": "three"},
        ]
        text = "\n".join(map(json.dumps, lines)) + "\n\n"
        done = run("send", "orders", "-", "--key", "common", "--json", input=text)
        assert done.json == {"published": 3, "first_seq": 1, "last_seq": 3}
        got = take(billing, 3)
        assert [m.data for m in got] == [{"n": 1}, "text", 3]
        assert [m.key for m in got] == ["own", "common", "common"]
        assert run("send", "orders", "-", input=json.dumps(lines[0])).out == "1\n"  # without a line's end

    def test_lines_with_a_time(self, run: CommandLine, orders: headgate.Stream) -> None:
        line = json.dumps({"data": 1, "deliver_at": "2999-01-31T12:00:00+01:00"})
        assert run("send", "orders", "-", input=line).out == "1\n"
        [m] = orders.messages()
        assert m.deliver_at is not None
        assert m.deliver_at.isoformat().startswith("2999-01-31T1")

    def test_lines_of_data_and_text(self, run: CommandLine, billing: headgate.Consumer) -> None:
        assert run("send", "orders", "-", "--lines", "data", input='{"data": 1}\n["a"]\n').out == "2\n"
        assert run("send", "orders", "-", "--lines", "text", input='{"data": 1}\n\n').out == "2\n"
        assert [m.data for m in take(billing, 4)] == [{"data": 1}, ["a"], '{"data": 1}', ""]

    def test_more_than_one_batch(self, run: CommandLine, orders: headgate.Stream) -> None:
        assert run("send", "orders", "-", "--lines", "text", input="x\n" * 25_000).out == "25000\n"
        assert orders.info().last_seq == 25_000

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b"{nonsense", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (b"5", "no object"),
            (b'{"key": "k"}', "no data"),
            (b'{"data": 1, "kye": "k"}', "'kye'"),
            (b'{"data": 1, "key": 5}', "key is no text"),
            (b'{"data": 1, "headers": []}', "headers are no object"),
            (b'{"data": 1, "delay": true}', "delay is no number"),
        ],
    )
    def test_a_bad_line(self, run: CommandLine, orders: headgate.Stream, line: bytes, problem: str) -> None:
        done = run("send", "orders", "-", input=b'{"data": 1}\n\n{"data": 2}\n' + line + b'\n{"data": 3}\n')
        assert (done.code, done.out) == (1, "")
        assert problem in done.err
        assert "line 4" in done.err
        assert "2 messages were sent before" in done.err
        assert [m.data for m in orders.messages()] == [1, 2]

    def test_what_the_engine_refuses(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.alter(max_message_bytes=10)
        done = run("send", "orders", "-", "--lines", "text", input="short\nmuch too long\n")
        assert (done.code, done.out) == (1, "")
        assert "0 messages were sent before" in done.err
        assert run("send", "nowhere", "x").code == 3

    def test_options_for_one_message_only(self, run: CommandLine, orders: headgate.Stream) -> None:
        assert run("send", "orders", "-", "--id", "x", input='{"data": 1}').code == 2
        assert orders.info().messages == 0


class TestReceiving:
    def test_json_lines(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send({"n": 1}, key="k", headers={"a": "b"})
        [got] = run("receive", "orders", "billing", "--wait", "5s", "--json").lines
        assert set(got) == {"ack_id", "seq", "key", "data", "headers", "channel", "attempt", "created_at"}
        assert (got["seq"], got["key"], got["data"], got["headers"]) == (1, "k", {"n": 1}, {"a": "b"})
        assert run("ack", "orders", "billing", got["ack_id"], "--json").json == {"acked": 1, "stale": 0}
        assert billing.info().lag == 0

    def test_nothing_there(self, run: CommandLine, billing: headgate.Consumer) -> None:
        done = run("receive", "orders", "billing")
        assert (done.code, done.out, done.err) == (3, "", "there are no such messages\n")
        assert run("receive", "orders", "billing", "--json").out == ""

    def test_ack(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send_batch(["a", "b", "c"])
        got: list[str] = []
        while len(got) < 3:
            done = run("receive", "orders", "billing", "-n", 2, "--ack", "--wait", "5s", "--json")
            assert 1 <= len(done.lines) <= 2
            got += [m["data"] for m in done.lines]
        assert sorted(got) == ["a", "b", "c"]
        assert billing.info().lag == 0

    def test_a_leased_consumer(self, run: CommandLine, orders: headgate.Stream) -> None:
        run("consumer", "add", "orders", "totals", "--leased")
        done = run("receive", "orders", "totals")
        assert (done.code, done.out) == (1, "")
        assert "hint: a leased consumer" in done.err

    def test_everything_comes_through_a_pipe_as_it_was(
        self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream, billing: headgate.Consumer
    ) -> None:
        datas = [{"a": 1}, [1, 2], "text", '{"looks": "like"}', b"\x00\xff", 4, True, None, "4", "é\u2028 \x1b[31m"]
        for n, data in enumerate(datas):
            orders.send(data, key=f"k{n}", headers={"n": n})
        orders.send('"a str as JSON"', headers={"content-type": "application/json"})
        copy = hg.stream("copy", create=True, lanes=1).consumer("c", create=True)
        lines = ""
        while lines.count("\n") < len(datas) + 1:
            lines += run("receive", "orders", "billing", "-n", 100, "--wait", "5s", "--json").out
        assert run("send", "copy", "-", input=lines).code == 0
        before = {m.seq: m for m in orders.messages(100)}
        after = {m.key or "": m for m in take(copy, len(datas) + 1)}
        for m in before.values():
            assert (after[m.key or ""].data, after[m.key or ""].headers) == (m.data, m.headers)

    def test_a_terminal_is_safe_from_messages(
        self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer
    ) -> None:
        orders.send("\x1b]0;title\x07\u202e\n", key="\x1b[2J")
        for command in (
            ("receive", "orders", "billing", "--wait", "5s"),
            ("message", "list", "orders"),
            ("message", "show", "orders", "1"),
            ("peek", "orders", "billing"),
        ):
            out = run(*command).out
            assert "\\x1b]0;title\\x07\\u202e\\n" in out
            assert not set(out) & {"\x1b", "\x07", "\u202e"}


class TestSettling:
    def test_nack_and_dead_letters(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send_batch([("a.1", "x"), ("b.1", "y"), ("b.2", "z")])
        for m in take(billing, 3):
            done = run("nack", "orders", "billing", m.ack_id, "--error", "no luck")
            assert done.out == "nacked 1, stale 0\n"
        dead = run("dead", "list", "orders", "billing", "--json").lines
        assert sorted((d["key"], d["last_error"], d["attempts"]) for d in dead) == [
            ("a.1", "no luck", 1), ("b.1", "no luck", 1), ("b.2", "no luck", 1),
        ]  # fmt: skip
        assert "no luck" in run("dead", "list", "orders", "billing").out
        assert run("dead", "redrive", "orders", "billing").code == 2  # not all of them by accident
        assert run("dead", "redrive", "orders", "billing", "1", "--all").code == 2
        assert run("dead", "redrive", "orders", "billing", "--filter", "a.>", "--json").json == {"redriven": 1}
        assert run("dead", "purge", "orders", "billing", "--all").code == 2  # --yes is missing
        assert run("dead", "purge", "orders", "billing", "--limit", 1, "--yes").out == "1\n"
        [last] = run("dead", "list", "orders", "billing", "--json").lines
        assert run("dead", "redrive", "orders", "billing", last["seq"]).out == "1\n"
        assert run("dead", "redrive", "orders", "billing", "--all").out == "0\n"
        assert run("dead", "list", "orders", "billing").code == 3
        assert sorted(m.key or "" for m in take(billing, 2)) == sorted(["a.1", last["key"]])

    def test_discard(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send_batch([(f"k.{i % 4}", str(i)) for i in range(20)])
        assert run("discard", "orders", "billing").code == 2  # not all of them by accident
        assert run("discard", "orders", "billing", "--seq", 1, "--all", "--yes").code == 2
        assert run("discard", "orders", "billing", "--all").code == 2  # --yes is missing
        one = run("discard", "orders", "billing", 1, "--seq", 2, "--yes", "--json")
        assert one.json == {"discarded": 2, "held": 0}
        chosen = ("--filter", "k.0", "--filter", "k.1", "--older-than", "0s", "--yes")
        assert run("discard", "orders", "billing", *chosen).out == "discarded 8\n"
        assert run("discard", "orders", "billing", "--older-than", "1h", "--yes").code == 3
        assert run("discard", "orders", "billing", "--channel", "k", "--yes").code == 1
        assert run("discard", "orders", "billing", "--all", "--yes").out == "discarded 10\n"
        assert billing.info().lag == 0
        assert "discarded" in run("message", "show", "orders", 1).out
        assert len(run("peek", "orders", "billing", "-n", 50, "--state", "discarded", "--json").lines) == 20

    def test_replay_retry_life_and_attempts(
        self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer
    ) -> None:
        orders.send_batch([("a.1", "x"), ("b.1", "y"), ("b.2", "z")])
        later = orders.consumer("later", create=True)
        later.nack(take(later, 3), delay=3600, error="no luck")
        assert run("retry", "orders", "later").code == 2  # not all of them by accident
        assert run("retry", "orders", "later", 1, "--all").code == 2
        assert run("retry", "orders", "later", 1, "--json").json == {"retried": 1}
        assert run("retry", "orders", "later", "--all").out == "2\n"
        later.ack(take(later, 3))
        assert run("replay", "orders", "later").code == 2
        assert run("replay", "orders", "later", 1, "--all").code == 2
        assert run("replay", "orders", "later", "--from-time", "noon").code == 2
        gone = run("replay", "orders", "later", 1, 99)
        assert (gone.out, "1 not found" in gone.err) == ("1\n", True)
        some = run("replay", "orders", "later", "--filter", "b.>", "--from-time", "2020-01-01", "--to-seq", 2, "--json")
        assert some.json == {"replayed": 1, "not_found": 0, "passed_over": 0}
        assert run("replay", "orders", "later", "--all").out == "1\n"
        assert sorted(m.seq for m in take(later, 3)) == [1, 2, 3]
        failed = run("message", "attempts", "orders", 2, "--consumer", "later", "--json").json
        assert [(a["seq"], a["error"]) for a in failed] == [(2, "no luck")]
        assert len(run("message", "attempts", "orders", "--json").json) == 3
        assert run("message", "attempts", "orders", 99).code == 3
        events = [e["event"] for e in run("message", "life", "orders", 1, "--json").json if e["consumer"] != "billing"]
        assert events == ["sent", "delivered", "failed", "replayed", "delivered"]
        assert "no luck" in run("message", "life", "orders", 1).out
        assert run("message", "life", "orders", 99).code == 3

    def test_many_replayed_ones_go_in_parts(
        self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer
    ) -> None:
        for _ in range(2):
            orders.send_batch(["x"] * 6000)
        for _ in range(3):
            billing.ack(take(billing, 4000))
        assert run("replay", "orders", "billing", "--all", "--json").json["replayed"] == 12_000
        assert billing.info().parked == 12_000

    def test_many_dead_letters_go_in_parts(
        self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer
    ) -> None:
        orders.send_batch(["x"] * 2500)
        billing.nack(take(billing, 2500))
        assert run("dead", "redrive", "orders", "billing", "--all", "--json").json == {"redriven": 2500}
        assert billing.info().parked == 2500

    def test_ids_from_lines(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send_batch(["a", "b", "c"])
        one, two, three = take(billing, 3)
        assert run("ack", "orders", "billing", one.ack_id, two.ack_id).out == "acked 2, stale 0\n"
        line = json.dumps({"ack_id": three.ack_id, "data": 1})
        assert run("ack", "orders", "billing", "-", input=line + "\n").out == "acked 1, stale 0\n"
        late = run("ack", "orders", "billing", "-", input=one.ack_id)
        assert (late.code, late.out) == (3, "acked 0, stale 1\n")
        assert "line 1 has no ack_id" in run("ack", "orders", "billing", "-", input="{}").err
        assert run("ack", "orders", "billing", "nonsense").code == 1

    def test_extend(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send("a")
        [m] = take(billing, 1)
        assert run("extend", "orders", "billing", m.ack_id, "--by", "1h", "--json").json == {"extended": 1, "stale": 0}
        [seen] = run("peek", "orders", "billing", "--state", "delivered", "--json").lines
        assert seen["visible_at"] > seen["created_at"]

    def test_deadlines(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.send("a")
        [m] = take(orders.consumer("slow", create=True), 1)
        assert run("extend", "orders", "slow", m.ack_id, "--by", "0s").out == "extended 1, stale 0\n"
        [again] = run("receive", "orders", "slow", "--wait", "5s", "--ack-wait", "2h", "--json").lines
        assert again["attempt"] == 2
        [seen] = run("peek", "orders", "slow", "--state", "delivered", "--json").lines
        assert (datetime.fromisoformat(seen["visible_at"]) - datetime.now(UTC)).total_seconds() > 6000
        refused = run("receive", "orders", "slow", "--ack-wait", "0s")
        assert refused.code == 1
        assert "choose more than 0 and at most 7 days" in refused.err


class TestLooking:
    def test_messages(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.send_batch([("a.1", {"n": 1}), ("b.1", {"n": 2}), ("a.2", {"n": 3})])
        assert [m["seq"] for m in run("message", "list", "orders", "--json").lines] == [1, 2, 3]
        newest = run("message", "list", "orders", "--newest", "-n", 1, "--json").lines
        assert [m["data"] for m in newest] == [{"n": 3}]
        assert [m["seq"] for m in run("message", "list", "orders", "--filter", "a.*", "--json").lines] == [1, 3]
        between = run("message", "list", "orders", "--after", 1, "--before", 3, "--json").lines
        assert [m["seq"] for m in between] == [2]
        assert run("message", "list", "orders", "--after", 3).code == 3
        assert '{"n": 1}' in run("message", "list", "orders").out

    def test_one_message(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send({"n": 1}, key="k")
        take(billing, 1)
        orders.consumer("other", create=True)
        shown = run("message", "show", "orders", 1, "--json").json
        assert (shown["seq"], shown["data"]) == (1, {"n": 1})
        assert {c["consumer"]: c["state"] for c in shown["consumers"]} == {"billing": "delivered", "other": "available"}
        assert "delivered" in run("message", "show", "orders", 1).out
        missing = run("message", "show", "orders", 2)
        assert (missing.code, missing.out) == (3, "")

    def test_peek(self, run: CommandLine, orders: headgate.Stream, billing: headgate.Consumer) -> None:
        orders.send_batch(["a", "b"])
        [first] = billing.receive(1, wait=5)
        states = {m["seq"]: m["state"] for m in run("peek", "orders", "billing", "--json").lines}
        assert states == {first.seq: "delivered", 3 - first.seq: "available"}
        only = run("peek", "orders", "billing", "--state", "available", "--json").lines
        assert [m["seq"] for m in only] == [3 - first.seq]
        assert run("peek", "orders", "billing", "--state", "parked").code == 3
