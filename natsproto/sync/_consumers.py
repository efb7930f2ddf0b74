"""Consumers and their messages for threads without an event loop.

Owns the messages that were fetched from the event loop and not read yet. Everything else is ``natsproto.jetstream``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from threading import Thread, current_thread, get_ident
from time import monotonic
from typing import Final, Generic, ParamSpec, TypeVar, Unpack

from natsproto import errors
from natsproto.jetstream._consumer import consume, handle, message, messages
from natsproto.jetstream._consumer.ack_subject import Metadata
from natsproto.jetstream._consumer.delivery.buffer import take_all
from natsproto.jetstream._consumer.handler_options import OnError, OnSuccess
from natsproto.jetstream._consumer.ordered import ordered
from natsproto.jetstream._consumer.pull_options import PriorityArgs, ReadArgs, check_names
from natsproto.jetstream._consumer.push import push
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.source import MessageSource
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.sync._consume import ConsumeContext
from natsproto.sync._portal import Portal
from natsproto.sync._subscription import Received
from natsproto.sync._thread_handlers import check_threads, thread_handler
from natsproto.sync._wrapper import ContextReader, SyncContext, SyncMethod, SyncWrapper, blocking, wrapped

V = TypeVar("V")
P = ParamSpec("P")
C = TypeVar("C", bound=handle.Consumer, covariant=True)


class blocking_ack(blocking[message.JsMessage, P, None], Generic[P]):
    """Acknowledges a message. In a loop that handles messages quickly it does not wait for the event loop, which would
    take ten times as long as everything else.
    """

    def _call(self, wrapper: SyncWrapper[message.JsMessage], /, *args: P.args, **kwargs: P.kwargs) -> None:
        portal, inner = wrapper._reach()
        portal.check()
        if portal.is_quick() and (send := message.claim_ack(inner)) is not None:
            portal.post(send)
        else:
            portal.call(self._method, inner, *args, **kwargs)


class JsMessage(Received[message.JsMessage]):
    """A message that a consumer delivered. Acknowledge it once."""

    ack: Final = blocking_ack(message.JsMessage.ack)
    ack_sync: Final = blocking(message.JsMessage.ack_sync)
    nak: Final = blocking(message.JsMessage.nak)
    term: Final = blocking(message.JsMessage.term)
    in_progress: Final = blocking(message.JsMessage.in_progress)

    @property
    def metadata(self) -> Metadata:
        """The stream, consumer, sequences and delivery count of the message."""
        return self._inner.metadata

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._inner.stream

    @property
    def seq(self) -> int:
        """The number that the stream gave it, the same for every delivery."""
        return self._inner.seq

    @property
    def source(self) -> MessageSource | None:
        """Where the stream has this message from, if it has sources; None if it was published to it."""
        return self._inner.source

    @property
    def time(self) -> Timestamp:
        """The time when the stream stored it, to the nanosecond."""
        return self._inner.time

    @property
    def is_acked(self) -> bool:
        """True when this message was acknowledged through this object."""
        return self._inner.is_acked

    @contextmanager
    def keep_alive(self, interval: Duration | None = None) -> Iterator[None]:
        """Send ``in_progress`` every ``interval`` seconds while the block runs, so that the message is not redelivered
        during long work. It ends with the block or the acknowledgement. The default is a third of the consumer's
        ack_wait; see the async client.

        Args:
            interval: Seconds between two notes to the server; None: a third of the consumer's ``ack_wait``.
        """
        manager = self._inner.keep_alive(interval)
        self._portal.enter(manager)
        try:
            yield
        finally:
            if not self._portal.stopped:
                self._portal.call(manager.__aexit__, None, None, None)


class Messages(ContextReader[messages.Messages, message.JsMessage]):
    """An endless, pre-fetched sequence of messages. Enter it, then iterate it or call ``next``.

    Threads may share one. It survives restarts, reconnects and changes of leader. Leaving stops it: unread messages go
    back to the server, or to the consumer handle, whose next reader gets them first. A ``for`` loop over one that was
    not entered enters and leaves it.
    """

    drain: Final = blocking(messages.Messages.drain)

    def __init__(self, portal: Portal, inner: messages.Messages) -> None:
        super().__init__(portal, inner)
        (self._buffer,) = inner.buffer.add_queues(1)
        self._takers: dict[int, tuple[Thread, float]] = {}  # that handle a message, and since when
        self._times: deque[float] = deque()  # seconds of the calls that have ended
        if (deliveries := inner.buffer.deliveries) is not None:
            deliveries.forget_ended = self._forget_ended

    @property
    def pending(self) -> int:
        """The number of messages received and not read yet."""
        return self._inner.pending + len(self._buffer)

    @property
    def closed(self) -> bool:
        """True when no further message will arrive; pending messages can still be read."""
        return self._inner.closed

    @property
    def error(self) -> errors.NatsError | None:
        """The error that ended it, or None."""
        return self._inner.error

    def next(self, timeout: float | timedelta | None = None) -> JsMessage:
        """Return the next message. Waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none arrived in time; SubscriptionClosed, or the error that ended it, when none will arrive.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that has arrived.
        """
        return JsMessage(self._portal, self._next(timeout))

    def stop(self) -> None:
        """Stop at once; unread messages go back. Raises only ConnectionClosed."""
        self._portal.call(self._stop)

    def __iter__(self) -> Iterator[JsMessage]:
        with self._entered_here():
            for item in self._iterate():
                yield JsMessage(self._portal, item)

    def batches(
        self, max_messages: int | None = None, *, max_wait: Duration | None = None
    ) -> Iterator[list[JsMessage]]:
        """Yield lists of the messages that have arrived, at most ``max_messages`` at a time.

        With ``max_wait`` a list is yielded when it is full, or its oldest message has waited for that many seconds.
        It is full with ``max_messages``, by default and at most the ``prefetch`` of ``messages``. ConfigError at once
        for invalid arguments, also for a ``max_wait`` of 0.1 of the consumer's ``ack_wait`` or more.

        Args:
            max_messages: Messages that fill a list; None: the ``prefetch`` of ``messages``, which is also the most.
            max_wait: Seconds after which a list that is not full is yielded, counted from its oldest message; None:
                what has arrived is yielded at once.
        """
        return self._each_batch(max_messages, self._portal.run(self._inner.batches, max_messages, max_wait=max_wait))

    def _each_batch(
        self, most: int | None, source: AsyncIterator[list[message.JsMessage]]
    ) -> Iterator[list[JsMessage]]:
        with self._entered_here():
            self._settle(get_ident())  # it goes on to read in another way
            self._portal.run(self._take_back)
            if self._inner.buffer.deliveries is None:  # what next() has fetched is counted already
                while fetched := list(islice(self._fetched(), most)):
                    yield self._wrap(fetched)
            batches = self._portal.iterate(source, self._inner._return_unread)
            yield from map(self._wrap, self._read_on(batches.__next__))

    def _fetched(self) -> Iterator[message.JsMessage]:
        """Take the messages from the queue of threads."""
        with suppress(IndexError):
            while True:
                yield self._buffer.popleft()

    def _wrap(self, batch: list[message.JsMessage]) -> list[JsMessage]:
        return [JsMessage(self._portal, item) for item in batch]

    @contextmanager
    def _entered_here(self) -> Iterator[None]:
        """Enter it for a loop, unless it is entered."""
        enter_here, thread = not self._entered, get_ident()
        if enter_here:
            self.__enter__()
        try:
            yield
        finally:
            self._settle(thread)
            if enter_here:
                self._portal.run_detached(self._stop, wait=True)

    def _take_back(self) -> None:
        """Move the messages that wait for threads to the front of those that wait for all readers."""
        if self._inner.buffer.deliveries is not None:
            self._inner.buffer.ready.extendleft(reversed(take_all(self._buffer)))

    def _next(self, timeout: float | timedelta | None) -> message.JsMessage:
        thread = get_ident()
        self._settle(thread)
        deliveries = self._inner.buffer.deliveries
        while True:
            item = super()._next(timeout)
            now = monotonic()
            if deliveries is None or now < item._note.check_at or self._portal.run(deliveries.may_hand_over, item, now):
                self._inner.buffer.hand_of(thread)[:] = [item]
                self._takers[thread] = current_thread(), now
                return item

    def _settle(self, thread: int) -> None:
        """A thread is done with its message: it asks for another one, has left its loop or has ended."""
        if (taker := self._takers.pop(thread, None)) is not None:
            buffer, now = self._inner.buffer, monotonic()
            for item in buffer.forget_hand(thread):
                if item._note is message.ACKED:
                    buffer.note_ack((item._reply, now))
                if id(item) in buffer.newest:
                    self._portal.post(partial(buffer.on_released, item))
            self._times.append(now - taker[1])

    def _forget_ended(self) -> None:
        for number, (thread, _) in list(self._takers.items()):
            if not thread.is_alive():
                self._settle(number)

    async def _fetch(self, timeout: float | None) -> None:
        deliveries = self._inner.buffer.deliveries
        if deliveries is None:  # nothing is delivered again
            await super()._fetch(timeout)
        elif not self._buffer:
            self._waiting += 1
            self._forget_ended()
            deliveries.on_workers(self._waiting + len(self._takers))
            times = [self._times.popleft() for _ in range(len(self._times))]
            try:
                self._inner._on_handled(times)
                await self._inner._lend(self._buffer, timeout, max(1, deliveries.prefetch.bound // 2))
            finally:
                self._waiting -= 1

    async def _next_item(self, timeout: float | None) -> message.JsMessage:
        return await self._inner.next(timeout)

    def _available_items(self) -> list[message.JsMessage]:
        return self._inner._take_all()

    async def _stop(self) -> None:
        for thread in list(self._takers):
            self._settle(thread)
        await self._inner.stop()


def _key_of(portal: Portal, key: Callable[[JsMessage], Hashable], item: message.JsMessage) -> Hashable:
    return key(JsMessage(portal, item))


def of_messages(portal: Portal) -> Callable[[object], object]:
    """Return a function that returns blocking messages for those of the async client, also of a list of them."""

    def wrap(one: object) -> object:
        if isinstance(one, list):
            return [JsMessage(portal, item) for item in one]
        return JsMessage(portal, one) if isinstance(one, message.JsMessage) else one

    return wrap


def _start(portal: Portal, begin: Callable[[], consume.ConsumeContext]) -> ConsumeContext:
    inner = portal.run(begin)
    portal.enter(inner)
    return ConsumeContext(portal, inner)


class blocking_fetch(SyncMethod[V, P, messages.Fetch, list[JsMessage]], Generic[V, P]):
    """Waits for a method that fetches. Messages that an interrupt keeps from being returned go to the next reader."""

    def _returned(self, annotation: object) -> object:
        return list[JsMessage]

    def _call(self, wrapper: SyncWrapper[V], /, *args: P.args, **kwargs: P.kwargs) -> list[JsMessage]:
        portal, inner = wrapper._reach()
        running: list[messages.Fetch] = []

        async def fetch() -> list[message.JsMessage]:  # the method has to be called on the event loop
            running.append(self._method(inner, *args, **kwargs))
            return await running[0]

        def put_back(got: list[message.JsMessage]) -> None:
            running[0]._put_back(got)

        return [JsMessage(portal, item) for item in portal.call_or_undo(fetch, put_back)]


class Consumer(SyncWrapper[C], Generic[C]):
    """Base class of the blocking consumers."""

    info: Final = blocking(handle.Consumer.info)
    delete: Final = blocking(handle.Consumer.delete)
    pause: Final = blocking(handle.Consumer.pause)
    resume: Final = blocking(handle.Consumer.resume)
    unpin: Final = blocking(handle.Consumer.unpin)
    reset: Final = blocking(handle.Consumer.reset)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._inner.name

    @property
    def stream_name(self) -> str:
        """The name of the stream."""
        return self._inner.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The last info received from the server. LocalProtocolError for a handle that never requested it."""
        return self._inner.cached_info


