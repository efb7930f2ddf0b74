"""Publishers for threads without an event loop: windowed publishing, fast ingest and atomic batches.

Owns the futures of messages that are queued for the event loop. Everything else is ``natsproto.jetstream``'s.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Final, Generic, NamedTuple, Self, TypeVar, Unpack

from natsproto import errors
from natsproto._core.notifier import Notifier
from natsproto._durations import seconds
from natsproto.jetstream._publish import ack_future, atomic_batch, publisher
from natsproto.jetstream._publish.fast import fast_batch
from natsproto.jetstream._publish.headers import ExpectationArgs, header_block
from natsproto.jetstream._values.info import PubAck
from natsproto.protocol.frames import Payload, as_bytes
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.protocol.subject import publish_subject
from natsproto.sync._portal import Portal
from natsproto.sync._publish_queue import MIN_SIZE_TO_WAIT, PublishQueue, merge_errors, unsent
from natsproto.sync._wrapper import SyncContext, blocking

W = TypeVar("W", bound=publisher.Publisher | fast_batch.FastPublisher, covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class AckFuture:
    """The future acknowledgement of one message. Several threads may wait for it."""

    __slots__ = ("_callbacks", "_error", "_inner", "_notifier", "_portal", "subject")

    def __init__(self, portal: Portal, subject: str) -> None:
        self.subject: str = subject
        """The subject of the message."""
        self._portal = portal
        self._inner: ack_future.AckFuture | None = None
        self._error: Exception | None = None
        self._notifier: Notifier | None = None
        self._callbacks: list[Callable[[AckFuture], object]] | None = None  # until the async publisher has the message

    def done(self) -> bool:
        """Return True when the message was acknowledged or has failed."""
        return self._error is not None or (self._inner is not None and self._inner.done())

    def result(self, timeout: float | timedelta | None = None) -> PubAck:
        """Return the acknowledgement, or raise the error of the message. Waits at most ``timeout`` seconds (None: as
        long as the publisher's own timeout).

        RequestTimeout when it takes longer; the message may be stored nevertheless. ConnectionClosed when the client is
        closed.

        Args:
            timeout: Seconds to wait for the acknowledgement; None: no limit.
        """
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return self._inner.result()

    def exception(self, timeout: float | timedelta | None = None) -> Exception | None:
        """Return the error, or None for a message that was stored. Waits, and raises, as ``result`` does.

        Args:
            timeout: Seconds to wait for the acknowledgement; None: no limit.
        """
        self._wait(timeout)
        if self._error is not None:
            return self._error
        assert self._inner is not None
        return self._inner.exception()

    def cancel(self) -> bool:
        """Return False: a message that was published cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False, as it is never cancelled."""
        return False

    def add_done_callback(self, callback: Callable[[AckFuture], object]) -> None:
        """Call ``callback`` after it is done, on the client's own thread, which logs its exceptions.

        It must not wait: other calls of the client raise LocalProtocolError there. ``result`` and ``exception`` mark
        the error as seen. TypeError if it is not callable; ConnectionClosed when the client is closed.

        Args:
            callback: Called with the future on the client's own thread; it must not wait.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        self._portal.post(partial(self._add_callback, callback))

    def _add_callback(self, callback: Callable[[AckFuture], object]) -> None:
        if self._inner is not None:
            self._inner.add_done_callback(lambda _: callback(self))
        elif self._error is not None:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._callbacks = [*(self._callbacks or ()), callback]

    @property
    def duplicate(self) -> bool:
        """True when the stream already had a message with this id. False before ``done()``."""
        return self._inner is not None and self._inner.duplicate

    def _set_published(self, outcome: ack_future.AckFuture | Exception) -> None:
        """Store the future of the async publisher, or the error it raised. Called on the event loop."""
        if isinstance(outcome, Exception):
            self._error = outcome
        else:
            self._inner = outcome
        if self._notifier is not None:
            self._notifier.wake()
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                self._add_callback(callback)

    def _wait(self, timeout: float | timedelta | None) -> None:
        if self.done():
            return
        try:
            self._portal.call(self._wait_done, None if timeout is None else seconds("timeout", timeout))
        except errors.ConnectionClosed:
            if not self.done():  # closing the client may have settled the future
                raise

    async def _wait_done(self, wait: float | None) -> None:
        expiry = asyncio.timeout(wait)
        try:
            async with expiry:
                while self._inner is None and self._error is None:
                    self._notifier = self._notifier or Notifier()
                    await self._notifier.wait()
                if self._inner is not None:
                    await self._inner
        except errors.NatsError:
            return  # the future holds the error
        except TimeoutError:
            raise errors.RequestTimeout(f"acknowledgement of a message to {self.subject!r}", wait or 0.0) from None

    def __repr__(self) -> str:
        if self._inner is not None:
            return repr(self._inner)
        return f"AckFuture({self.subject!r}, {'waiting' if self._error is None else 'failed'})"


class _Message(NamedTuple):
    """A copy of a message at the time of publishing."""

    subject: str
    payload: bytes
    msg_id: str | None
    headers: Headers | None
    args: ExpectationArgs


def _checked_message(
    subject: str, payload: Payload, msg_id: str | None, headers: HeadersLike | None, args: ExpectationArgs
) -> _Message:
    """Check the arguments and copy them, so that later changes by the caller have no effect."""
    publish_subject(subject)
    copied = None if headers is None else Headers(headers)
    if copied is not None or msg_id is not None or args:
        header_block(subject, copied, {"msg_id": msg_id, **args})
    return _Message(subject, as_bytes(payload), msg_id, copied, args)


class QueuedPublisher(SyncContext[W], Generic[W, T]):
    """Base class of the blocking publishers: messages go to the event loop through a queue, many at a time."""

    def __init__(self, portal: Portal, inner: W) -> None:
        super().__init__(portal, inner)
        self._queue: PublishQueue[T] = PublishQueue(portal, self._send, inner._timeout)
        self._open = False
        self._count_lock = threading.Lock()
        self._count = 0

    @property
    def published(self) -> int:
        """The number of messages published so far."""
        return self._count

    @property
    def pending(self) -> int:
        """The number of messages that were neither acknowledged nor failed yet."""
        return self._inner.pending + len(self._queue)

    def flush(self) -> None:
        """Wait until every message so far is acknowledged or has failed. PublishFailed lists failures whose future was
        never examined; RequestTimeout when queued messages are not sent within the publisher's ``timeout``. An
        interrupt only ends the wait.
        """
        self._check_open()
        self._portal.call(self._join, self._inner.flush)

    def __enter__(self) -> Self:
        super().__enter__()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without an exception, send all queued messages first."""
        self._open = False
        if exc is None or not self._portal.stopped:
            self._portal.call(self._flush_and_leave, kind, exc, trace)

    async def _flush_and_leave(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is not None:
            await self._inner.__aexit__(kind, exc, trace)
            return
        try:
            if not await self._queue.wait_sent(self._inner._timeout) and self._queue.busy:
                self._give_up()
        except (asyncio.CancelledError, errors.RequestTimeout, errors.PublishFailed) as interrupt:
            await self._inner.__aexit__(type(interrupt), interrupt, None)
            raise
        await self._join(partial(self._inner.__aexit__, None, None, None))

    async def _join(self, method: Callable[[], Awaitable[object]]) -> None:
        """Send all queued messages, await ``method``, and raise the errors of both."""
        queue_error: Exception | None = None
        await self._wait_queue("flush")
        try:
            self._queue.raise_errors()
        except Exception as exc:
            queue_error = exc
        try:
            await method()
        except errors.PublishFailed as exc:
            raise merge_errors(queue_error, exc) from exc.__cause__
        if queue_error is not None:
            raise queue_error

    async def _in_order(self, method: Callable[[], Awaitable[R]]) -> R:
        """Await ``method`` after all queued messages, which keeps the order of publishing."""
        await self._wait_queue("publish")
        self._queue.raise_errors()
        return await method()

    async def _wait_queue(self, operation: str) -> None:
        """Wait until the queued messages are sent, for the publisher's timeout: RequestTimeout."""
        if not await self._queue.wait_sent(self._inner._timeout):
            raise unsent(self._inner._timeout, operation)

    def _give_up(self) -> None:
        """Send no more queued messages; raise an error for them."""
        raise NotImplementedError

    async def _send(self, item: T) -> None:
        raise NotImplementedError

    async def _despite_failures(self, send: Callable[[], Awaitable[object]]) -> None:
        """Send the message even if the publisher raises earlier failures first; the next call raises those."""
        try:
            await send()
        except errors.PublishFailed as exc:
            self._queue.fail(exc)
            await send()

    def _check_open(self) -> None:
        self._portal.check()
        if not self._open:
            raise errors.LocalProtocolError("publish inside the publisher's block: with js.publisher() as pub")


class Publisher(QueuedPublisher[publisher.Publisher, "tuple[_Message, AckFuture, float]"]):
    """Publishes to streams without waiting for each acknowledgement. Use it with ``with``; threads may share one.

    Leaving the block waits until every message is acknowledged or has failed, and raises PublishFailed for failures
    whose future was never examined. Leaving it with an exception does not wait.
    """

    @property
    def acknowledged(self) -> int:
        """The number of messages that a stream has acknowledged."""
        return self._inner.acknowledged

    def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> AckFuture:
        """Publish a message and return the future of its acknowledgement. Waits only while the window is full and 4096
        more messages are queued.

        The arguments are those of ``JetStream.publish``; bad ones raise the same errors and send nothing. The future
        holds later errors (the client was closed, a limit of the server), and the next call raises them too. The next
        call also raises PublishFailed once as many messages as the window holds have failed without their future being
        examined. LocalProtocolError outside the block.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        self._check_open()
        message = _checked_message(subject, payload, msg_id, headers, args)
        future = AckFuture(self._portal, subject)
        if len(message.payload) < MIN_SIZE_TO_WAIT:
            self._queue.put((message, future, monotonic()), len(message.payload))
        else:
            self._portal.call(self._in_order, partial(self._send, (message, future, monotonic())))
        with self._count_lock:
            self._count += 1
        return future

    async def _send(self, item: tuple[_Message, AckFuture, float]) -> None:
        message, future, put_at = item
        subject, payload, msg_id, headers, args = message

        async def send() -> None:
            future._set_published(await self._inner.publish(subject, payload, msg_id=msg_id, headers=headers, **args))

        try:
            if monotonic() - put_at >= self._inner._timeout:  # for which it has waited in the queue
                raise unsent(self._inner._timeout)
            await self._despite_failures(send)
        except Exception as exc:
            future._set_published(exc)
            raise

    def _give_up(self) -> None:
        left = self._queue.take_back()
        error = unsent(self._inner._timeout, f"publish of {len(left)} queued messages")
        for _, future, _ in left:
            future._set_published(error)
        raise error


class FastPublisher(QueuedPublisher[fast_batch.FastPublisher, _Message]):
    """Publishes to one stream as fast as the stream accepts messages. Use it with ``with``; threads may share one.

    Leaving the block commits, waits until every message is acknowledged or has failed, and raises PublishFailed for
    those that failed: when the queued ones cannot be sent within ``timeout`` seconds, with RequestTimeout for each of
    them. Leaving it with an exception does not wait.
    """

    def __init__(self, portal: Portal, inner: fast_batch.FastPublisher) -> None:
        super().__init__(portal, inner)
        self._not_sent_count = 0

    @property
    def ack(self) -> PubAck | None:
        """The acknowledgement of the last batch; see the async publisher."""
        return self._inner.ack

    @property
    def lost(self) -> int:
        """With ``gap="ok"``: messages that the stream did not store or may not have stored."""
        return self._inner.lost

    def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> int:
        """Publish a message and return its number, from 1. Waits only while the stream is behind and 4096 more messages
        are queued.

        Bad arguments raise at once. The first call waits for its message and raises BatchRefused or NoStream when the
        stream accepts none. The next call raises later errors, such as PublishFailed. LocalProtocolError outside the
        block.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        self._check_open()
        message = _checked_message(subject, payload, msg_id, headers, args)
        with self._count_lock:
            if self._count and len(message.payload) < MIN_SIZE_TO_WAIT:
                self._queue.put(message, len(message.payload))
                self._count += 1
            else:
                self._count = self._portal.call(self._in_order, partial(self._publish, message))
            return self._count

    def commit(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> PubAck:
        """Publish the last message and wait for the acknowledgement of all; raises what leaving the block does.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        self._check_open()
        message = _checked_message(subject, payload, msg_id, headers, args)
        try:
            return self._portal.call(self._in_order, partial(self._commit, message))
        finally:
            with self._count_lock:
                self._count = max(self._count, self._inner.published)

    async def _send(self, item: _Message) -> None:
        while True:
            try:
                await self._despite_failures(partial(self._publish, item))
            except errors.NatsError as exc:
                if isinstance(exc, errors.RequestTimeout) and not self._inner._ended:
                    continue  # its number is given: it is sent later
                self._queue.fail(self._not_sent([item], exc))
            return

    def _not_sent(self, messages: list[_Message], error: errors.NatsError) -> errors.PublishFailed:
        """Return the error of the next messages, which the async publisher has not accepted."""
        first = self._inner.published + self._not_sent_count + 1
        self._not_sent_count += len(messages)
        failed = errors.PublishFailed(
            [
                errors.FailedMessage(number, each.subject, len(each.payload), error)
                for number, each in enumerate(messages, first)
            ]
        )
        failed.__cause__ = error
        return failed

    def _give_up(self) -> None:
        """Raise PublishFailed with every message without an acknowledgement: those that were sent are uncertain."""
        error = unsent(self._inner._timeout)
        left = self._not_sent([*self._queue.being_sent, *self._queue.take_back()], error)
        try:
            self._inner._give_up(error)
        except errors.PublishFailed as exc:
            self._queue.fail(exc)
        self._queue.fail(left)
        self._queue.raise_errors()

    async def _publish(self, message: _Message) -> int:
        subject, payload, msg_id, headers, args = message
        return await self._inner.publish(subject, payload, msg_id=msg_id, headers=headers, **args)

    async def _commit(self, message: _Message) -> PubAck:
        subject, payload, msg_id, headers, args = message
        return await self._inner.commit(subject, payload, msg_id=msg_id, headers=headers, **args)


class AtomicBatch(SyncContext[atomic_batch.AtomicBatch]):
    """Messages to one stream that are stored all together or not at all. Leaving ``with`` commits.

    Leaving it with an exception abandons the batch; nothing is stored.
    """

    _exit_needs_client = True

    publish: Final = blocking(atomic_batch.AtomicBatch.publish)
    flush: Final = blocking(atomic_batch.AtomicBatch.flush)
    commit: Final = blocking(atomic_batch.AtomicBatch.commit)

    @property
    def ack(self) -> PubAck:
        """The acknowledgement of the batch. LocalProtocolError before the commit, and for a batch without messages."""
        return self._inner.ack

    def __len__(self) -> int:
        return len(self._inner)
