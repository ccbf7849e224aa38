"""Errors that Headgate raises, each with a sentence that says what to do.

The engine raises its own SQLSTATEs (class ``HG``); `from_database` maps them to these classes, never by text, and puts
their hints into Python's words.
"""

from __future__ import annotations

import re

from .hints import translate


class Error(Exception):
    """Base of every error that Headgate raises. `hint` says what to do about it."""

    sqlstate: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.similar: list[str] | None = None  # names that may have been meant, if they were looked for: in the hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class StreamNotFound(Error):
    """There is no stream of this name."""

    sqlstate = "HG001"


class StreamExists(Error):
    """There is a stream of this name already."""

    sqlstate = "HG002"


class ConsumerNotFound(Error):
    """The stream has no consumer of this name."""

    sqlstate = "HG003"


class ConsumerExists(Error):
    """The stream has a consumer of this name already."""

    sqlstate = "HG004"


class InvalidName(Error):
    """Not a name for a stream or consumer."""

    sqlstate = "HG005"


class InvalidFilter(Error):
    """Not a key filter."""

    sqlstate = "HG006"


class InvalidLanes(Error):
    """A stream cannot have this many lanes."""

    sqlstate = "HG007"


class InvalidAckId(Error):
    """Not an ack_id that `receive` returned."""

    sqlstate = "HG008"


class MessageTooLarge(Error):
    """A message is larger than its stream takes."""

    sqlstate = "HG009"


class InvalidArgument(Error):
    """An argument that the call cannot work with."""

    sqlstate = "HG010"


class InvalidPosition(Error):
    """Not a position in a stream."""

    sqlstate = "HG011"


class NotJoined(Error):
    """A worker of a leased consumer has not joined, or was not seen for so long that its lanes were given to others."""

    sqlstate = "HG012"


class StreamFull(Error):
    """The stream holds more than its `max_storage`, and nothing of it may be removed yet."""

    sqlstate = "HG013"


class ArchiveNotFound(Error):
    """The stream has no archive of this name."""

    sqlstate = "HG014"


class SettingsDiffer(Error):
    """There is a stream or consumer of this name, with other settings than those that were given."""

    sqlstate = "HG015"


class WrongIsolation(Error):
    """The call has to see what others commit: it cannot be part of a REPEATABLE READ or SERIALIZABLE transaction."""

    sqlstate = "HG016"


class SourceNotFound(Error):
    """There is no source of this name."""

    sqlstate = "HG020"


class SourceExists(Error):
    """There is a source of this name already."""

    sqlstate = "HG021"


class SourceTaken(Error):
    """Another process reads this source now, or it is gone: nothing was sent."""

    sqlstate = "HG022"


class SourceBlocked(Error):
    """A source cannot read its database: something is missing there, and the hint says what to do."""


class StagingLost(Error):
    """Messages that were staged are gone before they were sent. Nothing of the batch was sent: repeat it."""

    sqlstate = "HG030"


class MessagesRemoved(Error):
    """Retention removed messages that were still to be read."""


class InvalidText(Error):
    """Text that PostgreSQL cannot store: it contains a NUL character or half of a surrogate pair."""


class DataNotSerializable(Error):
    """The data of a message is neither text, bytes nor something JSON can express."""


class DataInvalid(Error):
    """The data of a message is not of the type that its consumer was given: `consumer("c", type=Order)`."""


class ConnectionFailed(Error):
    """The database cannot be reached or does not let us in."""


class DatabaseUnavailable(ConnectionFailed):
    """The database is there, and cannot do this now: it is read-only, full, or ended the call. Nothing was done."""


class PoolerInTheWay(Error):
    """A pooler in transaction mode stands between here and PostgreSQL, and was not told of (`pooler=True`)."""


class ServerBusy(ConnectionFailed):
    """The HTTP server refuses the call for now: it has too much to do, or the token has used up its rate. Nothing was
    done."""


class ServerTooOld(Error):
    """The PostgreSQL server is older than Headgate supports."""


class NotAllowed(Error):
    """The database role lacks a right that this call needs."""

    sqlstate: str | None = "42501"


class NotOverHttp(NotAllowed):
    """The call needs the database itself, which a client over HTTP does not reach."""

    sqlstate = None


class SchemaMissing(Error):
    """The database has no Headgate schema yet."""


class SchemaOutdated(Error):
    """The database's Headgate schema is older than this code."""


class SchemaTooNew(Error):
    """The database's Headgate schema is newer than this code."""

    sqlstate = "HG040"


class EmbeddedServerError(Error):
    """The private PostgreSQL could not be started."""


class StaleDelivery(Error):
    """Messages were taken from this worker while it worked on them: their deadline had passed."""


class Conflict(Error):
    """The database gave way to a concurrent transaction; the same call can be tried again."""


_BY_SQLSTATE: dict[str, type[Error]] = {
    cls.sqlstate: cls
    for cls in (
        StreamNotFound, StreamExists, ConsumerNotFound, ConsumerExists, InvalidName, InvalidFilter, InvalidLanes,
        InvalidAckId, MessageTooLarge, InvalidArgument, InvalidPosition, NotJoined, StreamFull, ArchiveNotFound,
        WrongIsolation, SettingsDiffer, SourceNotFound, SourceExists, SourceTaken, StagingLost, SchemaTooNew,
        NotAllowed,
    )
    if cls.sqlstate
}  # fmt: skip

