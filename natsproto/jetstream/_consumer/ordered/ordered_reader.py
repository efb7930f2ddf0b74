"""One reader of an ordered consumer (ADR-17): a task that creates a consumer and fills the reader's buffer while its
messages are in order.

It creates another consumer after the last good message when they are not, when the connection was lost, and when
heartbeats are missed. OrderedCursor checks the order, OrderedPull and OrderedPush read one consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from natsproto import errors
from natsproto._core.events import Closed, Connected, Disconnected, Event, Moved, Reconnected
from natsproto._core.instrumentation import ReaderInfo
from natsproto.jetstream._api.unexpected import wrap_unexpected
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.delivery.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.ordered.ordered_cursor import ConsumerEnd
from natsproto.jetstream._consumer.ordered.ordered_pull import OrderedPull
from natsproto.jetstream._consumer.ordered.ordered_push import OrderedPush
from natsproto.jetstream._consumer.ordered.ordered_state import (
    CREATE_TIMEOUT_GROWTH,
    FIRST_CREATE_TIMEOUT_S,
    MAX_CREATE_TIMEOUT_S,
    OrderedState,
)
from natsproto.jetstream._consumer.ordered.stream_identity import StreamIdentity
from natsproto.jetstream._consumer.pull.pull_state import PullState
from natsproto.jetstream._consumer.pull.pull_subscription import PullAddress, PullSubscription
from natsproto.jetstream._consumer.pull_options import PullMode, PullOptions
from natsproto.jetstream._consumer.push.push_subscription import PushAddress
from natsproto.jetstream._values.config import ConsumerConfig

EXPIRY_GRACE_S = 0.25
"""Seconds to wait for the server's reply that a pull has expired."""


