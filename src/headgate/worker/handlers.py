"""A user's handler: of which kind it is, with its middleware around it, and that what it returns has really run.

A function can look plain and return a coroutine (a lambda, a decorator without `async`), or be a generator: called, it
has done nothing yet. Its message must not be acked then. What can be seen is refused when the worker is made; what a
call returns is run where there is a loop for it, and is the handler's failure otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from ..aio import AsyncMessage
from ..errors import InvalidArgument

_thread = threading.local()  # loop: of the async worker whose plain function this thread runs


class NotRun(TypeError):
    """A handler returned something that is still to be run, and nobody does."""


def is_async(function: Any) -> bool:
    """Whether a call of it is to be awaited, as far as that can be seen."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def wrapped(call: Any, middleware: Sequence[Callable[..., Any]], are_async: bool) -> Callable[[Any], Any]:
    """A handler with the middleware around it; an error where it cannot be one, or is of another kind."""
    if not callable(call):
        raise InvalidArgument(f"{call!r} is not a handler", hint="pass a function of one message")
    _refuse_generator(call, "handler")
    _refuse_arguments(call, "handler", 1)
    if is_async(call) != are_async:
        raise InvalidArgument(
            "the handlers are not of one kind", hint="make all coroutine functions, or all plain functions"
        )
    complete = _complete_async if are_async else _complete
    whole: Callable[[Any], Any] = functools.partial(complete, call)
    for layer in reversed(middleware):
        if not callable(layer):
            raise InvalidArgument(f"{layer!r} is no middleware", hint="pass functions of (message, call_next)")
        _refuse_generator(layer, "middleware")
        _refuse_arguments(layer, "middleware", 2)
        if is_async(layer) != are_async:
            raise InvalidArgument(
                f"the middleware {layer!r} and the handler are not of one kind",
                hint="make both coroutine functions, or both plain functions",
            )
        whole = functools.partial(complete, functools.partial(_through, layer, whole))
    return whole


def dispatch(calls: Mapping[Any, Callable[[Any], Any]], message: Any) -> Any:
    """Calls the handler of the message's consumer."""
    return calls[message._consumer](message)


def with_loop(loop: asyncio.AbstractEventLoop, call: Callable[[Any], Any], message: Any) -> Any:
    """Calls a plain function of an async worker, in a thread: what it has to await runs in the worker's loop."""
    _thread.loop = loop
    return call(message)


class ThreadMessage(AsyncMessage):
    """A message as a plain function of an async worker gets it: `m.nack()` is done when it returns, without `await`.

    In the worker's loop, where a coroutine may have got it, it is awaited as always.
    """

    __slots__ = ()

    def ack(self, **options: Any) -> Any:
        """As of an AsyncMessage."""
        return _done(super().ack(**options))

    def nack(self, **options: Any) -> Any:
        """As of an AsyncMessage."""
        return _done(super().nack(**options))

    def extend(self, by: Any) -> Any:
        """As of an AsyncMessage."""
        return _done(super().extend(by))


def _done(call: Coroutine[Any, Any, bool]) -> Any:
    loop = getattr(_thread, "loop", None)
    return call if loop is None else asyncio.run_coroutine_threadsafe(call, loop).result()


def _through(layer: Callable[..., Any], call_next: Callable[[Any], Any], message: Any) -> Any:
    return layer(message, call_next)


async def _complete_async(call: Callable[[Any], Awaitable[Any]], message: Any) -> Any:
    result = await call(message)
    if result is not None:
        while inspect.isawaitable(result):
            result = await result
        _refuse_lazy(result)
    return result


def _complete(call: Callable[[Any], Any], message: Any) -> Any:
    result = call(message)
    if result is None:
        return None
    if inspect.isawaitable(result):
        loop = getattr(_thread, "loop", None)
        if loop is not None:
            value, error = asyncio.run_coroutine_threadsafe(_outcome(result), loop).result()
            if error is not None:
                raise error
            return value
        if inspect.iscoroutine(result):
            result.close()
        raise NotRun(
            f"the handler returned a {type(result).__name__}, which nobody awaits: nothing of it has run; use "
            "headgate.connect_async() for coroutine functions, or a plain function"
        )
    _refuse_lazy(result)
    return result


async def _outcome(result: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What it returns, or what it raises: a SystemExit would end the loop."""
    try:
        return await _complete_async(_awaited, result), None
    except (Exception, SystemExit) as error:
        return None, error


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _refuse_lazy(result: Any) -> None:
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or isinstance(result, (map, filter)):
        raise NotRun(
            f"the handler returned a {type(result).__name__}, over which nobody loops: nothing of it has run; "
            "do the work in the handler itself, and return"
        )


def _refuse_arguments(function: Any, what: str, count: int) -> None:
    """What cannot be called with so many arguments would fail for each message. (A decorator may pass others on.)"""
    try:
        takes = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # nobody can tell
    try:
        takes.bind(*[None] * count)
    except TypeError:
        raise InvalidArgument(
            f"the {what} {getattr(function, '__qualname__', function)!r} cannot be called with "
            + ("a message alone" if count == 1 else "(message, call_next)"),
            hint=f"pass a function of {'one message' if count == 1 else '(message, call_next)'}",
        ) from None


def _refuse_generator(function: Any, what: str) -> None:
    for call in (function, type(function).__call__):
        if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
            raise InvalidArgument(
                f"the {what} {getattr(function, '__qualname__', function)!r} is a generator function: a call of it "
                "would run nothing",
                hint="take the yield out of it, or loop over the generator in a function that is the handler",
            )
