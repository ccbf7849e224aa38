"""The private PostgreSQL of a directory, used by real processes that come, go and are killed."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest

import headgate
from headgate.errors import EmbeddedServerError
from headgate.postgres.cluster import Cluster, postgres_bin
from headgate.postgres.embedded import start_or_join

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

# Says who serves it, then uses the server until its stdin is closed.
PARTICIPANT = """
import json, sys
from headgate.postgres.embedded import start_or_join
server = start_or_join()
print(json.dumps({"pid": server.pid, "url": server.url}), flush=True)
sys.stdin.read()
"""


class Participant:
    """A process that joins the server and leaves at its exit."""

    def __init__(self, directory: Path, script: str = PARTICIPANT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HEADGATE_EMBEDDED_DIR": str(directory)},
        )

    def joined(self) -> Participant:
        assert self.process.stdout
        said = json.loads(self.process.stdout.readline())
        self.pid: int = said["pid"]
        self.url: str = said["url"]
        return self

    def leave(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


def cluster_of(directory: Path) -> Cluster:
    return Cluster(postgres_bin(), directory / "data", directory / "run")


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT true").fetchone() == (True,)
    except psycopg.OperationalError:
        return False


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "hg"
    yield path
    cluster_of(path).stop("immediate")


@pytest.fixture
def participant(directory: Path) -> Iterator[Callable[..., Participant]]:
    started: list[Participant] = []

    def start(*arguments: str) -> Participant:
        started.append(Participant(directory, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_the_first_starts_a_server_and_the_last_stops_it(directory: Path) -> None:
    server = start_or_join(directory)
    assert server.pid == cluster_of(directory).pid
    with psycopg.connect(server.url) as connection:
        assert connection.info.dbname == "headgate"
        assert connection.info.user == "postgres"

    with start_or_join(directory) as second:
        assert second.pid == server.pid
    assert answers(server.url)

    server.leave()
    assert server.pid is None
    assert not answers(server.url)
    server.leave()


def test_its_settings(directory: Path) -> None:
    expected = {
        "wal_level": "logical",
        "max_replication_slots": "16",
        "max_wal_senders": "16",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "max_wal_size": "4GB",
        "fsync": "on",
        "autovacuum": "on",
        "data_checksums": "on",
        "server_encoding": "UTF8",
        "listen_addresses": "",
    }
    with start_or_join(directory) as server, psycopg.connect(server.url) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in expected}
        # Code point order, and case for more than ASCII: the same on every machine.
        order = connection.execute("SELECT array_agg(c ORDER BY c) FROM unnest(ARRAY['b', 'B', 'a', 'é']) c").fetchone()
        upper = connection.execute("SELECT upper('é')").fetchone()
    assert found == {name: (value,) for name, value in expected.items()}
    assert order == (["B", "a", "b", "é"],)
    assert upper == ("É",)


def test_only_its_user_reaches_the_socket(directory: Path) -> None:
    with start_or_join(directory):
        for path in (directory / "run", directory / "run" / ".s.PGSQL.5432", directory / "data"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_processes_share_one_server(directory: Path, participant: Callable[..., Participant]) -> None:
    first = participant().joined()
    second = participant().joined()
    assert (second.pid, second.url) == (first.pid, first.url)
    first.leave()
    assert cluster_of(directory).pid == first.pid
    second.leave()
    assert not cluster_of(directory).is_running()


def test_it_outlives_the_kill_of_its_starter(directory: Path, participant: Callable[..., Participant]) -> None:
    starter = participant().joined()
    other = participant().joined()
    starter.kill()
    assert answers(other.url)
    other.leave()
    assert not cluster_of(directory).is_running()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_does_not_stay_behind_when_all_are_killed(
    directory: Path, participant: Callable[..., Participant], how: signal.Signals
) -> None:
    killed = [participant().joined(), participant().joined()]
    killed[0].process.send_signal(how)
    assert killed[0].process.wait(30) == -how
    assert answers(killed[1].url)
    killed[1].process.send_signal(how)
    wait_until(lambda: not cluster_of(directory).is_running() and not answers(killed[0].url))
    assert not (directory / "data/postmaster.pid").exists(), "it was shut down"
    again = participant().joined()
    assert answers(again.url)
    again.process.send_signal(how)
    wait_until(lambda: not cluster_of(directory).is_running())


def test_joining_while_the_last_is_killed(directory: Path, participant: Callable[..., Participant]) -> None:
    for _ in range(2):
        last = participant().joined()
        joining = participant()
        last.kill()
        assert answers(joining.joined().url)
        joining.leave()
    assert not cluster_of(directory).is_running()
    assert list((directory / "participants").iterdir()) == []


def test_a_directory_that_is_moved_while_it_runs(
    tmp_path: Path, directory: Path, participant: Callable[..., Participant]
) -> None:
    """Who comes to the new place joins the server; when all have gone it ends; and the old place is free."""
    first = participant().joined()
    moved = tmp_path / "elsewhere"
    directory.rename(moved)
    with start_or_join(moved) as joined, psycopg.connect(joined.url, autocommit=True) as connection:
        assert joined.pid == first.pid
        connection.execute("create table kept as select 1")
        with start_or_join(directory) as fresh, psycopg.connect(fresh.url) as other:
            assert fresh.pid != first.pid
            assert other.execute("select to_regclass('kept')").fetchone() == (None,)
            with start_or_join(moved) as third:
                assert third.pid == first.pid
        connection.execute("checkpoint")
    assert cluster_of(moved).pid == first.pid
    first.leave()
    wait_until(lambda: not cluster_of(moved).is_running())
    with start_or_join(moved) as again, psycopg.connect(again.url) as connection:
        assert connection.execute("select * from kept").fetchone() == (1,)


def test_a_copy_is_not_taken_for_the_original(tmp_path: Path, directory: Path) -> None:
    with start_or_join(directory) as server:
        copy = tmp_path / "copy"
        (copy / "data").mkdir(parents=True)
        shutil.copy(directory / "data/postmaster.pid", copy / "data/postmaster.pid")
        assert server.pid
        assert cluster_of(copy).pid is None


def test_many_start_at_once(directory: Path, participant: Callable[..., Participant]) -> None:
    together = [participant() for _ in range(6)]
    assert len({one.joined().pid for one in together}) == 1
    for one in together[1:]:
        one.leave()
    assert answers(together[0].url)
    together[0].leave()
    assert not cluster_of(directory).is_running()


def test_joining_while_the_last_leaves(directory: Path, participant: Callable[..., Participant]) -> None:
    leaving = participant().joined()
    for _ in range(5):
        joining = participant()
        leaving.leave()
        leaving = joining.joined()
        assert answers(leaving.url)
    leaving.leave()
    assert not cluster_of(directory).is_running()


def test_the_server_has_a_session_of_its_own(directory: Path) -> None:
    with start_or_join(directory) as server:
        assert server.pid
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getpgid(server.pid) != os.getpgid(0)
        files = [Path(f"/proc/{server.pid}/fd/{number}") for number in (0, 1, 2)]
        if os.access(files[0], os.R_OK):
            log = directory / "data/postgres.log"
            assert [file.readlink() for file in files] == [Path("/dev/null"), log, log]


@pytest.mark.parametrize("whole", [True, False], ids=["everything", "postmaster only"])
def test_committed_data_survives_the_kill_of_postgres(directory: Path, whole: bool) -> None:
    with start_or_join(directory) as server:
        connection = psycopg.connect(server.url)
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (0)")

        first_pid = server.pid
        assert first_pid
        if whole:
            cluster_of(directory).kill()
        else:
            os.kill(first_pid, signal.SIGKILL)
        wait_until(lambda: server.pid is None)

        with start_or_join(directory) as again:
            assert again.pid not in (None, first_pid)
            assert again.url == server.url
            with psycopg.connect(server.url) as after:
                assert after.execute("SELECT count(*), min(n) FROM kept").fetchone() == (1000, 1)
        assert answers(server.url)
    assert not cluster_of(directory).is_running()


def test_a_stranger_with_the_dead_servers_process_id_is_not_taken_for_it(directory: Path) -> None:
    start_or_join(directory).leave()
    cluster = cluster_of(directory)
    cluster.start()
    dead_pid = cluster.pid
    cluster.kill()
    for file in (directory / "data/postmaster.pid", directory / "run/.s.PGSQL.5432.lock"):
        file.write_text(file.read_text().replace(str(dead_pid), str(os.getpid()), 1))
    assert not cluster.is_running()
    cluster.stop()  # would end this process if it believed the file

    with start_or_join(directory) as server:
        assert answers(server.url)


def test_a_server_of_another_container_is_not_doubled(directory: Path) -> None:
    start_or_join(directory).leave()
    cluster = cluster_of(directory)
    cluster.start()
    cluster.kill()
    # A live socket, but no such process: how a server in another process id namespace looks.
    (directory / "run/.s.PGSQL.5432").unlink()
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind(str(directory / "run/.s.PGSQL.5432"))
        elsewhere.listen()
        with pytest.raises(EmbeddedServerError, match="another container"):
            start_or_join(directory)
    with start_or_join(directory) as server:
        assert answers(server.url)


def test_an_interrupted_initdb_is_done_again(directory: Path) -> None:
    half_done = directory / "data.init"
    half_done.mkdir(parents=True)
    (half_done / "PG_VERSION").write_text("18\n")
    with start_or_join(directory) as server:
        assert answers(server.url)
    assert not half_done.exists()


def test_deleting_the_directory_of_a_running_server(directory: Path) -> None:
    old = start_or_join(directory)
    old_pid = old.pid
    shutil.rmtree(directory)
    with start_or_join(directory) as new:
        assert new.pid not in (None, old_pid)
        old.leave()
        assert answers(new.url)


def test_a_long_path(tmp_path: Path) -> None:
    directory = tmp_path / ("long-" * 20) / ("path-" * 20)
    with start_or_join(directory) as server:
        assert answers(server.url)
        with start_or_join(directory) as second:
            assert second.url == server.url
        socket_dir = Path(str(psycopg.conninfo.conninfo_to_dict(server.url)["host"]))
        assert socket_dir.stat().st_mode & 0o077 == 0
    assert not cluster_of(directory).is_running()
    assert not socket_dir.exists()


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    with start_or_join(tmp_path / "it's 100% odd, é") as server:
        assert answers(server.url)


@pytest.mark.parametrize("name", ["a$(touch pwned)b", "a`touch pwned`b", 'a";touch pwned;"b', "a$HOME\\b"])
def test_a_name_that_a_shell_would_read(tmp_path: Path, name: str) -> None:
    with start_or_join(tmp_path / name) as server:
        assert answers(server.url)
        assert server.directory == tmp_path / name
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "data/postgres.log").exists()


def test_another_temporary_directory_of_a_joiner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long-" * 20) / ("path-" * 20)
    with start_or_join(long) as server:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        other = Participant(long).joined()
        assert other.url == server.url
        other.leave()
        assert answers(server.url)


def test_a_socket_directory_that_others_may_write_to_is_refused(directory: Path) -> None:
    (directory / "run").mkdir(parents=True)
    (directory / "run").chmod(0o777)
    with pytest.raises(EmbeddedServerError, match="not private"):
        start_or_join(directory)


def test_a_bad_directory_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/headgate")):
        with pytest.raises(EmbeddedServerError) as raised:
            start_or_join(bad)
        assert raised.value.hint
        assert "HEADGATE_EMBEDDED_DIR" in raised.value.hint


def test_a_server_that_cannot_start_is_explained_with_its_log(directory: Path) -> None:
    start_or_join(directory).leave()
    version = directory / "data" / "PG_VERSION"
    version.write_text("11\n")
    with pytest.raises(EmbeddedServerError, match="initialized by PostgreSQL version 11") as raised:
        start_or_join(directory)
    assert raised.value.hint
    assert list((directory / "participants").iterdir()) == []


FORK_AND_EXIT = """
import json, os, sys
from headgate.postgres.embedded import start_or_join
server = start_or_join()
child = os.fork()
if child == 0:
    server.leave()
    sys.exit(0)  # runs the exit functions