_MISSING = {"3F000", "42P01", "42883"}  # schema, table or function does not exist
_UPROOTED = {
    "42P01",
    "42883",
    "23503",
    "XX000",
}  # no table, function or row it stands on; or it went under the statement
_CONFLICT = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock not available
_AWAY = {"57P01", "57P02", "57P03", "53300"}  # shutting down, crashed, starting up, too many connections
_UNAVAILABLE = {
    "25006": "this server is read-only, as after a failover: connect to the primary (target_session_attrs=read-write)",
    "53100": "free some space where PostgreSQL keeps its data; the call can be repeated then",
    "53200": "PostgreSQL has no memory left for this; the call can be repeated later",
    "57014": "a time limit (statement_timeout) or an administrator ended the statement; the call can be repeated",
    "58030": "PostgreSQL cannot read or write its files: look in its log; the call can be repeated then",
}
_CLOSED = {
    ("asyncpg", "InterfaceError"),
    ("psycopg", "OperationalError"),
    ("sqlalchemy", "ResourceClosedError"),
    ("sqlalchemy", "InterfaceError"),
}
_UNPREPARED = {"26000", "42P05"}  # a prepared statement is not there, or is there already: another client's connection
_TOO_LARGE = {"54000"}  # an entry that does not fit into an index, for example
_BAD_TEXT = {"22021", "22P05"}  # a character, or an escape in JSON, that the server cannot store
_BAD_VALUE = {"23502", "22P02", "22003", "22007", "22008", "22023"}


def from_database(error: BaseException) -> Error | None:
    """The Headgate error that stands for a driver's error, or None when it has no meaning of its own here."""
    import psycopg  # here: whoever only names an error does without the driver

    cause = _driver_error(error)
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state is None:
        if _is_closed(cause):
            return ConnectionFailed(
                "the connection is closed, and what its transaction had done is rolled back",
                hint="pass an open connection as conn=; without conn= the call can be repeated",
            )
        if isinstance(cause, (UnicodeEncodeError, psycopg.DataError)):
            return _bad_text(str(cause))
        if isinstance(cause, psycopg.OperationalError):
            return ConnectionFailed(
                "the connection to the database failed: " + _first_line(cause),
                hint="check that PostgreSQL runs and that the URL is right; the call can be repeated",
            )
        return None
    diagnosis = getattr(cause, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or _first_line(cause)
    hint = getattr(diagnosis, "message_hint", None) or getattr(cause, "hint", None)
    hint = translate(hint, "python") if hint else None
    if cls := _BY_SQLSTATE.get(state):
        if cls is NotAllowed and not hint:
            hint = "grant the role headgate_owner, headgate_producer, headgate_consumer or headgate_monitor"
        return cls(message, hint=hint)
    if state in _MISSING:
        return SchemaMissing(message, hint="run `headgate migrate`, or headgate.connect(url, migrate=True)")
    if state in _CONFLICT:
        return Conflict(message, hint=hint or "repeat the call")
    if state.startswith("08") or state in _AWAY:
        return ConnectionFailed(message, hint="the database is away or full; the call can be repeated")
    if state in _UNAVAILABLE:
        return DatabaseUnavailable(message, hint=_UNAVAILABLE[state])
    if state in _BAD_TEXT:
        return _bad_text(message)
    if state in _TOO_LARGE:
        return InvalidArgument(f"something is too long: {message}", hint="use shorter keys, channels and ids")
    if state in _UNPREPARED:
        return PoolerInTheWay(
            f"a pooler between here and PostgreSQL hands connections out by the transaction: {message}",
            hint="connect with pooler=True, or let it know prepared statements (PgBouncer: max_prepared_statements)",
        )
    if state in _BAD_VALUE:
        return InvalidArgument(message, hint=hint or "check the arguments of the call")
    return None


def _is_closed(error: BaseException) -> bool:
    """Whether a driver says, without an SQLSTATE, that a connection was closed before."""
    library, name = type(error).__module__.partition(".")[0], type(error).__name__
    return (library, name) in _CLOSED and "connection is closed" in str(error).lower()


def code_of(cls: type[Error]) -> str:
    """How the HTTP API names an error: StreamNotFound is stream_not_found."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def is_uprooted(error: BaseException) -> bool:
    """Whether a driver's error may mean that a stream was dropped under the statement, which then did nothing."""
    cause = _driver_error(error)
    return (getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)) in _UPROOTED


def _driver_error(error: BaseException) -> BaseException:
    """The driver's own error inside SQLAlchemy's or Django's wrapping: the innermost one."""
    found = error
    inner: object = error
    while isinstance(inner, BaseException):
        if hasattr(inner, "sqlstate") or isinstance(inner, UnicodeEncodeError):
            found = inner
        inner = getattr(inner, "orig", None) or inner.__cause__
    return found


def _bad_text(message: str) -> InvalidText:
    return InvalidText(
        f"PostgreSQL cannot store this text: {message}",
        hint="remove NUL characters and halves of surrogate pairs, or send the data as bytes",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def error_text(error: BaseException) -> str:
    """What is stored with a message that failed: "Type: message", in characters that PostgreSQL can store."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = ""
    return (f"{kind}: {text}" if text else kind)[:1000].encode("utf-8", "replace").decode()
