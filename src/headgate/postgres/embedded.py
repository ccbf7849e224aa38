"""A private PostgreSQL for `headgate.connect()` without a URL, shared by the processes that use one directory.

`start_or_join` starts the server of a directory or joins the one that already runs there. Each handle holds a locked
file in `participants/`; whoever leaves last stops the server, and after the last was killed its guard does. The kernel
drops a file lock however its process ends, so a crashed participant does not count and no process id has to be trusted.
Starting, joining and stopping all happen under one exclusive lock. The layer below, one PostgreSQL cluster, is
`headgate.postgres.cluster`.

    .headgate/lock           held while somebody starts, joins or leaves; says who
    .headgate/participants   one locked file per handle
    .headgate/guard          locked by the guard (postgres/guard.py)
    .headgate/data           the cluster, with its postgres.log
    .headgate/run            its socket (under the temporary directory when this path is too long for a socket)
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psycopg

from headgate.errors import EmbeddedServerError
from headgate.postgres.cluster import START_SECONDS, Cluster, postgres_bin

_log = logging.getLogger(__name__)

_SAY_AFTER = 1.0  # seconds of waiting for the lock

_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "16",
    "max_wal_senders": "16",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_completion_target": "0.9",
    "autovacuum": "on",
    "fsync": "on",  # a queue that loses what it acknowledged is not one
}

_SOCKET_PATH_BYTES = 103  # the limit is 107 on Linux, 103 on macOS


class EmbeddedServer:
    """A handle on the private PostgreSQL of a directory, made by `start_or_join`. Also a context manager."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        self._cluster = cluster
        self._owner = os.getpid()
        self._file = directory / "participants" / f"{self._owner}-{secrets.token_hex(4)}"
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The libpq URL of the database `headgate`."""
        return self._cluster.url("headgate")

    @property
    def pid(self) -> int | None:
        """The server's process id; None when it does not run."""
        return self._cluster.pid

    @property
    def is_ours(self) -> bool:
        """False in a forked child: it inherits the handle, and the place among the participants stays its parent's."""
        return self._owner == os.getpid()

    def leave(self) -> None:
        """Stop using the server, which stops it if nobody else uses it. Runs at exit; a second call does nothing."""
        if self._lock is None or not self.is_ours:
            return
        try:
            with _explained(self.directory), suppress(FileNotFoundError), _exclusive(self.directory):
                self._leave()
        finally:
            # The directory was deleted, and the server ends by itself when it notices; or moved: its guard ends it.
            self._give_up_place()

    def revive(self) -> None:
        """Start the server again if it has ended. Data that is gone is an error: a new server would be an empty one."""
        with _explained(self.directory), _exclusive(self.directory):
            if not self._cluster.is_initialized():
                raise EmbeddedServerError(
                    f"the data of the private PostgreSQL is gone: {self._cluster.data_dir}",
                    hint="put it back, or stop everybody who uses it and begin anew",
                )
            _bring_up(self._cluster)

    def _join(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        self._lock = _open(self._file, os.O_CREAT | os.O_EXCL)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        atexit.register(self.leave)

    def _give_up_place(self) -> bool:
        lock, self._lock = self._lock, None
        if lock is None:  # another thread was quicker
            return False
        atexit.unregister(self.leave)
        self._file.unlink(missing_ok=True)
        _close(lock)
        return True

    def _leave(self) -> None:
        if self._give_up_place() and not _participants(self.directory):
            self._cluster.stop("fast")
            with suppress(OSError):  # leave nothing in the temporary directory; not empty: the server crashed
                self._cluster.socket_dir.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def start_or_join(directory: Path | str | None = None, given_up: threading.Event | None = None) -> EmbeddedServer:
    """Start the private PostgreSQL of `directory`, or join the one that runs there.

    The directory is `$HEADGATE_EMBEDDED_DIR` or else `.headgate`, unless given. Call `leave()` on what is returned, or
    use it as a context manager; otherwise the process leaves at its exit. A forked child that wants the server to
    outlive its parent calls this itself. `given_up` ends the wait for others who are just starting or stopping it.
    """
    chosen = directory or os.environ.get("HEADGATE_EMBEDDED_DIR") or ".headgate"
    home = Path(chosen).expanduser().resolve()
    bin_dir = postgres_bin()
    with _explained(home):
        if not home.exists():
            home.mkdir(mode=0o711, parents=True)  # what is private in it, data and run, is so by itself
            (home / ".gitignore").write_text("*\n")
        server = EmbeddedServer(home, Cluster(bin_dir, home / "data", _socket_dir(home), settings=_SETTINGS))
        with _exclusive(home, given_up):
            server._join()
            try:
                _bring_up(server._cluster)
                _guard(home)
            except BaseException:
                server._leave()
                raise
    return server


async def start_or_join_async(directory: Path | str | None = None) -> EmbeddedServer:
    """`start_or_join` in a thread. Cancelled while it waits it ends at once; what it has started by then it leaves."""
    given_up = threading.Event()
    starting = asyncio.create_task(asyncio.to_thread(start_or_join, directory, given_up))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        given_up.set()
        await asyncio.wait({starting})
        if starting.exception() is None:
            await asyncio.to_thread(starting.result().leave)
        raise


def _bring_up(cluster: Cluster) -> None:
    """Have the server run, and the database in it. It may be on its way up or down: somebody died while at it."""
    if not cluster.is_initialized():
        cluster.init()
    deadline = time.monotonic() + START_SECONDS
    while True:
        cluster.start()
        cluster.find_socket()
        try:
            with psycopg.connect(cluster.url(), autocommit=True, connect_timeout=10) as connection:
                if not connection.execute("SELECT FROM pg_database WHERE datname = 'headgate'").rowcount:
                    connection.execute("CREATE DATABASE headgate")
                return
        except psycopg.Error as error:
            if error.sqlstate or time.monotonic() > deadline:  # refused connections have no sqlstate
                message = f"the server in {cluster.data_dir} does not answer: {error}"
                raise EmbeddedServerError(message, hint=f"see {cluster.log_file}") from error
        time.sleep(0.05)


def _guard(home: Path) -> None:
    """See that there is a process that stops the server when all who use it have ended, also those that are killed."""
    python = Path(sys.executable or "")
    if not python.name.startswith(("python", "pypy")):  # a program with Python in it, which would be started once more
        return
    with _fork_guard:
        lock = os.open(home / "guard", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # there is one
        else:
            _start_guard(python, home, lock)
        finally:
            os.close(lock)  # without unlocking it: the guard has it now


def _start_guard(python: Path, home: Path, lock: int) -> None:
    program = Path(__file__).with_name("guard.py")
    nothing = subprocess.DEVNULL
    with suppress(OSError):  # without it the server stays behind when its last user is killed
        subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" 3<&0 </dev/null', "sh", python, "-I", "-S", program],
            stdin=lock, stdout=nothing, stderr=nothing, cwd=home, start_new_session=True, check=False,
        )  # fmt: skip


def _socket_dir(home: Path) -> Path:
    path = home / "run"
    odd = set(str(path)) & set(',"')  # libpq splits a host at a comma; PostgreSQL's list of directories has quotes
    if not odd and len(os.fsencode(path / ".s.PGSQL.5432")) <= _SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.gettempdir()) / f"headgate-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"


