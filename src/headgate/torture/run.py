"""Runs one history: sets the world up, lets the sessions loose, drains what is left, and judges."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from .clients.processes import ClientProcesses
from .environment import clock
from .environment.environment import Environment
from .environment.faults import Nemesis, upgrade
from .environment.restore import restored
from .judge.readers import paths
from .judge.uncertain import as_of, mark_uncertain
from .presets.preset import STREAM, ConsumerPlan, Preset, set_up
from .record import Ending, HandedMessage, History, Wait
from .sessions.observers import ObserverSession, record_final_state
from .sessions.operators import REWRITING, MaintainerSession, OperatorSession
from .sessions.readers import ArchiverSession, ReaderSession, finish, read_again
from .sessions.senders import SenderSession
from .sessions.session import MessagePool, TortureSession
from .sessions.workers import WorkerSession

WATCH_EVERY = 0.05
PATIENCE = 8.0  # of the drain, since something came last
QUIET = 12  # empty receives in a row, once nothing is parked or in flight

BLOCKED = """
select a.application_name,
       array(select b.application_name from pg_stat_activity b where b.pid = any(pg_blocking_pids(a.pid)))
  from pg_stat_activity a
 where a.datname = current_database() and a.wait_event_type = 'Lock' and a.pid <> pg_backend_pid()
