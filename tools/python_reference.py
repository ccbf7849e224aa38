"""The reference of the Python SDK, docs/python.md, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, is_typeddict

import headgate
from headgate import settings, types
from headgate.aio import AsyncInsights, AsyncSources
from headgate.maintenance import AsyncMaintenance, Maintenance
from headgate.sync import Insights, Sources
from headgate.worker.options import WorkerOptions, WorkerSettings, WorkerStats

HEAD = """\
# Python reference

<!-- Generated from the program by `make docs`: do not edit. -->

`import headgate` has the names that programs begin with; what is raised is in `headgate.errors`, what is given back in
`headgate.types`. The client exists twice with the same names: `headgate.connect()` gives the sync one, `await
headgate.connect_async()` the one for asyncio, whose classes are called `Async…` and whose methods are awaited. What
follows shows the sync one.

Lengths of time are seconds or `timedelta`. `conn=` is a psycopg, SQLAlchemy, Django or asyncpg connection: what is
written with it commits or rolls back with the caller's transaction. Errors are in [errors](errors.md), the options of
streams and consumers in [settings](settings.md).
"""

FUNCTIONS = ["connect", "connect_async", "install_sql"]
CLASSES: list[tuple[type, type]] = [  # sync and async
    (headgate.Headgate, headgate.AsyncHeadgate),
    (headgate.Stream, headgate.AsyncStream),
    (headgate.Consumer, headgate.AsyncConsumer),
    (headgate.Message, headgate.AsyncMessage),
    (headgate.Worker, headgate.AsyncWorker),
    (Maintenance, AsyncMaintenance),
    (Insights, AsyncInsights),
    (Sources, AsyncSources),
]
OPTIONS = "WorkerOptions"


def page() -> str:
    """The reference."""
    parts = [HEAD, "\n## Functions\n"]
    for name in FUNCTIONS:
        function = getattr(headgate, name)
        kind = "async def" if inspect.iscoroutinefunction(function) else "def"
        parts.append(f"\n### headgate.{name}\n\n{_code(kind, name, function)}\n{_prose(function)}\n")
    for cls, twin in CLASSES:
        name = cls.__name__
        parts.append(f"\n## {name}\n\n{_prose(cls)}\n\nFor asyncio: `{_place(twin)}`.\n")
        if rows := list(_attributes(cls)):
            parts.append("\n| attribute | |\n|---|---|\n" + "".join(rows))
        for method, function in methods(cls):
            parts.append(f"\n### {name}.{method}\n\n{_code('def', method, function)}\n{_prose(function)}\n")
    parts.append(_options())
    parts.append(f"\n## Retry\n\n{_code('class', 'Retry', headgate.Retry)}\n{_prose(headgate.Retry)}\n")
    parts.append("\n## Data\n\nWhat the SDK gives back: plain, typed, and not to be changed.\n")
    things = {name: getattr(types, name) for name in types.__all__} | {"WorkerStats": WorkerStats}
    for name, thing in sorted(things.items()):
        if dataclasses.is_dataclass(thing):
            rows = [f"| `{f.name}` | {_type(f.type)}{_default(f)} |\n" for f in dataclasses.fields(thing)]
        elif inspect.isclass(thing) and issubclass(thing, list):
            rows = [f"| `{n}` | {_type(kind)} |\n" for n, kind in thing.__annotations__.items()]
        elif is_typeddict(thing):
            rows = [f"| `{key}` | {_type(_written(kind))} |\n" for key, kind in thing.__annotations__.items()]
        else:
            continue
        parts.append(f"\n### {name}\n\n{_prose(thing)}\n\n| field | type |\n|---|---|\n{''.join(rows)}")
    return "".join(parts)


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, its bases' included, in the order they are written."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, value in vars(base).items():
            if not name.startswith("_") and inspect.isfunction(value):
                found[name] = value
    yield from found.items()


def properties(cls: type) -> dict[str, property]:
    """The public properties of a class, its bases' included."""
    return {
        n: v
        for base in reversed(cls.__mro__)
        for n, v in vars(base).items()
        if isinstance(v, property) and not n.startswith("_")
    }


