"""The command `headgate`: its groups of commands, and what becomes of errors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import click

import headgate

from .exits import FAILED, HINTS, INTERRUPTED, OK, USAGE, code_of
from .output import talk


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(headgate.__version__, message="headgate %(version)s")
def app() -> None:
    """A message queue and an event stream inside PostgreSQL.

    stdout is data, stderr is talk. What is missing is asked for on a terminal.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    # An interrupted command breaks its connection off, which the pool would warn about on stderr.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    try:
        return app.main(argv, prog_name="headgate", standalone_mode=False) or OK
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        _explain_usage(error)
        return USAGE
    except click.ClickException as error:
        talk(f"error: {error.format_message()}")
        return FAILED
    except headgate.Error as error:
        talk(f"error: {error.message}")
        if hint := HINTS.get(type(error), error.hint):
            talk(f"hint: {hint}")
        return code_of(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough; Python must not try to flush the rest at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _explain_usage(error: click.UsageError) -> None:
    if error.ctx is not None:
        talk(error.ctx.get_usage())
    talk(f"error: {error.format_message()}")
    if error.ctx is not None:
        talk(f"hint: {error.ctx.command_path} --help")
