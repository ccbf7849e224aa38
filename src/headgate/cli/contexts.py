"""`headgate context`: databases and servers by name."""

from __future__ import annotations

from typing import Any

import click

import headgate

from . import context_file
from .app import app
from .call import Call, at_terminal, command, one_of
from .complete import context_names
from .context_file import Context, Contexts, hidden, load, save
from .output import print_status

NAME = click.argument("name", required=False, metavar="NAME", shell_complete=context_names)


@app.group("context")
def group() -> None:
    """Keep databases and HTTP servers by name, to switch between environments.

    They are stored in $XDG_CONFIG_HOME/headgate/contexts.json, which only you may read.
    """


@command(group, "add", database=False)
@click.argument("name", required=False, metavar="NAME")
@click.option(
    "--database",
    metavar="URL",
    help="The PostgreSQL database. Asked for when missing, so that a password is not shown.",
)
@click.option(
    "--server",
    metavar="URL",
    help="The HTTP server in front of it, for --as-curl. Without --database, commands call this server.",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="The token for the server. Asked for when missing, so that it is not shown; without one, $HEADGATE_TOKEN.",
)
@click.option("--use", is_flag=True, help="Use it from now on.")
def add(call: Call, name: str | None, database: str | None, server: str | None, token: str | None, use: bool) -> None:
    """Add a context, or change it: a database, or an HTTP server for where the database is out of reach."""
    name = name or str(call.ask("name"))
    if database is not None and context_file.is_server(database):
        raise click.UsageError("an HTTP server is given as --server")
    if server is not None and not context_file.is_server(server):
        raise click.UsageError("--server is no URL like https://host")
    if database is None and server is not None:
        if token is None and at_terminal():
            token = str(call.ask("token", default="", hide=True))
    elif token is not None:
        raise click.UsageError("--token is for a --server without --database")
    elif database is None:
        if not at_terminal():
            raise click.UsageError("Missing option '--database'.")
        database = str(call.ask("database's URL", hide=True))
    if database is not None and not context_file.is_readable(
        database
    ):  # it is not repeated: there may be a password in it
        raise headgate.errors.InvalidArgument(
            "the database's URL cannot be read", hint="write postgresql://user:password@host:port/database"
        )
    known = load()
    known.contexts[name] = Context(database, server, token or None)
    is_first = known.current is None
    if use or is_first:
        known.current = name
    save(known)
    call.print_data(_facts(known, name), name)
    if is_first and not use:
        print_status(
            f"in use from now on, in every directory, as the first one; `headgate context remove {name}` ends that"
        )


@command(group, "use", database=False)
@NAME
def use(call: Call, name: str | None) -> None:
    """Use a context when a command does not say which."""
    known = load()
    name = _pick(call, known, name)
    known.named(name)
    known.current = name
    save(known)
    call.print_data(_facts(known, name), name)


@command(group, "list", database=False)
def show_all(call: Call) -> None:
    """List the contexts."""
    known = load()
    found = [_facts(known, name) for name in sorted(known.contexts)]
    call.print_rows(found, found, ("name", "in_use", "database", "server"), "there are no contexts yet")


@command(group, "show", database=False)
@NAME
def show(call: Call, name: str | None) -> None:
    """Show a context, or the one in use. Passwords are not shown."""
    known = load()
    call.print_data(_facts(known, name or known.current or _pick(call, known, None)))


@command(group, "remove", database=False)
@NAME
def remove(call: Call, name: str | None) -> None:
    """Forget a context. Nothing happens to its database."""
    known = load()
    name = _pick(call, known, name)
    known.named(name)
    del known.contexts[name]
    if known.current == name:
        known.current = None
    save(known)
    call.print_data({"removed": name}, name)


def _pick(call: Call, known: Contexts, name: str | None) -> str:
    return name or str(call.ask("name", type=one_of(sorted(known.contexts))))


def _facts(known: Contexts, name: str) -> dict[str, Any]:
    found = known.named(name)
    return {
        "name": name, "in_use": name == known.current,
        "database": None if found.is_server else hidden(found.database),
        "server": found.server, "token": "***" if found.token else None,
    }  # fmt: skip
