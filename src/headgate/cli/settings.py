"""The options of commands that are settings of a stream or consumer, from their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..settings import Setting, Settings
from . import values
from .call import Function, fixed

Option = Callable[[Function], Function]

_FORMS: dict[str, dict[str, Any]] = {
    "count": {"type": int},
    "bytes": {"type": values.size},
    "length": {"type": values.time},
    "flag": {"default": None},
    "filter": {"multiple": True, "metavar": "PATTERN"},
    "backoff": {"type": values.backoff},
    "position": {"type": values.position, "metavar": "POSITION"},
}


def options_of(settings: Settings) -> tuple[Option, ...]:
    """An option for each setting; of those of several fields (push) there is none."""
    return tuple(_option(name, row) for name, row in settings.items() if row.kind != "push")


def _option(name: str, row: Setting) -> Option:
    form: dict[str, Any] = {"type": click.Choice(row.choices)} if row.kind == "choice" else dict(_FORMS[row.kind])
    written = "--" + name.replace("_", "-")
    if row.opposite:
        written += f"/--{row.opposite}"
    elif row.kind == "flag":
        form["is_flag"] = True
    return click.option(written, help=row.help, **form)


def refusals(settings: Settings) -> tuple[Option, ...]:
    """Hidden options of the settings that cannot be changed: they say what to do instead."""
    return fixed(**{name: row.fixed for name, row in settings.items() if row.fixed is not None})
