"""Endpoints that answer in parts: the responder's side of docs/adr-response-streams.md.

Owns the streams that a service sends: the inbox for their credit, and the generator, the timer and the end of each.
``OutgoingParts`` decides when a part may be sent and when the requester is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from enum import Enum
from math import inf
from time import perf_counter_ns
from typing import Any, TypeAlias, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._handler_threads import with_timeout
from natsproto.middleware import unwrap, with_middleware
from natsproto.protocol.frames import Message, Payload, as_bytes
from natsproto.service._endpoint import Endpoint, Handler, Places, Request, error_from
from natsproto.service._responses import cut_description, error_headers
from natsproto.service._stream_state import (
    ALIVE,
    CANCEL,
    END_HEADER,
    IDLE_HEADER,
    PLAIN_SILENCE_S,
    OutgoingParts,
    Pulse,
    denial,
    number_of,
)

log = logging.getLogger("natsproto")

StreamHandler: TypeAlias = Callable[[Request], AsyncIterator[Payload]]
"""An async generator function."""


class Ended(Enum):
    """The reasons for which a stream ends before its generator does."""

    CANCELLED = "the requester has cancelled it"
    GONE = "the requester is gone"
    SILENT = "the requester was silent for 3 heartbeats"
    UNREAD = "the requester has read none of the parts"
    QUIET = f"no part for {PLAIN_SILENCE_S:g} s, and without flow control nobody knows whether the requester is there"
    LOST = "the connection of the responder was lost"
    DENIED = "the server rejects its parts"
    NO_INBOX = "the server rejects the responder's inbox"


_REPORTED = {
    Ended.SILENT: errors.ServiceError(408, Ended.SILENT.value),
    Ended.UNREAD: errors.ServiceError(408, Ended.UNREAD.value),
    Ended.QUIET: errors.ServiceError(408, Ended.QUIET.value),
    Ended.LOST: errors.ServiceError(503, Ended.LOST.value),
    Ended.NO_INBOX: errors.ServiceError(500, Ended.NO_INBOX.value),
}
"""The errors that the requester gets."""
_CUT_SHORT = errors.ServiceError(500, "the response was cut short")
_ADVICE = {
    Ended.DENIED: "the responder's user needs allow_responses with {max: -1} and an expires longer than the heartbeat",
    Ended.NO_INBOX: "the responder's user needs permission to subscribe to its inboxes (see inbox_prefix)",
}


class CreditInbox:
    """The inbox for the credit of all streams of a service; a ReplyHandler. The token of a stream is random: whoever
    knows it may cancel the stream.
    """

    def __init__(self, connection: Connection) -> None:
        self.prefix = f"{connection.new_inbox()}."
        self.subject = f"{self.prefix}*.*"
        self.streams: dict[str, OutgoingStream] = {}
        """The open streams by token."""
        self.is_open = True
        self.unsubscribe: Callable[[], None] = connection._add_reply_handler(self)

    @property
    def expects_replies(self) -> bool:
        """True while responses wait for credit."""
        return any(stream.waits_for_credit for stream in self.streams.values())

    def on_message(self, message: Message) -> None:
        """Credit, a cancellation, or the server's word that the requester is gone."""
        token, _, number = message.subject[len(self.prefix) :].partition(".")
        stream = self.streams.get(token)
        if stream is None:
            return  # it has ended
        if not message.data and not message.has_headers:
            stream.on_credit(number_of(number))
        elif message.data == ALIVE:
            stream.on_alive()
        elif message.data == CANCEL:
            stream.end(Ended.CANCELLED)
        elif message.is_no_responders:
            stream.end(Ended.GONE)

    def on_replies_handled(self) -> None:
        """All messages of a chunk were passed on."""

    def on_disconnect(self, error: errors.ConnectionLost) -> None:
        """Parts may be lost: no stream continues after that."""
        for stream in self.streams.values():
            stream.end(Ended.LOST, error)

    def on_reconnect(self) -> None:
        """There is a connection again."""

    def on_permission_error(self, error: errors.PermissionDenied) -> None:
        """The server rejects the parts of a stream."""
        for stream in self.streams.values():
            if stream.reply == error.subject:
                stream.end(Ended.DENIED, error)

    def on_end(self, error: errors.NatsError) -> None:
        """The client is closed, or the server rejects the inbox."""
        self.is_open = False
        for stream in self.streams.values():
            if isinstance(error, errors.Unavailable):
                stream.end(Ended.LOST, error)
            elif not stream.is_plain:
                stream.end(Ended.NO_INBOX, error)


