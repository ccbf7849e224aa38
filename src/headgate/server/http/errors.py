"""What a caller is answered when something is wrong: {"error": {"code", "message", "hint"}} with the right status."""

from __future__ import annotations

from collections.abc import Callable

from ... import errors
from ...errors import code_of
from ...hints import did_you_mean, translate


class Problem(Exception):
    """An answer other than success. `retry_after` is in seconds."""

    def __init__(
        self, status: int, code: str, message: str, hint: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.retry_after = retry_after


_STATUS: dict[type[errors.Error], int] = {
    errors.StreamNotFound: 404,
    errors.ConsumerNotFound: 404,
    errors.ArchiveNotFound: 404,
    errors.SourceNotFound: 404,
    errors.StreamExists: 409,
    errors.ConsumerExists: 409,
    errors.SourceExists: 409,
    errors.SourceTaken: 409,
    errors.SourceBlocked: 409,
    errors.SettingsDiffer: 409,
    errors.WrongIsolation: 409,
    errors.StreamFull: 409,
    errors.NotJoined: 409,
    errors.MessagesRemoved: 409,
    errors.StagingLost: 409,
    errors.StaleDelivery: 409,
    errors.MessageTooLarge: 413,
    errors.InvalidName: 422,
    errors.InvalidFilter: 422,
    errors.InvalidLanes: 422,
    errors.InvalidAckId: 422,
    errors.InvalidArgument: 422,
    errors.InvalidPosition: 422,
    errors.InvalidText: 422,
    errors.DataNotSerializable: 422,
    errors.DataInvalid: 422,
    errors.Conflict: 503,
    errors.ConnectionFailed: 503,
    errors.SchemaMissing: 503,
    errors.SchemaOutdated: 503,
    errors.SchemaTooNew: 503,
    errors.ServerTooOld: 503,
    errors.EmbeddedServerError: 503,
    errors.PoolerInTheWay: 503,
    errors.NotAllowed: 503,  # of the server's role in the database: the caller cannot help it
}

RETRY_SOON = {errors.Conflict: 0.1, errors.ConnectionFailed: 1.0}


def problem(error: errors.Error, may_use: Callable[[str], bool] | None = None) -> Problem:
    """The answer that stands for an error of the SDK. Of streams only those are named that the caller may use."""
    for cls, status in _STATUS.items():
        if isinstance(error, cls):
            if isinstance(error, errors.DatabaseUnavailable):
                return Problem(503, "database_unavailable", "the database cannot do this now", "repeat the call", 1.0)
            if cls is errors.ConnectionFailed:  # its text may name hosts and roles
                return Problem(503, "database_away", "the database cannot be reached", "repeat the call", 1.0)
            if cls is errors.NotAllowed:
                return Problem(503, "server_not_allowed", "the server's database role lacks a right", None, 60.0)
            retry = RETRY_SOON.get(cls, 5.0) if status == 503 else None
            return Problem(status, code_of(cls), error.message, _hint(error, may_use), retry)
    return Problem(500, "internal", "something went wrong in the server", "look in the server's log")


def _hint(error: errors.Error, may_use: Callable[[str], bool] | None) -> str | None:
    hint = error.hint
    if hint and isinstance(error, errors.StreamNotFound) and may_use is not None:
        named = error.similar or ()
        hint = did_you_mean([name for name in named if may_use(name)]) + hint.removeprefix(did_you_mean(named))
    return translate(hint, "http") if hint else None
