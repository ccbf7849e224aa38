"""The description of the API, made from the table of routes and the types that decode and encode."""

from __future__ import annotations

import html
from typing import Any

import msgspec

from ..operate.pages import page
from .routing import Route, Routes

_REF = "#/components/schemas/{name}"

ERROR = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "hint": {"type": ["string", "null"]},
            },
        }
    },
}


def document(routes: Routes) -> bytes:
    """The OpenAPI document as JSON."""
    types = [t for r in routes.all for t in (r.response, r.body, r.query) if t is not None and not isinstance(t, str)]
    refs, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = dict(zip(map(repr, types), refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes.all:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Headgate", "version": "1", "description": "A message queue and event stream."},
            "paths": paths,
            "components": {
                "schemas": {**components, "Error": ERROR},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(route: Route, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": route.name, "summary": route.summary}
    if route.scope is not None:
        made["security"] = [{"token": []}]
        made["description"] = f"Needs the scope `{route.scope}`." if route.scope != "any" else "Needs a token."
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.parameters
    ]
    if route.query is not None:
        shape = components[route.query.__name__]
        for name, schema in shape["properties"].items():
            required = name in shape.get("required", ())
            parameters.append({"name": name, "in": "query", "required": required, "schema": _without_null(schema)})
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas[repr(route.body)]}}
        made["requestBody"] = {"required": not route.body_optional, "content": content}
    if route.raw_body:
        content = {"application/json": {"schema": {}}}
        made["requestBody"] = {"required": True, "content": content}
        made["description"] = "Needs no token: the signature says who sent it."
    if isinstance(route.response, str):
        kind, schema = route.response.partition(";")[0], {}
    else:
        kind = "application/json"
        properties = {
            "data": schemas[repr(route.response)],
            **({"next": {"type": route.next_type}} if route.has_next else {}),
        }
        schema = {"type": "object", "required": ["data"], "properties": properties}
    content = {kind: {"schema": schema}, **({"text/html": {"schema": {}}} if route.page is not None else {})}
    made["responses"] = {
        str(route.status): {"description": "Done.", "content": content},
        "default": {
            "description": "Not done.",
            "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}},
        },
    }
    return made


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is left out, never null."""
    kinds = [s for s in schema.get("anyOf", ()) if s.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else {k: v for k, v in schema.items() if v is not None}


def docs_page(openapi: bytes) -> bytes:
    """The description as one page that needs nothing else."""
    api = msgspec.json.decode(openapi)
    rows = []
    for path, methods in api["paths"].items():
        for method, about in methods.items():
            names = [p["name"] for p in about.get("parameters", ()) if p["in"] == "query"]
            query = "?" + "&amp;".join(f"{html.escape(n)}=" for n in names) if names else ""
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            rows.append(
                f"<tr><td><b>{method.upper()}</b></td><td><code>{html.escape(path)}{query}</code></td>"
                f"<td>{html.escape(about['summary'])}</td><td>{_link(body)}</td></tr>"
            )
    shapes = []
    for name, schema in sorted(api["components"]["schemas"].items()):
        fields = "".join(
            f"<tr><td><code>{html.escape(field)}</code></td><td>{_kind(kind)}</td></tr>"
            for field, kind in schema.get("properties", {}).items()
        )
        shapes.append(
            f'<h3 id="{name}">{name}</h3><p>{html.escape(schema.get("description", ""))}</p><table>{fields}</table>'
        )
    return page("Headgate: HTTP API", _BODY.format(routes="".join(rows), shapes="".join(shapes)))


def _link(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f'<a href="#{name}">{name}</a>' if name else ""


def _kind(schema: dict[str, Any]) -> str:
    if link := _link(schema):
        return link
    if options := schema.get("anyOf"):
        return " or ".join(_kind(o) for o in options)
    if "enum" in schema:
        return " | ".join(html.escape(str(e)) for e in schema["enum"])
    if schema.get("type") == "array":
        return "list of " + _kind(schema.get("items", {}))
    limits = [f"{n} {schema[k]}" for k, n in (("minimum", "from"), ("maximum", "to")) if k in schema]
    return html.escape(" ".join([str(schema.get("type", "any JSON value")), *limits]))


_BODY = """<p>Send <code>Authorization: Bearer &lt;token&gt;</code>. Answers are
<code>{{"data": …}}</code>, errors <code>{{"error": {{"code", "message", "hint"}}}}</code>.
The same for programs: <a href="openapi.json">openapi.json</a>.</p>
<table>{routes}</table><h2>Bodies and answers</h2>{shapes}"""
