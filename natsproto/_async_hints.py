"""Hints for those who forgot ``await``, ``async with`` or ``async for``.

Owns what such code is told: a RuntimeWarning when something that nobody began is dropped, an AttributeError or a
TypeError that names the missing word when it is used all the same. Type checkers see none of it: to them it is an error
as it always was.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class WarnIfUnused:
    """Does nothing before it is begun, and warns when it is dropped before that.

    A subclass sets ``_begun`` to False at the end of its ``__init__``, so that one that failed has nothing to say, and
    to True as soon as anybody awaits, enters or stops it.
    """

    _begun = True
    _unused_warning: str
    """The warning."""

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(self._unused_warning, RuntimeWarning, stacklevel=2, source=self)


class AwaitHint(WarnIfUnused):
    """Is begun by ``await`` or ``async with``; until then a missing attribute means that one of them is.

    Not for classes whose attributes are read for every message: with ``__getattr__`` every read takes longer.
    """

    _start_hint: ClassVar[str] = "await it, or enter it with async with"
    """What to do about it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            missing = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not self._begun and not name.startswith("__"):  # copy, pickle and inspect ask for those
                missing += f": it has not begun; {self._start_hint}"
            raise AttributeError(missing, name=name, obj=self)


class AsyncForHint:
    """Is read with ``async for``: says so to ``for`` and, where it cannot be awaited, to ``await``."""

    __slots__ = ()

    _iterate_hint: ClassVar[str] = "use async for"

    def _called(self) -> str:
        return type(self).__name__

    if not TYPE_CHECKING:

        def __iter__(self) -> object:
            raise TypeError(f"{self._called()} is an async iterable: {self._iterate_hint}")

        def __await__(self) -> object:
            raise TypeError(
                f"{self._called()} cannot be awaited: iterate it with async for, or make a list of it: "
                "[one async for one in …]"
            )


class Items(AsyncForHint, AsyncGenerator[T]):
    """What an asynchronous generator yields. ``async for`` reads the generator itself: an item costs no more."""

    __slots__ = ("_name", "_source")

    def __init__(self, source: AsyncGenerator[T], name: str) -> None:
        self._source, self._name = source, name

    def _called(self) -> str:
        return f"{self._name}()"

    def __aiter__(self) -> AsyncGenerator[T]:
        return self._source

    async def __anext__(self) -> T:
        return await self._source.__anext__()

    async def asend(self, value: None) -> T:
        """See AsyncGenerator."""
        return await self._source.asend(value)

    async def athrow(self, *error: Any) -> T:
        """See AsyncGenerator."""
        return await self._source.athrow(*error)

    async def aclose(self) -> None:
        """Ends it, for contextlib.aclosing()."""
        await self._source.aclose()


def items(function: Callable[P, AsyncGenerator[T]]) -> Callable[P, AsyncGenerator[T]]:
    """For a function that gives an asynchronous generator to users."""

    @wraps(function)
    def given(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]:
        return Items(function(*args, **kwargs), function.__name__)

    return given
