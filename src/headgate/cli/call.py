"""What every command has: where its database is, how it answers, and how it asks for what is missing."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import click

import headgate

from . import context_file, served
from .complete import consumer_names, context_names, stream_names
from .curl import SERVER, curl_line
from .output import Row, as_json_value, as_record, print_data, print_line, print_record, print_status, print_table

Function = Callable[..., int | None]

_ENVIRONMENT = click.core.ParameterSource.ENVIRONMENT

_SHARED = (
    click.Option(
        ["--database"], metavar="URL",
        help="The PostgreSQL database, or an HTTP server (with the token $HEADGATE_TOKEN). Default: that of --context, "
             "$HEADGATE_DATABASE_URL, the context in use, or the private server in ./.headgate.",
    ),
    click.Option(
        ["--context"], metavar="NAME", envvar="HEADGATE_CONTEXT", shell_complete=context_names,
        help="The database or server of this name: see `headgate context`.",
    ),
)  # fmt: skip
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
_CURL = click.Option(["--as-curl"], is_flag=True, help="Print the HTTP call as a curl line, and do nothing.")


def command(
    parent: click.Group, name: str, *, curl: bool = False, database: bool = True
) -> Callable[[Function], click.Command]:
    """Makes a command of a function whose first argument is the Call.

    `curl`: it has a form as an HTTP call; `database`: it is about one.
    """

    def decorate(function: Function) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, as_curl: bool = False, **arguments: Any) -> int | None:
            place = {k: arguments.pop(k) for k in ("database", "context") if database}
            with Call(as_json, as_curl, **place) as call:
                return function(call, **arguments)

        made = click.command(name)(run)
        made.params += [*(_SHARED if database else ()), _JSON, *([_CURL] if curl else ())]
        parent.add_command(made)
        return made

    return decorate


def stream_argument(function: Function) -> Function:
    """The argument STREAM."""
    return click.argument("stream", required=False, metavar="STREAM", shell_complete=stream_names)(function)


def consumer_arguments(function: Function) -> Function:
    """The arguments STREAM and CONSUMER."""
    consumer = click.argument("consumer", required=False, metavar="CONSUMER", shell_complete=consumer_names)
    return stream_argument(consumer(function))


def options(*groups: tuple[Callable[[Function], Function], ...]) -> Callable[[Function], Function]:
    """Several options of a command, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed([o for g in groups for o in g]):
            function = option(function)
        return function

    return decorate


def fixed(**reasons: str) -> tuple[Callable[[Function], Function], ...]:
    """Options of settings that cannot be changed: they are not shown, and say why and what to do instead."""

    def refuse(reason: str) -> Callable[[click.Context, click.Parameter, Any], None]:
        def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
            if context.get_parameter_source(str(parameter.name)) is not click.core.ParameterSource.DEFAULT:
                raise click.UsageError(f"{parameter.opts[0]} cannot be changed here: {reason}")

        return callback

    return tuple(
        click.option(
            "--" + name.replace("_", "-"), is_flag=False, flag_value="", hidden=True, expose_value=False,
            callback=refuse(reason),
        )
        for name, reason in reasons.items()
    )  # fmt: skip


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in settings.items() if value is not None}


