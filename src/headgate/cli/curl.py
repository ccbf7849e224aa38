"""The HTTP call that a command stands for, as a curl line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from .output import as_json_value

LENGTHS = {"retain_up_to", "retain_at_least", "segment_age", "release_interval", "tolerance"}  # those that can be null
SERVER = "http://localhost:7376"


def curl_line(
    server: str,
    method: str,
    path: tuple[str | int, ...],
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> str:
    """A line for a shell. The token is left to the shell's $HEADGATE_TOKEN: it must not end up in its history."""
    from urllib.parse import quote, urlencode

    url = "/".join([server.rstrip("/"), "api", *(quote(str(p), safe="") for p in path)])
    if query:
        url += "?" + urlencode({k: str(v).lower() if v is True else v for k, v in _named(query).items()}, doseq=True)
    words = ["curl", "-sS", "-X", method, shlex.quote(url), "-H", '"Authorization: Bearer $HEADGATE_TOKEN"']
    if body is not None:
        text = json.dumps(as_json_value(_named(body)), ensure_ascii=False)
        words += ["-H", shlex.quote("Content-Type: application/json"), "--data-binary", shlex.quote(text)]
    return " ".join(words)


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the HTTP API: there lengths of time are milliseconds."""
    return {
        f"{name}_ms" if isinstance(value, timedelta) or name in LENGTHS else name: round(value.total_seconds() * 1000)
        if isinstance(value, timedelta)
        else value
        for name, value in values.items()
    }
