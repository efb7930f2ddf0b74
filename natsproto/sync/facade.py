"""How a verb of the async client becomes one that blocks, types and documentation included.

Owns the lifting. A facade holds an object of the async client and the portal to its loop; each of its verbs is one
of these descriptors around the verb it stands for, so that no signature and no sentence is written twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from functools import partial
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from natsproto.sync.portal import Portal

W = TypeVar("W", covariant=True)
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")


class Facade(Generic[W]):
    """Something of the async client, for threads that have no event loop."""

    def __init__(self, portal: Portal, inner: W) -> None:
        self._portal = portal
        self._inner = inner

    def _reach(self) -> tuple[Portal, W]:
        """The portal and what is behind it."""
        return self._portal, self._inner

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


class blocking(Generic[V, P, R]):
    """The verb, waited for."""

    def __init__(self, verb: Callable[Concatenate[V, P], Awaitable[R]]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, R]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, R]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> R:
        portal, inner = facade._reach()
        return portal.call(self._verb, inner, *args, **kwargs)


class opening(Generic[V, P, R, F]):
    """A verb that gives a handle, waited for; the handle comes in a facade of its own."""

    def __init__(self, verb: Callable[Concatenate[V, P], Awaitable[R]], facade: Callable[[Portal, R], F]) -> None:
        self._verb = verb
        self._facade = facade
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, F]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, F]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> F:
        portal, inner = facade._reach()
        return self._facade(portal, portal.call(self._verb, inner, *args, **kwargs))


class making(Generic[V, P, R, F]):
    """A verb that gives a handle at once; the handle comes in a facade of its own."""

    def __init__(self, verb: Callable[Concatenate[V, P], R], facade: Callable[[Portal, R], F]) -> None:
        self._verb = verb
        self._facade = facade
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, F]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, F]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> F:
        portal, inner = facade._reach()
        return self._facade(portal, portal.run(self._verb, inner, *args, **kwargs))


class listing(Generic[V, P, R]):
    """A verb that gives an asynchronous iterable, as the list of everything in it: one way into the loop for all."""

    def __init__(self, verb: Callable[Concatenate[V, P], AsyncIterable[R]]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, list[R]]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, list[R]]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        portal, inner = facade._reach()

        async def gathered() -> list[R]:
            return [one async for one in self._verb(inner, *args, **kwargs)]

        return portal.call(gathered)


class iterating(Generic[V, P, R]):
    """A verb that gives an asynchronous iterable, as a plain iterator."""

    def __init__(self, verb: Callable[Concatenate[V, P], AsyncIterable[R]]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, Iterator[R]]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, Iterator[R]]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        portal, inner = facade._reach()
        return portal.iterate(portal.run(self._verb, inner, *args, **kwargs))
