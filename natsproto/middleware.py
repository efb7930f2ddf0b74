"""Middleware: what is done around the handler of a message, whoever calls it.

A handler of a subscription, a consumer, a group or a service is a callable with one message. So is a handler with
middleware around it, which is why nothing else has to know of it, and why it costs nothing where there is none.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, update_wrapper
from typing import Any, Protocol, TypeAlias, TypeVar

from natsproto.protocol.frames import Message

M = TypeVar("M", bound=Message)
M_contra = TypeVar("M_contra", bound=Message, contravariant=True)

Call: TypeAlias = Callable[[], Awaitable[None]]
"""Calls what is inside: the next middleware, or the handler. It raises what that raises."""


class Middleware(Protocol[M_contra]):
    """Something around a handler: an ``async def`` function, or an object with an ``async def __call__``.

    ::

        async def timed(message: Message, call: Call) -> None:
            began = perf_counter()
            try:
                await call()
            finally:
                print(message.subject, perf_counter() - began)
    """

    def __call__(self, message: M_contra, call: Call, /) -> Awaitable[None]:
        """Does its work before and after ``await call()``.

        What it raises is raised to whoever called, as if the handler had. Not calling leaves the message out: for
        ``consume`` it was handled then, and is acknowledged. Calling twice handles it twice.
        """
        ...


def with_middleware(
    handler: Callable[[M], Awaitable[object] | object], /, *middleware: Middleware[M]
) -> Callable[[M], Coroutine[Any, Any, None]]:
    """The handler (def or async def) with all of these around it, the first one outermost; for whatever takes one.

    One handler's messages may be handled at the same time, so a middleware keeps what belongs to a message in its
    own variables. TypeError for what cannot be called.
    """
    callables: tuple[object, ...] = (handler, *middleware)
    for one in callables:
        if not callable(one):
            raise TypeError(f"a handler and its middleware must be callable, not {type(one).__name__}")
    made = _plain(handler)
    for one in reversed(middleware):
        made = _around(one, made)
    update_wrapper(made, handler)
    return made


def _plain(handler: Callable[[M], Awaitable[object] | object]) -> Callable[[M], Coroutine[Any, Any, None]]:
    async def handle(message: M) -> None:
        result = handler(message)
        if inspect.isawaitable(result):
            await result

    return handle


def _around(
    middleware: Middleware[M], inner: Callable[[M], Coroutine[Any, Any, None]]
) -> Callable[[M], Coroutine[Any, Any, None]]:
    async def handle(message: M) -> None:
        await middleware(message, partial(inner, message))

    return handle