class OutgoingStream:
    """One stream that is being sent."""

    def __init__(
        self, connection: Connection, inbox: CreditInbox, request: Request, state: OutgoingParts, places: Places
    ) -> None:
        assert request.reply is not None
        self.reply: str = request.reply
        """The subject of the parts."""
        self.is_open: bool = True
        """True until it has ended, and the requester was sent the end."""
        self.waited_ns: int = 0
        """Nanoseconds of waiting for credit and for the connection."""
        self._connection, self._inbox, self._state, self._places = connection, inbox, state, places
        self._subject = request.subject
        self.is_plain: bool = state.window is None
        """True for a requester that sends no credit."""
        self._token = connection._runtime.new_id()
        self._credit_to = f"{inbox.prefix}{self._token}."
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._ended: Ended | None = None
        self._cause: errors.NatsError | None = None
        self._credit: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits_for_credit(self) -> bool:
        """True while the window of the requester is full."""
        return not self._state.has_room

    # ---------------------------------------------------------------- sending
    async def run(self, parts: AsyncGenerator[Payload]) -> errors.ServiceError | None:
        """Send everything that the generator yields, then the end. Return an error for the statistics.

        Raises the errors of the generator, which the requester gets, too. ``end`` cancels the task, which must be the
        current one, while this runs. When others cancel it, the end is not sent: they know the reason (``is_open``).
        """
        self._inbox.streams[self._token] = self
        self._set_timer()
        try:
            async with aclosing(parts):
                await self._send_all(parts)
        except asyncio.CancelledError:
            if self._ended is None:
                raise
        except Exception as exc:
            if self._ended in (None, *_REPORTED):
                self.send_end(error_from(exc))
            raise
        finally:
            del self._inbox.streams[self._token]
            if self._timer is not None:
                self._timer.cancel()
            if self._ended is not None:
                await self._absorb_cancellation()
        if self._ended is None:
            self.send_end(None)
            return None
        return self._report_end(self._ended)

    async def _send_all(self, parts: AsyncGenerator[Payload]) -> None:
        connection, state, clock = self._connection, self._state, self._loop.time
        outbox, windowed, limit = connection._outbox, state.window is not None, connection.max_payload or inf
        reply, credit_to = self.reply.encode(), self._credit_to.encode()
        async for value in parts:
            part = value
            while type(part) is not bytes or len(part) > limit or not (part or windowed):
                try:
                    part = _checked(part, limit, may_be_empty=windowed)
                except (TypeError, ValueError, errors.PayloadTooLarge) as exc:
                    try:
                        part = await parts.athrow(exc)
                    except StopAsyncIteration:
                        return
            if outbox.must_wait or not state.has_room:
                await self._wait()
            if self._ended is not None:
                return  # the generator has suppressed the cancellation
            now = clock()
            if state.needs_reply(len(part), now):
                connection._outbox.put_encoded(reply, b"%b%d" % (credit_to, state.sent + 1), part)
            else:
                connection._outbox.put_message(self.reply, part, None, None)
            state.on_sent(len(part), now)

    async def _wait(self) -> None:
        """Wait for credit and for room in the outbox."""
        began = perf_counter_ns()
        try:
            if not self._state.has_room:
                await self._wait_for_credit()
            await self._connection._outbox.yield_if_needed()
        finally:
            self.waited_ns += perf_counter_ns() - began

    async def _wait_for_credit(self) -> None:
        """Wait until the requester has consumed enough, without a place, and then for a place."""
        self._places.pause()
        while True:
            self._credit = self._loop.create_future()
            await self._credit
            if self._state.has_room:
                break
        await self._places.resume()

    def on_credit(self, number: int | None) -> None:
        """The requester has consumed the parts up to this number."""
        self._state.on_credit(number, self._loop.time())
        if self._credit is not None and not self._credit.done() and self._state.has_room:
            self._credit.set_result(None)

    def on_alive(self) -> None:
        """The requester is alive and has consumed nothing since its last credit."""
        self._state.on_alive(self._loop.time())

    # ---------------------------------------------------------------- ending

    def end(self, reason: Ended, cause: errors.NatsError | None = None) -> None:
        """End the stream before its generator does, which is cancelled."""
        if self._ended is None:
            self._ended, self._cause, self.is_open = reason, cause, False
            assert self._task is not None
            self._task.cancel()

    async def _absorb_cancellation(self) -> None:
        """Take back the cancellation of ``end``; CancelledError if the task was cancelled by others too."""
        try:
            await asyncio.sleep(0)  # where it is raised if the generator did not wait for anything
        except asyncio.CancelledError:
            pass
        assert self._task is not None
        if self._task.uncancel() > 0:
            raise asyncio.CancelledError

    def _report_end(self, reason: Ended) -> errors.ServiceError | None:
        """Send the requester the reason why the stream has ended, if it can be sent. Raises the error that ended it."""
        error = _REPORTED.get(reason)
        self._connection._event_bus.log.debug(
            "response from %r ended after %d parts: %s", self._subject, self._state.sent, reason.value
        )
        if error is not None:
            self.send_end(error)
        if self._cause is not None and reason in (Ended.DENIED, Ended.NO_INBOX):
            advice = f"{reason.value} ({denial(self._cause)}): {_ADVICE[reason]}"
            raise errors.StreamBroken(self._subject, self._state.sent, advice) from self._cause
        return error

    def send_end(self, error: errors.ServiceError | None) -> None:
        """Send the last frame. In the plain form the error and the end are two messages."""
        self.is_open = False
        text = "" if error is None else cut_description(error.description, self._connection.max_payload)
        headers = {} if error is None else error_headers(error.code, text)
        sent = self._state.sent
        try:
            if self._state.window is not None:
                headers[END_HEADER] = str(sent)
                self._connection._outbox.put_message(self.reply, b"", f"{self._credit_to}{sent}", headers)
                return
            if error is not None:  # with a payload, as an empty message ends the response for any requester
                payload = text.encode() or b"error"
                self._connection._outbox.put_message(self.reply, payload, None, headers)
            self._connection._outbox.put_message(self.reply, b"", None, None)
        except errors.NatsError as exc:
            self._connection._event_bus.log.warning("cannot send the end of a stream to %r: %s", self.reply, exc)

    # ---------------------------------------------------------------- signs of life

    def _set_timer(self) -> None:
        self._timer = self._loop.call_at(self._state.heartbeats.deadline, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        pulse = self._state.heartbeats.on_timer(now)
        if pulse is Pulse.SILENT:
            unheard = Ended.UNREAD if now >= self._state.credit_by else Ended.SILENT
            self.end(Ended.QUIET if self.is_plain else unheard)
            return
        if pulse is Pulse.SEND and not self.is_plain:
            sent = self._state.sent
            try:
                self._connection._outbox.put_message(
                    self.reply, b"", f"{self._credit_to}{sent}", {IDLE_HEADER: str(sent)}
                )
            except errors.NatsError as exc:
                self.end(Ended.LOST, exc)
                return
        self._set_timer()


def _checked(part: object, limit: float, *, may_be_empty: bool) -> bytes:
    """Return the bytes of a part that is not a usual one. TypeError, PayloadTooLarge, ValueError."""
    data = as_bytes(part)
    if not data and not may_be_empty:
        raise ValueError("an empty part would end the response, because the requester asks for no flow control")
    if len(data) > limit:
        raise errors.PayloadTooLarge(len(data), int(limit))
    return data


class StreamEndpoint(Endpoint):
    """An endpoint whose handler is an async generator function."""

    def __init__(
        self,
        connection: Connection,
        *,
        handler: StreamHandler,
        open_inbox: Callable[[], CreditInbox],
        timeout: float | None,
        **settings: Any,
    ) -> None:
        self._generator, middleware = unwrap(handler)
        self._open_inbox = open_inbox
        self._interrupted: dict[Request, OutgoingStream] = {}
        """The streams that were cancelled and whose requester was not sent the end."""
        respond = cast("Handler", with_timeout(self._respond_in_parts, timeout))
        if middleware:
            respond = with_middleware(respond, *middleware)
        super().__init__(connection, handler=respond, **settings)

    async def _respond_in_parts(self, request: Request) -> None:
        connection, reply = self._connection, request.reply
        if reply is None:
            raise errors.LocalProtocolError(
                f"cannot respond to message on {request.subject!r}: it has no reply subject"
            )
        if not connection._reply_guard.is_allowed(reply):
            return
        state = OutgoingParts.requested(reply, request.headers, asyncio.get_running_loop().time())
        stream = OutgoingStream(connection, self._open_inbox(), request, state, self._places)
        try:
            request._note = await stream.run(cast("AsyncGenerator[Payload]", self._generator(request)))
        except asyncio.CancelledError:
            self._interrupted[request] = stream
            raise
        finally:
            self._nanoseconds -= stream.waited_ns
            request._reply = None  # the requester gets the end from the stream

    async def _handle(self, request: Request) -> None:
        try:
            await super()._handle(request)
        finally:
            if request in self._interrupted:  # by a middleware that reports no error
                self._send_error(request, _CUT_SHORT)

    async def _respond_error(self, request: Request, error: errors.ServiceError) -> None:
        if request in self._interrupted:
            self._send_error(request, error)
        else:
            await super()._respond_error(request, error)

    def _send_error(self, request: Request, error: errors.ServiceError) -> None:
        stream = self._interrupted.pop(request, None)
        if stream is None:
            super()._send_error(request, error)
            return
        request._note = error
        if stream.is_open:
            stream.send_end(error)