def _participants(directory: Path) -> int:
    """How many handles are in use. The files of dead processes, whose locks can be had, are removed."""
    count = 0
    for file in (directory / "participants").iterdir():
        lock = _open(file)
        try:
            if _try_lock(lock):
                file.unlink()
            else:
                count += 1
        finally:
            _close(lock)
    return count


@contextmanager
def _exclusive(directory: Path, given_up: threading.Event | None = None) -> Iterator[None]:
    file = directory / "lock"
    lock = _open(file, os.O_CREAT)
    try:
        # Asked for again and again rather than waited for: a thread that waits in the kernel cannot be told to stop.
        say_at = time.monotonic() + _SAY_AFTER
        while not _try_lock(lock):
            if given_up is not None and given_up.is_set():
                raise EmbeddedServerError(f"{directory} is locked by {_holder(file)}")
            if time.monotonic() > say_at:
                say_at = float("inf")
                _log.warning("waiting for %s, which is starting or stopping the PostgreSQL in %s", _holder(file),
                             directory)  # fmt: skip
            time.sleep(0.02)
        with suppress(OSError):  # another user's
            file.write_text(f"{os.getpid()}\n")
        yield
    finally:
        _close(lock)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: Path) -> str:
    with suppress(OSError, ValueError):
        return f"process {int(file.read_text())}"
    return "another process"


# A forked child shares its parent's locks for as long as it has their files open, so it closes them at once. It must
# not unlock them, which would unlock the parent's. The guard keeps a fork from falling between opening and noting.
_open_files: set[int] = set()
_fork_guard = threading.RLock()  # re-entrant: a signal handler may fork


def _open(path: Path, flags: int = 0) -> int:
    with _fork_guard:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | flags, 0o644)
        _open_files.add(file)
    return file


def _close(file: int) -> None:
    with _fork_guard:
        _open_files.discard(file)
        fcntl.flock(file, fcntl.LOCK_UN)  # a child forked just now may not have closed it yet
        os.close(file)


def _close_in_child() -> None:
    for file in _open_files:
        os.close(file)
    _open_files.clear()
    _fork_guard.release()


os.register_at_fork(before=_fork_guard.acquire, after_in_parent=_fork_guard.release, after_in_child=_close_in_child)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except EmbeddedServerError as error:
        if "No space left on device" in error.message:
            error.hint = f"the disk is full: free some space for {directory}, or set HEADGATE_EMBEDDED_DIR"
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EmbeddedServerError(
                f"there is no space left for a PostgreSQL in {directory}: {error}",
                hint="free some on that disk, or set HEADGATE_EMBEDDED_DIR to a directory on another one",
            ) from error
        raise EmbeddedServerError(
            f"cannot keep a PostgreSQL in {directory}: {error}",
            hint="set HEADGATE_EMBEDDED_DIR to a directory of yours on a local disk, or pass a PostgreSQL URL",
        ) from error
