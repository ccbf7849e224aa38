"""What a caller is answered when something is wrong: {"error": {"code", "message", "hint"}} with the right status."""

from __future__ import annotations

import re

from .. import errors


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
    errors.Conflict: 503,
    errors.ConnectionFailed: 503,
    errors.SchemaMissing: 503,
    errors.SchemaOutdated: 503,
    errors.SchemaTooNew: 503,
    errors.ServerTooOld: 503,
    errors.EmbeddedServerError: 503,
    errors.NotAllowed: 503,  # of the server's role in the database: the caller cannot help it
}

RETRY_SOON = {errors.Conflict: 0.1, errors.ConnectionFailed: 1.0}


def problem(error: errors.Error) -> Problem:
    """The answer that stands for an error of the SDK."""
    for cls, status in _STATUS.items():
        if isinstance(error, cls):
            if cls is errors.ConnectionFailed:  # its text may name hosts and roles
                return Problem(503, "database_away", "the database cannot be reached", "repeat the call", 1.0)
            if cls is errors.NotAllowed:
                return Problem(503, "server_not_allowed", "the server's database role lacks a right", None, 60.0)
            retry = RETRY_SOON.get(cls, 5.0) if status == 503 else None
            return Problem(status, code_of(cls), error.message, error.hint, retry)
    return Problem(500, "internal", "something went wrong in the server", "look in the server's log")


def code_of(cls: type[errors.Error]) -> str:
    """StreamNotFound -> stream_not_found."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
