"""A request that is answered in parts: the requester's side of docs/adr-response-streams.md.

Owns the inbox of one stream, its timer and its unread frames. ``IncomingParts`` decides what a frame means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from datetime import timedelta
from math import inf
from types import TracebackType
from typing import Generic, Self, TypeVar

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.deadline import Deadline
from natsproto._core.ending import Reader
from natsproto._core.inbox.readers import ReaderTasks
from natsproto._core.instrumentation import Sending
from natsproto._core.notifier import Notifier
from natsproto._durations import positive_seconds
from natsproto._help.async_hints import AsyncForHint
from natsproto.protocol.frames import Message, Payload, as_bytes
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.protocol.subject import publish_subject
from natsproto.service._stream_state import (
    ALIVE,
    CANCEL,
    HEARTBEAT_HEADER,
    MAX_HEARTBEAT_S,
    MIN_HEARTBEAT_S,
    PART_OVERHEAD,
    WINDOW_HEADER,
    Form,
    IncomingParts,
    Pulse,
    StreamStep,
    denial,
)

P = TypeVar("P", covariant=True)


class ResponseStream(AsyncForHint, AsyncIterable[P], Generic[P]):
    """The parts of one response, in order. Created by ``Client.stream``, which documents its errors.

    Read it with ``async for``. With ``async with`` around that, leaving the block cancels the response at once.
    """

    _await_hint = "read the parts of the answer with async for; for a stream of JetStream await js.stream(name)"

    def __init__(
        self,
        connection: Connection,
        subject: str,
        payload: Payload,
        headers: HeadersLike | None,
        window: int | None,
        heartbeat: float | timedelta,
        convert: Callable[[Message], P] | None = None,
    ) -> None:
        publish_subject(subject)
        interval = _check_window_and_heartbeat(window, heartbeat)
        request = subject, as_bytes(payload), _request_headers(headers, window, interval)
        state = IncomingParts(subject, window, interval, asyncio.get_running_loop().time())
        self._stream = IncomingStream(connection, request, state)
        self._convert = convert

    @property
    def received(self) -> int:
        """The number of parts that were read."""
        return self._stream.state.received

    def __repr__(self) -> str:
        return f"ResponseStream({self._stream.request[0]!r}, {self.received} parts)"

    def __aiter__(self) -> AsyncGenerator[P]:
        return self._read()

    async def _read(self) -> AsyncGenerator[P]:
        stream, convert, begins = self._stream, self._convert, self._stream.is_new
        if begins:
            await stream.open()
        task = stream.tasks.enter()
        try:
            while True:
                while (part := stream.next_part()) is not None:
                    yield part if convert is None else convert(part)  # type: ignore[misc]
                if not stream.is_open:
                    break
                await stream.notifier.next_wake()
        finally:
            stream.tasks.leave(task)
            stream.notifier.wake()
            if begins:
                stream.close()
        if (error := stream.last_error()) is not None:
            raise error.with_traceback(None)

    async def __aenter__(self) -> Self:
        await self._stream.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    # ---------------------------------------------------------------- for the blocking client

    async def _next(self, timeout: float | None) -> Message:
        """Wait at most ``timeout`` seconds for the next part: RequestTimeout. SubscriptionClosed after the last one, or
        the error that ended the stream.
        """
        stream, loop = self._stream, asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while (part := stream.next_part()) is None:
            if not stream.is_open:
                raise (
                    stream.last_error() or errors.SubscriptionClosed(stream.request[0], "that was all")
                ).with_traceback(None)
            if deadline is not None and loop.time() >= deadline:
                raise errors.RequestTimeout(f"next part from {stream.request[0]!r}", timeout or 0.0, missing="part")
            await stream.notifier.wait(deadline)
        return part

    def _take_available(self) -> list[Message]:
        """Return the parts that have arrived."""
        return list(iter(self._stream.next_part, None))

    def _track_task(self, task: asyncio.Task[None]) -> Reader:
        """Let a draining client wait for this task, which reads the stream."""
        return self._stream.tasks.track(task)


class IncomingStream:
    """The inbox of one stream: a ReplyHandler, and a MessageHolder for those who drain the client."""

    def __init__(self, connection: Connection, request: tuple[str, bytes, Headers], state: IncomingParts) -> None:
        self.request: tuple[str, bytes, Headers] = request
        """Subject, payload and headers."""
        self.state: IncomingParts = state
        self.subject: str = connection.new_inbox()
        self.what: str = f"the response from {request[0]!r}"
        self.is_new: bool = True
        """True until the request is sent."""
        self.error: errors.NatsError | None = None
        """The error that has ended the stream; the reader gets it after the parts that had come."""
        self.notifier: Notifier = Notifier()
        """Wakes the reader."""
        self._unsubscribe: Callable[[], None] | None = None
        self.tasks: ReaderTasks = ReaderTasks(connection._readers, self)
        self._connection = connection
        self._inbox: deque[Message] = deque()
        self._waiting_bytes = 0
        limit = connection._options.pending_bytes_limit
        # A responder may have sent a window, and one part.
        self._limit = max(limit, 2 * (state.window or 0)) if limit else inf
        self._timer: asyncio.TimerHandle | None = None
        self._sending: Sending | None = None  # set while the stream is open

    @property
    def expects_replies(self) -> bool:
        """True while the reader waits for a part."""
        return self.is_open and bool(self.notifier)

    @property
    def is_open(self) -> bool:
        """True while more parts may come."""
        return self._sending is not None

    def last_error(self) -> errors.NatsError | None:
        """Return the error that has ended the stream, when all parts were read."""
        error = self.error
        if isinstance(error, errors.StreamBroken) and error.received != self.state.received:  # some were waiting then
            self.error = errors.StreamBroken(error.subject, self.state.received, error.reason)
            self.error.__cause__ = error.__cause__
        return self.error

    def next_part(self) -> Message | None:
        """Return the next part that has arrived, or None."""
        inbox, state = self._inbox, self.state
        while inbox:
            frame = inbox.popleft()
            self._waiting_bytes -= len(frame.data) + PART_OVERHEAD
            try:
                step = state.on_frame(frame)
            except errors.NatsError as exc:
                self._finish(exc, cancel=isinstance(exc, errors.StreamBroken))
                inbox.clear()
                return None
            if step is StreamStep.PART:
                if state.uncredited >= state.credit_at:
                    self._send_credit()
                return frame
            if step is StreamStep.END:
                self._finish(None)
                inbox.clear()
            elif step is StreamStep.STRAY and frame.reply:
                self._send(frame.reply, CANCEL)  # two responders: the first one is read
        return None

    # ---------------------------------------------------------------- beginning and ending

    async def open(self) -> None:
        """Send the request."""
        self._connection._check_loop()
        if not self.is_new:
            raise errors.LocalProtocolError("a response can be requested once: call stream() again")
        self.is_new = False
        connection, (subject, payload, headers) = self._connection, self.request
        await connection._outbox.yield_if_needed(Deadline(self.state.patience), f"request to {subject!r}")
        instrumentation = connection._instrumentation
        if instrumentation is None:
            sending = Sending(headers)
        else:
            sending = instrumentation.sending("request", subject, payload, headers)
        try:
            self._unsubscribe = connection._add_reply_handler(self)
            try:
                connection._outbox.put_message(subject, payload, self.subject, sending.headers)
            except BaseException:
                self._unsubscribe()
                raise
        except BaseException as exc:
            sending.end(exc)
            raise
        self._sending = sending
        self._set_timer()

    def close(self) -> None:
        """End the stream because nobody reads it any more."""
        self._connection._check_loop()
        self._finish(None, cancel=True)
        self._inbox.clear()

    def _finish(self, error: errors.NatsError | None, *, cancel: bool = False) -> None:
        """End the stream. The reader gets what has arrived, then the error."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        self.error = error
        if self._timer is not None:
            if cancel and (reply := self.state.reply_for_control(self._inbox)):
                self._send(reply, CANCEL)
            self._release()
        sending.end(error)
        self.notifier.wake()

    def _release(self) -> None:
        """End the subscription and the timer: no more frames will come. The reader gets those that have come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unsubscribe is not None:
            self._unsubscribe()

    # ---------------------------------------------------------------- credit and signs of life

    def _send_credit(self) -> None:
        if reply := self.state.reply_for_credit():
            self._send(reply, b"")
            self.state.on_credit_sent(asyncio.get_running_loop().time())

    def _send(self, reply: str, payload: bytes) -> None:
        connection = self._connection
        if not connection._reply_guard.is_allowed(reply):
            self._finish(self.state.broken("the responder has sent a reply subject that is not allowed"))
            return
        try:
            connection._outbox.put_message(reply, payload, None if payload == CANCEL else self.subject, None)
        except errors.NatsError as exc:
            self._finish(exc)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self.state.heartbeats.deadline, self._on_timer)

    def _on_timer(self) -> None:
        pulse = self.state.heartbeats.on_timer(asyncio.get_running_loop().time())
        if pulse is Pulse.SILENT:
            self._finish(self.state.silence(), cancel=True)
            return
        if pulse is Pulse.SEND and (reply := self.state.reply_for_control(self._inbox)):
            self._send(reply, ALIVE)
        if self._timer is not None:
            self._set_timer()

    # ---------------------------------------------------------------- callbacks of the connection

    def on_message(self, message: Message) -> None:
        """Keep a frame for the reader. The stream ends if more wait than a subscription would keep."""
        size = len(message.data) + PART_OVERHEAD
        if self._waiting_bytes + size > self._limit:
            reason = f"more than {self._limit} bytes (pending_bytes_limit) wait for the reader"
            self._finish(self.state.broken(reason), cancel=True)
            return
        self._waiting_bytes += size
        self._inbox.append(message)

    def on_replies_handled(self) -> None:
        """Frames have arrived."""
        self.state.heartbeats.on_message(asyncio.get_running_loop().time())
        if self._inbox and self._inbox[-1].has_headers:
            self._look_at(self._inbox[-1])
        if self.notifier:
            self.notifier.wake()

    def _look_at(self, last: Message) -> None:
        """React to an end that the reader has not come to yet.

        A responder is gone after its end, too: credit that was under way then is not an error.
        """
        gone = last.is_no_responders
        if gone:
            self._inbox.pop()
        if self.state.has_end(self._inbox if gone else (last,), self._inbox):
            self._release()
        elif gone:
            self._finish(self.state.gone(self._inbox))

    def on_disconnect(self, error: errors.ConnectionLost) -> None:
        """Parts may be lost from now on."""
        self._finish(
            errors.ConnectionLost(f"parts from {self.request[0]!r} may be missing: {error.reason}", error.server)
        )

    def on_reconnect(self) -> None:
        """The connection has moved to another server: parts may come twice, which only numbers show."""
        if self.state.form in (Form.COUNTED, Form.PLAIN):
            self._finish(errors.ConnectionLost("the client has moved to another server"), cancel=True)

    def on_permission_error(self, error: errors.PermissionDenied) -> None:
        """The server rejects the request or the credit."""
        if error.subject == self.request[0]:
            self._finish(error)
        elif self.state.is_credit(error.subject):
            denied = self.state.broken(
                f"{denial(error)}: to send credit the user needs allow_responses with {{max: -1}}, or permission to "
                "publish to the inboxes of the responder; window=None does without"
            )
            denied.__cause__ = error
            self._finish(denied)

    def on_end(self, error: errors.NatsError) -> None:
        """The client is closed, or the server rejects the inbox."""
        self._finish(error)

    # ---------------------------------------------------------------- callbacks of a drain

    @property
    def buffer(self) -> Self:
        """The frames that wait to be read."""
        return self

    @property
    def waiting(self) -> int:
        """Their number."""
        return len(self._inbox)

    def _end(self) -> None:
        """The client drains: it waits for the end of the response."""

    def _return_waiting(self) -> None:
        """The drain has reached its deadline."""


def _check_window_and_heartbeat(window: int | None, heartbeat: float | timedelta) -> float:
    """Check the arguments; return the heartbeat in seconds."""
    if window is not None and (type(window) is not int or not 0 < window < 2**50):
        raise errors.ConfigError("window", window, "must be a positive number of bytes, or None for no flow control")
    interval = positive_seconds("heartbeat", heartbeat)
    if not MIN_HEARTBEAT_S <= interval <= MAX_HEARTBEAT_S:
        raise errors.ConfigError(
            "heartbeat", interval, f"must be from {MIN_HEARTBEAT_S:g} to {MAX_HEARTBEAT_S:g} seconds"
        )
    return interval


def _request_headers(headers: HeadersLike | None, window: int | None, interval: float) -> Headers:
    given = Headers(headers or ())
    for name in (WINDOW_HEADER, HEARTBEAT_HEADER):
        if name in given:
            raise errors.ConfigError("headers", name, "is sent by stream() itself: use window and heartbeat")
    if window is None:
        return given
    own = (WINDOW_HEADER, str(window)), (HEARTBEAT_HEADER, str(round(interval * 1000)))
    return Headers([*given.pairs(), *own])
