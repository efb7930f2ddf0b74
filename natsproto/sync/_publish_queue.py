"""Messages on their way from any thread to the event loop.

Owns the messages that were published and not handed to the event loop yet. A trip to the loop and back costs 50 to
300 µs, so publishing does not wait for each message: it checks what can be checked, appends the message here, and the
loop takes all messages at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from natsproto import errors
from natsproto._core.deadline import CONGESTED, Deadline
from natsproto._core.notifier import release
from natsproto._durations import NO_LIMIT_S
from natsproto.sync._portal import Portal

T = TypeVar("T")

MAX_QUEUED_MSGS = 4096
"""Messages that the queue holds before publishing waits."""

MIN_SIZE_TO_WAIT = 16 * 1024
"""Payload size from which publishing waits for the event loop, which bounds the queue to 64 MiB."""


class PublishQueue(Generic[T]):
    """Messages that ``send`` publishes one by one. ``put`` is for all threads, the rest runs on the event loop."""

    def __init__(self, portal: Portal, send: Callable[[T], Awaitable[object]], timeout: float | None = None) -> None:
        self._portal, self._timeout = portal, timeout
        self._send = send
        self._items: deque[T] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._posted = False
        self._sent = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # by the number sent that each waits for
        self._errors: deque[Exception] = deque()

    @property
    def busy(self) -> bool:
        """True when there are messages that were not sent."""
        return bool(self._items) or self._sender is not None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int) -> None:
        """Append a message with a payload of ``size`` bytes. Raises the errors of earlier messages instead, if any, and
        RequestTimeout when a full queue is not sent within ``timeout`` seconds (None: no limit).
        """
        self.raise_errors()
        if len(self._items) >= MAX_QUEUED_MSGS and not self._portal.call(self.wait_sent, self._timeout):
            assert self._timeout is not None
            raise unsent(self._timeout)
        self._items.append(item)
        if not self._posted:
            self._posted = True
            self._portal.post(self._start)
        if size >= MIN_SIZE_TO_WAIT:
            self._portal.call(self.wait_sent)

    @property
    def being_sent(self) -> list[T]:
        """The message that is being sent, if any."""
        return [] if self._sender is None else [self._items[0]]

    def take_back(self) -> list[T]:
        """Remove the messages that are not being sent, and return them."""
        taken = [self._items.pop() for _ in range(len(self._items) - len(self.being_sent))]
        return taken[::-1]

    async def join(self, timeout: float | None = None) -> bool:
        """Wait as ``wait_sent`` does, then raise the errors."""
        are_sent = await self.wait_sent(timeout)
        self.raise_errors()
        return are_sent

    async def wait_sent(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the messages put so far are sent; False if they are not. The next
        ``put`` raises their errors. Those that other threads put meanwhile are not waited for: they may never stop.
        """
        last = self._sent + len(self._items)
        if not self._items:
            return True
        self._start()
        are_sent = asyncio.get_running_loop().create_future()
        self._waiting.append((last, are_sent))
        return await Deadline(NO_LIMIT_S if timeout is None else timeout).wait(are_sent)

    def fail(self, error: Exception) -> None:
        """Store an error for the next call to raise."""
        self._errors.append(error)

    def _start(self) -> None:
        self._posted = False  # first, so that a message appended now is either seen below or posted again
        if self._sender is None and self._items:
            self._sender = asyncio.get_running_loop().create_task(self._send_all(), name="natsproto sync publish")

    async def _send_all(self) -> None:
        items, send = self._items, self._send
        try:
            while items:
                try:
                    await send(items[0])
                finally:
                    items.popleft()  # not before, as len() counts the message that is being sent
                    self._sent += 1
                    while self._waiting and self._waiting[0][0] <= self._sent:
                        release(self._waiting.popleft()[1])
        except Exception as exc:
            self.fail(exc)
        finally:
            self._sender = None
            self._start()

    def raise_errors(self) -> None:
        """Raise the errors of earlier messages, if any."""
        if not self._errors:
            return
        error: Exception | None = None
        while True:
            try:
                error = merge_errors(error, self._errors.popleft())  # only one thread raises each error
            except IndexError:
                break
        if error is not None:
            raise error


def unsent(timeout: float, operation: str = "publish") -> errors.RequestTimeout:
    """Return the error of a call that has waited for messages before it, and has sent nothing."""
    return errors.RequestTimeout(operation, timeout, sent=False, advice=CONGESTED)


def merge_errors(first: Exception | None, then: Exception) -> Exception:
    """Return the first of two errors, or one PublishFailed with the failures of both."""
    if not (isinstance(first, errors.PublishFailed) and isinstance(then, errors.PublishFailed)):
        return then if first is None else first
    both = errors.PublishFailed([*first.failures, *then.failures])
    both.__cause__ = first.__cause__
    return both
