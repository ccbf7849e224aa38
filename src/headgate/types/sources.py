"""Sources: webhooks, and tables whose changes are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

SourceKind = Literal["webhook", "postgres"]
Scheme = Literal["standard", "github", "stripe", "hmac", "none"]
PostgresSourceState = Literal["starting", "reading", "waiting", "failing", "lost", "paused"]


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Where messages come from. Secrets are shown by their ends."""

    name: str
    kind: SourceKind
    stream: str
    scheme: Scheme
    secret: list[str]
    settings: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PostgresSourceInfo:
    """Tables of a PostgreSQL database whose changes go to a stream, and how far they are read.

    `state`: reading; waiting, for a server that reads it; failing, which is tried again; lost: changes are missing, or
    somebody has to do something, and `error` and `hint` say what. `lsn`: every transaction up to there is in the
    stream. `place` is the database's URL without its password. `routes` has the tables with a stream or key of their
    own, `problems` what is wrong with single tables. `retained_bytes` is the WAL that the slot keeps, as of
    `looked_at`; above `warn_bytes` the doctor warns, above `drop_bytes` the slot is dropped. `backfill_rows` of about
    `backfill_of` are read by the backfills under way.
    """

    name: str
    stream: str
    place: str
    tables: list[str]
    publication: str
    slot: str
    state: PostgresSourceState
    error: str | None
    hint: str | None
    since: datetime
    reader: str | None
    lsn: str
    lag_bytes: int | None
    lag: timedelta | None
    messages: int
    rate: float | None
    created_at: datetime
    routes: dict[str, Any]
    problems: list[str]
    retained_bytes: int | None
    wal_status: str | None
    looked_at: datetime | None
    warn_bytes: int
    drop_bytes: int | None
    backfill_rate: int | None
    backfill_paused: bool
    backfill_rows: int | None
    backfill_of: int | None
    kind: SourceKind = "postgres"


@dataclass(frozen=True, slots=True)
class BackfillInfo:
    """A table whose rows a source reads beside its changes: how many, of about how many; why not, if it failed.

    `deleted` rows were told that the stream had and the table no longer, where that was wanted (`finds_deleted`).
    """

    table: str
    state: Literal["waiting", "running", "paused", "done", "failed"]
    rows: int
    estimate: int | None
    error: str | None
    asked_at: datetime
    finished_at: datetime | None
    from_column: str | None
    from_value: str | None
    finds_deleted: bool
    deleted: int


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """Something that reading tables needs; `advice` says what to do when it is not there."""

    name: str
    is_ok: bool
    found: str
    advice: str | None
