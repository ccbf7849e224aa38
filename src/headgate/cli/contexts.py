"""`headgate context`: databases by name."""

from __future__ import annotations

from typing import Any

import click

import headgate

from . import context_file
from .app import app
from .call import Call, at_terminal, command, one_of
from .complete import context_names
from .context_file import Context, Contexts, hidden, load, save

NAME = click.argument("name", required=False, metavar="NAME", shell_complete=context_names)


@app.group("context")
def group() -> None:
    """Keep databases by name, to switch between environments.

    They are stored in $XDG_CONFIG_HOME/headgate/contexts.json, which only you may read.
    """


@command(group, "add", database=False)
@click.argument("name", required=False, metavar="NAME")
@click.option(
    "--database",
    metavar="URL",
    help="The PostgreSQL database. Asked for when missing, so that a password is not shown.",
)
@click.option("--server", metavar="URL", help="The HTTP server in front of it, for --as-curl.")
@click.option("--use", is_flag=True, help="Use it from now on.")
def add(call: Call, name: str | None, database: str | None, server: str | None, use: bool) -> None:
    """Add a context, or change it."""
    name = name or str(call.ask("name"))
    if database is None:
        if not at_terminal():
            raise click.UsageError("Missing option '--database'.")
        database = str(call.ask("database's URL", hide=True))
    if not context_file.is_readable(database):  # it is not repeated: there may be a password in it
        raise headgate.InvalidArgument(
            "the database's URL cannot be read", hint="write postgresql://user:password@host:port/database"
        )
    known = load()
    known.contexts[name] = Context(database, server)
    if use or known.current is None:
        known.current = name
    save(known)
    call.say(_facts(known, name), name)


@command(group, "use", database=False)
@NAME
def use(call: Call, name: str | None) -> None:
    """Use a context when a command does not say which."""
    known = load()
    name = _pick(call, known, name)
    known.named(name)
    known.current = name
    save(known)
    call.say(_facts(known, name), name)


@command(group, "list", database=False)
def show_all(call: Call) -> None:
    """List the contexts."""
    known = load()
    found = [_facts(known, name) for name in sorted(known.contexts)]
    call.say_rows(found, found, ("name", "in_use", "database", "server"), "there are no contexts yet")


@command(group, "show", database=False)
@NAME
def show(call: Call, name: str | None) -> None:
    """Show a context, or the one in use. Passwords are not shown."""
    known = load()
    call.say(_facts(known, name or known.current or _pick(call, known, None)))


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
    call.say({"removed": name}, name)


def _pick(call: Call, known: Contexts, name: str | None) -> str:
    return name or str(call.ask("name", type=one_of(sorted(known.contexts))))


def _facts(known: Contexts, name: str) -> dict[str, Any]:
    found = known.named(name)
    return {"name": name, "in_use": name == known.current, "database": hidden(found.database), "server": found.server}
