"""The reference of the HTTP API, docs/http.md, from the table of routes and its OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headgate.server.api.routes import ROUTES
from headgate.server.http.openapi import document

HEAD = """\
# HTTP reference

<!-- Generated from the program by `make docs`: do not edit. -->

A running server has the same at `/docs` (for people) and
`/openapi.json` (for programs).

Send `Authorization: Bearer <token>`, and `Content-Type: application/json` with a body. Answers are `{"data": …}`,
errors `{"error": {"code", "message", "hint"}}`: see [errors](errors.md#over-http). Lengths of time are milliseconds
and end in `_ms`. Fields that are not known are an error. `429` and `503` have a `Retry-After`.

`{stream}`, `{consumer}` and the other names in braces are parts of the path, percent-encoded.
"""

TITLES = {
    "streams": "Streams", "messages": "Messages", "consumers": "Consumers", "receive": "Receiving and settling",
    "dead": "Dead letters", "tokens": "Tokens and audit", "service": "The server itself",
}  # fmt: skip


def api() -> dict[str, Any]:
    """The OpenAPI document."""
    return dict(msgspec.json.decode(document(ROUTES)))


def page() -> str:
    """The reference."""
    described = api()
    parts = [HEAD]
    last = ""
    for route in ROUTES.all:
        group = route.handler.__module__.rpartition(".")[2]
        if group != last:
            parts.append(f"\n## {TITLES.get(group, group.capitalize())}\n")
            last = group
        about = described["paths"][route.path][route.method.lower()]
        scope = f"Scope `{route.scope}`." if route.scope else "No token needed."
        scope = "Any scope." if route.scope == "any" else scope
        parts.append(f"\n### `{route.method} {route.path}`\n\n{route.summary} {scope}\n")
        parts.append(_parameters([p for p in about.get("parameters", []) if p["in"] == "query"]))
        if body := about.get("requestBody"):
            optional = "" if body["required"] else " (may be left out)"
            parts.append(f"\nBody{optional}: {_kind(body['content']['application/json']['schema'])}.\n")
        (status, answer), *_ = about["responses"].items()
        (content, schema), *others = answer["content"].items()
        data = schema["schema"].get("properties", {}).get("data")
        what = _kind(data) if data else f"`{content}`"
        what += "".join(f", or `{other}` where that is asked for" for other, _ in others)
        parts.append(f"\nAnswers {status}: {what}.\n")
    parts.append("\n## Bodies and answers\n")
    for name, schema in sorted(described["components"]["schemas"].items()):
        if not name.endswith("Query"):
            parts.append(f"\n### {name}\n\n{schema.get('description', 'What an error looks like.')}\n{_fields(schema)}")
    return "".join(parts)


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = [f"| `{p['name']}` | {_kind(p['schema'])}{_default(p['schema'])} |\n" for p in parameters]
    return "\n| query | |\n|---|---|\n" + "".join(rows)


def _fields(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        f"| `{name}` | {_kind(s)}{_default(s)} | {'yes' if name in required and 'default' not in s else ''} |\n"
        for name, s in schema.get("properties", {}).items()
    ]
    return "\n| field | | always |\n|---|---|---|\n" + "".join(rows) if rows else ""


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema or schema["default"] is None:
        return ""
    return f", default `{msgspec.json.encode(schema['default']).decode()}`"


def _kind(schema: dict[str, Any]) -> str:
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{re.sub(r'[^a-z0-9]+', '-', name.lower())})"
    if options := schema.get("anyOf"):
        return " or ".join(_kind(o) for o in options)
    if "enum" in schema:
        return ", ".join(f"`{e}`" for e in schema["enum"])
    kind = schema.get("type", "any JSON value")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}{_limits(schema, 'minItems', 'maxItems', ' of them')}"
    if kind == "object" and "error" not in schema.get("properties", {}) and schema.get("properties"):
        return "object with " + ", ".join(f"`{p}`" for p in schema["properties"])
    if schema.get("format") == "date-time":
        return "time (ISO 8601)"
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    return kind + _limits(schema, "minimum", "maximum") + _limits(schema, "minLength", "maxLength", " characters")


def _limits(schema: dict[str, Any], low: str, high: str, unit: str = "") -> str:
    least, most = schema.get(low), schema.get(high)
    if most is not None and most >= 2**31 - 1:  # a type's own limit says nothing
        most = None
    if least is None and most is None:
        return ""
    if most is None:
        return f" (from {least:,}{unit})" if least else ""
    return f" ({least:,} to {most:,}{unit})" if least else f" (up to {most:,}{unit})"
