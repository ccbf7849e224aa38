"""`headgate doctor`: what is wrong with the database."""

from __future__ import annotations

from datetime import timedelta

import click

import headgate

from . import values
from .advice import as_commands
from .app import app
from .call import Call, command
from .exit_codes import FAILED, OK
from .output import print_data, print_status

# Databases that connect() refuses; to the doctor that is a finding.
UNFIT = (
    headgate.errors.SchemaMissing,
    headgate.errors.SchemaOutdated,
    headgate.errors.SchemaTooNew,
    headgate.errors.ServerTooOld,
)


@command(app, "doctor", curl=True)
@click.option(
    "--patience", type=values.time, default="5m", show_default=True, metavar="TIME",
    help="Report what lasts longer than this, such as 30s or 1h.",
)  # fmt: skip
def doctor(call: Call, patience: timedelta) -> int:
    """Say what is wrong with the database and what to do; exit with 1 when it is a problem."""
    if call.curl("GET", "doctor", query={"patience_ms": round(patience.total_seconds() * 1000)}):
        return OK
    try:
        findings = call.hg.doctor(patience)
    except UNFIT as error:
        findings = [headgate.types.Finding("problem", "version", error.message, error.hint or "")]
        if isinstance(error, headgate.errors.SchemaOutdated) and not call.is_server:
            advice = "Commit or roll back there, or end it: select pg_terminate_backend(pid), or rollback prepared."
            for who in headgate.Headgate(call.url).in_the_way():
                findings.append(
                    headgate.types.Finding("warning", "migrate", f"An upgrade would wait for {who}.", advice)
                )
    if call.json:
        print_data(findings)
    else:
        for f in findings:
            print_data(f"{f.severity}: {f.finding}\n    {as_commands(f.advice)}")
        if not findings:
            print_status("nothing is wrong")
    return FAILED if any(f.severity == "problem" for f in findings) else OK
