"""A watch of natsproto as a watch of nats-py, where None marks the end of the initial values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from natsproto import NatsError
from natsproto import errors as ours
from natsproto.compat._translate import translate_error
from natsproto.compat.nats import errors

T = TypeVar("T")
MAX_UPDATES = 256


async def begin(watch: Any, timeout: float) -> Any:
    """Enter a watch. TimeoutError when the server does not reply within ``timeout`` seconds, in an outage too."""
    try:
        async with asyncio.timeout(timeout):
            return await watch.__aenter__()
    except TimeoutError as exc:
        raise errors.TimeoutError from exc


class StopIterSentinel:
    """Marks the end of a watch."""


_CLOSED = StopIterSentinel()
"""The client was closed."""


class Watcher(Generic[T]):
    STOP_ITER = StopIterSentinel()

    def __init__(self, watch: Any, read: Callable[[Any], T | None], *, marks: bool) -> None:
        self._watch, self._read = watch, read
        self._updates: asyncio.Queue[T | BaseException | StopIterSentinel | None] = asyncio.Queue(MAX_UPDATES)
        if watch.caught_up and marks:  # the mark of an empty bucket is there at once
            self._updates.put_nowait(None)
            marks = False
        self._task = asyncio.create_task(self._pump(marks))

    async def _pump(self, marks: bool) -> None:
        watch, updates = self._watch, self._updates
        try:
            await watch.ready()
            while not watch.caught_up:
                if (update := self._read(await watch.next())) is not None:
                    await updates.put(update)
            if marks:
                await updates.put(None)
            while True:
                if (update := self._read(await watch.next())) is not None:
                    await updates.put(update)
        except (ours.ConnectionClosed, ours.SubscriptionClosed):
            await updates.put(_CLOSED)
        except NatsError as exc:
            await updates.put(translate_error(exc))

    async def stop(self) -> None:
        """End the watch and drop unread changes."""
        self._task.cancel()
        await self._watch.stop()
        while not self._updates.empty():
            self._updates.get_nowait()
        self._updates.put_nowait(self.STOP_ITER)

    async def updates(self, timeout: float | None = 5.0) -> T | None:
        """Return the next change. TimeoutError when none arrived within ``timeout`` seconds, even if the client was
        closed: loops that take it and go on would otherwise never let others run.
        """
        try:
            async with asyncio.timeout(timeout):
                update = await self._updates.get()
                if update is not _CLOSED:
                    return self._given(update)
                self._updates.put_nowait(update)
                if timeout is not None:
                    await asyncio.Event().wait()
                raise errors.ConnectionClosedError
        except TimeoutError as exc:
            raise errors.TimeoutError from exc

    def __aiter__(self) -> AsyncIterator[T | None]:
        return self

    async def __anext__(self) -> T | None:
        update = await self._updates.get()
        if isinstance(update, StopIterSentinel):
            if update is _CLOSED:
                self._updates.put_nowait(update)
            raise StopAsyncIteration
        return self._given(update)

    def _given(self, update: T | BaseException | StopIterSentinel | None) -> T | None:
        if isinstance(update, BaseException):
            raise update
        return None if isinstance(update, StopIterSentinel) else update
