"""`headgate token`: who may call the HTTP server."""

from __future__ import annotations

from datetime import timedelta

import click

from ..database import statements
from . import values
from .app import app
from .call import Call, command, given
from .exit_codes import NOTHING

COLUMNS = ("id", "name", "scopes", "streams", "rate_limit", "created_at", "expires_at", "revoked_at")
AUDITED = ("id", "at", "status", "who", "address", "action", "stream", "details")
AUDITED_ALL = ("id", "at", "who", "address", "action", "status", "token", "scopes", "stream", "details")
SCOPES = ("admin", "produce", "consume", "monitor")


@app.group("token")
def tokens() -> None:
    """Make, list and revoke tokens of the HTTP server."""


@command(tokens, "add", curl=True)
@click.argument("name", required=False, metavar="NAME")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="What it may do; several are possible."
)
@click.option("--stream", "streams", multiple=True, metavar="PATTERN", help="Only these streams, like `orders.>`.")
@click.option("--rate-limit", type=click.IntRange(min=1), metavar="N", help="At most so many requests a second.")
@click.option("--lifetime", type=values.time, metavar="TIME", help="It expires after that.")
def add(
    call: Call,
    name: str | None,
    scopes: tuple[str, ...],
    streams: tuple[str, ...],
    rate_limit: int | None,
    lifetime: timedelta | None,
) -> None:
    """Make a token, and print it: it cannot be shown again."""
    name = name or str(call.ask("name"))
    if not scopes:
        raise click.UsageError("say what it may do: --scope admin, produce, consume or monitor")
    body = {"name": name, "scopes": list(scopes), "streams": list(streams) or None, "rate_limit": rate_limit}
    if call.curl("POST", "tokens", body=given({**body, "lifetime": lifetime})):
        return
    from ..database.columns import Array  # here: no other command needs them
    from ..database.encoding import interval
    from ..tokens import new_token

    if (http := call.hg.http) is not None:
        from ..http.operate import create_token
        from ..http.request import milliseconds

        [(id, text)] = http.call(create_token(given({**body, "lifetime_ms": milliseconds(interval(lifetime))})))
        call.print_data({"id": id, "token": text}, text)
        return
    made = new_token()
    patterns = Array(streams) if streams else None
    params = (made.id, name, made.digest, Array(scopes), patterns, rate_limit, interval(lifetime))
    call.hg.run(statements.CREATE_TOKEN, params)
    call.print_data({"id": made.id, "token": made.text}, made.text)


@command(tokens, "list", curl=True)
def show_all(call: Call) -> None:
    """List the tokens, without their secrets."""
    if call.curl("GET", "tokens"):
        return
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in call.hg.run(statements.TOKENS, ())]
    call.print_rows(rows, rows, COLUMNS, "no tokens")


@command(tokens, "audit", curl=True)
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option("--before", type=click.IntRange(min=0), metavar="ID", help="Only what came before this one.")
def audit(call: Call, limit: int, before: int | None) -> None:
    """List the administrative calls of the HTTP server, the newest first: who did what."""
    if call.curl("GET", "audit", query=given({"limit": limit, "before": before})):
        return
    found = call.hg.run(statements.AUDIT_LOG, (limit, before))
    rows = [dict(zip(AUDITED_ALL, row, strict=True)) for row in found]
    call.print_rows(rows, rows, AUDITED, "no administrative calls")


@command(tokens, "remove", curl=True)
@click.argument("id", required=False, metavar="ID")
def remove(call: Call, id: str | None) -> int | None:
    """Revoke a token: within a second, no server takes it any more."""
    id = id or str(call.ask("id"))
    if call.curl("DELETE", "tokens", id):
        return None
    gone = bool(call.hg.run(statements.REVOKE_TOKEN, (id,))[0][0])
    call.print_data({"revoked": gone}, "revoked" if gone else "no such token, or revoked already")
    return None if gone else NOTHING
