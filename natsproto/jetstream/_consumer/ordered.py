"""Ordered consumers: read a stream in order and replace the server's consumer when it fails (ADR-17).

OrderedSource is one reader: a task that creates a consumer and fills the reader's buffer while its messages are in
order. It creates another consumer after the last good message when they are not, when the connection was lost, and when
heartbeats are missed. OrderedCursor checks the order; OrderedConsumer is the handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from natsproto._core.events import Closed, Connected, Disconnected, Event, Moved, Reconnected
from natsproto._core.instrumentation import ReaderInfo
from natsproto._handler_threads import Executor
from natsproto._nats_py_names import READ_CONSUMER, misused
from natsproto.errors import (
    ConfigError,
    ConnectionClosed,
    ConsumerExists,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    StreamNotFound,
    SubscriptionClosed,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import NEVER, Duration
from natsproto.jetstream._config import ConsumerConfig
from natsproto.jetstream._consumer.buffer import Buffer
from natsproto.jetstream._consumer.consume import ConsumeContext, Handler, HandlerOptions, HandlerTasks
from natsproto.jetstream._consumer.handle import no_message_error
from natsproto.jetstream._consumer.messages import Fetch, Messages
from natsproto.jetstream._consumer.ordered_push import OrderedPush
from natsproto.jetstream._consumer.ordered_state import (
    CREATE_TIMEOUT_GROWTH,
    FIRST_CREATE_TIMEOUT_S,
    MAX_CREATE_TIMEOUT_S,
    OrderedState,
)
from natsproto.jetstream._consumer.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.pull import ConsumerEnd, PullSource
from natsproto.jetstream._consumer.pull_inbox import PullInbox
from natsproto.jetstream._consumer.pull_options import (
    DEFAULT_EXPIRES_S,
    FetchArgs,
    PullMode,
    PullOptions,
    fetch_options,
    pull_options,
)
from natsproto.jetstream._consumer.pull_state import PullState
from natsproto.jetstream._consumer.push_subscription import PushAddress
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._timestamp import Timestamp
from natsproto.jetstream._unexpected import wrap_unexpected

EXPIRY_GRACE_S = 0.25
"""Seconds to wait for the server's reply that a pull has expired."""


