"""Fetch: a bounded number of messages, awaited for a list or iterated as they come.

Owns what has come and was not read. Where it comes from is a Feed's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from threading import get_ident
from typing import Any

from natsproto._async_hints import AsyncIterated, Awaited
from natsproto.errors import NatsError
from natsproto.jetstream._consumer.reader import Feed
from natsproto.jetstream._message import JsMessage


class Fetch(Awaited, AsyncIterated, Coroutine[object, None, list[JsMessage]]):
    """One pull of a bounded number of messages: await it for a list, or iterate it to have them as they come.

    Cancelling the wait, or leaving the iteration early, ends it and loses nothing: what had come, and what comes late,
    is what the next reader of the same consumer handle gets first.

    ``begin`` gives what is there already and the feed for the rest, if any; ``put_back`` takes what was not read.
    """

    _forgotten = "fetch(...) was never awaited or entered with async for"
    _iterate_with = "await it for a list, or use async for"
    _begin_with = "await it, or iterate it with async for"

    def __init__(
        self,
        begin: Callable[[], tuple[list[JsMessage], Feed | None]],
        put_back: Callable[[list[JsMessage]], None],
    ) -> None:
        self._begin, self._put_back = begin, put_back
        self._got: list[JsMessage] = []
        self._ready: deque[JsMessage] = deque()
        self._started = self._over = self._streaming = False
        self._error: NatsError | None = None
        self._feed: Feed | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._running: Coroutine[object, None, list[JsMessage]] | None = None
        self._begun = False

    def __await__(self) -> Generator[object, None, list[JsMessage]]:
        self._begun = True
        return self._all().__await__()

    # As a coroutine, for create_task() and what else insists on one.

    def send(self, value: None) -> object:
        """Runs it up to where it waits; what an event loop does."""
        return self._coroutine().send(value)

    def throw(self, *exception: Any) -> object:
        """Raises in it; what an event loop does to cancel."""
        return self._coroutine().throw(*exception)

    def close(self) -> None:
        """Ends it before it has."""
        self._begun = True
        if self._running is not None:
            self._running.close()

    def _coroutine(self) -> Coroutine[object, None, list[JsMessage]]:
        self._begun = True
        if self._running is None:
            self._running = self._all()
        return self._running

    async def _all(self) -> list[JsMessage]:
        try:
            self._start()
            if not self._over:
                await self._wait()
            if self._error is not None and not self._got:
                raise self._error
            got, self._got = self._got, []
            return got
        finally:
            self.leave()

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        self._begun = True
        return FetchIterator(self, self._ready)

    async def next_message(self) -> JsMessage | None:
        """The next message as it comes; None when it was the last. Raises what ended it when nothing came."""
        self._streaming = True
        self._start()
        ready = self._ready
        while not ready:
            if self._got:
                ready += self._got
                self._got.clear()
            elif self._over:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                return None
            else:
                await self._wait()
        return ready.popleft()

    def _start(self) -> None:
        if self._started:  # awaited or iterated again: there is nothing more
            return
        self._started = True
        self._got, self._feed = self._begin()
        if self._feed is None:
            self._over = True
        else:
            self._feed.start(self)

    def put(self, messages: list[JsMessage]) -> None:
        """These came."""
        self._got += messages
        if self._streaming:
            self._wake()

    def drop_unknown(self, last_known: int) -> list[JsMessage]:
        """Nothing: what has come is handed over."""
        return []

    def end(self, error: NatsError | None) -> None:
        """Nothing more comes."""
        self._over, self._error = True, error
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def put_back(self, messages: list[JsMessage]) -> None:
        """These were given out and not dealt with: they, too, are for the next reader. For layers on top."""
        self._begun = True
        self._put_back(messages)

    def leave(self) -> None:
        """Ends it; what has come and was not read is for the next reader."""
        if self._feed is not None:
            self._feed.close()
        self._over = True
        left = [*self._ready, *self._got]
        self._ready.clear()
        self._got.clear()
        if left:
            self._put_back(left)


class FetchIterator(AsyncIterator[JsMessage]):
    """The messages of a Fetch. No generator, as a loop that is left would end that in a later turn of the event loop,
    when the next reader has begun already.
    """

    def __init__(self, fetch: Fetch, ready: deque[JsMessage]) -> None:
        """``ready`` are those of its messages that are here."""
        self._fetch, self._ready = fetch, ready
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()

    async def __anext__(self) -> JsMessage:
        if self._ready:  # as nearly always, without another coroutine
            return self._ready.popleft()
        try:
            message = await self._fetch.next_message()
        except BaseException:
            self._fetch.leave()  # not when this is collected: a cancelled task that somebody keeps holds its frames
            raise
        if message is None:
            self._fetch.leave()
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """Ends it, for contextlib.aclosing()."""
        self._fetch.leave()

    def __del__(self) -> None:
        if self._loop.is_closed():
            return
        if self._thread == get_ident():
            self._fetch.leave()
        else:  # collected in some other thread
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._fetch.leave)
