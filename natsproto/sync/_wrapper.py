"""Wrappers that turn the methods of the async client into blocking ones, with their types and documentation.

A wrapper holds an object of the async client and the portal to its event loop. Each method of a wrapper is one of the
descriptors below around the async method, so that no signature and no docstring is written twice.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial, wraps
from itertools import chain
from time import monotonic
from types import FunctionType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from natsproto import errors
from natsproto._durations import seconds
from natsproto._help.introspection import LateSignature, annotations_like
from natsproto.sync._portal import Portal
from natsproto.sync._threads import TrackedContext, TrackedReader

W = TypeVar("W", covariant=True)
B = TypeVar("B", bound=AbstractAsyncContextManager[object], covariant=True)
K = TypeVar("K", bound=TrackedReader, covariant=True)
X = TypeVar("X", bound=TrackedContext, covariant=True)
I = TypeVar("I")  # noqa: E741  # an item
C = TypeVar("C")
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
A = TypeVar("A")
T = TypeVar("T")

NOTICED_S = 0.001
"""Seconds that a call may wait for earlier messages without a shorter timeout for the rest."""


class SyncWrapper(Generic[W]):
    """Wraps an object of the async client for threads that have no event loop."""

    def __init__(self, portal: Portal, inner: W) -> None:
        self._portal = portal
        self._inner = inner

    def _reach(self, timeout: float | None = None) -> tuple[Portal, W]:
        """Return the portal and the wrapped object, as soon as earlier messages were sent: within ``timeout`` seconds,
        or else RequestTimeout.
        """
        return self._portal, self._inner

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


class SyncContext(SyncWrapper[B], Generic[B]):
    """Wraps an async context manager. An interrupt while it is entered leaves it again."""

    _exit_needs_client: ClassVar[bool] = False
    """Leaving the block without an exception commits or releases something: ConnectionClosed when the client is closed.
    """

    def __enter__(self) -> Self:
        self._portal.enter(self._inner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped or (exc is None and self._exit_needs_client):
            self._portal.call(self._inner.__aexit__, kind, exc, trace)


class BufferedReader(SyncWrapper[K], Generic[K, I]):
    """Reads items one by one. Any number of threads may share one; each item goes to one of them.

    Owns the items that were fetched and not read yet: they come in batches, because each trip to the event loop costs
    more than an item. While several threads wait, each fetches one item.
    """

    def __init__(self, portal: Portal, inner: K) -> None:
        super().__init__(portal, inner)
        self._buffer: deque[I] = deque()
        self._waiting = 0

    async def _next_item(self, timeout: float | None) -> I:
        """Wait for the next item for at most ``timeout`` seconds; raise when there is none."""
        raise NotImplementedError

    def _available_items(self) -> list[I]:
        """Take the items that have arrived already."""
        return []

    def _next(self, timeout: float | timedelta | None) -> I:
        wait = None if timeout is None else seconds("timeout", timeout)
        deadline = None if wait is None else monotonic() + wait
        self._portal.check()
        while True:
            try:
                return self._buffer.popleft()  # in this thread: an interrupt must neither lose nor reorder items
            except IndexError:
                pass
            self._portal.call(self._fetch, None if deadline is None else max(0.0, deadline - monotonic()))

    async def _fetch(self, timeout: float | None) -> None:
        if self._buffer:
            return
        self._waiting += 1
        try:
            item = await self._next_item(timeout)
        finally:
            self._waiting -= 1
        self._buffer.append(item)
        if not self._waiting:
            self._buffer.extend(self._available_items())

    def _iterate(self) -> Iterator[I]:
        """Iterate in the current thread; a draining client waits for the end."""
        return self._read_on(lambda: self._next(None))

    def _read_on(self, read: Callable[[], T]) -> Iterator[T]:
        """Iterate over what ``read`` returns, in the current thread; a draining client waits for the end."""
        try:
            iteration = self._portal.run(self._portal.threads.track_iteration, self._inner, threading.current_thread())
        except errors.ConnectionClosed:
            if self._portal.stopped:
                return  # as below
            raise

        async def leave() -> None:
            iteration.done.set()

        iteration.key.enter_context()
        try:
            while True:
                try:
                    item = read()
                except (errors.SubscriptionClosed, StopIteration):
                    return
                except errors.ConnectionClosed:
                    if self._portal.stopped:
                        return  # closing the client ends the iteration, whichever thread notices it first
                    raise
                yield item
        finally:
            iteration.key.leave_context()
            self._portal.run_detached(leave, wait=False)


class ContextReader(BufferedReader[X, I], Generic[X, I]):
    """A BufferedReader that is a context manager. Leaving it, or ``stop``, ends it and drops unread items."""

    _entered = False

    def stop(self) -> None:
        """Stop reading. Unread items are dropped."""
        self._portal.call(self._inner.__aexit__, None, None, None)
        self._buffer.clear()

    def __enter__(self) -> Self:
        self._portal.enter(self._inner)
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped:
            self.stop()


class SyncMethod(Generic[V, P, A, T]):
    """Makes a blocking method of one of the async client. The subclasses convert its result.

    The class gets a plain function with the name, the documentation, and the signature of the async method, in its
    place.
    """

    _omitted: ClassVar[str] = ""
    """A parameter that the blocking method does not have."""

    def __init__(self, method: Callable[Concatenate[V, P], A]) -> None:
        self._method = method
        code = cast("FunctionType", inspect.unwrap(method)).__code__
        positional = code.co_varnames[1 : code.co_argcount]  # without self
        self._timeout_at = positional.index("timeout") if "timeout" in positional else None

    def __set_name__(self, owner: type[object], name: str) -> None:
        """Put the function in the place of this object."""

        @wraps(self._method)
        def method(wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> T:
            return self._call(wrapper, *args, **kwargs)

        own = {name: kind for name, kind in self._method.__annotations__.items() if name != self._omitted}
        returned = self._returned(own["return"])
        method.__module__, method.__name__, method.__qualname__ = owner.__module__, name, f"{owner.__qualname__}.{name}"
        method.__annotations__ = annotations_like(self._method, {**own, "return": returned})
        # Made when it is read: all of them took longer than the rest of the import.
        vars(method)["__signature__"] = LateSignature(partial(self._signature, returned))
        setattr(owner, name, method)

    if TYPE_CHECKING:

        @overload
        def __get__(self, wrapper: None, owner: type[object]) -> Self: ...

        @overload
        def __get__(self, wrapper: SyncWrapper[V], owner: type[object]) -> Callable[P, T]: ...

        def __get__(self, wrapper: SyncWrapper[V] | None, owner: type[object]) -> Self | Callable[P, T]: ...

    def _signature(self, returned: object) -> inspect.Signature:
        signature = inspect.signature(self._method)
        kept = [parameter for name, parameter in signature.parameters.items() if name != self._omitted]
        return signature.replace(parameters=kept, return_annotation=returned)

    def _returned(self, annotation: object) -> object:
        """Return what the method returns, of the return annotation of the async method."""
        return annotation

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotImplementedError

    def _reach(
        self, wrapper: SyncWrapper[V], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Portal, Callable[[], A]]:
        """Return the portal and a call of the method, whose ``timeout`` counts from now on."""
        at = self._timeout_at
        by_position = at is not None and at < len(args)
        given = args[at] if by_position and at is not None else kwargs.get("timeout")
        if not isinstance(given, (int, float, timedelta)):
            portal, inner = wrapper._reach()
            return portal, lambda: self._method(inner, *args, **kwargs)
        began, limit = monotonic(), seconds("timeout", given)
        portal, inner = wrapper._reach(limit)
        if (waited := monotonic() - began) > NOTICED_S:
            left = max(NOTICED_S, limit - waited)
            if by_position and at is not None:
                args = (*args[:at], left, *args[at + 1 :])
            else:
                kwargs = {**kwargs, "timeout": left}
        return portal, lambda: self._method(inner, *args, **kwargs)


class blocking(SyncMethod[V, P, Awaitable[R], R], Generic[V, P, R]):
    """Waits for the method and returns its result."""

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> R:
        portal, call = self._reach(wrapper, args, kwargs)
        return portal.call(call)


class blocking_wrapped(SyncMethod[V, P, Awaitable[R], F], Generic[V, P, R, F]):
    """Waits for a method that returns a handle, and wraps the handle."""

    def __init__(self, method: Callable[Concatenate[V, P], Awaitable[R]], wrap: Callable[[Portal, R], F]) -> None:
        super().__init__(method)
        self._wrap = wrap

    def _returned(self, annotation: object) -> object:
        return get_type_hints(self._wrap)["return"] if inspect.isfunction(self._wrap) else self._wrap

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> F:
        portal, call = self._reach(wrapper, args, kwargs)
        return self._wrap(portal, portal.call(call))


class wrapped(SyncMethod[V, P, R, F], Generic[V, P, R, F]):
    """Calls a method that returns a handle at once, and wraps the handle."""

    def __init__(self, method: Callable[Concatenate[V, P], R], wrap: Callable[[Portal, R], F]) -> None:
        super().__init__(method)
        self._wrap = wrap

    def _returned(self, annotation: object) -> object:
        return get_type_hints(self._wrap)["return"] if inspect.isfunction(self._wrap) else self._wrap

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> F:
        portal, call = self._reach(wrapper, args, kwargs)
        return self._wrap(portal, portal.run(call))


class wrapped_watch(wrapped[V, P, R, F], Generic[V, P, R, F]):
    """The same for a watch, which has no callback here. TypeError for one."""

    _omitted = "cb"

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> F:
        if "cb" in kwargs:
            raise TypeError("cb: the blocking client has no callbacks; iterate the watch, in a thread if need be")
        return super()._call(wrapper, *args, **kwargs)


class as_list(SyncMethod[V, P, AsyncIterable[R], list[R]], Generic[V, P, R]):
    """Returns everything that an asynchronous iterable yields as a list, with one trip to the event loop."""

    def _returned(self, annotation: object) -> object:
        return list[_item(annotation)]  # type: ignore[misc]  # a name

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        portal, call = self._reach(wrapper, args, kwargs)

        async def read_all() -> list[R]:
            return [item async for item in call()]

        return portal.call(read_all)


class as_iterator(SyncMethod[V, P, AsyncIterable[R], Iterator[R]], Generic[V, P, R]):
    """Returns an asynchronous iterable as a plain iterator."""

    def _returned(self, annotation: object) -> object:
        return Iterator[_item(annotation)]  # type: ignore[misc]  # a name

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        portal, call = self._reach(wrapper, args, kwargs)
        return portal.iterate(portal.run(call))


class Batches(Protocol[C]):
    """An asynchronous iterable whose items can also be read in batches."""

    def batches(self) -> AsyncIterable[list[C]]:
        """Yield lists of the items that have arrived."""
        ...


class as_batched_iterator(SyncMethod[V, P, Batches[I], Iterator[I]], Generic[V, P, I]):
    """Returns an asynchronous iterable as a plain iterator that makes one trip to the event loop per batch."""

    def __init__(self, method: Callable[Concatenate[V, P], Batches[I]], item: type[I]) -> None:
        super().__init__(method)
        self._item = item

    def _returned(self, annotation: object) -> object:
        return Iterator[self._item]  # type: ignore[name-defined]  # evaluated at run time only

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[I]:
        portal, call = self._reach(wrapper, args, kwargs)
        source = portal.run(call)
        return chain.from_iterable(portal.iterate(source.batches()))


def _item(annotation: object) -> str:
    """The name of the items of an iterable, of the annotation of the iterable."""
    found = re.search(r"\[(.*)\]$", str(annotation))
    assert found is not None, annotation
    return found[1]