class PullConsumer(Consumer[handle.PullConsumer]):
    """A pull consumer of a stream: ``fetch``, ``next``, ``messages``."""

    fetch: Final = blocking_fetch(handle.PullConsumer.fetch)
    fetch_available: Final = blocking_fetch(handle.PullConsumer.fetch_available)
    messages: Final = wrapped(handle.PullConsumer.messages, Messages)

    def consume(
        self,
        handler: Callable[[JsMessage], object],
        *,
        threads: int = 1,
        key: Callable[[JsMessage], Hashable] | None = None,
        on_success: OnSuccess = "ack",
        on_error: OnError = "nak",
        nak_delay: Duration | None = None,
        keep_alive: bool | Duration = False,
        timeout: Duration | None = None,
        **options: Unpack[ReadArgs],
    ) -> ConsumeContext:
        """Call ``handler`` with every message in ``threads`` threads, and acknowledge it. It runs when this returns.

        The message of a handler that raises is redelivered. A handler may block, and use the client. The arguments are
        those of the async client's ``consume``, where ``threads`` is the ``concurrency``; ``options`` are
        ``prefetch``, ``stop_after``, ``stop_when_empty`` and the others of ``messages``. ``key`` is called on the
        client's own thread, so it must not block. TypeError for an ``async def`` handler, ConfigError for other wrong
        arguments, before anything is sent.

        Args:
            handler: A plain function that is called with each message in a thread.
            threads: How many threads call the handler, and so how many messages or lists are handled at a time.
            key: Returns the key of a message: those of one key are handled one after the other. None: any order.
            on_success: When the handler returns: "ack" (default), "ack_sync", which waits for the server's
                confirmation, or "nothing".
            on_error: When the handler raises: "nak" (default), "term", which ends the deliveries of the message, or
                "nothing".
            nak_delay: Seconds before a failed message is delivered again, or a function of the message that returns
                them; None: the consumer's ``backoff``, or else 0.25 s, doubled with each delivery up to 30 s.
            keep_alive: Report to the server that work goes on, so that ``ack_wait`` does not pass while the handler
                runs: True, or the seconds between two such notes.
            timeout: Seconds for a call of the handler, which then ends with HandlerTimeout, an error of the handler.
                Its thread goes on, and its message is left alone until it ends. None: no limit.
            **options: The arguments of ``messages``, by keyword.
        """
        check_names(options, ReadArgs)
        check_threads(threads)
        portal = self._portal
        call = thread_handler(handler, "message", of_messages(portal))
        return _start(
            portal,
            lambda: self._inner.consume(
                call,
                concurrency=threads,
                key=None if key is None else partial(_key_of, portal, key),
                on_success=on_success,
                on_error=on_error,
                nak_delay=nak_delay,
                keep_alive=keep_alive,
                executor=True,
                timeout=timeout,
                **options,
            ),
        )

    def consume_batches(
        self,
        handler: Callable[[list[JsMessage]], object],
        *,
        max_messages: int = 500,
        max_wait: Duration = 0.5,
        threads: int = 1,
        nak_delay: Duration | None = None,
        timeout: Duration | None = None,
        stop_after: int = 0,
        stop_when_empty: bool = False,
    ) -> ConsumeContext:
        """Call ``handler`` in ``threads`` threads with a list of up to ``max_messages`` messages, when it is full or
        the oldest one has waited for ``max_wait`` seconds. It runs when this returns.

        All of them are acknowledged when the handler returns; if it raises BatchFailed, those at its ``indexes`` are
        redelivered, and with any other exception all. See the async client's ``consume_batches``. TypeError for an
        ``async def`` handler, ConfigError for other wrong arguments, before anything is sent.

        Args:
            handler: A plain function that is called with each list of messages in a thread; BatchFailed says which of
                them failed.
            max_messages: Messages that fill a list.
            max_wait: Seconds after which a list that is not full is handled, counted from its oldest message; less than
                a tenth of ``ack_wait``.
            threads: How many threads call the handler, and so how many messages or lists are handled at a time.
            nak_delay: Seconds before a failed message is delivered again, or a function of the message that returns
                them; None: the consumer's ``backoff``, or else 0.25 s, doubled with each delivery up to 30 s.
            timeout: Seconds for a call of the handler, which then ends with HandlerTimeout, an error of the handler.
                Its thread goes on, and its message is left alone until it ends. None: no limit.
            stop_after: End after this many messages; 0: no limit.
            stop_when_empty: End when the server has no more messages for now; False waits for more.
        """
        check_threads(threads)
        portal = self._portal
        call = thread_handler(handler, "list of messages", of_messages(portal))
        return _start(
            portal,
            lambda: self._inner.consume_batches(
                call,
                max_messages=max_messages,
                max_wait=max_wait,
                concurrency=threads,
                nak_delay=nak_delay,
                executor=True,
                timeout=timeout,
                stop_after=stop_after,
                stop_when_empty=stop_when_empty,
            ),
        )

    def next(
        self,
        timeout: Duration | None = 5.0,
        *,
        acking: JsMessage | None = None,
        **options: Unpack[PriorityArgs],
    ) -> JsMessage:
        """Pull one message. RequestTimeout when none arrived within ``timeout`` seconds (0: when there is none now;
        None: no limit).

        ``acking`` is a message of this consumer that is acknowledged in the same round trip; see the async client. An
        interrupt loses nothing: a message that has just arrived goes to the next reader of this handle.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that is there now.
            acking: A message of this consumer to acknowledge with the same command; None: none.
            **options: For a consumer with priority groups, by keyword: those of PriorityArgs.
        """

        async def pull() -> message.JsMessage:
            return await self._inner.next(timeout, acking=None if acking is None else acking._inner, **options)

        def put_back(item: message.JsMessage) -> None:
            self._inner.fetch(1, **options)._put_back([item])

        return JsMessage(self._portal, self._portal.call_or_undo(pull, put_back))


