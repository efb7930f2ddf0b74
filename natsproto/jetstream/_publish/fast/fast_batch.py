"""Fast batches: messages that a stream acknowledges hundreds at a time (ADR-50, nats-server 2.14).

Owns the I/O: the control lines, the inbox, the timers and the waiters. ``fast_batch_state`` decides the next message
and the outcome of each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Unpack

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.deadline import Deadline
from natsproto._core.instrumentation import UNREPORTED
from natsproto._core.notifier import Notifier
from natsproto.jetstream._api.unexpected import fail_on_unexpected, wrap_unexpected
from natsproto.jetstream._publish.batch_messages import BatchMessages
from natsproto.jetstream._publish.fast.fast_batch_state import BatchOperation, FastBatchState, FastOptions
from natsproto.jetstream._publish.headers import AutoMsgIds, ExpectationArgs, message_block
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.jetstream._values.info import PubAck
from natsproto.protocol.commands import arguments_length
from natsproto.protocol.frames import Message, Payload, as_bytes
from natsproto.protocol.headers import HeadersLike

log = logging.getLogger("natsproto")

MAX_FLOW = 500
"""The most messages for one acknowledgement; it is the limit of servers."""

DEFAULT_OUTSTANDING_ACKS = 2
"""Outstanding acknowledgements: one is in flight while the messages for the next are sent (ADR-50)."""

FAST_API_LEVEL = 4
"""The API level of the first servers with fast ingest."""

_FEATURE = RequiredFeature("fast ingest", "2.14", FAST_API_LEVEL)

_MAX_REPLY = b"_" * 60
"""The longest text after the inbox in a reply subject: batch, flow, gap, sequence and operation."""


def report_unlisted(pair: str) -> None:
    """Log a step of a batch that its table of transitions does not have. It changes nothing."""
    log.error("fast batch: %s is not expected; please report this", pair)


class FastBatchSender:
    """Carries out the decisions of the batch's state. It is the ReplyHandler for the stream's replies.

    The reply subject of a message names its batch and its position:
    ``<inbox>.<batch>.<flow>.<gap>.<sequence>.<operation>.$FI``.
    """

    def __init__(self, connection: Connection, options: FastOptions) -> None:
        self._connection, self._options = connection, options
        self._outbox, self._control_lines = connection._outbox, connection._outbox.lines
        inbox = f"{connection.new_inbox()}."
        self.subject = f"{inbox}>"
        self._inbox = inbox.encode()
        self._reply_suffix = b".%d.%b." % (options.flow, b"ok" if options.gap_ok else b"fail")
        self._reply = b""  # the reply subject up to the sequence, of messages of the batch in progress
        self.messages = BatchMessages()
        self.state = FastBatchState(self._inbox[-9:-1], options, self.messages, report_unlisted)
        self._unsubscribe: Callable[[], None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._waiters = Notifier()

    def open(self) -> None:
        """Start to receive replies. ConnectionClosed when the client is closed."""
        self._unsubscribe = self._connection._add_reply_handler(self)

    def close(self) -> None:
        """Accept no more messages, and stop waiting for replies."""
        left = errors.LocalProtocolError("the publisher has ended: its block was left")
        self.state.give_up("the publisher was given up", left)
        self._stop()
        if self._unsubscribe is not None:
            self._unsubscribe()

    @property
    def expects_replies(self) -> bool:
        """True while messages are not acknowledged."""
        return bool(self.messages.pending)

    # ------------------------------------------------------------ publishing

    async def wait_for_room(self) -> None:
        """Wait until another message is accepted, or there is an outcome to report. Cancelling changes nothing.

        RequestTimeout when the connection takes no data for the publisher's ``timeout``.
        """
        state = self.state
        if self._outbox.must_wait:
            await self._outbox.wait_writable(Deadline(self._options.timeout))
        while state.full and self.messages.fatal_error is None and not state.has_too_many_failures:
            state.commit_if_short()
            await self._send_and_wait()

    def add(self, subject: str, payload: bytes, block: bytes | None, *, last: bool = False) -> int:
        """Accept a message, send it if that is possible now, and return its number. ``last`` ends the batch. Raises the
        error of a message that cannot be sent.
        """
        state, lines = self.state, self._control_lines
        start = lines.pub_prefixes.get(subject) or self._cache_start(subject)
        size = len(payload) if block is None else len(block) + len(payload)
        if size > lines.max_payload:
            lines.check_size(size)
        if last:
            state.commit()
        if (sequence := state.sent + 1) <= state.append_until:  # nearly every message
            if block is None:
                head = b"%b%b%d.1.$FI %d\r\n" % (start, self._reply, sequence, size)
            else:
                head = b"H%b%b%d.1.$FI %d %d\r\n%b" % (start, self._reply, sequence, len(block), size, block)
            self._outbox.put(head, payload)
            return state.append(subject, payload, block)
        number = self.messages.add(subject, payload, block)
        self.send_due()
        return number

    async def wait_accepted(self, number: int) -> None:
        """Wait until the stream has accepted a first message, or has rejected it."""
        while not self.state.ack_flow and self.messages.fatal_error is None and number > self.messages.settled:
            await self._waiters.wait()

    async def flush(self) -> None:
        """Commit the batch and wait for the outcome of all messages so far."""
        messages, last = self.messages, self.messages.count
        while messages.settled < last and messages.fatal_error is None:
            await self._wait_committing()

    async def finish(self) -> None:
        """Wait for the outcome of all messages and for the end of the batch."""
        while not self.state.idle and self.messages.fatal_error is None:
            await self._wait_committing()

    async def commit(self, subject: str, payload: bytes, block: bytes | None) -> PubAck | None:
        """Send a committing message. Return the acknowledgement of its batch; None if that was lost, or at the end."""
        messages, awaited = self.messages, self.messages.awaited
        number = self.add(subject, payload, block, last=True)
        awaited.setdefault(number)
        try:
            while awaited[number] is None and messages.ended < number and messages.fatal_error is None:
                await self._wait_committing()
            return awaited[number]
        finally:
            del awaited[number]

    async def _wait_committing(self) -> None:
        self.state.commit()
        await self._send_and_wait()

    async def _send_and_wait(self) -> None:
        """Send what is due and wait for a change, unless sending ended the publisher."""
        self.send_due()
        if self.messages.fatal_error is None:
            await self._waiters.wait()

    def send_due(self) -> None:
        """Send the messages and commands that are due."""
        state, lines = self.state, self._control_lines
        if self.messages.fatal_error is not None:
            self._stop()
            return
        if self._tick_timer is None and not state.idle:
            self._tick_timer = asyncio.get_running_loop().call_later(self._options.tick, self._on_tick)
        if not self._can_send:
            return
        try:
            while (command := state.next_command()) is not None:
                self._reply = self._inbox + state.batch + self._reply_suffix
                operation, sequence, (subject, payload, block) = command
                size = len(payload) + (0 if block is None else len(block))
                lines.check_size(size)  # the server may have other limits now
                head = self._head(lines.pub_prefix(subject), operation, sequence, block, size)
                lines.line_limit.check(arguments_length(head), subject)
                self._outbox.put(head, payload)
                state.on_sent(command)
            state.allow_append()
        except errors.OutboxFull:
            self._pause_sending(self._options.retry_wait / 8)
        except errors.NatsError as exc:  # too big for this server, or the client is closed
            state.give_up(str(exc), exc)
            self._stop()

    @property
    def _can_send(self) -> bool:
        return self._pause is None and self._connection.is_connected

    def _head(self, start: bytes, operation: BatchOperation, sequence: int, block: bytes | None, size: int) -> bytes:
        """Return the control line and the header block; ``size`` is that of payload and block together."""
        if block is None:
            return b"%b%b%d.%d.$FI %d\r\n" % (start, self._reply, sequence, operation, size)
        return b"H%b%b%d.%d.$FI %d %d\r\n%b" % (start, self._reply, sequence, operation, len(block), size, block)

    def _cache_start(self, subject: str) -> bytes:
        """Validate a subject and the length of its control line."""
        self._control_lines.message_line(self._control_lines.encode_subject(subject), self._inbox + _MAX_REPLY, None, 0)
        return self._control_lines.pub_prefix(subject)

    # ------------------------------------------------------------ callbacks of the engine

    @fail_on_unexpected
    def on_message(self, message: Message) -> None:
        """Handle a reply or a no-responders status; its subject has the position of the message."""
        words = message.subject[len(self._inbox) :].encode("utf-8", "surrogateescape").split(b".")
        if len(words) != 6 or not words[3].isdigit() or len(words[3]) > 20:
            return  # not a reply to our messages
        if message.is_no_responders:
            pause = self.state.on_no_responders(words[0])
        else:
            pause = self.state.on_reply(words[0], int(words[3]), message.data)
        if pause:
            self._pause_sending(pause)
        self.send_due()

    def on_replies_handled(self) -> None:
        """Continue after all replies of one chunk, a timer, or a change of the connection."""
        if self._waiters:
            self._waiters.wake()
            self._outbox.cork()  # they are about to go on

    @fail_on_unexpected
    def on_disconnect(self, error: errors.ConnectionLost) -> None:
        """The connection was lost. Messages that were not written count as not sent."""
        heads = self._outbox.take_back(self._inbox + self.state.batch + b".")
        self.state.on_disconnect([self._operation_of(head) for head in heads], str(error))
        self.send_due()
        self.on_replies_handled()

    @fail_on_unexpected
    def on_reconnect(self) -> None:
        """There is a new connection, perhaps to a server with other limits or without fast ingest."""
        try:
            _FEATURE.check(self._connection.server_info)
        except errors.UnsupportedByServer as exc:
            self.state.give_up(str(exc), exc)
        self.state.on_reconnect()
        self.send_due()
        self.on_replies_handled()

    @fail_on_unexpected
    def on_permission_error(self, error: errors.PermissionDenied) -> None:
        """The server rejects messages on a subject."""
        self.state.on_permission_error(error)
        self.send_due()

    @fail_on_unexpected
    def on_end(self, error: errors.NatsError) -> None:
        """No more replies will come."""
        self.state.give_up(str(error), error)
        self.send_due()

    def on_unexpected_error(self, bug: Exception) -> None:
        """An unexpected error ends the publisher."""
        error = wrap_unexpected("publishing", bug)
        self.state.give_up(str(error), error)
        self._stop()

    def _operation_of(self, head: bytes) -> BatchOperation:
        start = head.index(self._inbox)
        return BatchOperation(int(head[start : head.index(b" ", start)].split(b".")[-2]))

    # ------------------------------------------------------------ time

    def _pause_sending(self, pause: float) -> None:
        """Send nothing for this time; a pause in progress is not extended."""
        self.state.append_until = 0
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(pause, self._end_pause)

    @fail_on_unexpected
    def _end_pause(self) -> None:
        self._pause = None
        self.state.on_pause_end()
        self.send_due()
        self.on_replies_handled()

    @fail_on_unexpected
    def _on_tick(self) -> None:
        """Ask the stream for its state when it does not reply, and give up at the timeout."""
        self._tick_timer = None
        if not self.state.idle:
            self.state.on_tick(can_send=self._can_send)
            self.send_due()
            self.on_replies_handled()

    def _stop(self) -> None:
        for timer in (self._tick_timer, self._pause):
            if timer is not None:
                timer.cancel()
        self._tick_timer = self._pause = None
        self.on_replies_handled()


class FastPublisher:
    """Publishes to one stream at the highest rate. Created by ``js.fast_publisher()``; use it with ``async with``.

    The end of the block commits, waits for the outcome of every message, and raises PublishFailed for failed ones.
    After an exception in the block it does not wait. Several tasks may share a publisher; numbers identify their
    messages.
    """

    def __init__(self, connection: Connection, options: FastOptions, *, auto_msg_id: bool) -> None:
        self._timeout: float = options.timeout
        self._connection, self._outbox = connection, connection._outbox
        self._reports = UNREPORTED if connection._instrumentation is None else connection._instrumentation.batch()
        self._sender = FastBatchSender(connection, options)
        self._messages, self._state = self._sender.messages, self._sender.state
        self._entered = False
        self._auto_ids = (
            AutoMsgIds(connection._runtime.new_id(), connection._runtime.random_bits()) if auto_msg_id else None
        )

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> int:
        """Publish a message and return its number, from 1. Waits only while too many are unacknowledged.

        The arguments are those of ``JetStream.publish``, and invalid ones raise the same errors, with nothing sent. The
        first call waits until the stream has accepted a message: BatchRefused when the stream does not allow fast
        ingest, NoStream, or the reason why it was rejected. PublishFailed reports later failures: with ``gap="fail"``
        as soon as one message is rejected, which ends the publisher; with ``gap="ok"`` at the end, or when as many have
        failed as may be pending. ConnectionClosed when the client is closed. Cancelling while it waits publishes
        nothing.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        state, adding = self._state, None
        if self._reports is not UNREPORTED:
            adding = self._reports.adding(subject, payload, headers)
            headers = adding.headers
        try:
            if state.sent >= state.append_until or self._outbox.must_wait:
                await self._ready()
            if type(payload) is not bytes:
                payload = as_bytes(payload)
            block = None
            if msg_id is not None or headers is not None or args or self._auto_ids is not None:
                block = self._block(subject, msg_id, headers, args)
            number = self._sender.add(subject, payload, block)
            if not state.ack_flow:
                await self._sender.wait_accepted(number)
                if not state.ack_flow and (refusal := self._messages.take_error_of(number)) is not None:
                    self._sender.on_replies_handled()  # a reported failure makes room
                    raise refusal
        except BaseException as exc:
            if adding is not None:
                adding.end(exc)
            raise
        if adding is not None:
            adding.end()
        return number

    async def commit(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> PubAck:
        """Publish the last message, end the batch and return its acknowledgement; raises the errors of ``flush``.

        PublishUncertain if the acknowledgement of its batch was lost with the connection.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        with self._reports.adding(subject, payload, headers) as adding:
            pass  # its outcome is that of the batch
        with self._reports.sending() as sending:
            await self._ready()
            block = self._block(subject, msg_id, adding.headers, args)
            ack = await self._sender.commit(subject, as_bytes(payload), block)
            self._raise_outcome()
            if ack is None:
                raise errors.PublishUncertain(subject, "the acknowledgement of the batch was lost")
            sending.end(ack)
        return ack

    async def flush(self) -> None:
        """Wait for the outcome of every message so far; PublishFailed for failed ones.

        It takes a round trip and ends the batch: the next message starts another. Cancelling changes nothing.
        """
        self._check_entered()
        with self._reports.sending() as sending:
            await self._sender.flush()
            self._raise_outcome()
            sending.end(self.ack)

    @property
    def ack(self) -> PubAck | None:
        """The acknowledgement of the last batch: ``seq`` is the sequence of its last message in the stream, ``count``
        the number of messages in the batch. A publisher uses as many batches as it needs.
        """
        return self._messages.ack

    @property
    def published(self) -> int:
        """Messages published so far; the number of the last one."""
        return self._messages.count

    @property
    def pending(self) -> int:
        """Messages without an outcome yet."""
        return len(self._messages.pending)

    @property
    def lost(self) -> int:
        """With ``gap="ok"``: messages that the stream did not store or may not have stored. It has reported them as
        missing, or they were in flight when the connection or the batch was lost.
        """
        return self._messages.lost

    def _check_entered(self) -> None:
        self._connection._check_loop()
        if not self._entered:
            raise errors.LocalProtocolError(
                "a publisher publishes inside its block: async with js.fast_publisher() as pub"
            )

    async def _ready(self) -> None:
        """Wait until there is room for a message. Raises unreported failures, and the error that ended it."""
        self._check_entered()
        if self._state.full or self._outbox.must_wait:
            await self._sender.wait_for_room()
        if self._state.has_too_many_failures or self._messages.fatal_error is not None:
            self._raise_outcome()

    @property
    def _ended(self) -> bool:
        return self._messages.fatal_error is not None

    def _give_up(self, error: errors.NatsError) -> None:
        """End the publisher, with this error for messages that were not sent, and raise what was not raised yet."""
        self._state.give_up(str(error), error)
        if not self._messages.is_reported:
            self._raise_outcome()

    def _raise_outcome(self) -> None:
        """Raise PublishFailed for messages that failed since the last call, or the error that ended the publisher."""
        error = self._messages.take_error()
        self._sender.on_replies_handled()  # reported failures make room
        if error is not None:
            raise error.with_traceback(None)

    def _block(
        self, subject: str, msg_id: str | None, headers: HeadersLike | None, args: ExpectationArgs
    ) -> bytes | None:
        auto_id = None if self._auto_ids is None else self._auto_ids.new()
        return message_block(subject, headers, args, msg_id, auto_id)

    async def __aenter__(self) -> FastPublisher:
        self._connection._check_loop()
        if self._entered:
            raise errors.LocalProtocolError("a publisher can be entered once: make another one")
        _FEATURE.check(self._connection.server_info)
        self._sender.open()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._check_entered()
        try:
            if exc is None:
                with self._reports.sending() as sending:
                    await self._sender.finish()
                    if not self._messages.is_reported:
                        self._raise_outcome()
                    sending.end(self.ack)
        finally:
            self._sender.close()