class Call:
    """One run of a command."""

    def __init__(
        self,
        as_json: bool,
        as_curl: bool,
        *,
        database: str | None = None,
        context: str | None = None,
    ) -> None:
        if database and context and click.get_current_context().get_parameter_source("context") is not _ENVIRONMENT:
            raise click.UsageError("--database and --context both say which database")
        self.json = as_json
        self.as_curl = as_curl
        self._database = database
        self._context = context
        self._hg: headgate.Headgate | None = None
        self._open = ExitStack()

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def url(self) -> str | None:
        """The database, for what no HTTP server does; None is the private one."""
        return _database(context_file.where(self._database, self._context))

    @property
    def is_server(self) -> bool:
        """Whether the calls go over HTTP."""
        return context_file.where(self._database, self._context).is_server

    @property
    def named_url(self) -> str | None:
        """The database, if it was said for this run: for what should not happen to the context in use by accident."""
        return _database(context_file.where(self._database, self._context, in_use=False))

    def tell_place(self) -> None:
        """Puts the database or server that was said for this run into the environment, for a program of the user's."""
        place = context_file.where(self._database, self._context, in_use=False)
        for name, value in (("HEADGATE_DATABASE_URL", place.url), ("HEADGATE_TOKEN", place.token)):
            if value is not None:
                os.environ[name] = value

    @property
    def hg(self) -> headgate.Headgate:
        """The database, or the server in front of it, open."""
        if self._hg is None:
            place = context_file.where(self._database, self._context)
            url = place.url
            if url is None and not served.home().exists():
                raise headgate.Error(
                    "it is not said which database",
                    hint="give --database URL, `headgate context add` one, or start one here with `headgate up`",
                )
            quiet_pool()
            self._hg = self._open.enter_context(headgate.connect(url, token=place.token))
        return self._hg

    @property
    def direct(self) -> headgate.Headgate:
        """The database itself, open: for what no HTTP server does."""
        _database(context_file.where(self._database, self._context))
        return self.hg

    def curl(
        self,
        method: str,
        *path: str | int,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        without: Mapping[str, Any] | None = None,
    ) -> bool:
        """With --as-curl prints the call and returns True. `without` are options that no HTTP call can express."""
        if not self.as_curl:
            return False
        for option, value in (without or {}).items():
            if value:
                raise click.UsageError(f"{option} has no form as an HTTP call")
        place = context_file.where(self._database, self._context)
        server = place.server or served.server_of(place.database) or SERVER
        click.echo(curl_line(server, method, path, query, body))
        return True

    # answers

    def print_data(self, data: Any, text: str | int | None = None) -> None:
        """One answer: as JSON, or else as `text` (default: the facts of the record, one a line)."""
        if self.json:
            print_data(as_json_value(data))
        elif text is not None:
            print_data(text)
        else:
            print_record(data if isinstance(data, Mapping) else as_record(data))

    def print_rows(self, things: Sequence[Any], rows: Sequence[Row], columns: Sequence[str], none: str) -> None:
        """A list: as JSON, or else in columns; `none` is said when there is nothing in it."""
        if self.json:
            print_data(as_json_value(things))
        elif rows:
            print_table(rows, columns)
        else:
            print_status(none)

    def print_messages(self, messages: Sequence[Row], columns: Sequence[str], *, header: bool = True) -> None:
        """Messages: one line of JSON for each, so that they can be piped; or else in columns."""
        if self.json:
            for m in messages:
                print_line(m)
        elif messages:
            print_table(messages, columns, header=header)
        else:
            print_status("there are no such messages")

    # questions

    def stream(self, given: str | None) -> str:
        """The stream, asked for when it is missing."""
        return given or self._choose("stream", lambda: self.hg.streams())

    def consumer(self, stream: str | None, given: str | None) -> tuple[str, str]:
        """The stream and the consumer, asked for when they are missing."""
        chosen = self.stream(stream)
        return chosen, given or self._choose("consumer", lambda: self.hg.stream(chosen).consumers())

    def ask(self, what: str, *, default: Any = None, type: Any = None, hide: bool = False) -> Any:
        """A missing argument, asked for on a terminal."""
        require_terminal(what)
        return click.prompt(what.lower(), default=default, type=type, err=True, hide_input=hide)

    def confirm(self, question: str, yes: bool) -> None:
        """Asks before something is lost; without a terminal --yes must have been given."""
        if yes:
            return
        if not at_terminal():
            raise click.UsageError("--yes is needed where nobody can be asked")
        click.confirm(question, abort=True, err=True)

    def _choose(self, what: str, find: Callable[[], list[str]]) -> str:
        require_terminal(what)
        names = find()
        if not names:
            raise headgate.Error(f"there is no {what} yet", hint=f"make one with `headgate {what} add`")
        for number, name in enumerate(names, 1):
            print_status(f"  {number}  {name}")
        default = names[0] if len(names) == 1 else None
        return str(click.prompt(f"which {what}", value_proc=one_of(names), default=default, err=True))


def quiet_pool() -> None:
    """An interrupted command breaks its connection off: no warnings of the pool about that on stderr."""
    import logging  # here: it is about the driver, and only loaded with it

    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


def _database(place: context_file.Context) -> str | None:
    if place.is_server:
        raise headgate.errors.NotOverHttp(
            "this command needs the database itself, and this is an HTTP server",
            hint="give --database postgresql://…, or a --context that has a database; `headgate context list` shows "
            "which one is in use",
        )
    return place.database


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Takes a name out of a list, or its number in it."""

    def name(value: str) -> str:
        if value in names:
            return value
        if value.isdecimal() and 1 <= int(value) <= len(names):
            return names[int(value) - 1]
        raise click.BadParameter(f"{value!r} is none of these")

    return name


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_terminal(what: str) -> None:
    """A usage error when nobody can be asked for what is missing."""
    if not at_terminal():
        raise click.UsageError(f"Missing argument '{what.upper()}'.")
