"""Pending replies, which requests wait for: one wildcard inbox and one timer for all, a token and a deadline for each.

A token is a number and RANDOM_BITS random bits. Numbers alone could be predicted: whoever had seen one reply subject,
and may publish to inboxes, could answer all requests that follow before they are sent.

``PendingReplies`` keeps them for any kind of waiter: the future of a request here, the message of a publish window in
JetStream. ``RequestMux`` keeps the requests of a client; cancelling the future gives a request up. A request is a
future and a tuple: an object, a coroutine and a heap entry for each took a quarter of the time of a request. A timer
for each would cost more than the request (asyncio.timeout() 4.5 µs, wait_for 12 µs, against 9 µs for the rest).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from natsproto import errors
from natsproto._core.notifier import running_loop, wrong_loop_error
from natsproto._core.replies.held_requests import HeldRequests, MessageQueue
from natsproto._core.replies.outages import Outages
from natsproto._core.socket.wire import RANDOM_BITS
from natsproto.protocol.commands import ControlLines
from natsproto.protocol.frames import Message

P = TypeVar("P")

_CLEANUP_THRESHOLD = 256  # entries above which cancelled ones are removed

MAX_FURTHER_REPLIES, MAX_FURTHER_REPLY_BYTES = 64, 4096
"""Replies to settled requests that are kept for ``further_reply``, and the largest size of one."""


class PendingReplies(Generic[P]):
    """Pending replies by the token that ends their reply subject, which is never reused.

    ``prefix`` is the inbox without its last token, with the final dot. To add one, the owner increments ``count``, puts
    ``str(count << RANDOM_BITS | random_bits())`` into ``pending``, and calls ``set_next_deadline`` if it is due before
    ``next_deadline``. A call of a method for that would take 3 % of the time of a message.
    ``deadline_of`` returns the deadline of an entry. ``on_due`` is called with the tokens that are due, and calls
    ``postpone`` to wait longer.
    """

    __slots__ = (
        *("_deadline_of", "_deadlines", "_last_sorted", "_on_due", "_timer", "_timer_at"),
        *("count", "next_deadline", "pending", "prefix", "random_bits", "subject"),
    )

    def __init__(
        self,
        prefix: str,
        deadline_of: Callable[[P], float],
        on_due: Callable[[list[str], float], None],
        random_bits: Callable[[], int],
    ) -> None:
        self.subject = prefix + "*"
        """The wildcard to subscribe to."""
        self.prefix = prefix.encode()
        self.pending: dict[str, P] = {}
        """In the order of the tokens."""
        self.count = 0
        """The number of the last token."""
        self.random_bits = random_bits
        self.next_deadline = inf
        """Deadline of the first reply that was added since the timer fired."""
        self._deadline_of, self._on_due = deadline_of, on_due
        self._deadlines: list[tuple[float, str]] = []  # of the replies that were pending when the timer last fired
        self._last_sorted = 0  # the number of the last token then
        self._timer: asyncio.Handle | None = None
        self._timer_at = inf  # uvloop's handles do not tell a time less than 0.5 ms away

    def set_next_deadline(self, due: float) -> None:
        """The reply added last is due before all other new ones."""
        self.next_deadline = due
        self._fire_at(due)

    def postpone(self, token: str, due: float) -> None:
        """Wait longer for a reply that was due."""
        heappush(self._deadlines, (due, token))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf
        self._deadlines.clear()

    def _fire_at(self, due: float) -> None:
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = asyncio.get_running_loop().call_at(due, self._fire), due

    def _fire(self) -> None:
        self._timer, self._timer_at = None, inf
        now = asyncio.get_running_loop().time()
        if self.next_deadline <= now:
            self._sort_deadlines()
        pending, deadlines = self.pending, self._deadlines
        due: list[str] = []
        while deadlines and (deadlines[0][0] <= now or deadlines[0][1] not in pending):
            _, token = heappop(deadlines)
            if token in pending:
                due.append(token)
        if due:
            self._on_due(due, now)
        following = min(self.next_deadline, deadlines[0][0] if deadlines else inf)
        if following < inf:
            self._fire_at(following)

    def _sort_deadlines(self) -> None:
        """Put the deadlines of new replies into the heap. Nearly all of them have been answered by then, so this waits
        until the first of them is due.
        """
        pending, deadlines = self.pending, self._deadlines
        for token in reversed(pending):
            if number_of(token) <= self._last_sorted:
                break
            heappush(deadlines, (self._deadline_of(pending[token]), token))
        self._last_sorted, self.next_deadline = self.count, inf
        if len(deadlines) > max(_CLEANUP_THRESHOLD, 4 * len(pending)):
            deadlines[:] = [entry for entry in deadlines if entry[1] in pending]
            heapify(deadlines)


def number_of(token: str) -> int:
    """Return the number in a token of PendingReplies."""
    return int(token) >> RANDOM_BITS


class Resending(NamedTuple):
    """When a request is sent again until any of its copies gets a reply."""

    interval: float
    """Seconds without a reply."""
    survives_loss: bool = False
    """It is sent again over the next connection when one is lost, instead of ConnectionLost."""
    may_resend: Callable[[], bool] | None = None
    """Says each time whether it may be sent again; None: always."""


AFTER_LOSS = Resending(inf, survives_loss=True)
"""For reads, which are safe to repeat."""
READ_AGAIN = Resending(1.0, survives_loss=True)
"""For reads that several servers answer: one that dies or stands still drops them."""


class _Copy(NamedTuple):
    """The message of a request that may be sent again."""

    control: bytes
    payload: bytes
    deadline: float
    context: Context
    """That of the caller, which may be a cleanup."""
    resending: Resending


_Request = tuple[asyncio.Future[Message], str, float, float, _Copy | None]
"""Future, subject, timeout in seconds, first deadline, and the message to send again then."""


class RequestMux:
    """The requests of a client.

    ``on_message`` receives the messages of the subscription on ``subject``. Late replies are dropped, except that
    ``further_reply`` waits for one or finds one that has just come. Without a connection, which is what ``connected``
    says of the beginning, requests wait in the ``outbox``; one that is given up there is not sent.
    """

    def __init__(
        self,
        prefix: str,
        loop: asyncio.AbstractEventLoop,
        control_lines: ControlLines,
        outbox: MessageQueue,
        random_bits: Callable[[], int],
        outages: Outages,
        *,
        connected: bool,
    ) -> None:
        self._replies: PendingReplies[_Request] = PendingReplies(prefix, itemgetter(3), self._on_due, random_bits)
        self.subject = self._replies.subject
        self._pending = self._replies.pending
        self._prefix = prefix
        self._skip = len(prefix)
        self._loop = loop
        self._control_lines, self._put = control_lines, outbox.put
        self._outages = outages
        self._held = HeldRequests(prefix, outbox, self._is_pending, active=not connected)
        self._cleanup_at = _CLEANUP_THRESHOLD
        self._further: deque[Message] = deque(maxlen=MAX_FURTHER_REPLIES)
        self._awaiting_further: dict[str, asyncio.Future[Message]] = {}  # by the reply subject

    def __len__(self) -> int:
        """The number of requests that are waited for."""
        return sum(not future.done() for future, *_ in self._pending.values())

    @property
    def expects_replies(self) -> bool:
        """True if a request is waited for."""
        return not all(future.done() for future, *_ in self._pending.values())

    def send_request(
        self,
        subject: str,
        encoded_subject: bytes,
        payload: bytes,
        block: bytes | None,
        timeout: float,
        resending: Resending | None = None,
    ) -> asyncio.Future[Message]:
        """Send a request, and return the future of its reply.

        ``block`` is the encoded headers; they, the subject and the size have been checked. The future ends with the
        reply, NoResponders, RequestTimeout after ``timeout`` seconds, or the error of ``fail``; cancel it to give up.
        Errors of ``put`` are raised, and no request is pending then. The request is sent again as ``resending`` says,
        None: never.
        """
        loop = self._loop
        if running_loop() is not loop:  # ``put`` does not always notice
            raise wrong_loop_error()
        replies, pending = self._replies, self._pending
        replies.count = count = replies.count + 1
        token = str(count << RANDOM_BITS | replies.random_bits())
        control = self._control_lines.message_line(
            encoded_subject, replies.prefix + token.encode(), block, len(payload)
        )
        future: asyncio.Future[Message] = loop.create_future()
        due = loop.time() + timeout
        copy = None
        if resending is not None:
            is_resent = resending.interval < timeout
            if is_resent or resending.survives_loss:
                copy = _Copy(control, payload, due, copy_context(), resending)
            if is_resent:
                due += resending.interval - timeout
        pending[token] = future, subject, timeout, due, copy
        if due < replies.next_deadline:
            replies.set_next_deadline(due)
        if len(pending) > self._cleanup_at:
            self._remove_cancelled()
        try:
            self._put(control, payload)
        except errors.ConnectionClosed as exc:
            pending.pop(token, None)
            raise errors.ConnectionClosed("request", exc.reason) from exc.reason
        except BaseException:
            pending.pop(token, None)
            raise
        if self._held.active:
            self._held.add(token, future)
        return future

    def on_message(self, message: Message) -> None:
        """A reply came."""
        try:
            future, subject, *_ = self._pending.pop(message.subject[self._skip :])
            if not message.data and message.is_no_responders:
                future.set_exception(errors.NoResponders(subject))
            else:
                future.set_result(message)
        except KeyError:  # checking first would slow down every other reply
            self._on_further_reply(message)
        except asyncio.InvalidStateError:
            pass  # given up

    def _on_further_reply(self, message: Message) -> None:
        future = self._awaiting_further.pop(message.subject, None)
        if future is not None:
            if not future.done():
                future.set_result(message)
        elif message.size <= MAX_FURTHER_REPLY_BYTES:
            self._further.append(message)

    async def further_reply(self, first: Message, timeout: float) -> Message | None:
        """Wait up to ``timeout`` seconds for another reply to the request that got ``first``: two servers reply where
        both are leaders of a stream. None when there is none. Cancelling ends the wait.
        """
        subject = first.subject
        for message in self._further:
            if message.subject == subject:
                self._further.remove(message)
                return message
        future: asyncio.Future[Message] = self._loop.create_future()
        self._awaiting_further[subject] = future
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            return None
        finally:
            self._awaiting_further.pop(subject, None)

    def fail(self, make_error: Callable[[str], errors.NatsError], subject: str | None = None) -> int:
        """Fail all pending requests, or those to (or with a reply on) one subject; return their number."""
        pending = self._pending
        asked = subject[self._skip :] if subject is not None and subject.startswith(self._prefix) else ""
        return self._fail(
            [token for token, (_, to, *_) in pending.items() if subject is None or to == subject or token == asked],
            make_error,
        )

    def _fail(self, tokens: Iterable[str], make_error: Callable[[str], errors.NatsError]) -> int:
        failed = 0
        for token in tokens:
            future, to, *_ = self._pending.pop(token)
            if not future.done():
                future.set_exception(make_error(to))
                failed += 1
        return failed

    def on_disconnect(self, make_error: Callable[[str], errors.NatsError] | None) -> None:
        """The connection was lost: fail the requests that were sent, unless ``make_error`` is None. The others wait,
        and those that may be repeated.
        """
        now = self._loop.time()
        for token in self._held.on_disconnect():
            request = self._pending.get(token)
            if request is not None and (request[4] is None or now < request[3]):  # else it may be a further copy
                self._held.add(token, request[0])
        failed: list[str] = []
        for token, (future, *_, copy) in self._pending.items():
            if token in self._held or future.done():
                continue
            if copy is None or not copy.resending.survives_loss or not self._put_again(copy):
                failed.append(token)
        if make_error is not None:
            self._fail(failed, make_error)

    def _put_again(self, copy: _Copy) -> bool:
        """Send a request again; False if there is no room, or the client closes."""
        try:
            copy.context.run(self._put, copy.control, copy.payload)
        except (errors.OutboxFull, errors.ConnectionClosed):
            return False
        return True

    def on_connect(self) -> None:
        """There is a connection, which is about to get the waiting messages."""
        self._held.on_connect()

    def _is_pending(self, token: str) -> bool:
        request = self._pending.get(token)
        return request is not None and not request[0].done()

    def close(self) -> None:
        """Stop the timer."""
        self._replies.close()

    def _remove_cancelled(self) -> None:
        """Remove requests that were cancelled."""
        pending = self._pending
        for token in [token for token, (future, *_) in pending.items() if future.done()]:
            del pending[token]
        self._cleanup_at = max(_CLEANUP_THRESHOLD, 2 * len(pending))

    def _on_due(self, tokens: list[str], now: float) -> None:
        for token in tokens:
            future, subject, timeout, _, copy = self._pending[token]
            if future.done():
                del self._pending[token]
            elif copy is None or copy.deadline <= now:
                del self._pending[token]
                error = self._outages.timeout_error(
                    f"request to {subject!r}",
                    timeout,
                    sent=token not in self._held,
                    advice="look at its responder, or raise timeout=",
                )
                future.set_exception(error)
            else:
                resending = copy.resending
                self._replies.postpone(token, min(now + resending.interval, copy.deadline))
                if token in self._held or self._held.active:
                    continue  # a copy of it waits for the connection
                if resending.may_resend is None or resending.may_resend():
                    self._put_again(copy)  # if it fails: later, when there is room; the closing client fails it
        self._cleanup_at = max(_CLEANUP_THRESHOLD, min(self._cleanup_at, 2 * len(self._pending)))
