"""The reference of the command line, docs/cli.md, from the program itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from headgate.cli import app
from headgate.cli.exit_codes import MEANINGS

HEAD = """\
# Command line reference

<!-- Generated from the program by `make docs`: do not edit. -->

`headgate`, which is `python -m headgate`, too, comes with `pip install headgate`; `headgate up` needs
`headgate[server]`, `headgate pipeline` `headgate[spark]`. stdout is data, stderr is talk: what is printed can be piped,
whatever is said beside it. Every command has `--help`. People are shown sizes with units and how long ago times are;
`--json` has bytes and ISO 8601.

**Which database.** That of `--database URL`, or else of `--context NAME` or `$HEADGATE_CONTEXT`, of
`$HEADGATE_DATABASE_URL`, of the context in use (`headgate context use`), or the private server in `./.headgate` that
`headgate up` runs.

**What is missing** is asked for on a terminal (which stream, which consumer, settings of a new one); elsewhere the
command fails with its usage line. What destroys something asks first, or wants `--yes`.

**`--json`** prints one JSON document. Messages are the exception: `receive`, `message list`, `peek` and `dead list`
print a line for each, and `headgate send STREAM -` reads such lines. Times are ISO 8601, lengths of time are seconds,
bytes are base64. Fields are added, but never renamed or removed.

**`--as-curl`** prints the call of the HTTP API that the command stands for, and does nothing. The server
is that of the context, or of `headgate up` in this folder, or on port 7376; the token is left to the shell:
`$HEADGATE_TOKEN`.

**Values.** A TIME is a number with a unit: `500ms`, `30s`, `5m`, `2h`, `7d`; without one it is refused. A SIZE is a
number of bytes: `1000000`, `512MB`, `10GB` (powers of 1024).

## Exit codes

"""

SHARED = {"database", "context", "as_json", "as_curl"}


def commands(group: click.Group, before: tuple[str, ...] = ("headgate",)) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their members."""
    for name, command in sorted(group.commands.items()):
        yield " ".join((*before, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))


def page() -> str:
    """The reference."""
    parts = [HEAD, "| code | meaning |\n|---|---|\n"]
    parts += [f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items()]
    for name, command in commands(app.load()):
        prose = inspect.cleandoc(command.help or "").replace("\b\n", "")
        if isinstance(command, click.Group):
            parts.append(f"\n## {name}\n\n{prose}\n")
            continue
        level = "###" if name.count(" ") > 1 else "##"
        parts.append(f"\n{level} {name}\n\n```\n{_usage(name, command)}\n```\n\n{prose}\n")
        if rows := [_row(p) for p in command.params if isinstance(p, click.Option) and _is_own(p)]:
            parts.append("\n| option | |\n|---|---|\n" + "".join(rows))
        parts.append(f"\nAlso {_also(command)}.\n")
    return "".join(parts)


def _usage(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    return " ".join([name, *command.collect_usage_pieces(context)])


def _is_own(option: click.Option) -> bool:
    return not option.hidden and (option.name not in SHARED or option.help != _shared_help(option))


def _shared_help(option: click.Option) -> str | None:
    for other in app.load().commands["doctor"].params + app.commands["send"].params:
        if other.name == option.name and isinstance(other, click.Option):
            return other.help
    return None


def _also(command: click.Command) -> str:
    given = [p for p in command.params if isinstance(p, click.Option) and p.name in SHARED and not _is_own(p)]
    return ", ".join(f"`{p.opts[0]}`" for p in given)


def _row(option: click.Option) -> str:
    metavar = option.make_metavar(click.Context(app)).strip("[]").removesuffix(" RANGE").replace("|", "\\|")
    names = [*option.opts, *option.secondary_opts]
    if not option.is_flag:
        names[-1] += f" {metavar}"
    default = f" Default: {option.default}." if option.show_default and option.default is not None else ""
    many = " Can be given more than once." if option.multiple else ""
    return f"| {', '.join(f'`{n}`' for n in names)} | {option.help}{default}{many} |\n"