"""


class Watcher(threading.Thread):
    """Sees who waits for whom, and whether the machine lets anybody run at all."""

    def __init__(self, url: str, history: History) -> None:
        super().__init__(name="watcher", daemon=True)
        self.url = url
        self.db = psycopg.connect(url, autocommit=True, application_name="watcher")
        self.history = history
        self.is_over = threading.Event()

    def run(self) -> None:
        before = self.history.now()
        while not self.is_over.wait(WATCH_EVERY):
            with suppress(psycopg.OperationalError):
                if self.db.closed:
                    self.db = psycopg.connect(self.url, autocommit=True, application_name="watcher")
                for session, blockers in self.db.execute(BLOCKED):
                    self.history.waits.append(Wait(self.history.now(), session, tuple(b for b in blockers if b)))
            now = self.history.now()
            if now - before > 4 * WATCH_EVERY:  # it should have been back long ago
                self.history.starved.append((before + WATCH_EVERY, now))
            before = now
        self.db.close()


def run(environment: Environment, preset: Preset, seed: int, seconds: float) -> History:
    """One history in a fresh database."""
    with psycopg.connect(environment.url, autocommit=True) as db:
        if "jump" in preset.faults:
            clock.install(db)
        if "rewrite" in preset.weights:
            db.execute(REWRITING)
        set_up(db, preset)
    history = History(preset.name, seed)
    watcher = Watcher(environment.url, history)
    watcher.start()
    run_sessions(environment, preset, history, seconds)
    watcher.is_over.set()
    watcher.join()
    mark_uncertain(history)
    if "upgrade" in preset.faults:  # if no upgrade was possible in the time that there was
        upgrade(environment.url, "60s")
    dumps = [f for f in history.faults if f.kind == "dump" and f.text]
    if dumps:
        with restored(environment, Path(dumps[0].text)) as url:
            return drain_and_look(url, preset, as_of(history, dumps[0]))
    return drain_and_look(environment.url, preset, history)


def drain_and_look(url: str, preset: Preset, history: History) -> History:
    """Receive what is left, and look at what does not come."""
    history.drained_at = history.now()
    with psycopg.connect(url, autocommit=True, application_name="drain") as db:
        finish(db, history, paths)
        record_final_state(db, history, preset)
        history.starved.append((history.drained_at, history.now()))  # nobody received anything
        for consumer in preset.consumers:
            drain(db, consumer, history)
        read_again(db, history, paths)
        for consumer in preset.consumers:
            history.endings[consumer.name] = look(db, consumer.name)
    return history


def run_sessions(environment: Environment, preset: Preset, history: History, seconds: float) -> None:
    pool, url = MessagePool(), environment.sessions_url
    kinds: list[tuple[type[TortureSession], int]] = [
        (SenderSession, preset.senders),
        (WorkerSession, preset.workers),
        (OperatorSession, preset.operators if preset.weights else 0),
        (MaintainerSession, preset.maintainers),
        (ReaderSession, preset.readers),
        (ObserverSession, preset.observers),
        (ArchiverSession, preset.archivers),
    ]
    clients = ClientProcesses(environment.url, preset, history)
    with clients.at_work():
        end = history.now() + seconds
        everybody: list[TortureSession | Nemesis] = [
            kind(f"{kind.__name__.removesuffix('Session').lower()}{i}", url, preset, history, pool, end)
            for kind, n in kinds
            for i in range(n)
        ]
        if preset.faults:
            everybody.append(Nemesis(environment, preset, history, end, clients))
        for thread in everybody:
            thread.start()
        for thread in everybody:
            thread.join(seconds + 60)
        time.sleep(max(0.0, end - history.now()))
    failed = [s for s in everybody if s.failure is not None]
    if failed:
        raise RuntimeError(f"{failed[0].name} of {preset.name}, seed {history.seed}") from failed[0].failure
    assert not any(s.is_alive() for s in everybody), "a session does not end"


def drain(db: psycopg.Connection, consumer: ConsumerPlan, history: History, quiet: int = QUIET) -> None:
    """Receive and ack until nothing is left; nobody else is there any more. Gives up when nothing comes for long."""

    def ask(kind: str, query: str, values: list[Any], **asked: Any) -> Any:
        return history.call("drain", kind, lambda: db.execute(query, values).fetchall(), **asked).answer or []

    ask("resume", "select headgate.resume(%s, %s)", [STREAM, consumer.name], consumer=consumer.name)
    last, empty, maintained = time.monotonic(), 0, 0.0
    while empty < quiet and time.monotonic() < last + PATIENCE:
        if consumer.leased:
            ask(
                "heartbeat",
                "select headgate.heartbeat(%s, %s, 'drain')",
                [STREAM, consumer.name],
                consumer=consumer.name,
            )
        if time.monotonic() > maintained + 0.5:
            ask("maintain", "select task, subject, done from headgate.maintain()", [])
            maintained = time.monotonic()
        event = history.call(
            "drain",
            "receive",
            lambda: [
                HandedMessage(*row)
                for row in db.execute(
                    "select ack_id, seq, key, data, attempt from headgate.receive(%s, %s, 100, 'drain')",
                    [STREAM, consumer.name],
                )
            ],
            consumer=consumer.name,
            n=100,
            acks=[],
        )
        got: list[HandedMessage] = event.answer or []
        if got:
            acks = [m.ack_id for m in got]
            history.call(
                "drain",
                "ack",
                lambda acks=acks: tuple(  # type: ignore[misc]
                    db.execute("select * from headgate.ack(%s, %s, %s)", [STREAM, consumer.name, acks]).fetchall()[0]
                ),
                consumer=consumer.name,
                acks=acks,
            )
            last, empty = time.monotonic(), 0
        else:
            empty = 0 if unfinished(db, consumer.name) else empty + 1
            time.sleep(0.01)


UNFINISHED = """
select p.seq, 'parked: ' || p.reason from headgate.parked p where p.consumer = %(c)s
union all
select u.seq, 'in flight' from headgate.delivery d, unnest(d.seqs) u (seq) where d.consumer = %(c)s
 order by 1
"""


def unfinished(db: psycopg.Connection, consumer: str) -> list[tuple[int, str]]:
    c = db.execute("select id from headgate.consumer where name = %s", [consumer]).fetchall()[0][0]
    return [(int(seq), str(why)) for seq, why in db.execute(UNFINISHED, {"c": c})]


def look(db: psycopg.Connection, consumer: str) -> Ending:
    dead = db.execute("select source_seq from headgate.dead_letters(%s, %s, 1000000)", [STREAM, consumer])
    losses = db.execute(
        "select l.first_seq, l.last_seq, l.reason, l.messages"
        "  from headgate.loss l join headgate.consumer c on c.id = l.consumer where c.name = %s",
        [consumer],
    )
    rows = losses.fetchall()
    return Ending(
        {int(row[0]) for row in dead},
        [(first, last, reason) for first, last, reason, _ in rows],
        unfinished(db, consumer),
        sum(n for _, _, _, n in rows),
    )
