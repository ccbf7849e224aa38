"""The command `headgate`: its groups of commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

import headgate

from ..hints import translate
from .exit_codes import FAILED, INTERRUPTED, OK, USAGE, code_of
from .output import print_status

# Which module adds which commands. Only what is used is loaded: `headgate ack` has no use for the rest.
MODULES = {
    "bench": ("bench",),
    "channels": ("channel",),
    "completion": ("completion",),
    "consumers": ("consumer",),
    "contexts": ("context",),
    "dead": ("dead",),
    "demo": ("demo",),
    "discard": ("discard",),
    "doctor": ("doctor",),
    "maintain": ("maintain",),
    "messages": ("message", "peek"),
    "migrate": ("migrate",),
    "observe": ("observe",),
    "pipelines": ("pipeline",),
    "receive": ("receive",),
    "replay": ("replay", "retry"),
    "send": ("send",),
    "settle": ("ack", "nack", "extend"),
    "sources": ("source",),
    "streams": ("stream",),
    "tokens": ("token",),
    "torture": ("torture",),
    "up": ("up",),
    "worker": ("worker",),
}


class Commands(click.Group):
    """Commands whose modules are loaded when they are needed; `load` loads all."""

    def load(self) -> Commands:
        for module in MODULES:
            import_module(f".{module}", __package__)
        return self

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.commands:
            home = next((module for module, names in MODULES.items() if name in names), None)
            if home is None:  # those that may have been meant are named
                self.load()
            else:
                import_module(f".{home}", __package__)
        return super().get_command(ctx, name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self.load()
        return super().list_commands(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(headgate.__version__, message="headgate %(version)s")
def app() -> None:
    """A message queue and an event stream inside PostgreSQL.

    stdout is data; what is said to people goes to stderr. What is missing is asked for on a terminal.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    try:
        return app.main(argv, prog_name="headgate", standalone_mode=False) or OK
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        _explain_usage(error)
        return USAGE
    except click.ClickException as error:
        print_status(f"error: {error.format_message()}")
        return FAILED
    except headgate.Error as error:
        print_status(f"error: {error.message}")
        if error.hint:
            print_status(f"hint: {translate(error.hint, 'cli')}")
        return code_of(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough; Python must not try to flush the rest at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _explain_usage(error: click.UsageError) -> None:
    if error.ctx is not None:
        print_status(error.ctx.get_usage())
    print_status(f"error: {error.format_message()}")
    if error.ctx is not None:
        print_status(f"hint: {error.ctx.command_path} --help")
