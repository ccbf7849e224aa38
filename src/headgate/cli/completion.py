"""`headgate completion`: scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .app import app
from .call import Call, command
from .complete import SHELLS


@command(app, "completion", database=False)
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar="|".join(SHELLS))
def completion(call: Call, shell: str | None) -> None:
    """Print a completion script for a shell.

    For bash: `headgate completion bash > ~/.local/share/bash-completion/completions/headgate`
    """
    shell = shell or call.ask("shell", type=click.Choice(SHELLS))
    kind = get_completion_class(shell)
    assert kind is not None  # SHELLS are those that click knows
    script = kind(app, {}, "headgate", "_HEADGATE_COMPLETE").source()
    call.print_data({"shell": shell, "script": script}, script)
