"""`headgate maintain`: one step of maintenance."""

from __future__ import annotations

from .app import app
from .call import Call, command


@command(app, "maintain")
def maintain(call: Call) -> None:
    """Do one step of maintenance, and print what was done.

    `headgate up` and workers do it all the time: this is for a database that has neither, from cron for example.
    """
    done = [{"task": task, "subject": subject, "done": count} for task, subject, count in call.direct.maintain()]
    call.print_rows(done, done, ("task", "subject", "done"), "there was nothing to do")