class OrderedReader:
    """Fills the buffer of one reader from successive consumers; a MessageSource."""

    def __init__(self, state: OrderedState, options: PullOptions) -> None:
        self._is_fetch = options.mode is not PullMode.ENDLESS
        prefetch = AdaptivePrefetch() if options.is_adaptive and not self._is_fetch and not state.push else None
        self.buffer = Buffer(options.max_messages, counts_bytes=options.max_bytes > 0, prefetch=prefetch)
        self.connection = state.connection
        self._state, self._cursor, self._options, self._prefetch = state, state.cursor, options, prefetch
        self._loop = asyncio.get_running_loop()
        self._until = 0.0  # the end of a fetch
        self._source: OrderedPull | OrderedPush | None = None
        self._pull_state: PullState | None = None  # of the consumer in use, or the last one
        self._task: asyncio.Task[None] | None = None
        self._verify_task: asyncio.Task[None] | None = None  # whether it is the same stream
        self._timer: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] | None = None
        self._requested = ""  # the consumer that is being created
        self._create_error: errors.NatsError | None = None  # why the last consumer could not be made
        self._kept: PullSubscription | None = None  # of a consumer that served a fetch, for the next one
        self._created_or_ended = asyncio.Event()  # a consumer exists, or nothing will come

    # ---------------------------------------------------------------- the interface of a source

    def start(self) -> None:
        """Start where the last reader ended, with the kept consumer or a new one. ConnectionClosed."""
        state, options, buffer, connection = self._state, self._options, self.buffer, self.connection
        kept = state.attach(self)
        is_connected = connection.is_connected
        self._unlisten = connection.add_listener(self._on_event)
        if self._is_fetch:
            self._until = self._loop.time() + options.expires
            self._timer = self._loop.call_at(self._until + EXPIRY_GRACE_S, self._on_expired)
        if state.leftover:
            buffer.put_counted(state.take_leftover(options.most_messages))
            if PullState(options, buffer, 0.0).is_done:
                self._kept = kept
                self._end(None)
                return
        if is_connected:
            self._start_run(None if kept is None else self._pull(kept))
        elif kept is not None:
            kept.close()
            state.deletion.delete(self._cursor.name)

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
                self.buffer.end(
                    errors.SubscriptionClosed(self._state.description, "stopped") if self._is_fetch else None
                )

    def close(self) -> None:
        """End at once. The consumer is kept after a complete fetch and deleted otherwise."""
        self._created_or_ended.set()
        self._cancel()
        if self._unlisten is None:
            return
        self._unlisten()
        self._unlisten = None
        self._drop_consumer()
        self._state.detach(self, self._kept)

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
            error = None if isinstance(exc, errors.ConnectionClosed) else unexpected
            self._state.fail_creation(unexpected)
        self._task = None
        self._end(error)

    async def _read(self, ended: asyncio.Future[ConsumerEnd] | None) -> errors.NatsError | None:
        """Return the error that ended reading; None when it is complete or the client is closed."""
        state, cursor, delay = self._state, self._cursor, 0.0
        while True:
            if ended is None:
                ended = await self._create(delay)
            self._created_or_ended.set()
            self._start_verify()
            how = await ended
            if not how.lost:
                source = self._source
                if self._is_fetch and how.error is None and isinstance(source, OrderedPull):
                    self._keep(source)
                return how.error
            if how.error is not None:
                state.emit_notice(how.error)
            self._drop_consumer()
            ended = None
            # Back off if the lost consumer never sent anything.
            delay = 0.0 if cursor.is_heard else cursor.on_failed()

    def _keep(self, source: OrderedPull) -> None:
        """Keep the consumer of a complete fetch, unless messages may still be on their way."""
        if not source.state.has_abandoned_pulls:
            self._kept, self._source = source.subscription, None

    def _pull(self, subscription: PullSubscription | None = None) -> asyncio.Future[ConsumerEnd]:
        """Pull from the consumer in use."""
        state, cursor = self._state, self._cursor
        address = PullAddress.of(state.api, state.stream, cursor.name)
        if subscription is None:
            subscription = PullSubscription(self.connection, state.api.new_inbox())
        source = OrderedPull(self.connection, address, self._options, self.buffer, cursor, subscription)
        self._source = source
        source.start(self._pull_state, self._until, self._prefetch)
        self._pull_state = source.state
        return source.ended

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
                if not isinstance(exc, errors.ConsumerExists):  # of another reader
                    state.deletion.delete(config.name, may_come=True)
                if not isinstance(exc, errors.NatsError) or state.is_final(exc):
                    raise
                if self._source is not None:
                    self._source.close()
                    self._source = None
                if isinstance(exc, errors.RequestTimeout):
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
        if source is not None:
            source.close()
            self._state.deletion.delete(self._cursor.name)

    def _start_verify(self) -> None:
        if self._verify_task is not None:
            self._verify_task.cancel()
            self._verify_task = None
        identity = self._state.identity
        if identity is not None and identity.unverified:
            self._verify_task = self._loop.create_task(self._verify(identity), name="natsproto identify stream")

    async def _verify(self, identity: StreamIdentity) -> None:
        """End reading if the stream was recreated. Runs beside the reading, which it would delay."""
        try:
            await identity.verify(lambda: self._cursor.stream_seq)
        except Exception as exc:
            self._verify_task = None
            if isinstance(exc, errors.StreamNotFound):
                self._drop_consumer()
            self._end(wrap_unexpected(f"reading {self._state.description}", exc))

    # ---------------------------------------------------------------- events

    def _on_event(self, event: Event) -> None:
        # A pull consumer may have survived: pull from it first, and its first heartbeat, within HEARTBEAT_AFTER_LOSS_S,
        # shows a gap. Messages that were pushed meanwhile are lost.
        source = self._source
        try:
            if isinstance(source, OrderedPull):
                source.on_event(event)
            elif isinstance(event, (Disconnected, Connected, Reconnected, Moved)):
                self._cancel_run()
                self._drop_consumer()
                if self.connection.is_connected and not isinstance(event, Disconnected):
                    self._start_run(None)
            elif isinstance(event, Closed) and source is None:
                self._state.fail_creation(self.connection._outbox.closed_error(f"read {self._state.description}"))
                self._end(None)  # there will be no consumer that could say so
        except Exception as exc:
            self._end(wrap_unexpected(f"reading {self._state.description}", exc))

    def _on_expired(self) -> None:
        """End a fetch whose time is over while there is no consumer."""
        self._timer = None
        self._end(self._create_error if self._state.info is None else None)

    def _end(self, error: errors.NatsError | None) -> None:
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
            self._state.deletion.delete(self._requested, may_come=True)
            self._requested = ""

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cancel_run()
        if self._verify_task is not None:
            self._verify_task.cancel()
            self._verify_task = None