class PushConsumer(Consumer[push.PushConsumer]):
    """A push consumer: the server sends its messages to a subject. Read them with ``messages``."""

    messages: Final = wrapped(push.PushConsumer.messages, Messages)

    @property
    def deliver_subject(self) -> str:
        """The subject that the server delivers messages to."""
        return self._inner.deliver_subject

    @property
    def deliver_group(self) -> str:
        """The queue group that shares the messages; empty without one."""
        return self._inner.deliver_group


class OrderedConsumer(SyncContext[ordered.OrderedConsumer]):
    """Reads a stream in order, each message once, with ``fetch``, ``next`` or ``messages``, one at a time.

    Each of them continues where the last one ended. Leaving ``with`` deletes the consumer on the server.
    """

    wait_created: Final = blocking(ordered.OrderedConsumer.wait_created)
    info: Final = blocking(ordered.OrderedConsumer.info)
    fetch: Final = blocking_fetch(ordered.OrderedConsumer.fetch)
    fetch_available: Final = blocking_fetch(ordered.OrderedConsumer.fetch_available)
    messages: Final = wrapped(ordered.OrderedConsumer.messages, Messages)
    stop: Final = blocking(ordered.OrderedConsumer.stop)

    @property
    def name(self) -> str:
        """The name of the current consumer on the server; it changes when the consumer is recreated."""
        return self._inner.name

    @property
    def stream_name(self) -> str:
        """The name of the stream."""
        return self._inner.stream_name

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message received, 0 before the first."""
        return self._inner.last_seq

    def next(self, timeout: Duration | None = 5.0) -> JsMessage:
        """Return the next message. RequestTimeout when none arrived within ``timeout`` seconds; ConnectionClosed when
        the client is closed meanwhile. An interrupt loses nothing: a message that has just arrived is read next.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that is there now.
        """

        def put_back(item: message.JsMessage) -> None:
            self._inner.fetch(1)._put_back([item])

        return JsMessage(self._portal, self._portal.call_or_undo(partial(self._inner.next, timeout), put_back))

    def until_drained(self) -> Iterator[JsMessage]:
        """Yield the messages that wait in the stream, and end when the server has no further one; see the async
        client.
        """
        for item in self._portal.iterate(self._portal.run(self._inner.until_drained)):
            yield JsMessage(self._portal, item)

    @property
    def cached_info(self) -> ConsumerInfo:
        """The server's info when the consumer was last created. LocalProtocolError before the first creation."""
        return self._inner.cached_info


def consumer_of_kind(portal: Portal, inner: handle.PullConsumer | push.PushConsumer) -> PullConsumer | PushConsumer:
    """Return the blocking consumer for one of the async client."""
    return PushConsumer(portal, inner) if isinstance(inner, push.PushConsumer) else PullConsumer(portal, inner)
