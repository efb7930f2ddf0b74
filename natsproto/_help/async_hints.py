"""Hints about a missing ``await``, ``async with`` or ``async for``.

Owns a RuntimeWarning for an object that is dropped unused, and an AttributeError or TypeError that names the missing
word when it is used anyway. Type checkers do not see these methods: to them such code is an error as usual.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class WarnIfUnused:
    """Warns when it is dropped before it was started.

    A subclass sets ``_begun`` to False at the end of its ``__init__``, so that a failed constructor does not warn, and
    to True as soon as it is awaited, entered or stopped.
    """

    _begun = True
    _unused_warning: str
    """The warning."""

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(self._unused_warning, RuntimeWarning, stacklevel=2, source=self)


class AwaitHint(WarnIfUnused):
    """Is started by ``await`` or ``async with``; until then, reading a missing attribute suggests them in an error.

    Not for classes whose attributes are read for every message: with ``__getattr__`` every read takes longer.
    """

    _start_hint: ClassVar[str] = "await it, or enter it with async with"
    """The advice in errors."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            missing = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not self._begun and not name.startswith("__"):  # copy, pickle and inspect ask for those
                missing += f": it has not started; {self._start_hint}"
            raise AttributeError(missing, name=name, obj=self)


class RunHint(AwaitHint):
    """Is started by ``run()`` or ``async with``. ``await`` alone, which could mean either, raises a TypeError."""

    _start_hint = "await its run(), or enter it with async with"

    if not TYPE_CHECKING:

        def __await__(self) -> object:
            self._begun = True  # the error replaces the warning
            kind = type(self).__name__
            raise TypeError(f"{kind} cannot be awaited: await its run() until the end, or start it with async with")


class AsyncForHint:
    """Is read with ``async for``; ``for`` and ``await`` raise a TypeError that says so."""

    __slots__ = ()

    _iterate_hint: ClassVar[str] = "use async for"
    _await_hint: ClassVar[str] = "iterate it with async for, or make a list of it: [one async for one in …]"

    def _called(self) -> str:
        return type(self).__name__

    if not TYPE_CHECKING:

        def __iter__(self) -> object:
            raise TypeError(f"{self._called()} is an async iterable: {self._iterate_hint}")

        def __await__(self) -> object:
            raise TypeError(f"{self._called()} cannot be awaited: {self._await_hint}")


class Items(AsyncForHint, AsyncGenerator[T]):
    """Wraps an asynchronous generator. ``async for`` reads the generator itself, so items cost nothing extra."""

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
        """End it, for contextlib.aclosing()."""
        await self._source.aclose()


def items(function: Callable[P, AsyncGenerator[T]]) -> Callable[P, AsyncGenerator[T]]:
    """Decorate a public function that returns an asynchronous generator, so that mistakes get a hint."""

    @wraps(function)
    def given(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]:
        return Items(function(*args, **kwargs), function.__name__)

    return given
