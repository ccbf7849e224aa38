"""The server's log on stderr: lines for people, or one JSON object a line for programs. Never a secret."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from ... import tracing
from ...errors import Error

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

# What no log may hold, whoever wrote the line: passwords of database URLs and connection strings, tokens.
_SECRETS = (
    (re.compile(r"(?i)\b(postgres(?:ql)?://[^\s:/@]*:)\S*@"), r"\1***@"),
    (re.compile(r"(?i)\b(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)"), r"\1***"),
    (re.compile(r"\b(hg_[0-9a-f]{16})\.[A-Za-z0-9_-]{20,200}"), r"\1.***"),
    (re.compile(r"(?i)\b(bearer\s+)(?!hg_[0-9a-f]{16}\.\*)[^\s\"',]+"), r"\1***"),
)


def hide_secrets(text: str) -> str:
    """The text without passwords and tokens."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class Text(logging.Formatter):
    """A line for people: time, level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
        message = " ".join([record.getMessage(), *(f"{k}={v}" for k, v in fields(record).items())])
        line = f"{at} {record.levelname.lower()} {record.name}: {message}"
        return hide_secrets("\n".join([line, *_trouble(self, record)]))


class Json(logging.Formatter):
    """One JSON object: time, level, logger, message, fields, the active trace, and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if found := fields(record):
            line["fields"] = found
        if (active := tracing.ids()) is not None:
            line["trace_id"], line["span_id"] = active
        if trouble := _trouble(self, record):
            line["exception"] = "\n".join(trouble)
        return json.dumps(_clean(line), ensure_ascii=False)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was given to the record beside its message."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD and v is not None}


def set_up(format: Format, level: str) -> None:
    """Sends everything from this level on to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if format == "json" else Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def say_last(error: Exception) -> None:
    """Why the server ends."""
    log = logging.getLogger("headgate.server")
    if isinstance(error, Error):
        log.error("%s", error.message, extra={"hint": error.hint})
    else:
        log.error("the server failed", exc_info=error)


def _trouble(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    found = []
    if record.exc_info and record.exc_info[0] is not None:
        found.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        found.append(formatter.formatStack(record.stack_info))
    return found


def _clean(value: Any) -> Any:
    """What JSON can express, without secrets."""
    if isinstance(value, dict):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(v) for v in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return hide_secrets(str(value).encode("utf-8", "replace").decode())
