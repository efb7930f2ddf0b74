"""Getting many stored messages (ADR-31).

Owns the inbox of such a get, and the PageCursor with its next request. It does not know the configuration of the
stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import cast

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto._core.events import Closed, Disconnected, Event, Moved, PermissionViolation
from natsproto._durations import positive_seconds
from natsproto._help.async_hints import AsyncForHint
from natsproto.jetstream._api.requests import LEAST_TIMEOUT_S, Api, raise_closed
from natsproto.jetstream._api.retry import TIMER_SLACK_S
from natsproto.jetstream._stream.direct_get import (
    DirectReply,
    RawMessage,
    StreamLeader,
    check_start_time,
    status_error,
)
from natsproto.jetstream._values.codec import Duration, dumps
from natsproto.jetstream._values.features import LAST_MESSAGES, START_TIME
from natsproto.jetstream._values.info import StreamInfo

MAX_PAGE_MESSAGES = 4096
"""Messages in one request; the next page is requested while one is read."""
MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.1, 1.0
"""Seconds before a stream without a leader is asked again."""
MAX_PAGE_BYTES = 8 * 2**20
"""Bytes in one request: the client holds two pages at most, too little to be a slow consumer for the server."""


class PageCursor:
    """PURE. The progress of a get of many messages, and its next request.

    ``body`` is common to all requests. The replies to a request are messages in the order of their sequences, each with
    the sequence of the previous one; the last reply has the number of remaining messages.
    """

    def __init__(
        self,
        body: Mapping[str, object],
        first: Mapping[str, object],
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._body, self._first = body, first
        self._limit, self._max_bytes = limit, max_bytes
        self._before = 0  # sequence of the previous message, in this request
        self.seq = 0
        """Sequence of the last message; 0 before the first."""
        self.pending = 0
        """Messages remaining at the end of the last page."""
        self.up_to = 0
        """The sequence as of which a server returned last messages: its last, or the requested one; 0: none did."""

    @property
    def counts_bytes(self) -> bool:
        """True if it counts bytes."""
        return self._max_bytes is not None

    @property
    def done(self) -> bool:
        """True if all requested messages were received."""
        return self._limit == 0 or (self._max_bytes is not None and self._max_bytes <= 0)

    def request(self) -> dict[str, object]:
        """Return the next request. Replies to earlier requests must be ignored from now on."""
        self._before = 0
        wanted: dict[str, object] = {**self._body}
        wanted |= {"seq": self.seq + 1} if self.seq else self._first
        if self.up_to:
            wanted["up_to_seq"] = self.up_to
            wanted.pop("up_to_time", None)
        wanted["batch"] = MAX_PAGE_MESSAGES if self._limit is None else min(MAX_PAGE_MESSAGES, self._limit)
        wanted["max_bytes"] = MAX_PAGE_BYTES if self._max_bytes is None else min(MAX_PAGE_BYTES, self._max_bytes)
        return wanted

    @property
    def subject(self) -> object:
        """The subject of the messages; ">" for all."""
        return self._body.get("next_by_subj", ">")

    def single_request(self) -> dict[str, object]:
        """Return the next request for a single message."""
        wanted: dict[str, object] = {"next_by_subj": self.subject}
        return wanted | ({"seq": self.seq + 1} if self.seq else dict(self._first))

    def take(self, seq: int, before: int, size: int) -> bool:
        """Record a message. False if it does not follow the last one: messages between them were lost."""
        if before != self._before:
            return False
        self.advance(seq, size)
        self._before = seq
        return True

    def advance(self, seq: int, size: int) -> None:
        """Record a message without checking its position."""
        self.seq = seq
        if self._limit is not None:
            self._limit -= 1
        if self._max_bytes is not None:
            self._max_bytes -= size

    def end_of_page(self, pending: int, last: int, up_to: int) -> bool:
        """End a page. True if another request is needed: for the next page, or for messages of this one that were
        lost.
        """
        self.up_to = up_to
        if last != self._before:
            return True
        self.pending = pending
        return pending > 0 and not self.done


class StoredMessages(AsyncForHint):
    """Many stored messages, in the order of the stream: ``async for`` yields one at a time, ``batches()`` lists.

    Created by ``Stream.get_batch`` and ``get_last_messages``. Sends nothing before it is read, and can be read once;
    leaving the loop early ends it.
    """

    def __init__(self, source: AsyncGenerator[list[RawMessage]], operation: str) -> None:
        self._source, self._operation = source, operation
        self._read = False

    def __repr__(self) -> str:
        return f"StoredMessages({self._operation!r})"

    def __aiter__(self) -> AsyncIterator[RawMessage]:
        return self._each()

    async def _each(self) -> AsyncGenerator[RawMessage]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield the messages that have arrived as lists. Raises the errors of the call that returned this object.

        LocalProtocolError when it was read before. Cancelling ends it.
        """
        if self._read:
            raise errors.LocalProtocolError(f"{self._operation}: read before; request it again")
        self._read = True
        return self._source


