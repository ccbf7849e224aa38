"""Exit codes, and the errors that are the command line's own."""

from __future__ import annotations

import headgate

OK = 0
FAILED = 1
USAGE = 2
NOTHING = 3
INTERRUPTED = 130

MEANINGS = {
    OK: "done",
    FAILED: "an error: stderr says what and, after `hint:`, what to do",
    USAGE: "wrong usage: stderr has the usage line",
    NOTHING: "what was asked for is not there: no such stream, consumer, message, source or context, "
    "nothing to receive, an ack that came too late; or a check did not hold (`bench --check`, `torture`)",
    INTERRUPTED: "interrupted",
}


class NotThere(headgate.Error):
    """What was asked for is not there."""


def code_of(error: headgate.Error) -> int:
    """The exit code that an error stands for."""
    missing = (
        NotThere,
        headgate.errors.StreamNotFound,
        headgate.errors.ConsumerNotFound,
        headgate.errors.SourceNotFound,
    )
    return NOTHING if isinstance(error, missing) else FAILED
