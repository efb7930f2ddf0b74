"""Iterating over the messages of one fetch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from threading import get_ident

from natsproto.jetstream._consumer.message import JsMessage


class FetchIterator(AsyncIterator[JsMessage]):
    """Iterates over the messages of a fetch. Not a generator, which would be closed too late.

    ``ready`` are its arrived messages, ``next_message`` returns the next one or None, and ``end`` ends the pull.
    """

    def __init__(
        self,
        ready: deque[JsMessage],
        next_message: Callable[[], Awaitable[JsMessage | None]],
        end: Callable[[], None],
    ) -> None:
        self._ready, self._next_message, self._end = ready, next_message, end
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()

    async def __anext__(self) -> JsMessage:
        if self._ready:  # the usual case, without another coroutine
            return self._ready.popleft()
        try:
            message = await self._next_message()
        except BaseException:
            self._end()  # now, not in __del__: a kept reference to a cancelled task keeps this alive
            raise
        if message is None:
            self._end()
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """End it, for contextlib.aclosing()."""
        self._end()

    def __del__(self) -> None:
        if self._loop.is_closed():
            return
        if self._thread == get_ident():
            self._end()
        else:  # collected in some other thread
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end)