class OrderedConsumer:
    """Reads a stream in order, each message once. Created by ``stream.ordered_consumer``; sends nothing until it is
    read.

    ``fetch``, ``next``, ``messages`` and ``consume`` continue where the last of them ended; only one may be active.
    Messages need no acknowledgement. There is no gap, duplicate or disorder when the consumer on the server is deleted,
    the server restarts, the stream is purged or its leader changes; a missing message was removed from the stream.
    Reading ends with StreamNotFound (also when the stream was recreated), with PermissionDenied, and with the server's
    error for a configuration.
    """

    if not TYPE_CHECKING:
        __aiter__ = misused(READ_CONSUMER)

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        *,
        push: bool = False,
        stream_created: Timestamp = NEVER,
        name_prefix: str = "",
    ) -> None:
        config.check()
        self.stream_name = stream
        """The stream that it reads."""
        self._state = OrderedState(
            api, stream, config, push=push, stream_created=stream_created, name_prefix=name_prefix
        )

    # ---------------------------------------------------------------- properties

    @property
    def name(self) -> str:
        """The name of the consumer in use, which changes when it is replaced."""
        return self._state.cursor.name

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message received, 0 before the first."""
        return self._state.cursor.stream_seq

    @property
    def cached_info(self) -> ConsumerInfo:
        """The info of the consumer in use, from its creation. LocalProtocolError before the first consumer."""
        if self._state.info is None:
            raise self._not_created_error()
        return self._state.info

    async def wait_created(self) -> ConsumerInfo:
        """Wait for the first consumer; its ``num_pending`` is the number of messages to read at that time.

        Raises the error that ends reading; SubscriptionClosed when its reader stops before, LocalProtocolError when it
        has no reader. Cancelling ends the wait.
        """
        if self._state.has_no_reader:
            raise LocalProtocolError(f"{self._description} has no reader that could create a consumer: read it first")
        return await self._state.wait_created()

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Get the info of the consumer in use. LocalProtocolError before the first consumer; ConsumerNotFound when it
        is gone.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        if self._state.info is None:
            raise self._not_created_error()
        return await self._state.api.call_for(
            ConsumerInfo,
            f"CONSUMER.INFO.{self.stream_name}.{self.name}",
            operation=f"info of {self._description}",
            timeout=timeout,
        )

    # ---------------------------------------------------------------- reading

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration | None = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        heartbeat: Duration | None = None,
    ) -> Fetch:
        """Fetch up to ``max_messages`` of the next messages; see PullConsumer.fetch. ConfigError with ``push``.

        Args:
            max_messages: The most messages to get; None: 500, or no limit with ``max_bytes``.
            timeout: Seconds to wait until the list is full; None: no limit, 0: only those that are there now.
            max_bytes: The most bytes to get, with subjects and headers; None: no limit.
            no_wait: Return what is there now. The same as ``timeout=0``.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
        """
        mode = PullMode.NO_WAIT if no_wait else PullMode.BOUNDED
        return self._fetch(mode, timeout, max_messages=max_messages, max_bytes=max_bytes, heartbeat=heartbeat)

    def fetch_available(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration | None = 5.0,
        max_bytes: int | None = None,
        heartbeat: Duration | None = None,
    ) -> Fetch:
        """Fetch the messages that are available, at least one; see PullConsumer.fetch_available.

        Args:
            max_messages: The most messages to get; None: 500, or no limit with ``max_bytes``.
            timeout: Seconds to wait for the first one; None: no limit, 0: only those that are there now.
            max_bytes: The most bytes to get, with subjects and headers; None: no limit.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
        """
        return self._fetch(
            PullMode.AVAILABLE, timeout, max_messages=max_messages, max_bytes=max_bytes, heartbeat=heartbeat
        )

    def _fetch(self, mode: PullMode, timeout: Duration | None, **arguments: Unpack[FetchArgs]) -> Fetch:
        if self._state.push:
            raise ConfigError("push", True, "nothing can be fetched from a push consumer: use messages() or consume()")
        options = fetch_options(mode, timeout, self._state.api.timeout, **arguments)
        return Fetch(OrderedSource(self._state, options), self._state.put_back)

    async def next(self, timeout: Duration | None = 5.0) -> JsMessage:
        """Return the next message; RequestTimeout when none came within ``timeout`` seconds (None: no limit),
        ConnectionClosed when the client is closed or drained meanwhile, SubscriptionClosed when this is stopped.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that is there now.
        """
        messages = await self.fetch(1, timeout=timeout)
        if not messages:
            raise no_message_error(self._state.connection, self._description, timeout)
        return messages[0]

    def messages(
        self,
        *,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        expires: Duration = DEFAULT_EXPIRES_S,
        heartbeat: Duration | None = None,
        refill_at: int | None = None,
        refill_at_bytes: int | None = None,
        stop_after: int = 0,
    ) -> Messages:
        """Return all messages from here on. Use it with ``async with``, then iterate it. The arguments are those of
        PullConsumer.messages.

        Without a limit or threshold, 500 messages are prefetched at first, and for a fast reader as many as it handles
        within 0.1 s (up to 4,096), but not more than about 16 MiB. With ``push`` the server's flow control is the limit
        instead of ``prefetch`` and ``prefetch_bytes``.

        Args:
            prefetch: Messages that may wait ahead of the reader; None: 500, fewer if handling takes long.
            prefetch_bytes: Bytes that may wait ahead of the reader; None: no limit.
            expires: Seconds that one pull may wait before the next one replaces it, at least 1.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
            refill_at: Pull again when no more than this many messages wait; None: half of ``prefetch``.
            refill_at_bytes: Pull again when no more than this many bytes wait; None: half of ``prefetch_bytes``.
            stop_after: End after this many messages; 0: no limit.
        """
        options = pull_options(
            max_messages=prefetch,
            max_bytes=prefetch_bytes,
            expires=expires,
            heartbeat=heartbeat,
            refill_at=refill_at,
            refill_at_bytes=refill_at_bytes,
            stop_after=stop_after,
        )
        return Messages(OrderedSource(self._state, options), self._state.description, self._state.put_back)

    def consume(
        self,
        handler: Handler,
        *,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        expires: Duration = DEFAULT_EXPIRES_S,
        heartbeat: Duration | None = None,
        stop_after: int = 0,
        concurrency: int = 1,
        key: Callable[[JsMessage], Hashable] | None = None,
        error_cb: Callable[[JsMessage, BaseException], object] | None = None,
        executor: Executor = None,
    ) -> ConsumeContext:
        """Call ``handler`` with every message from here on; see Consumer.consume. Nothing is acknowledged.

        Args:
            handler: Called with each message, ``def`` or ``async def``.
            prefetch: Messages that may wait ahead of the reader; None: 500, fewer if handling takes long.
            prefetch_bytes: Bytes that may wait ahead of the reader; None: no limit.
            expires: Seconds that one pull may wait before the next one replaces it, at least 1.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
            stop_after: End after this many messages; 0: no limit.
            concurrency: How many messages are handled at a time; 1 keeps their order.
            key: Returns the key of a message: those of one key are handled one after the other. None: any order.
            error_cb: Called with a message and the exception of its handler, beside the log and the HandlerFailed
                event; None: not called.
            executor: For a ``def`` handler that blocks: True calls it in daemon threads, as many as are handled at a
                time, or give a ThreadPoolExecutor. None: the handler is called on the event loop.
        """
        messages = self.messages(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            expires=expires,
            heartbeat=heartbeat,
            stop_after=stop_after,
        )
        handler_options = HandlerOptions(
            concurrency=concurrency,
            key=key,
            on_success="nothing",
            on_error="nothing",
            error_cb=error_cb,
            executor=executor,
        )
        tasks = HandlerTasks(self._state.connection, self._description, messages, handler, handler_options)
        return ConsumeContext(self._description, messages, tasks)

    async def stop(self) -> None:
        """End its reader and delete the server's consumer, if there is one.

        ``messages`` and ``consume`` end after the messages that have arrived. ``fetch`` returns those; ``fetch`` and
        ``next`` raise SubscriptionClosed when there are none. Reading again creates another consumer, which continues
        after the last message.
        """
        if (reader := self._state.reader) is not None:
            await reader.finish()
        self._state.drop_kept_consumer()

    async def __aenter__(self) -> OrderedConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"OrderedConsumer(stream_name={self.stream_name!r}, last_seq={self.last_seq})"

    def _not_created_error(self) -> LocalProtocolError:
        return LocalProtocolError(f"{self._description} has created no consumer yet: read it first")

    @property
    def _description(self) -> str:
        return self._state.description


class OrderedSource:
    """Fills the buffer of one reader from successive consumers; a MessageSource."""

    def __init__(self, state: OrderedState, options: PullOptions) -> None:
        self._is_fetch = options.mode is not PullMode.ENDLESS
        prefetch = AdaptivePrefetch() if options.is_adaptive and not self._is_fetch and not state.push else None
        self.buffer = Buffer(options.max_messages, counts_bytes=options.max_bytes > 0, prefetch=prefetch)
        self.connection = state.connection
        self._state, self._cursor, self._options, self._prefetch = state, state.cursor, options, prefetch
        self._loop = asyncio.get_running_loop()
        self._until = 0.0  # the end of a fetch
        self._source: PullSource | OrderedPush | None = None
        self._pull_state: PullState | None = None  # of the consumer in use, or the last one
        self._inbox: PullInbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._verify_task: asyncio.Task[None] | None = None  # whether it is the same stream
        self._timer: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] | None = None
        self._requested = ""  # the consumer that is being created
        self._create_error: NatsError | None = None  # why the last consumer could not be made
        self._is_fetch_complete = False  # a fetch came to its end
        self._created_or_ended = asyncio.Event()  # a consumer exists, or nothing will come

    # ---------------------------------------------------------------- the interface of a source

    def start(self) -> None:
        """Start where the last reader ended, with the kept consumer or a new one. ConnectionClosed."""
        state, options, buffer, connection = self._state, self._options, self.buffer, self.connection
        inbox = state.attach(self)
        is_connected = connection.is_connected
        self._unlisten = connection.add_listener(self._on_event)
        if self._is_fetch:
            self._until = self._loop.time() + options.expires
            self._timer = self._loop.call_at(self._until + EXPIRY_GRACE_S, self._on_expired)
        if state.leftover:
            buffer.put_counted(state.take_leftover(options.most_messages))
            if PullState(options, buffer, 0.0).is_done:
                self._inbox, self._is_fetch_complete = inbox, True
                self._end(None)
                return
        if is_connected:
            self._start_run(None if inbox is None else self._pull(inbox))
        elif inbox is not None:
            inbox.close()
            state.deletion.delete_created(self._cursor.name)

    def reader_info(self) -> ReaderInfo:
        """Return the stream and the consumer in use."""
        return ReaderInfo(self._state.stream, self._cursor.name, is_stream=True)

    def wait_created(self) -> Awaitable[object]:
        """Wait for the first consumer of this reader, also during outages."""
        return self._created_or_ended.wait()

    def refill(self) -> None:
        """Refill the buffer."""
        if self._source is not None:
            self._source.refill()

    async def finish(self) -> None:
        """Stop pulling, receive the messages in flight, and end the buffer."""
        self._cancel()
        try:
            if self._source is not None:
                await self._source.finish()
        finally:
            self.close()
            if not self.buffer.ended:
                self.buffer.end(SubscriptionClosed(self._state.description, "stopped") if self._is_fetch else None)

    def close(self) -> None:
        """End at once. The consumer is kept after a complete fetch and deleted otherwise."""
        self._created_or_ended.set()
        self._cancel()
        if self._unlisten is None:
            return
        self._unlisten()
        self._unlisten = None
        inbox = self._inbox if self._is_fetch_complete and self.connection.is_connected else None
        if inbox is None:
            self._drop_consumer()
        elif self._source is not None:
            self._source.close()
            self._source = self._inbox = None
        self._state.detach(self, inbox)

    # ---------------------------------------------------------------- one consumer after the other

    def _start_run(self, ended: asyncio.Future[ConsumerEnd] | None) -> None:
        self._task = self._loop.create_task(self._run(ended), name="natsproto ordered consumer")

    async def _run(self, ended: asyncio.Future[ConsumerEnd] | None) -> None:
        """Read from one consumer after the other. An error that cannot be overcome ends reading."""
        try:
            error = await self._read(ended)
        except Exception as exc:
            self._drop_consumer()
            unexpected = wrap_unexpected(f"reading {self._state.description}", exc)
            error = None if isinstance(exc, ConnectionClosed) else unexpected
            self._state.fail_creation(unexpected)
        self._task = None
        self._end(error)

    async def _read(self, ended: asyncio.Future[ConsumerEnd] | None) -> NatsError | None:
        """Return the error that ended reading; None when it is complete or the client is closed."""
        state, cursor, delay = self._state, self._cursor, 0.0
        while True:
            if ended is None:
                ended = await self._create(delay)
            self._created_or_ended.set()
            self._start_verify()
            how = await ended
            if not how.lost:
                self._is_fetch_complete = self._is_fetch and how.error is None
                return how.error
            if how.error is not None:
                state.emit_notice(how.error)
            self._drop_consumer()
            ended = None
            # Back off if the lost consumer never sent anything.
            delay = 0.0 if cursor.is_heard else cursor.on_failed()

    def _pull(self, inbox: PullInbox | None = None) -> asyncio.Future[ConsumerEnd]:
        """Pull from the consumer in use."""
        if inbox is None:
            inbox = PullInbox(self._state.api, self._state.stream, self._cursor.name)
        ended: asyncio.Future[ConsumerEnd] = self._loop.create_future()
        source = PullSource(inbox, self._options, buffer=self.buffer, cursor=self._cursor, ended=ended)
        self._inbox, self._source = inbox, source
        source.start(self._pull_state, self._until, self._prefetch)
        self._pull_state = source.state
        return ended

    async def _create(self, delay: float) -> asyncio.Future[ConsumerEnd]:
        """Create the next consumer, with retries, and start to read it."""
        state, cursor = self._state, self._cursor
        timeout, is_notified = state.create_timeout, False
        while True:
            if delay:
                await asyncio.sleep(delay)
            config = cursor.next_consumer(deliver_subject=state.api.new_inbox() if state.push else "")
            pushed = self._push(config) if state.push else None
            if pushed is not None:
                self._source = pushed
                pushed.start()  # messages may come before the server says that it is there
            self._requested = config.name
            try:
                await state.create(config, timeout)
            except Exception as exc:
                if not isinstance(exc, ConsumerExists):  # of another reader
                    state.deletion.delete_abandoned(config.name)
                if not isinstance(exc, NatsError) or state.is_final(exc):
                    raise
                if self._source is not None:
                    self._source.close()
                    self._source = None
                if isinstance(exc, RequestTimeout):
                    if timeout >= FIRST_CREATE_TIMEOUT_S and not is_notified:
                        is_notified = True
                        state.emit_notice(exc)
                    delay, timeout = 0.0, max(timeout, min(CREATE_TIMEOUT_GROWTH * timeout, MAX_CREATE_TIMEOUT_S))
                    continue
                self._create_error = exc
                state.emit_notice(exc)
                delay = cursor.on_failed()
                continue
            finally:
                self._requested = ""
            return self._pull() if pushed is None else pushed.ended

    def _push(self, config: ConsumerConfig) -> OrderedPush:
        address = PushAddress(self._state.stream, config.name, config.deliver_subject, heartbeat=config.idle_heartbeat)
        return OrderedPush(self.connection, address, self.buffer, self._cursor, self._options.stop_after)

    def _drop_consumer(self) -> None:
        """Drop the consumer in use."""
        source, self._source = self._source, None
        inbox, self._inbox = self._inbox, None
        if source is not None:
            source.close()
        if inbox is not None:
            inbox.close()
        if source is not None or inbox is not None:
            self._state.deletion.delete_created(self._cursor.name)

    def _start_verify(self) -> None:
        if self._verify_task is not None:
            self._verify_task.cancel()
            self._verify_task = None
        if self._state.identity.unverified:
            self._verify_task = self._loop.create_task(self._verify(), name="natsproto identify stream")

    async def _verify(self) -> None:
        """End reading if the stream was recreated. Runs beside the reading, which it would delay."""
        try:
            await self._state.identity.verify(lambda: self._cursor.stream_seq)
        except Exception as exc:
            self._verify_task = None
            if isinstance(exc, StreamNotFound):
                self._drop_consumer()
            self._end(wrap_unexpected(f"reading {self._state.description}", exc))

    # ---------------------------------------------------------------- events

    def _on_event(self, event: Event) -> None:
        # A pull consumer may have survived: pull from it first, and its first heartbeat, within HEARTBEAT_AFTER_LOSS_S,
        # shows a gap. Messages that were pushed meanwhile are lost.
        try:
            if isinstance(event, Disconnected):
                if not isinstance(self._source, PullSource):
                    self._cancel_run()
                    self._drop_consumer()
            elif isinstance(event, (Connected, Reconnected, Moved)):
                if not isinstance(self._source, PullSource):
                    self._drop_consumer()
                    self._cancel_run()
                    if self.connection.is_connected:
                        self._start_run(None)
            elif isinstance(event, Closed) and self._source is None:
                self._state.fail_creation(self.connection._outbox.closed_error(f"read {self._state.description}"))
                self._end(None)  # there will be no consumer that could say so
        except Exception as exc:
            self._end(wrap_unexpected(f"reading {self._state.description}", exc))

    def _on_expired(self) -> None:
        """End a fetch whose time is over while there is no consumer."""
        self._timer = None
        self._end(self._create_error if self._state.info is None else None)

    def _end(self, error: NatsError | None) -> None:
        self._created_or_ended.set()
        self._cancel()
        if error is not None:
            self._state.fail_creation(error)
        if not self.buffer.ended:
            if error is not None and not self._is_fetch:
                self._state.emit_notice(error)
            self.buffer.end(error)
        self.close()

    def _cancel_run(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._requested:  # now, as the client may close before the task ends
            self._state.deletion.delete_requested(self._requested)
            self._requested = ""

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cancel_run()
        if self._verify_task is not None:
            self._verify_task.cancel()
            self._verify_task = None
