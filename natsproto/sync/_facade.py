"""How a verb of the async client becomes one that blocks, types and documentation included.

Owns the lifting. A facade holds an object of the async client and the portal to its loop; each of its verbs is one
of these descriptors around the verb it stands for, so that no signature and no sentence is written twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from itertools import chain
from time import monotonic
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from natsproto.errors import ConnectionClosed, SubscriptionClosed
from natsproto.protocol.pool import seconds
from natsproto.sync._portal import Portal

W = TypeVar("W", covariant=True)
B = TypeVar("B", bound=AbstractAsyncContextManager[object], covariant=True)
C = TypeVar("C")
I = TypeVar("I")  # noqa: E741  # an item
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")


class Batches(Protocol[C]):
    """What many items are read from."""

    def batches(self) -> AsyncIterable[list[C]]:
        """Those that are there, as a list, again and again."""
        ...


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


class Block(Facade[B], Generic[B]):
    """Something that is entered: an interrupt on the way in leaves it again."""

    def __enter__(self) -> Self:
        self._portal.enter(self._inner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped:
            self._portal.call(self._inner.__aexit__, kind, exc, trace)


class Undertaking(Block[B], Generic[B]):
    """A Block that does something when it is left: if that cannot be, whoever leaves it is told."""

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None or not self._portal.stopped:
            self._portal.call(self._inner.__aexit__, kind, exc, trace)


class Reader(Facade[W], Generic[W, I]):
    """What one item after the other is read from, by any number of threads: each item goes to one of them.

    Owns the items that were taken over and not read yet: they come in batches, as each way into the loop costs more
    than an item. While several threads wait, each fetches its own.
    """

    def __init__(self, portal: Portal, inner: W) -> None:
        super().__init__(portal, inner)
        self._taken: deque[I] = deque()
        self._waiting = 0

    async def _one(self, wait: float | None) -> I:
        """The next item, within so many seconds; raises when there is none."""
        raise NotImplementedError

    def _rest(self) -> list[I]:
        """What else is there by now."""
        return []

    def _next(self, timeout: float | timedelta | None) -> I:
        wait = None if timeout is None else seconds("timeout", timeout)
        deadline = None if wait is None else monotonic() + wait
        self._portal.check()
        while True:
            try:
                return self._taken.popleft()  # here, not on the loop: an interrupt must neither lose nor overtake one
            except IndexError:
                pass
            self._portal.call(self._fetch, None if deadline is None else max(0.0, deadline - monotonic()))

    async def _fetch(self, wait: float | None) -> None:
        if self._taken:
            return
        self._waiting += 1
        try:
            one = await self._one(wait)
        finally:
            self._waiting -= 1
        self._taken.append(one)
        if not self._waiting:
            self._taken.extend(self._rest())

    def _each(self) -> Iterator[I]:
        while True:
            try:
                one = self._next(None)
            except SubscriptionClosed:
                return
            except ConnectionClosed:
                if self._portal.stopped:
                    return  # the end of the client is the end of reading, whoever noticed first
                raise
            yield one


class Watcher(Reader[B, I], Generic[B, I]):
    """A Reader that is entered and left. Leaving, or ``stop``, ends it; what was not read is gone."""

    _entered = False

    def stop(self) -> None:
        """Ends it. What has come and was not read is gone."""
        self._portal.call(self._inner.__aexit__, None, None, None)
        self._taken.clear()

    def __enter__(self) -> Self:
        self._portal.enter(self._inner)
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped:
            self.stop()


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


class batched(Generic[V, P, I]):
    """A verb that gives an asynchronous iterable of items that also come in batches, as a plain iterator of items: one
    way into the loop for each batch.
    """

    def __init__(self, verb: Callable[Concatenate[V, P], Batches[I]]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, Iterator[I]]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, Iterator[I]]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[I]:
        portal, inner = facade._reach()
        found = portal.run(self._verb, inner, *args, **kwargs)
        return chain.from_iterable(portal.iterate(found.batches()))