os.waitpid(child, 0)
print(json.dumps({"pid": server.pid, "url": server.url}), flush=True)
sys.stdin.read()
"""

FORK_AND_STAY = """
import json, os, sys
from headgate.postgres.embedded import start_or_join
server = start_or_join()
if os.fork() == 0:
    os.close(1)
else:
    print(json.dumps({"pid": server.pid, "url": server.url}), flush=True)
os.read(0, 1)
os._exit(0)
"""

FORK_AND_JOIN = """
import json, os, sys
from headgate.postgres.embedded import start_or_join
server = start_or_join()
joined, tell = os.pipe()
child = os.fork()
if child == 0:
    own = start_or_join()
    os.write(tell, b".")
    os.read(0, 1)
    own.leave()
    os._exit(0)
os.read(joined, 1)
server.leave()
print(json.dumps({"pid": server.pid, "url": server.url}), flush=True)
os.waitpid(child, 0)
"""


def test_a_forked_child_stops_nothing(directory: Path, participant: Callable[..., Participant]) -> None:
    parent = participant(FORK_AND_EXIT).joined()
    assert parent.pid == cluster_of(directory).pid
    assert answers(parent.url)
    parent.leave()
    assert not cluster_of(directory).is_running()


def test_a_forked_child_holds_no_place_of_its_dead_parent(
    directory: Path, participant: Callable[..., Participant]
) -> None:
    parent = participant(FORK_AND_STAY).joined()
    parent.process.kill()
    parent.process.wait()
    wait_until(lambda: not cluster_of(directory).is_running())
    other = participant().joined()
    other.leave()
    assert not cluster_of(directory).is_running()


def test_a_forked_child_that_joins_counts(directory: Path, participant: Callable[..., Participant]) -> None:
    parent = participant(FORK_AND_JOIN).joined()
    assert parent.pid == cluster_of(directory).pid
    assert answers(parent.url)
    parent.leave()
    assert not cluster_of(directory).is_running()


BIN_DIRS = [
    pytest.param(postgres_bin(), id="embedded"),
    pytest.param(DEBIAN_15, id="15", marks=pytest.mark.skipif(not DEBIAN_15.exists(), reason="not installed")),
]


@pytest.mark.parametrize("bin_dir", BIN_DIRS)
def test_a_cluster_of_any_binaries(tmp_path: Path, bin_dir: Path) -> None:
    cluster = Cluster(bin_dir, tmp_path / "data", tmp_path / "run", port=5433, settings={"work_mem": "7MB"})
    assert not cluster.is_initialized()
    cluster.init()
    assert cluster.is_initialized()
    assert not cluster.is_running()
    try:
        cluster.start()
        with psycopg.connect(cluster.url()) as connection:
            assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
            connection.execute("CREATE TABLE kept ()")
        first = cluster.pid
        cluster.kill()
        assert not cluster.is_running()
        cluster.start()
        assert cluster.pid != first
        with psycopg.connect(cluster.url()) as connection:
            connection.execute("SELECT FROM kept")
    finally:
        cluster.stop("immediate")
    assert not cluster.is_running()


class TestLocked:
    """Somebody else is starting or stopping the server, and takes long."""

    @pytest.fixture
    def lock(self, directory: Path) -> Iterator[Path]:
        directory.mkdir()
        file = directory / "lock"
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.write(f"{os.getpid()}\n")
            held.flush()
            yield file

    @pytest.mark.parametrize("command", ["up --port 0 --processes 1", "up --port 0 --processes 2", "stream list"])
    def test_it_is_said_and_can_be_interrupted(self, directory: Path, lock: Path, command: str) -> None:
        with subprocess.Popen(
            [sys.executable, "-m", "headgate", *command.split()],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env={**os.environ, "HEADGATE_EMBEDDED_DIR": str(directory), "XDG_CONFIG_HOME": str(directory)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        ) as waiting:  # fmt: skip
            try:
                assert waiting.stderr is not None
                assert f"waiting for process {os.getpid()}" in waiting.stderr.readline()
                waiting.send_signal(signal.SIGINT)
                assert waiting.wait(20) == (130 if command == "stream list" else 0)
                assert "Traceback" not in waiting.stderr.read()
            finally:
                waiting.kill()

    async def test_a_task_that_waits_can_be_cancelled(self, directory: Path, lock: Path) -> None:
        opening = asyncio.create_task(headgate.connect_async(directory=str(directory)))
        await asyncio.sleep(0.1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(opening, 20)
        assert not (directory / "participants").exists()

    async def test_what_was_started_meanwhile_is_left(self, directory: Path) -> None:
        opening = asyncio.create_task(headgate.connect_async(directory=str(directory)))
        await asyncio.to_thread(wait_until, (directory / "participants").exists)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(opening, 60)
        assert list((directory / "participants").iterdir()) == []
        assert not cluster_of(directory).is_running()
