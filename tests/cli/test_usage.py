"""Wrong usage, questions on a terminal, completion, and what becomes of signals and pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import headgate
from headgate.pipeline import load
from support.calls import Db
from support.clients import take
from support.command_line import CommandLine
from support.waiting import wait_until


class TestUsage:
    @pytest.mark.parametrize(
        ("command", "problem"),
        [
            ("stream show", "Missing argument 'STREAM'"),
            ("consumer show orders", "Missing argument 'CONSUMER'"),
            ("stream add", "Missing argument 'NAME'"),
            ("send orders", "Missing argument 'DATA'"),
            ("ack orders c", "Missing argument 'ACK_ID'"),
            ("message show orders", "Missing argument 'SEQ'"),
            ("message show orders x", "not a valid integer"),
            ("stream add s --retain-up-to soon", "'soon' is not a length of time"),
            ("stream add s --retain-up-to -5s", "'-5s' is not a length of time"),
            ("stream add s --retain-up-to 99999999999d", "is not a length of time"),
            ("stream add s --max-storage much", "'much' is not a number of bytes"),
            ("stream add s --lane-by tenant", "'tenant' is not one of"),
            ("consumer add s c --backoff true", "'true' is not possible"),
            ("send s x --headers []", "'[]' is not possible"),
            ("receive s c -n 0", "0 is not in the range"),
            ("stream list --nonsense", "No such option"),
            ("nonsense", "No such command"),
            ("stream nonsense", "No such command"),
            ("completion tcsh", "'tcsh' is not one of"),
        ],
    )
    def test_it_is_said_with_the_usage_line(self, run: CommandLine, command: str, problem: str) -> None:
        done = run(*command.split())
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("Usage: headgate")
        assert problem in done.err
        assert "\nhint: headgate" in done.err

    def test_help_is_data(self, run: CommandLine) -> None:
        assert run("stream", "--help").out.startswith("Usage: headgate stream")
        assert run("--version").out == f"headgate {headgate.__version__}\n"
        bare = run()
        assert (bare.code, bare.out) == (2, "")
        assert bare.err.startswith("Usage: headgate")

    @pytest.mark.parametrize("name", ["x" * 100, "a b", "é", "", "a'; drop table x; --"])
    def test_names_that_are_none(self, run: CommandLine, name: str) -> None:
        done = run("stream", "add", name)
        assert done.code in (1, 2)
        assert "Traceback" not in done.err

    def test_a_database_without_headgate(self, run: CommandLine, hg: headgate.Headgate) -> None:
        plain = re.sub(r"/test_\d+", "/postgres", hg.url)
        done = run("stream", "list", "--database", plain)
        assert done.code == 1
        assert "hint: run `headgate migrate`" in done.err

    def test_a_role_that_may_not(
        self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream, db: Db
    ) -> None:
        db.execute("create role cli_producer login in role headgate_producer")
        try:
            place = ("--database", orders.hg.url.replace("//postgres@", "//cli_producer@"))
            assert run("send", "orders", "x", *place).code == 0
            done = run("stream", "remove", "orders", "--yes", *place)
            assert (done.code, done.out) == (1, "")
            assert done.err.startswith("error: ")
        finally:
            db.execute("drop role cli_producer")


class Terminal:
    """A command whose stdin and stderr are a terminal; its stdout is a pipe."""

    def __init__(self, run: CommandLine, *args: str) -> None:
        self._master, slave = pty.openpty()
        self.seen = ""
        self.process = run.start(*args, stdin=slave, stderr=slave, stdout=subprocess.PIPE)
        os.close(slave)

    def expect(self, text: str) -> None:
        """Reads on until this was said."""
        deadline = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self._master, 4096).decode()
            except OSError:  # nobody holds the other end any more
                pytest.fail(f"{text!r} was not said in {self.seen!r}")
        self.seen = self.seen.partition(text)[2]

    def answer(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def end(self) -> tuple[int, str]:
        """The exit code and what was printed."""
        with suppress(OSError):  # at the end nobody holds the other end any more
            while more := os.read(self._master, 4096).decode():
                self.seen += more
        out, _ = self.process.communicate(timeout=30)
        os.close(self._master)
        return self.process.returncode, out


class TestQuestions:
    def test_which_stream_and_consumer(self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        hg.stream("another", create=True)
        orders.consumer("billing", create=True)
        terminal = Terminal(run, "consumer", "show", "--json")
        terminal.expect("1  another")
        terminal.expect("2  orders")
        terminal.expect("which stream")
        terminal.answer("7")
        terminal.expect("none of these")
        terminal.answer("2")
        terminal.expect("which consumer [billing]")
        terminal.answer("")
        code, out = terminal.end()
        assert code == 0
        assert json.loads(out)["name"] == "billing"

    def test_a_guided_stream(self, run: CommandLine, hg: headgate.Headgate) -> None:
        terminal = Terminal(run, "stream", "add")
        for question, answer in (("name", "jobs"), ("lane by", "hash"), ("lanes [16]", "4"), ("retain", "until_acked")):
            terminal.expect(question)
            terminal.answer(answer)
        assert terminal.end() == (0, "jobs\n")
        info = hg.insights.stream("jobs")
        assert (info.lanes, info.retain) == (4, "until_acked")

    def test_a_guided_pipeline(self, run: CommandLine, orders: headgate.Stream, tmp_path: Path) -> None:
        file = tmp_path / "nightly.toml"
        terminal = Terminal(run, "pipeline", "new", str(file))
        for question, answer in (("kind", "latest"), ("which stream [orders]", ""), ("to [lake/orders-latest]", "now")):
            terminal.expect(question)
            terminal.answer(answer)
        assert terminal.end() == (0, f"{file}\n")
        made = load(file)
        assert (made.kind, made.name, made.stream, made.to) == ("latest", "nightly", "orders", "now")

    def test_a_guided_consumer(self, run: CommandLine, orders: headgate.Stream) -> None:
        terminal = Terminal(run, "consumer", "add", "orders")
        for question, answer in (("name", "c"), ("filter", "a.>"), ("order", "key"), ("ack wait [30s]", "")):
            terminal.expect(question)
            terminal.answer(answer)
        assert terminal.end() == (0, "c\n")
        info = orders.consumer("c").info()
        assert (info.filter, info.order, info.ack_wait.total_seconds()) == (["a.>"], "key", 30)

    def test_it_asks_before_it_removes(self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        terminal = Terminal(run, "stream", "remove", "orders")
        terminal.expect("remove orders with 0 messages?")
        terminal.answer("n")
        assert terminal.end() == (130, "")
        assert hg.streams() == ["orders"]

    def test_a_password_is_not_echoed(self, run: CommandLine) -> None:
        terminal = Terminal(run, "context", "add", "prod")
        terminal.expect("database's url")
        terminal.answer("postgresql://me:hunter2@db/app")
        code, out = terminal.end()
        assert (code, out) == (0, "prod\n")
        assert "hunter2" not in terminal.seen
        assert "hunter2" in (run.home / "headgate" / "contexts.json").read_text()

    def test_nothing_to_choose_from(self, run: CommandLine) -> None:
        terminal = Terminal(run, "stream", "show")
        terminal.expect("hint: make one with `headgate stream add`")
        assert terminal.end()[0] == 1

    def test_progress_is_shown_where_somebody_watches(self, run: CommandLine, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True, max_deliver=1)
        orders.send_batch(["x"] * 1500)
        consumer.nack(take(consumer, 1500))
        terminal = Terminal(run, "dead", "redrive", "orders", "c", "--all")
        terminal.expect("redrive")
        terminal.expect("100%")
        assert terminal.end() == (0, "1500\n")


@pytest.fixture
def tool() -> str:
    """`headgate` as a shell script has it."""
    return f"{shlex.quote(sys.executable)} -m headgate.cli"


class TestPipes:
    def shell(self, run: CommandLine, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", script], env={**os.environ, **run.environment},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def test_from_a_stream_into_another(self, run: CommandLine, tool: str, hg: headgate.Headgate) -> None:
        source, target = hg.stream("source", create=True), hg.stream("target", create=True)
        source.consumer("c", create=True)
        source.send_batch([(f"k{n}", {"n": n}) for n in range(100)])
        done = self.shell(
            run,
            f"while {tool} receive source c -n 100 --wait 300ms --ack --json; do :; done | {tool} send target - --json",
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["published"] == 100
        assert {(m.key, m.data["n"]) for m in target.messages(1000)} == {(f"k{n}", n) for n in range(100)}
        assert source.consumer("c").info().lag == 0

    def test_lines_are_sent_as_they_come(self, run: CommandLine, orders: headgate.Stream) -> None:
        sender = run.start("send", "orders", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert sender.stdin is not None
        for n in (1, 2):
            sender.stdin.write(f'{{"data": {n}}}\n{{"da')  # the rest of a line may come later
            sender.stdin.flush()
            wait_until(lambda n=n: orders.info().messages == 2 * n - 1)
            sender.stdin.write('ta": "half"}\n')
            sender.stdin.flush()
            wait_until(lambda n=n: orders.info().messages == 2 * n)
        assert sender.communicate(timeout=30)[0] == "4\n"

    def test_follow(self, run: CommandLine, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)
        follower = run.start(
            "receive", "orders", "c", "--follow", "--ack", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert follower.stdout is not None
        try:
            for n in range(3):
                orders.send({"n": n})
                assert json.loads(follower.stdout.readline())["data"] == {"n": n}
            wait_until(lambda: consumer.info().lag == 0)
            follower.send_signal(signal.SIGINT)
            assert follower.wait(30) == 130
            assert follower.stderr is not None
            assert follower.stderr.read().strip() == ""
        finally:
            follower.kill()

    def test_what_nobody_reads_is_handed_back(self, run: CommandLine, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)
        orders.send_batch(["x" * 1000] * 500)
        reader = run.start(
            "receive", "orders", "c", "-n", "500", "--follow", "--ack", "--json",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.readline()
        reader.stdout.close()
        assert reader.wait(30) == 1
        assert reader.stderr.read() == ""
        info = consumer.info()
        assert info.in_flight == 0
        assert info.lag > 0

    def test_progress_stays_out_of_pipes(self, run: CommandLine, tool: str, orders: headgate.Stream) -> None:
        lines = run.home / "lines"
        lines.write_text('{"data": 1}\n' * 20_000)
        done = self.shell(run, f"{tool} send orders - < {lines}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "20000\n", "")


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_scripts(self, run: CommandLine, shell: str) -> None:
        script = run("completion", shell).out
        assert "_HEADGATE_COMPLETE" in script
        assert run("completion", shell, "--json").json["shell"] == shell

    def complete(self, run: CommandLine, *words: str) -> list[str]:
        """What bash would be offered for the last word."""
        environment = {
            **os.environ, **run.environment, "_HEADGATE_COMPLETE": "bash_complete",
            "COMP_WORDS": shlex.join(["headgate", *words]), "COMP_CWORD": str(len(words)),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "headgate.cli"], env=environment, capture_output=True, text=True, timeout=30,
            check=True,
        )  # fmt: skip
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    def test_commands_and_names(self, run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        orders.consumer("billing", create=True)
        assert "stream" in self.complete(run, "str")
        assert self.complete(run, "stream", "show", "o") == ["orders"]
        assert self.complete(run, "receive", "orders", "b") == ["billing"]
        assert self.complete(run, "receive", "missing", "b") == []
        run("context", "add", "prod", "--database", hg.url)
        assert self.complete(run, "stream", "list", "--context", "p") == ["prod"]

    def test_a_database_that_is_away(self, run: CommandLine) -> None:
        run.environment["HEADGATE_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"
        assert self.complete(run, "stream", "show", "o") == []
