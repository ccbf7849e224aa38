"""Payloads that are not for all eyes: paths of data and headers that only administrators are shown.

A path names a part of a message: `data.card.number`, `headers.authorization`; `*` is any name or place, and `data` all
of it. It counts where people look (messages, peek, dead letters, and so the console): who receives gets the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgument

HIDDEN = "(hidden)"
_PATH = re.compile(r"(data|headers)(\.[^.]+)*")


@dataclass(frozen=True)
class Hiding:
    """The paths that are hidden."""

    paths: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, paths: Sequence[str]) -> Hiding:
        """From how users write them."""
        for path in paths:
            if not _PATH.fullmatch(path):
                raise InvalidArgument(
                    f'"{path}" is no path of a message', hint="hide data.card.number, headers.authorization, data"
                )
        return cls(tuple(tuple(path.split(".")) for path in paths))

    def shown(self, data: Any, headers: dict[str, Any] | None) -> tuple[Any, dict[str, Any] | None]:
        """What is left of them. They themselves stay as they are."""
        for root, *rest in self.paths:
            if root == "data":
                data = _without(data, rest)
            elif headers is not None:
                headers = _without(headers, rest) if rest else {HIDDEN: HIDDEN}
        return data, headers


def _without(value: Any, path: Sequence[str]) -> Any:
    """A copy without what the path names."""
    if not path:
        return HIDDEN
    name, rest = path[0], path[1:]
    if isinstance(value, dict):
        names = value if name == "*" else [name] if name in value else []
        return {**value, **{n: _without(value[n], rest) for n in names}} if names else value
    if isinstance(value, list):
        return [_without(v, rest) if name in ("*", str(i)) else v for i, v in enumerate(value)]
    return value
