"""Contexts: databases and servers by name, kept in a file of the user's own.

The file holds passwords and tokens: nobody else may read it, and what is shown of it hides them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import headgate

from .exit_codes import NotThere

_SECRETS = ("password", "secret", "scram_client_key", "scram_server_key")


@dataclass(frozen=True)
class Context:
    """A database, and the server in front of it if there is one.

    Without a database it is the server that commands call, with the token; without either, the private database.
    """

    database: str | None = None
    server: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str | None:
        """What commands connect to; None is the private database."""
        return self.database or self.server

    @property
    def is_server(self) -> bool:
        """Whether there is only a server, and its database is out of reach."""
        return self.database is None and self.server is not None


@dataclass
class Contexts:
    """What the file holds."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """One of them."""
        if name not in self.contexts:
            raise NotThere(f"there is no context {name!r}", hint="`headgate context list` shows those that there are")
        return self.contexts[name]


def path() -> Path:
    """Where the file is: $XDG_CONFIG_HOME/headgate/contexts.json."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "headgate" / "contexts.json"


def load() -> Contexts:
    """The contexts; none when there is no file yet."""
    file = path()
    try:
        if file.stat().st_mode & 0o077:
            raise headgate.Error(f"others may read {file}, which holds passwords", hint=f"chmod 600 {file}")
        found = json.loads(file.read_text(encoding="utf-8"))
        contexts = {name: Context(**settings) for name, settings in found["contexts"].items()}
        return Contexts(found["current"], contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise headgate.Error(f"{file} cannot be read: {error.strerror}", hint="see to its rights") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise headgate.Error(
            f"{file} is not a file of contexts", hint="remove it, and add the contexts again"
        ) from error


def save(contexts: Contexts) -> None:
    """Writes the file anew, in one step: whoever reads it meanwhile sees the old one."""
    import tempfile

    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".contexts")  # with 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as f:
                json.dump(asdict(contexts), f, indent=2)
            Path(name).replace(file)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise headgate.Error(f"{file} cannot be written: {error.strerror}", hint="see to its rights") from error


def where(database: str | None, context: str | None, *, in_use: bool = True) -> Context:
    """Which database or server a command is about: the one given, named, of the environment, or in use."""
    if database:
        return _unnamed(database)
    if context:
        return load().named(context)
    if url := os.environ.get("HEADGATE_DATABASE_URL"):
        return _unnamed(url)
    known = load() if in_use else Contexts()
    return known.named(known.current) if known.current else Context()


def _unnamed(url: str) -> Context:
    return Context(server=url) if is_server(url) else Context(url)


def is_server(url: str) -> bool:
    """Whether a URL is that of an HTTP server."""
    return url.lower().startswith(("http://", "https://"))


def is_readable(database: str) -> bool:
    """Whether libpq understands it."""
    from psycopg import ProgrammingError  # here, and below: most commands do without
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(database)
    except ProgrammingError:
        return False
    return True


def hidden(database: str | None) -> str:
    """A database's URL without its secrets, to be shown."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parts = conninfo_to_dict(database or "")
    except ProgrammingError:
        return "***"
    shown = {k: "***" if any(s in k for s in _SECRETS) else v for k, v in parts.items()}
    return make_conninfo("", **shown)
