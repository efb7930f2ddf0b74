"""Handlers of the blocking client: plain functions, which the async client calls in threads with blocking messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from natsproto import errors
from natsproto._handlers import check_handler, check_result, is_async_callable, layer_of

AnyHandler = Callable[[Any], object]


def check_threads(threads: int) -> None:
    """ConfigError unless it is a number of threads."""
    if type(threads) is not int or threads < 1:
        raise errors.ConfigError("threads", threads, "must be a positive int")


def thread_handler(
    handler: AnyHandler, argument: str, wrap: Callable[[Any], object], *, check: bool = True
) -> Callable[..., Any]:
    """Return the handler for the async client: it calls ``handler`` with what ``wrap`` makes of its arguments.

    Middleware and typed values around the handler stay around it, in the event loop. TypeError, ConfigError.
    """
    if (layer := layer_of(handler)) is not None:
        return layer.around(thread_handler(layer.inner, argument, wrap, check=False))
    if is_async_callable(handler):
        raise TypeError(f"handler must be a plain function of one {argument}; async def needs the async client")
    if check:
        check_handler("handler", handler, argument)

    def call(*args: object) -> object:
        result = handler(*map(wrap, args))
        check_result(result)
        return result

    call.__name__ = getattr(handler, "__name__", "handler")  # for the names of the threads
    return call
