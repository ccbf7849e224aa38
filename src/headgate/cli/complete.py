"""Shell completion of names: what the database and the file of contexts know. It must never fail or hang a shell."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

import headgate

from . import context_file

SHELLS = ("bash", "zsh", "fish")


def stream_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Streams."""
    return _matching(context, begun, lambda hg: hg.streams())


def consumer_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The consumers of the stream that was named before."""
    return _matching(context, begun, lambda hg: hg.stream(context.params["stream"]).consumers())


def source_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Sources."""
    return _matching(
        context, begun, lambda hg: [*(s.name for s in hg.sources.all()), *(s.name for s in hg.sources.all_postgres())]
    )


def context_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Contexts."""
    try:
        return [CompletionItem(name) for name in context_file.load().contexts if name.startswith(begun)]
    except headgate.Error:
        return []


def _matching(
    context: click.Context, begun: str, find: Callable[[headgate.Headgate], list[str]]
) -> list[CompletionItem]:
    try:
        place = context_file.where(context.params.get("database"), context.params.get("context"))
        if place.url is None:  # a private server takes too long to start
            return []
        with headgate.connect(place.url, timeout=2, token=place.token) as hg:
            return [CompletionItem(name) for name in find(hg) if name.startswith(begun)]
    except headgate.Error:
        return []