def _place(cls: type) -> str:
    """Where a class is imported from: `headgate`, or the module of its own."""
    is_offered = cls.__name__ in headgate.__all__
    return f"headgate.{cls.__name__}" if is_offered else f"{cls.__module__}.{cls.__name__}"


def _attributes(cls: type) -> Iterator[str]:
    source = inspect.getsource(cls.__init__)  # type: ignore[misc]
    for field, kind in re.findall(r"^        self\.([a-z]\w*): ([^=\n]+?)(?: = .*)?$", source, re.MULTILINE):
        yield f"| `{field}` | {_type(kind)} |\n"
    for attribute, value in properties(cls).items():
        yield f"| `{attribute}` | {_sentence(value.__doc__)} |\n"


def _options() -> str:
    source = inspect.getsource(WorkerOptions)
    defaults = {f.name: f.default for f in dataclasses.fields(WorkerSettings)}
    rows = [
        f"| `{name}` | {_type(kind)} | {_value(defaults[name])} | {_cell(what)} |\n"
        for name, kind, what in re.findall(r"^    (\w+): (.+?)  # (.+)$", source, re.MULTILINE)
    ]
    return (
        f"\n## {OPTIONS}\n\nThe options of `consumer.worker()` and `hg.worker()`: a TypedDict of\n"
        "`headgate.worker.options`.\n\n"
        f"| option | type | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"
    )


def _code(kind: str, name: str, function: Any) -> str:
    signature = inspect.signature(function)
    answer = "" if signature.return_annotation in (inspect.Signature.empty, "None") else signature.return_annotation
    parameters = list(_expanded(p for p in signature.parameters.values() if p.name != "self"))
    texts: list[str] = []
    is_named = False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not is_named:
            texts.append("*")
            is_named = True
        texts.append(_parameter(p))
    text = ", ".join(texts)
    arrow = f" -> {answer}" if answer and kind != "class" else ""
    if len(text) > 90:
        text = "\n" + "".join(f"    {t},\n" for t in texts)
    return f"```python\n{kind} {name}({text}){arrow}\n```\n"


def _expanded(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """With the settings by name, where a function takes those of a table."""
    for p in parameters:
        table = re.fullmatch(r"Unpack\[(Stream\w+|Consumer\w+)\]", str(p.annotation))
        if table is None:
            yield p
            continue
        for name, annotation in getattr(settings, table[1]).__annotations__.items():
            kind = _written(get_args(annotation)[0])
            yield inspect.Parameter(name, p.KEYWORD_ONLY, default=None, annotation=kind)


ALIASES = {settings.Retain: "Retain", settings.LaneBy: "LaneBy", settings.Order: "Order"}
WRITTEN = {settings.Backoff | None: "Backoff | None", settings.Length | None: "float | timedelta | None"}


def _written(kind: Any) -> str:
    """A type as it is written in the source."""
    if kind in WRITTEN:
        return WRITTEN[kind]
    parts = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    return " | ".join(ALIASES.get(p) or _named(p) for p in parts)


def _named(kind: Any) -> str:
    return "None" if kind is NoneType else str(kind) if get_args(kind) else str(kind.__name__)


def _parameter(p: inspect.Parameter) -> str:
    stars = "**" if p.kind is p.VAR_KEYWORD else "*" if p.kind is p.VAR_POSITIONAL else ""
    default = "" if p.default is p.empty else f" = {p.default!r}"
    return f"{stars}{p.name}: {p.annotation}{default}"


def _prose(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _sentence(doc: str | None) -> str:
    return _cell(" ".join((doc or "").split()))


def _type(kind: Any) -> str:
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return f"`{_cell(text)}`" if "|" not in text else " or ".join(f"`{t.strip()}`" for t in _alternatives(text))


def _alternatives(text: str) -> list[str]:
    """`a | b[c | d]` at the outermost level."""
    parts, depth = [""], 0
    for c in text:
        depth += {"[": 1, "]": -1}.get(c, 0)
        if c == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.replace("|", "or") for p in parts]


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else f", default {_value(field.default)}"


def _value(value: Any) -> str:
    return f"`{value!r}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
