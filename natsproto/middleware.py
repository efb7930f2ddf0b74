"""Middleware around message handlers.

A handler of a subscription, a consumer, a group or a service is a callable that takes one message. A handler with
middleware around it is such a callable too, so no other module knows about middleware, and handlers without it have no
overhead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial, update_wrapper
from typing import Any, Protocol, TypeAlias, TypeVar, cast, overload

from natsproto import errors
from natsproto._handler_threads import Executor, in_threads
from natsproto._handlers import Blocking, HandlerResult, add_layer, check_handler, finish, is_async_generator, layer_of
from natsproto.protocol.frames import Message

__all__ = ["Call", "Executor", "Middleware", "in_threads", "with_middleware"]

T = TypeVar("T")
M = TypeVar("M", bound=Message)
B = TypeVar("B", bound=Blocking[Message])
M_contra = TypeVar("M_contra", bound=Message, contravariant=True)

_Handler: TypeAlias = Callable[..., Coroutine[Any, Any, object]]
Call: TypeAlias = Callable[[], Awaitable[None]]
"""Calls the next middleware or the handler, and raises its exceptions."""


class Middleware(Protocol[M_contra]):
    """Code around a handler: an ``async def`` function, or an object with an ``async def __call__``.

    This one measures handlers:

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


@overload
def with_middleware(
    handler: Callable[[M], HandlerResult], /, *middleware: Middleware[M]
) -> Callable[[M], Coroutine[Any, Any, None]]: ...


@overload
def with_middleware(
    handler: Callable[[M], AsyncIterator[T]], /, *middleware: Middleware[M]
) -> Callable[[M], AsyncIterator[T]]: ...


@overload
def with_middleware(
    handler: Callable[[B], object], /, *middleware: Middleware[M]
) -> Callable[[B], Coroutine[Any, Any, None]]: ...


def with_middleware(handler: Callable[[Any], Any], /, *middleware: Middleware[Any]) -> Callable[[Any], Any]:
    """Return a handler with all of these middleware around it, the first one outermost.

    Around the async generator of an endpoint, ``call`` returns when the whole response was sent. Around a handler of
    the blocking client, middleware is ``async def`` as well: it runs in the client's event loop and takes the message
    of the async client, while the handler is called in a thread.

    Several messages may be handled at the same time, so a middleware must keep the state of a message in local
    variables. TypeError for objects that are not callable.

    Args:
        handler: The innermost handler, ``def`` or ``async def``.
        *middleware: What goes around it, the first one outermost.
    """
    may_yield = is_async_generator(handler)
    check_handler("the handler, which comes first,", handler, "message", may_yield=may_yield)
    for outer in middleware:
        check_handler("middleware", outer, "message and the next call", 2)
    wrapped: Callable[[Any], Any] = _as_generator() if may_yield else _as_async(handler)
    for outer in () if may_yield else reversed(middleware):
        wrapped = _wrap(outer, wrapped)
    update_wrapper(wrapped, handler)
    wrapped.__dict__["middleware"] = (*middleware, *middleware_of(handler))
    add_layer(wrapped, handler, lambda inner: with_middleware(inner, *middleware))
    return wrapped


def middleware_of(handler: object) -> tuple[object, ...]:
    """Return the middleware around a handler, the outermost first."""
    found: object = getattr(handler, "middleware", ())
    return found if isinstance(found, tuple) else ()


def unwrap(handler: Callable[[M], T]) -> tuple[Callable[[M], T], tuple[Any, ...]]:
    """Return the handler inside of middleware, and what is around it. Other decorators stay around the handler."""
    around = middleware_of(handler)
    while hasattr(handler, "middleware") and (layer := layer_of(handler)) is not None:
        handler = cast("Callable[[M], T]", layer.inner)
    return handler, around[: len(around) - len(middleware_of(handler))]


def _as_generator() -> Callable[[Any], AsyncIterator[Any]]:
    """Return a generator function of which an endpoint takes the handler and the middleware."""

    async def parts(message: object) -> AsyncIterator[Any]:
        raise errors.LocalProtocolError("only an endpoint can call an async generator with middleware")
        yield message  # type: ignore[unreachable]  # makes it a generator

    return parts


def _as_async(handler: Callable[[M], Any]) -> _Handler:
    async def handle(message: M, returned: list[object] | None = None) -> object:
        result = await finish(handler(message))
        if returned is not None and result is not None:
            returned.append(result)
        return result

    return handle


def _wrap(middleware: Callable[[M, Any], Awaitable[object]], inner: _Handler) -> _Handler:
    async def handle(message: M, returned: list[object] | None = None) -> object:
        """Return what the handler or a middleware returned: an endpoint reports such data."""
        if returned is None:
            returned = []
        if (result := await middleware(message, partial(inner, message, returned))) is not None:
            returned.append(result)
        return returned[0] if returned else None

    return handle