class BatchGet:
    """One get of many messages: an inbox of its own, and the requests that its cursor asks for.

    Messages that a broken connection lost on the way are asked for again.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        cursor: PageCursor,
        *,
        leader: StreamLeader,
        can_get_single: bool,
        direct: bool,
        operation: str,
        timeout: Duration | None,
        since: datetime | None = None,
    ) -> None:
        """``leader`` confirms the end.

        ``can_get_single``: fall back to getting one message at a time without direct get. ``direct``: start with
        direct get. ``since``: the start time that the cursor requests.
        """
        self._since, self._leader = since, leader
        self._api, self._stream, self._cursor = api, stream, cursor
        self._can_get_single, self._direct, self._operation = can_get_single, direct, operation
        self._timeout = positive_seconds("timeout", api.timeout if timeout is None else timeout)
        self._subject = f"{api.prefix}.DIRECT.GET.{stream}"
        self._reply = ""  # where the page in progress comes in; "" when none does
        self._needs_page = True  # whether the next page is to be asked for
        self._is_unconfirmed = False  # a server has no further message; the leader may have
        self._newest: int | None = None  # the leader's, once a server had less than it; the end
        self._refused: errors.PermissionDenied | None = None
        self.pages = 0
        """Pages requested so far."""

    @property
    def up_to(self) -> int:
        """See PageCursor."""
        return self._cursor.up_to

    async def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield lists of the messages that have arrived.

        RequestTimeout when nothing came for ``timeout`` seconds; BadRequest, LimitReached, StreamNotFound,
        PermissionDenied, ConnectionClosed; UnsupportedByServer when the stream or its server cannot do it.
        Cancelling ends it.
        """
        if not self._can_get_single:
            await self._api.require_feature(LAST_MESSAGES, self._operation, self._timeout)
        if self._since is not None:
            await self._api.require_feature(START_TIME, self._operation, self._timeout)
        deadline, backoff = Deadline(self._timeout), Backoff(MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S)
        is_answered = True
        while True:
            if self._direct:
                try:
                    async with aclosing(self._pages()) as pages:
                        async for batch in pages:
                            yield batch
                    return
                except _NoDirectGet as exc:
                    is_answered = exc.is_answered  # the leader says whether the stream cannot do it, or is gone
            if self._can_get_single:
                break
            await self._check_allowed(deadline, is_answered)
            self._needs_page = True
            if not await backoff.pause(deadline):
                raise errors.RequestTimeout(f"{self._operation}, which has no leader", self._timeout)
        async for message in self._single_gets():
            yield [message]

    async def _check_allowed(self, deadline: Deadline, is_answered: bool) -> None:
        """Raise UnsupportedByServer unless the stream allows direct gets and nobody has answered: an election."""
        endpoint, left = f"STREAM.INFO.{self._stream}", max(deadline.left, LEAST_TIMEOUT_S)
        info = await self._api.call_for(StreamInfo, endpoint, operation=self._operation, timeout=left)
        if is_answered or not info.config.allow_direct:
            reason = "needs a stream with allow_direct, and nats-server 2.11 or newer"
            raise errors.UnsupportedByServer(self._operation, reason)

    async def _single_gets(self) -> AsyncGenerator[RawMessage]:
        while not self._cursor.done:
            message = await self._get_from_leader(self._leader.get)
            if message is None:
                return
            yield message

    async def _confirm_end(self) -> RawMessage | None:
        """Return the next message if the leader has one. PermissionDenied when it may not be asked for one.

        Messages that are stored after the first look at the leader do not postpone the end.
        """
        cursor = self._cursor
        self._is_unconfirmed = False
        if self._newest is not None and cursor.seq >= self._newest:
            return None
        message = await self._get_from_leader(self._leader.find)
        if message is None:
            if self._leader.denied is not None and cursor.pending:
                raise self._leader.denied
            return None
        if self._newest is None:
            newest = await self._ask_leader(self._leader.find, {"last_by_subj": cursor.subject})
            self._newest = 0 if newest is None else newest.seq
        self._needs_page = cursor.seq < self._newest
        return message

    async def _get_from_leader(self, find: Callable[..., Awaitable[RawMessage | None]]) -> RawMessage | None:
        """Get the next message from the stream's leader, which has all messages; None when there is none."""
        message = await self._ask_leader(find, self._cursor.single_request())
        if message is None:
            return None
        if self._since is not None:
            check_start_time(message, self._since, self._operation)
        self._cursor.advance(message.seq, message.size)
        return message

    async def _ask_leader(
        self, find: Callable[..., Awaitable[RawMessage | None]], body: Mapping[str, object]
    ) -> RawMessage | None:
        loop = asyncio.get_running_loop()
        left, deadline = self._timeout, loop.time() + self._timeout
        while True:
            try:
                return await find(body, operation=self._operation, timeout=left)
            except errors.ConnectionLost:  # reading twice is harmless; the next request waits for the next connection
                left = deadline - loop.time()
                if left <= TIMER_SLACK_S:
                    raise

    async def _pages(self) -> AsyncGenerator[list[RawMessage]]:
        connection, cursor = self._api.connection, self._cursor
        inbox = self._api.new_inbox()
        subscription = connection._subscribe(
            f"{inbox}.*",
            pending_msgs_limit=0,
            pending_bytes_limit=0,
            message_type=DirectReply,
            expects_replies=True,
        )  # bounded by the size of a page

        def on_event(event: Event) -> None:
            if isinstance(event, Disconnected | Moved):
                self._needs_page = True
            elif isinstance(event, PermissionViolation) and event.error.subject == self._subject:
                self._refused = event.error
            elif not isinstance(event, Closed):
                return
            subscription._wake_reader()

        async def ask() -> None:
            self.pages += 1
            self._needs_page, self._reply = False, f"{inbox}.{self.pages}"
            await connection._outbox.yield_if_needed(Deadline(self._timeout), self._operation)
            await connection.publish(self._subject, dumps(cursor.request()), reply=self._reply)

        unlisten = connection.add_listener(on_event)
        try:
            while self._reply or (self._needs_page and not cursor.done):
                if self._needs_page:
                    await ask()
                received = cast("list[DirectReply]", await subscription._read_batch(self._timeout))
                if self._refused is not None:
                    raise self._refused
                if not received and not self._needs_page:
                    if subscription.closed:
                        await raise_closed(connection, subscription, self._operation)
                    raise errors.RequestTimeout(self._operation, self._timeout)
                found, status = self._read_page(received)
                if status is not None:
                    self._end_page(status)
                if cursor.done:
                    self._reply = ""
                elif self._needs_page:  # before the messages are handled, so that the next page arrives meanwhile
                    await ask()
                if found:
                    yield found
                if self._is_unconfirmed and (message := await self._confirm_end()) is not None:
                    yield [message]
        finally:
            unlisten()
            await subscription.unsubscribe()

    def _read_page(self, received: list[DirectReply]) -> tuple[list[RawMessage], DirectReply | None]:
        """Return the messages of the current page, in order and without a gap, and the status that ended it."""
        found: list[RawMessage] = []
        take, weigh = self._cursor.take, self._cursor.counts_bytes
        for reply in received:
            if reply.subject != self._reply:
                continue  # of an abandoned page
            parts = reply.parts()
            if parts is None:
                return found, reply
            message, before = parts
            if before is None:
                raise _NoDirectGet  # a server before 2.11 returns one message only
            if not take(message.seq, before, message.size if weigh else 0):
                self._restart_page()
                break
            found.append(message)
        return found, None

    def _restart_page(self) -> None:
        self._reply, self._needs_page = "", True

    def _end_page(self, status: DirectReply) -> None:
        """Decide what follows a page."""
        headers, cursor = status.headers, self._cursor
        self._reply = ""
        if headers._status == 204:
            pending, last, up_to = (
                int(headers.last(f"Nats-{name}", "0")) for name in ("Num-Pending", "Last-Sequence", "UpTo-Sequence")
            )
            self._needs_page = cursor.end_of_page(pending, last, up_to)
            self._is_unconfirmed = self._can_get_single and not self._needs_page and not cursor.done
            return
        if headers._status == 503:
            raise _NoDirectGet(is_answered=False)
        if headers._status == 404 and self._can_get_single:  # a server that lags lacks what the leader has
            self._is_unconfirmed = True
            return
        if headers._status == 404 and "Results" in headers._description:
            return
        if headers._status == 408 and "Empty" in headers._description:
            raise _NoDirectGet  # a server that does not know the fields of this request
        raise status_error(headers._status, headers._description, self._operation)


class _NoDirectGet(Exception):
    """Raised when direct get cannot return many messages."""

    def __init__(self, *, is_answered: bool = True) -> None:
        super().__init__()
        self.is_answered = is_answered
        """False if no server has answered, as in an election."""
