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


# what the SDK advises is Python; here the advice is a command
HINTS: dict[type[headgate.Error], str] = {
    headgate.StreamNotFound: "`headgate stream list` shows the streams, `headgate stream add` makes one",
    headgate.ConsumerNotFound: "`headgate consumer list` shows the consumers, `headgate consumer add` makes one",
    headgate.StreamExists: "choose another name, or say --if-not-exists",
    headgate.ConsumerExists: "choose another name, or say --if-not-exists",
    headgate.SettingsDiffer: "leave these options out, or change what can be changed: `headgate stream edit`, "
    "`headgate stream set-lanes`, `headgate consumer edit`",
    headgate.SourceNotFound: "`headgate source list` shows the sources, `headgate source add` makes one",
    headgate.SourceExists: "choose another name, or say --if-not-exists",
    headgate.NotJoined: "a leased consumer hands messages to its workers alone; look at them with `headgate peek`",
    headgate.SchemaMissing: "run `headgate migrate`",
    headgate.SchemaOutdated: "run `headgate migrate`",
}


def code_of(error: headgate.Error) -> int:
    """The exit code that an error stands for."""
    missing = (NotThere, headgate.StreamNotFound, headgate.ConsumerNotFound, headgate.SourceNotFound)
    return NOTHING if isinstance(error, missing) else FAILED
