"""Requests in flight: one wildcard inbox for all of them, a token each.

Owns the futures of pending requests and their deadlines. One timer serves all deadlines: a timer a request
would cost more than the request (asyncio.timeout() 4.5 µs, wait_for 12 µs against 9 µs for the rest).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from natsproto.errors import NatsError, NoResponders, RequestTimeout
from natsproto.protocol.frames import Message


class PendingRequest:
    """One request that waits for its reply."""

    __slots__ = ("future", "reply", "subject", "timeout", "token")

    def __init__(
        self, future: asyncio.Future[Message], subject: str, token: bytes, reply: bytes, timeout: float
    ) -> None:
        self.future, self.subject, self.token, self.reply, self.timeout = future, subject, token, reply, timeout


class RequestMux:
    """Matches replies to requests.

    ``prefix`` is the inbox without its last token, with the final dot. ``deliver`` and ``answer`` are the sink of
    the subscription on ``prefix + "*"``. Late replies, and those of cancelled requests, are dropped.
    """

    def __init__(self, prefix: str, loop: asyncio.AbstractEventLoop) -> None:
        self.subject = prefix + "*"
        self._prefix = prefix.encode()
        self._skip = len(prefix)
        self._loop = loop
        self._pending: dict[bytes, PendingRequest] = {}
        self._count = 0
        self._deadlines: list[tuple[float, bytes]] = []
        self._timer: asyncio.Handle | None = None
        self._due = 0.0  # when the timer fires; uvloop's handles do not tell when that is less than 0.5 ms away

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, subject: str, timeout: float) -> PendingRequest:
        """Registers a request; its reply subject is ``reply``. Await the future, then forget it."""
        self._count += 1
        token = b"%d" % self._count
        request = PendingRequest(self._loop.create_future(), subject, token, self._prefix + token, timeout)
        self._pending[token] = request
        self._watch(self._loop.time() + timeout, token)
        return request

    def forget(self, request: PendingRequest) -> None:
        """The caller no longer waits."""
        self._pending.pop(request.token, None)

    def deliver(self, message: Message) -> None:
        """A reply came."""
        token = message.subject[self._skip :].encode("utf-8", "surrogateescape")
        request = self._pending.pop(token, None)
        if request is None or request.future.done():
            return
        if not message.data and message.is_no_responders:
            request.future.set_exception(NoResponders(request.subject))
        else:
            request.future.set_result(message)

    def answer(self, token: bytes, payload: bytes) -> None:
        """A reply came that is nothing but a payload."""
        request = self._pending.pop(token, None)
        if request is not None and not request.future.done():
            request.future.set_result(Message(request.reply.decode(), None, payload, None))

    def fail(self, make_error: Callable[[str], NatsError], subject: str | None = None) -> int:
        """Ends every pending request, or those to or with a reply on one subject, with an error; returns how many."""
        reply = None if subject is None else subject.encode("utf-8", "surrogateescape")
        failed = [r for r in self._pending.values() if subject is None or r.subject == subject or r.reply == reply]
        for request in failed:
            del self._pending[request.token]
            if not request.future.done():
                request.future.set_exception(make_error(request.subject))
        return len(failed)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadlines.clear()

    def _watch(self, deadline: float, token: bytes) -> None:
        deadlines = self._deadlines
        if len(deadlines) > 64 and len(deadlines) > 4 * len(self._pending):
            # Answered requests leave their deadlines behind; without this they would stay until they pass.
            pending = self._pending
            deadlines[:] = [entry for entry in deadlines if entry[1] in pending]
            heapify(deadlines)
        heappush(deadlines, (deadline, token))
        if self._timer is None or deadline < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = self._loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadlines = self._deadlines
        while deadlines:
            deadline, token = deadlines[0]
            request = self._pending.get(token)
            if request is not None and deadline > now:
                self._timer, self._due = self._loop.call_at(deadline, self._expire), deadline
                return
            heappop(deadlines)
            if request is not None:
                del self._pending[token]
                if not request.future.done():
                    request.future.set_exception(RequestTimeout(f"request to {request.subject!r}", request.timeout))
