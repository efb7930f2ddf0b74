"""Middleware around message handlers.

A handler of a subscription, a consumer, a group or a service is a callable that takes one message. A handler with
middleware around it is such a callable too, so no other module knows about middleware, and handlers without it have no
overhead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, update_wrapper
from typing import Any, Protocol, TypeAlias, TypeVar

from natsproto._handler_threads import Executor, in_threads
from natsproto._handlers import HandlerResult, check_handler, finish
from natsproto.protocol.frames import Message

__all__ = ["Call", "Executor", "Middleware", "in_threads", "with_middleware"]

M = TypeVar("M", bound=Message)
M_contra = TypeVar("M_contra", bound=Message, contravariant=True)

Call: TypeAlias = Callable[[], Awaitable[None]]
"""Calls the next middleware or the handler, and raises its exceptions."""


class Middleware(Protocol[M_contra]):
    """Code around a handler: an ``async def`` function, or an object with an ``async def __call__``.

    ::

        async def timed(message: Message, call: Call) -> None:
            began = perf_counter()
            try:
                await call()
            finally:
                print(message.subject, perf_counter() - began)
    """

    def __call__(self, message: M_contra, call: Call, /) -> Awaitable[None]:
        """Work before and after ``await call()``.

        Its exceptions reach the caller like those of the handler. Without ``await call()`` the handler is skipped, and
        ``consume`` acknowledges the message as handled. Calling twice handles the message twice.

        Args:
            message: What the handler would get.
            call: Calls the next middleware or the handler.
        """
        ...


def with_middleware(
    handler: Callable[[M], HandlerResult], /, *middleware: Middleware[M]
) -> Callable[[M], Coroutine[Any, Any, None]]:
    """Return a handler with all of these middleware around it, the first one outermost.

    Several messages may be handled at the same time, so a middleware must keep the state of a message in local
    variables. TypeError for objects that are not callable.

    Args:
        handler: The innermost handler, ``def`` or ``async def``.
        *middleware: What goes around it, the first one outermost.
    """
    check_handler("handler", handler, "message")
    for outer in middleware:
        check_handler("middleware", outer, "message and the next call", 2)
    wrapped = _as_async(handler)
    for outer in reversed(middleware):
        wrapped = _wrap(outer, wrapped)
    update_wrapper(wrapped, handler)
    wrapped.__dict__["middleware"] = (*middleware, *middleware_of(handler))
    return wrapped


def middleware_of(handler: object) -> tuple[object, ...]:
    """Return the middleware around a handler, the outermost first."""
    found: object = getattr(handler, "middleware", ())
    return found if isinstance(found, tuple) else ()


def _as_async(
    handler: Callable[[M], HandlerResult],
) -> Callable[[M], Coroutine[Any, Any, None]]:
    async def handle(message: M) -> None:
        await finish(handler(message))

    return handle


def _wrap(
    middleware: Middleware[M], inner: Callable[[M], Coroutine[Any, Any, None]]
) -> Callable[[M], Coroutine[Any, Any, None]]:
    async def handle(message: M) -> None:
        await middleware(message, partial(inner, message))

    return handle
