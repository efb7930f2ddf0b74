"""Publishing to streams for threads without an event loop: windows, fast ingest, atomic batches.

Owns the acknowledgements of messages that are on their way to the event loop. Every verb is that of
``natsproto.jetstream``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeAlias, TypeVar, Unpack

from natsproto._core.waiting import Waiters
from natsproto.errors import ConnectionClosed, LocalProtocolError, NatsError, PublishFailed, RequestTimeout
from natsproto.jetstream._info import PubAck
from natsproto.jetstream._publish import ack_future, async_publish, atomic_batch, fast_batch
from natsproto.jetstream._publish.headers import ExpectationArgs, as_bytes, header_block
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.protocol.pool import seconds
from natsproto.protocol.subject import publish_subject
from natsproto.sync._facade import Block, Undertaking, blocking
from natsproto.sync._portal import Portal
from natsproto.sync._publishing import BIG, Outgoing, together

if TYPE_CHECKING:
    Leave: TypeAlias = Callable[
        [type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[object]
    ]

W = TypeVar("W", bound=async_publish.Publisher | fast_batch.FastPublisher, covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class AckFuture:
    """The acknowledgement of one message, now or later. Any number of threads may ask for it."""

    __slots__ = ("_error", "_inner", "_portal", "_waiters", "subject")

    def __init__(self, portal: Portal, subject: str) -> None:
        self.subject = subject
        """The subject of the message."""
        self._portal = portal
        self._inner: ack_future.AckFuture | None = None
        self._error: Exception | None = None
        self._waiters: Waiters | None = None

    def done(self) -> bool:
        """Whether it is known what became of the message."""
        return self._error is not None or (self._inner is not None and self._inner.done())

    def result(self, timeout: float | timedelta | None = None) -> PubAck:
        """The acknowledgement, or the error that came in its place; waits at most ``timeout`` seconds (None: until it
        is known, for which the publisher's own timeout sees).

        RequestTimeout when it is not known in time; the message may be stored all the same. ConnectionClosed after the
        client's end.
        """
        self._await(timeout)
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return self._inner.result()

    def exception(self, timeout: float | timedelta | None = None) -> Exception | None:
        """The error, or None for a message that was stored. Waits, and raises, as ``result`` does."""
        self._await(timeout)
        if self._error is not None:
            return self._error
        assert self._inner is not None
        return self._inner.exception()

    @property
    def duplicate(self) -> bool:
        """Whether the stream had a message of this id already. False before ``done()``."""
        return self._inner is not None and self._inner.duplicate

    def taken(self, outcome: ack_future.AckFuture | Exception) -> None:
        """The publisher has taken the message, or why not. On the loop."""
        if isinstance(outcome, Exception):
            self._error = outcome
        else:
            self._inner = outcome
        if self._waiters is not None:
            self._waiters.wake()

    def _await(self, timeout: float | timedelta | None) -> None:
        if self.done():
            return
        try:
            self._portal.call(self._known, None if timeout is None else seconds("timeout", timeout))
        except ConnectionClosed:
            if not self.done():  # the end of the client may have told what became of it
                raise

    async def _known(self, wait: float | None) -> None:
        expiry = asyncio.timeout(wait)
        try:
            async with expiry:
                while self._inner is None and self._error is None:
                    self._waiters = self._waiters or Waiters()
                    await self._waiters.wait()
                if self._inner is not None:
                    await self._inner
        except NatsError:
            return  # what came of it is told by the future
        except TimeoutError:
            raise RequestTimeout(f"acknowledgement of a message to {self.subject!r}", wait or 0.0) from None

    def __repr__(self) -> str:
        if self._inner is not None:
            return repr(self._inner)
        return f"AckFuture({self.subject!r}, {'waiting' if self._error is None else 'failed'})"


class _Message(NamedTuple):
    subject: str
    payload: bytes
    msg_id: str | None
    headers: Headers | None
    args: ExpectationArgs


def _checked(
    subject: str, payload: Payload, msg_id: str | None, headers: HeadersLike | None, args: ExpectationArgs
) -> _Message:
    """The message as it is now: what the caller changes afterwards changes nothing. Raises for what is wrong in it."""
    publish_subject(subject)
    kept = None if headers is None else Headers(headers)
    if kept is not None or msg_id is not None or args:
        header_block(subject, kept, {"msg_id": msg_id, **args})
    return _Message(subject, as_bytes(payload), msg_id, kept, args)


class Publishing(Block[W], Generic[W, T]):
    """What both publishers are to threads: messages go to the loop many at a time."""

    def __init__(self, portal: Portal, inner: W) -> None:
        super().__init__(portal, inner)
        self._outgoing: Outgoing[T] = Outgoing(portal, self._take)
        self._open = False
        self._numbers = threading.Lock()
        self._count = 0

    @property
    def published(self) -> int:
        """Messages published so far; the number of the last one."""
        return self._count

    @property
    def pending(self) -> int:
        """Messages of which it is not known what became of them."""
        return self._inner.pending + len(self._outgoing)

    def flush(self) -> None:
        """Waits until it is known of every message so far what became of it; PublishFailed for those that failed and
        whose acknowledgement nobody has looked at. An interrupt changes nothing.
        """
        self._check_open()
        self._portal.call(self._settle, self._inner.flush)

    def __enter__(self) -> Self:
        super().__enter__()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(self._inner.__aexit__, kind, exc, trace)

    def adopt(self) -> Self:
        """It was entered elsewhere."""
        self._open = True
        return self

    def leave(
        self,
        leave: Leave,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it with what ends it there; without an error everything is handed over before, and awaited."""
        self._open = False
        if exc is None or not self._portal.stopped:
            self._portal.call(self._leave, leave, kind, exc, trace)

    async def _leave(
        self,
        leave: Leave,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is not None:
            await leave(kind, exc, trace)
            return
        try:
            await self._outgoing.handed_over()
        except asyncio.CancelledError as interrupt:
            await leave(type(interrupt), interrupt, None)
            raise
        await self._settle(partial(leave, None, None, None))

    async def _settle(self, verb: Callable[[], Awaitable[object]]) -> None:
        """Does what settles everything that was handed over, and raises all that nobody was told."""
        untold: Exception | None = None
        try:
            await self._outgoing.settled()
        except Exception as exc:
            untold = exc
        try:
            await verb()
        except PublishFailed as exc:
            raise together(untold, exc) from exc.__cause__
        if untold is not None:
            raise untold

    async def _after_the_others(self, verb: Callable[[], Awaitable[R]]) -> R:
        """What was published first goes first."""
        await self._outgoing.settled()
        return await verb()

    async def _take(self, item: T) -> None:
        raise NotImplementedError

    async def _patiently(self, send: Callable[[], Awaitable[object]]) -> None:
        """Sends it, although the publisher would rather tell of failures first: who published is told next time."""
        try:
            await send()
        except PublishFailed as exc:
            self._outgoing.fail(exc)
            await send()

    def _check_open(self) -> None:
        self._portal.check()
        if not self._open:
            raise LocalProtocolError("a publisher publishes inside its block: with js.publisher() as pub")


class Publisher(Publishing[async_publish.Publisher, "tuple[_Message, AckFuture]"]):
    """Publishes to streams without waiting for each acknowledgement: enter it. Threads may share one.

    Leaving the block waits until every message is settled and raises PublishFailed for the failures that nobody has
    seen. Leaving it with an exception waits for nothing.
    """

    @property
    def acknowledged(self) -> int:
        """Messages that a stream has acknowledged."""
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
        """Publishes a message and returns the future of its acknowledgement. Waits only while the window is full and
        4096 more are on their way to it.

        The arguments are those of ``JetStream.publish``, and bad ones raise the same errors, with nothing sent. What
        is found out later (the end of the client, a limit of the server) is told by the future, and raised by the next
        call; so is PublishFailed, when as many messages as the window holds have failed and nobody has looked at their
        futures. LocalProtocolError outside the block.
        """
        self._check_open()
        message = _checked(subject, payload, msg_id, headers, args)
        future = AckFuture(self._portal, subject)
        if len(message.payload) < BIG:
            self._outgoing.put((message, future), len(message.payload))
        else:
            self._portal.call(self._after_the_others, partial(self._take, (message, future)))
        with self._numbers:
            self._count += 1
        return future

    async def _take(self, item: tuple[_Message, AckFuture]) -> None:
        message, future = item
        subject, payload, msg_id, headers, args = message

        async def send() -> None:
            future.taken(await self._inner.publish(subject, payload, msg_id=msg_id, headers=headers, **args))

        try:
            await self._patiently(send)
        except Exception as exc:
            future.taken(exc)
            raise


class FastPublisher(Publishing[fast_batch.FastPublisher, _Message]):
    """Publishes to one stream as fast as it takes messages: enter it. Threads may share one.

    Leaving the block commits, waits until it is known of every message what became of it, and raises PublishFailed for
    those that failed. Leaving it with an exception waits for nothing.
    """

    @property
    def ack(self) -> PubAck | None:
        """How the last batch ended; see the async publisher."""
        return self._inner.ack

    @property
    def lost(self) -> int:
        """With ``gap="ok"``: messages that the stream missed, or may have missed."""
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
        """Publishes a message and returns its number, from 1. Waits only while too many are not acknowledged and 4096
        more are on their way to the publisher.

        Bad arguments raise at once. The first message is waited for, and so told why the stream takes none
        (BatchRefused, NoStream). What comes later (PublishFailed among it) is raised by the next call.
        LocalProtocolError outside the block.
        """
        self._check_open()
        message = _checked(subject, payload, msg_id, headers, args)
        with self._numbers:
            if self._count and len(message.payload) < BIG:
                self._outgoing.put(message, len(message.payload))
                self._count += 1
            else:
                self._count = self._portal.call(self._after_the_others, partial(self._publish, message))
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
        """Publishes the last message and waits for the acknowledgement of all; raises what leaving the block does."""
        self._check_open()
        message = _checked(subject, payload, msg_id, headers, args)
        try:
            return self._portal.call(self._after_the_others, partial(self._commit, message))
        finally:
            with self._numbers:
                self._count = max(self._count, self._inner.published)

    async def _take(self, item: _Message) -> None:
        await self._patiently(partial(self._publish, item))

    async def _publish(self, message: _Message) -> int:
        subject, payload, msg_id, headers, args = message
        return await self._inner.publish(subject, payload, msg_id=msg_id, headers=headers, **args)

    async def _commit(self, message: _Message) -> PubAck:
        subject, payload, msg_id, headers, args = message
        return await self._inner.commit(subject, payload, msg_id=msg_id, headers=headers, **args)


class AtomicBatch(Undertaking[atomic_batch.AtomicBatch]):
    """Messages to subjects of one stream that are stored together, or not at all: enter it, leaving commits.

    Leaving it with an exception abandons the batch, and nothing is stored.
    """

    publish = blocking(atomic_batch.AtomicBatch.publish)
    flush = blocking(atomic_batch.AtomicBatch.flush)
    commit = blocking(atomic_batch.AtomicBatch.commit)

    @property
    def ack(self) -> PubAck:
        """The acknowledgement of the whole. LocalProtocolError for one that was not committed, or has no messages."""
        return self._inner.ack

    def __len__(self) -> int:
        return len(self._inner)
