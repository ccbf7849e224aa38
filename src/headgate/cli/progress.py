"""How far long work is: on stderr, and only where somebody watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Protocol, TypeVar

import click

T = TypeVar("T")


class Advance(Protocol):
    """Says that so much more is done."""

    def __call__(self, steps: int, /) -> object: ...


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Advance]:
    """A bar up to `total`; nothing when stderr is no terminal or the total is not known."""
    if total is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
        yield bar.update


def each(items: Sequence[T], label: str) -> Iterable[T]:
    """The items, with a bar that advances from one to the next."""
    with progress(label, len(items)) as advance:
        for item in items:
            yield item
            advance(1)


def bytes_left(file: BinaryIO) -> int | None:
    """How much there is to read, if it can be known."""
    try:
        left = os.fstat(file.fileno()).st_size - file.tell()
    except (OSError, ValueError, AttributeError):  # no file at all, or a pipe
        return None
    return left if left > 0 else None
