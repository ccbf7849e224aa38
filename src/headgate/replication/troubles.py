"""Why a source cannot be read, in a sentence, and what to do about it. No I/O."""

from __future__ import annotations

import psycopg

from ..errors import Error, SourceBlocked
from .wire import ProtocolError

# What libpq says when it cannot connect has no SQLSTATE.
_CONNECTING = (
    ("password authentication failed", "the database refuses the password of the source's URL",
     "give the right one: headgate source edit NAME --url …"),
    ("no password supplied", "the database wants a password, and the source's URL has none",
     "give one: headgate source edit NAME --url …"),
    ("pg_hba.conf", "the database does not let this host, user or database in",
     "add a line to pg_hba.conf of that server"),
    ("max_wal_senders", "the database has no free sender of WAL",
     "raise max_wal_senders there and restart it, or end readers that are not needed (pg_stat_replication)"),
    ("too many clients", "the database has no free connection", "raise max_connections there, or end some"),
    ("remaining connection slots", "the database has no free connection", "raise max_connections there, or end some"),
    ("not permitted to log in", "the user of the source's URL may not log in", "run ALTER ROLE … LOGIN there"),
    ("does not exist", "the database, or its user, is not there", "headgate source edit NAME --url … gives another"),
    ("is starting up", "the database is starting", "wait: it is tried again"),
    ("shutting down", "the database is shutting down", "wait: it is tried again"),
    ("the database system is in recovery", "the database is recovering", "wait: it is tried again"),
)  # fmt: skip

_BY_SQLSTATE = {
    "53100": ("the disk is full", "make room there: reading goes on by itself, and nothing is lost"),
    "53200": ("there is not enough memory", "reading goes on by itself once there is"),
    "53300": ("there is no free connection", "raise max_connections or max_wal_senders, or end some"),
    "53400": ("a limit of the server is reached", "raise it there"),
    "42501": (
        "the user may not do that", "grant it: REPLICATION for reading changes, SELECT on the tables for a backfill"
    ),
    "28000": ("the user is not let in", "look at pg_hba.conf of that server, and at ALTER ROLE … LOGIN REPLICATION"),
    "28P01": ("the password is refused", "give the right one: headgate source edit NAME --url …"),
    "25006": ("it is read-only", "reading goes on by itself once it can be written to"),
    "57P03": ("it does not take connections now", "wait: it is tried again"),
}  # fmt: skip

READ_ANEW = "read it anew, which also tells rows that are gone: `headgate source restart NAME`"
TRIED_AGAIN = "it is tried again, from where it was"


class Failing(Exception):
    """The source cannot be read now; it is tried again."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class TargetFailed(Exception):
    """The stream's database failed, not the source."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def with_name(hint: str, name: str) -> str:
    """A hint whose commands can be run as they stand."""
    return hint.replace(" NAME", f" {name}")


def explain(error: BaseException) -> tuple[str, str, str]:
    """State, sentence and hint: `lost` when somebody has to do something first, else `failing`."""
    where = "the source's database"
    if isinstance(error, TargetFailed):
        error, where = error.error, "the stream's database"
    if isinstance(error, SourceBlocked):
        return "lost", error.message, error.hint or ""
    if isinstance(error, (Error, Failing)):
        return "failing", error.message, error.hint or TRIED_AGAIN
    if isinstance(error, psycopg.Error):
        said = (error.diag.message_primary or str(error)).strip()
        if error.sqlstate is None:
            for part, sentence, hint in _CONNECTING:
                if part in said:
                    return "failing", f"{sentence} ({_first(said)})", hint
            return "failing", f"{where} cannot be reached: {_first(said)}", f"see that it runs; {TRIED_AGAIN}"
        sentence, hint = _BY_SQLSTATE.get(error.sqlstate, ("", TRIED_AGAIN))
        return "failing", f"{where}: {sentence + ': ' if sentence else ''}{_first(said)}", hint
    if isinstance(error, ProtocolError):
        return "failing", f"what the server sent cannot be read: {error}", "report it; nothing is lost meanwhile"
    if isinstance(error, OSError):
        return "failing", f"{where} cannot be reached: {error}", f"see that it runs; {TRIED_AGAIN}"
    return "failing", f"an error that was not foreseen: {error!r}", "report it; nothing is lost meanwhile"


def _first(text: str) -> str:
    """What libpq says, in one line."""
    return " ".join(text.split())
