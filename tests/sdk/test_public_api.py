"""What `import headgate` offers: everything documented, and the async and the sync classes alike."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import ModuleType
from typing import Any, get_origin

import pytest

import headgate

PAIRS = ["Headgate", "Stream", "Consumer", "Message", "Insights", "Sources"]
OFFERED = [(home, name) for home in (headgate, headgate.types) for name in home.__all__]


def test_the_names_are_few() -> None:
    """What a program names itself; what is raised and given back has a place of its own."""
    assert len(headgate.__all__) <= 20


@pytest.mark.parametrize(("home", "name"), OFFERED)
def test_every_name_has_a_docstring(home: ModuleType, name: str) -> None:
    thing = getattr(home, name)
    if get_origin(thing) is not None:  # the alias of a type
        return
    doc = thing.__doc__
    assert doc, f"headgate.{name} has no docstring"
    assert doc.strip(), name
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        assert not doc.startswith(f"{name}("), "that is what dataclass writes"


def test_all_is_complete_and_sorted() -> None:
    offered = {
        n for n, v in vars(headgate).items() if not n.startswith("_") and not inspect.ismodule(v) and n != "annotations"
    }
    assert offered == set(headgate.__all__)
    assert headgate.__all__ == sorted(headgate.__all__)


def test_every_type_is_offered() -> None:
    """Whatever the modules of `headgate.types` define is found there."""
    modules = [vars(headgate.types)[name] for name in ("consumers", "messages", "server", "sources", "streams")]
    defined = {n for m in modules for n, v in vars(m).items() if getattr(v, "__module__", None) == m.__name__}
    assert defined
    assert defined <= set(headgate.types.__all__)


def public(cls: type) -> dict[str, Any]:
    return {
        n: v
        for base in reversed(cls.__mro__)
        for n, v in vars(base).items()
        if not n.startswith("_") and (inspect.isfunction(v) or isinstance(v, property))
    }


@pytest.mark.parametrize("name", PAIRS)
def test_every_method_has_a_docstring(name: str) -> None:
    for cls in (getattr(headgate.sync, name), getattr(headgate.aio, f"Async{name}")):
        assert [n for n, v in public(cls).items() if not v.__doc__] == []


@pytest.mark.parametrize("name", PAIRS)
def test_async_and_sync_are_alike(name: str) -> None:
    """The same methods with the same parameters, defaults and types; only that one is awaited."""
    sync, aio = public(getattr(headgate.sync, name)), public(getattr(headgate.aio, f"Async{name}"))
    assert sync.keys() == aio.keys()
    for method in sync:
        ours, theirs = sync[method], aio[method]
        assert type(ours) is type(theirs)
        if isinstance(ours, property):
            ours, theirs = ours.fget, theirs.fget
        assert signature(ours) == signature(theirs), method
        assert not inspect.iscoroutinefunction(ours)
    assert any(inspect.iscoroutinefunction(v) for v in aio.values())


def test_connect_and_connect_async_are_alike() -> None:
    assert signature(headgate.connect) == signature(headgate.connect_async)


def signature(function: Any) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", str(inspect.signature(function)))


@pytest.mark.parametrize(
    "name",
    ["Outgoing", "Settled", "StreamInfo", "ConsumerInfo", "StoredMessage", "PeekedMessage", "DeadLetter", "Finding"],
)
def test_plain_data_cannot_be_changed(name: str) -> None:
    cls = getattr(headgate.types, name)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
