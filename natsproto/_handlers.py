"""Handlers: the callables that programs register for messages, requests and the entries of a watch.

Owns what may be a handler, and what its result may be. One that does nothing when it is called, such as a generator
function, must not pass for one that has handled its message. Also what the log shows of its errors.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from natsproto._help.guesses import explain_publish

W_co = TypeVar("W_co", covariant=True)

HandlerResult: TypeAlias = Awaitable[object] | None
"""The result of a handler: None or an awaitable. At run time other values are ignored, such as a Mock."""

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType]

_BELOW_HANDLERS = frozenset({"natsproto", "asyncio", "concurrent"})
"""The packages whose frames lie between a task and a handler."""


def handler_trace(error: BaseException) -> ExcInfo | None:
    """Return the ``exc_info`` of a handler's error, from the first frame of the application on.

    None without such a frame, for an error of this library: its text says it all.
    """
    explain_publish(error)
    trace = error.__traceback__
    while trace is not None and _package(trace.tb_frame.f_globals.get("__name__")) in _BELOW_HANDLERS:
        trace = trace.tb_next
    if trace is None and _package(type(error).__module__) != "natsproto":
        trace = error.__traceback__
    return None if trace is None else (type(error), error, trace)


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def check_handler(name: str, handler: object, argument: str, count: int = 1, *, may_yield: bool = False) -> None:
    """TypeError for an object that cannot be called with ``count`` arguments, and for a generator function unless it
    ``may_yield``.
    """
    if not callable(handler):
        raise TypeError(f"{name} must be callable with one {argument}, not {type(handler).__name__}")
    if (problem := _argument_problem(handler, count)) is not None:
        raise TypeError(f"{name} must be callable with one {argument}: {problem}")
    if not may_yield and (_is_generator_function(handler) or _is_generator_function(type(handler).__call__)):
        raise TypeError(f"{name} is a generator function, which does nothing when it is called: remove its yield")


def _argument_problem(handler: Callable[..., object], wanted: int) -> str | None:
    """Say why a handler cannot be called with ``wanted`` arguments, where that is certain."""
    if isinstance(handler, FunctionType):  # nearly always, and faster
        code, count = handler.__code__, handler.__code__.co_argcount
        if count - len(handler.__defaults__ or ()) <= wanted <= count and not code.co_kwonlyargcount:
            return None
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # a builtin that has none
        return None
    try:
        signature.bind(*[None] * wanted)
    except TypeError as exc:
        return f"{getattr(handler, '__name__', 'it')}{signature} does not ({exc})"
    return None


def is_async_callable(handler: object) -> bool:
    """True for an ``async def``, or an object with an async ``__call__``: every result must be awaited."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(type(handler), "__call__", None)  # noqa: B004
    )


class Layer(NamedTuple):
    """A handler ``made`` by this library around another one, ``inner``. ``around`` makes it, around any handler."""

    made: Callable[..., object]
    inner: Callable[..., object]
    around: Callable[[Callable[..., Any]], Callable[..., Any]]


class Blocking(Protocol[W_co]):
    """An object of the blocking client, around one of the async client."""

    @property
    def _inner(self) -> W_co: ...


def add_layer(
    made: Callable[..., Any], inner: Callable[..., object], around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Note what ``made`` is around."""
    made.__dict__["_natsproto_layer"] = Layer(made, inner, around)


def layer_of(handler: object) -> Layer | None:
    """Return the layer that a handler is. Other decorators are none, although ``functools.wraps`` gives them the
    attributes of what they are around.
    """
    layer = getattr(handler, "_natsproto_layer", None)
    return layer if isinstance(layer, Layer) and layer.made is handler else None


def is_async_generator(handler: object) -> bool:
    """True for an async generator function, or an object with one as ``__call__``: an endpoint answers in parts."""
    return inspect.isasyncgenfunction(handler) or inspect.isasyncgenfunction(
        getattr(type(handler), "__call__", None)  # noqa: B004
    )


def awaitable_of(result: object) -> Awaitable[object] | None:
    """Return the result of a handler if it has to be awaited. TypeError as in ``check_result``."""
    if inspect.isawaitable(result):
        return result
    check_result(result)
    return None


def check_result(result: object) -> None:
    """TypeError for the final result of a handler that should have been awaited, iterated or called."""
    if isinstance(result, Coroutine):
        result.close()  # this error replaces the warning
    elif not isinstance(result, (Generator, AsyncGenerator)) and not inspect.isroutine(result):
        return
    kind = type(result).__name__
    raise TypeError(f"the handler returned an unused {kind}: await it, iterate it or call it in the handler")


async def finish(result: object) -> object:
    """Await the result of a handler if it has to be awaited, and return its value. TypeError as in ``check_result``."""
    if (awaitable := awaitable_of(result)) is not None:
        result = await awaitable
        check_result(result)
    return result


def _is_generator_function(function: object) -> bool:
    """True for a function with ``yield``, except one that ``types.coroutine`` has made awaitable."""
    if inspect.isgeneratorfunction(function):
        while isinstance(function, partial):
            function = function.func
        code: CodeType | None = getattr(function, "__code__", None)
        return code is None or not code.co_flags & inspect.CO_ITERABLE_COROUTINE
    return inspect.isasyncgenfunction(function)
