"""Push consumers: the server sends messages as fast as flow control allows (ADR-9, ADR-15).

PushSource owns the subscription on the deliver subject, the queued flow control requests and the timer for missed
heartbeats. It creates and deletes no consumer. PushConsumer is the handle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from itertools import groupby
from operator import attrgetter
from typing import Final, cast

from natsproto._core.connection import Connection
from natsproto._core.consumer_stats import ConsumerStats
from natsproto._core.events import Connected, Disconnected, Event, Moved, Reconnected
from natsproto._core.instrumentation import ReaderInfo
from natsproto._core.subscription import Subscription
from natsproto._durations import seconds
from natsproto._handler_threads import Executor
from natsproto.errors import (
    AlreadyBound,
    ConfigError,
    ConsumerNotFound,
    HeartbeatMissed,
    NatsError,
    StreamNotFound,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._api_errors import consumer_gone
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._consumer.buffer import NEVER_REFILL, Buffer
from natsproto.jetstream._consumer.consume import (
    ConsumeContext,
    Handler,
    HandlerOptions,
    HandlerTasks,
    NakDelay,
    OnError,
    OnSuccess,
)
from natsproto.jetstream._consumer.handle import Consumer
from natsproto.jetstream._consumer.messages import ConsumerNotice, Messages
from natsproto.jetstream._consumer.ordered_cursor import OrderedCursor
from natsproto.jetstream._consumer.pull import ConsumerEnd
from natsproto.jetstream._consumer.pull_inbox import DRAIN_TIMEOUT_S
from natsproto.jetstream._consumer.reader_stats import stats_of
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import AckWait, JsMessage, consumer_seq, nak_all, none_has_headers
from natsproto.jetstream._policies import AckPolicy
from natsproto.jetstream._unexpected import wrap_unexpected
from natsproto.protocol.subject import queue_group, subscribe_subject

MAX_MISSED_HEARTBEATS: Final = 3
"""Missed heartbeats that mean a loss: more than for pulls, as nothing else reveals it (ADR-15)."""
WAITS_FOR_UNBIND_S = (0.02, 0.05, 0.1, 0.2)
"""Waits, in seconds, for a server to notice that the previous reader has left."""
WAITS_FOR_BIND_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Waits, in seconds, for a server to notice a new reader."""


class PushSource:
    """Receives the messages that one consumer pushes to ``subject`` (of a queue group, if any); a MessageSource.

    With flow control the server stops sending until its request is answered, which happens when all earlier messages
    were consumed: a slow reader slows the server down. ``heartbeat`` in seconds (0: the consumer sends none); when
    three are missed ``lookup`` is called, and ConsumerNotFound or StreamNotFound of it end reading. ``leftover`` holds
    earlier unread messages; ``stop_after`` is the number of messages after which it ends. ``wait_push_bound``, if
    given, is awaited before it subscribes (False) and afterwards (True).

    An ordered reader passes its ``cursor``, which checks the order, and ``ended``, a future that is resolved when this
    consumer has ended or its heartbeats are missed. The buffer stays open then.
    """

    def __init__(
        self,
        connection: Connection,
        subject: str,
        *,
        stream: str,
        consumer: str,
        queue: str = "",
        heartbeat: float = 0.0,
        ack_wait: AckWait | None = None,
        stop_after: int = 0,
        buffer: Buffer | None = None,
        cursor: OrderedCursor | None = None,
        ended: asyncio.Future[ConsumerEnd] | None = None,
        lookup: Callable[[], Awaitable[object]] | None = None,
        leftover: deque[JsMessage] | None = None,
        wait_push_bound: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self.buffer = Buffer() if buffer is None else buffer
        self.connection = connection
        self._subject, self._queue, self._ack_wait = subject, queue, ack_wait
        self._stream, self._consumer = stream, consumer
        self._idle_timeout = MAX_MISSED_HEARTBEATS * heartbeat
        self._stop_after, self._leftover = stop_after, leftover
        self._cursor, self._ended = cursor, ended
        self._lookup, self._wait_push_bound = lookup, wait_push_bound
        self._loop = asyncio.get_running_loop()
        self._is_open = False
        self._is_connected = True
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lookup_task: asyncio.Task[None] | None = None
        self._last_heard = 0.0
        self._flow_control_requests: deque[tuple[int, str]] = deque()  # (messages before it, reply subject)
        self._stalled = ""  # the last request that a heartbeat repeated
        self._reconnected = False  # and no message has arrived since

    # ---------------------------------------------------------------- the interface of a source

    def start(self) -> None:
        """Subscribe, unless ``wait_push_bound`` comes first."""
        self._is_open = True
        if self._cursor is None:
            self.connection._consumers.add(self)
        if self._wait_push_bound is None:
            self._subscribe()

    def _subscribe(self) -> None:
        """Subscribe without limits: flow control bounds the pending messages, and none may be dropped."""
        connection = self.connection
        self._is_connected = connection.is_connected
        self._subscription = connection._subscribe(
            self._subject,
            queue=self._queue or None,
            pending_msgs_limit=0,
            pending_bytes_limit=0,
            message_type=JsMessage,
            message_note=self._ack_wait,
        )
        self._subscription._on_change = self._on_change
        self._unlisten = connection.add_listener(self._on_event)
        self._last_heard = self._loop.time()
        self._arm()
        if self._leftover:
            ready = list(self._leftover)
            self._leftover.clear()
            self._receive(ready)

    def reader_info(self) -> ReaderInfo:
        """Return the stream and the consumer."""
        return ReaderInfo(self._stream, self._consumer, is_stream=True)

    def stats(self) -> ConsumerStats | None:
        """See MeasuredReader."""
        return stats_of(self.buffer, self.reader_info())

    async def wait_created(self) -> None:
        """Subscribe after ``wait_push_bound``, and raise its errors. The stream keeps the messages until then."""
        if self._wait_push_bound is not None:
            await self._wait_push_bound(False)
            if self._is_open:
                self._subscribe()
                await self._wait_push_bound(True)

    def refill(self) -> None:
        """Answer the flow control requests whose earlier messages were consumed."""
        requests, consumed = self._flow_control_requests, self.buffer.consumed
        while requests and requests[0][0] <= consumed:
            self._answer_flow_control(requests.popleft()[1])
        self.buffer.refill_at = requests[0][0] if requests else NEVER_REFILL

    async def finish(self) -> None:
        """End the subscription and receive the messages in flight."""
        subscription = self._subscription
        self._stop_timers()
        try:
            if subscription is not None and not subscription.closed and self.connection.is_connected:
                await subscription.drain(DRAIN_TIMEOUT_S)
        except NatsError:
            return  # not confirmed: a message in flight is redelivered if the consumer has acknowledgements
        finally:
            self.close()

    def close(self) -> None:
        """End the subscription at once."""
        self._is_open = False
        self._stop_timers()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription._on_change = None
            self.connection._unsubscribe_nowait(subscription)

    # ---------------------------------------------------------------- incoming messages

    def _on_change(self) -> None:
        """Called when messages have arrived or the subscription has ended. An unexpected error ends the reader, not the
        connection.
        """
        subscription = self._subscription
        if subscription is None:
            return
        try:
            received = cast("list[JsMessage]", subscription._read_batch_nowait())
            if received:
                self._last_heard = self._loop.time()
                if none_has_headers(received):
                    self._receive(received)
                else:
                    for is_status, messages in groupby(received, attrgetter("_is_status")):
                        if is_status:
                            for message in messages:
                                self._on_status(message)
                        else:
                            self._receive(list(messages))
            if subscription.closed:
                self._end(subscription.error)
        except Exception as exc:
            self._end(wrap_unexpected(f"reading {self._description}", exc))

    def _receive(self, messages: list[JsMessage]) -> None:
        buffer = self.buffer
        if not self._is_open:
            return
        if self._reconnected and (first := consumer_seq(messages[0])):
            # A restarted server repeats deliveries it has no record of, with the same sequences.
            self._reconnected = False
            buffer.drop_after(first - 1)
        room = self._stop_after - buffer.received if self._stop_after else len(messages)
        if len(messages) > room:
            if self._leftover is not None:
                self._leftover += messages[room:]
            messages = messages[:room]
        expected = len(messages) if self._cursor is None or not messages else self._cursor.on_messages(messages)
        if expected:
            buffer.put(messages if expected == len(messages) else messages[:expected])
        if expected < len(messages):
            self._lose_consumer(None)
        elif self._stop_after and buffer.received >= self._stop_after:
            self._end(None)

    def _on_status(self, message: JsMessage) -> None:
        """Handle a flow control request (with a reply subject) or a heartbeat (without); push consumers get no other
        statuses.
        """
        headers = message.headers
        if headers._status != 100:
            return
        if message.reply is not None:
            self._queue_request(message.reply)
            return
        stalled = headers.last("Nats-Consumer-Stalled")
        if stalled and stalled != self._stalled:  # the request or its reply was lost
            self._stalled = stalled
            self._queue_request(stalled)
        last = headers.last("Nats-Last-Consumer")
        if self._cursor is not None and last.isdecimal() and not self._cursor.on_heartbeat(int(last)):
            self._lose_consumer(None)

    def _queue_request(self, request: str) -> None:
        if self.buffer.received <= self.buffer.consumed:
            self._answer_flow_control(request)
        else:
            self._flow_control_requests.append((self.buffer.received, request))
            self.buffer.refill_at = self._flow_control_requests[0][0]

    def _answer_flow_control(self, request: str) -> None:
        if request[:1] == "$" and self.connection._reply_guard.is_refused(request):
            return  # it is not from the server
        try:
            self.connection.publish_nowait(request)
        except NatsError:
            return  # no room or no connection: the next heartbeat asks again

    # ---------------------------------------------------------------- timeouts and reconnects

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self._is_connected = False
            self._flow_control_requests.clear()
        elif isinstance(event, (Connected, Reconnected, Moved)):
            self._is_connected = True
            self._reconnected = self._cursor is None
            self._last_heard = self._loop.time()
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._idle_timeout and self._is_open and self._is_connected:
            self._timer = self._loop.call_at(self._last_heard + self._idle_timeout, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_connected and self._loop.time() >= self._last_heard + self._idle_timeout - 0.002:
            self._last_heard = self._loop.time()
            missed = HeartbeatMissed(self._idle_timeout, self._consumer, self._stream)
            if self._cursor is not None:
                self._lose_consumer(missed)
                return
            self._emit_notice(missed)
            if self._lookup is not None and self._lookup_task is None:
                self._lookup_task = self._loop.create_task(self._run_lookup(self._lookup), name="natsproto look-up")
        self._arm()

    async def _run_lookup(self, lookup: Callable[[], Awaitable[object]]) -> None:
        """Look up a silent consumer: reading ends when it is gone."""
        gone: NatsError | None = None
        try:
            await lookup()
        except (ConsumerNotFound, StreamNotFound) as exc:
            gone = consumer_gone(exc, self._consumer, self._stream)
        except NatsError:
            pass
        except Exception as exc:
            gone = wrap_unexpected(f"reading {self._description}", exc)
        self._lookup_task = None
        if gone is not None:
            self._end(gone)

    def _lose_consumer(self, error: NatsError | None) -> None:
        """End reading from this consumer; another one may continue."""
        if self._is_open:
            self.close()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(ConsumerEnd(error, lost=True))

    def _end(self, error: NatsError | None) -> None:
        if not self._is_open:
            return
        self.close()
        if self._ended is None:
            if error is not None:
                self._emit_notice(error)
            self.buffer.end(error)
        elif not self._ended.done():
            self._ended.set_result(ConsumerEnd(error))

    @property
    def _description(self) -> str:
        return f"consumer {self._consumer!r} of stream {self._stream!r}"

    def _emit_notice(self, error: NatsError) -> None:
        self.connection._emit(ConsumerNotice(stream=self._stream, consumer=self._consumer, error=error))

    def _stop_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lookup_task is not None:
            self._lookup_task.cancel()
            self._lookup_task = None


class PushConsumer(Consumer):
    """A push consumer: the server sends its messages to ``deliver_subject``. Created by the stream's
    ``create_push_consumer`` and ``push_consumer``.

    Read it with ``messages`` or ``consume``; members of a deliver group share the messages. A flow control request is
    answered when all earlier messages were read, so a slow reader slows the server down; without flow control the
    buffer has no limit. After three missed heartbeats a ConsumerNotice is emitted and the consumer is looked up:
    reading ends with ConsumerGone when it was deleted, which the server does not report.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        name: str,
        info: ConsumerInfo | None = None,
        *,
        deliver_subject: str = "",
        deliver_group: str = "",
        idle_heartbeat: Duration | None = None,
    ) -> None:
        super().__init__(api, stream, name, info)
        config = None if info is None else info.config
        self.deliver_subject: str = deliver_subject or (config.deliver_subject if config else "")
        """The subject to which the server sends messages."""
        self.deliver_group: str = deliver_group or (config.deliver_group if config else "")
        """The queue group that shares them, if any."""
        if not self.deliver_subject:
            raise ConfigError("deliver_subject", "", f"{self._description} is not a push consumer")
        subscribe_subject(self.deliver_subject, "deliver_subject")
        if self.deliver_group:
            queue_group(self.deliver_group)
        given = config.idle_heartbeat if config else 0.0
        self._unread: deque[JsMessage] = deque()
        self._heartbeat = given if idle_heartbeat is None else seconds("idle_heartbeat", idle_heartbeat)

    def messages(self, *, stop_after: int = 0) -> Messages:
        """Return an endless sequence of messages. Use it with ``async with``, then iterate it. ``stop_after`` is the
        number of messages after which it ends.

        Entering raises AlreadyBound when the consumer has another reader and no deliver group, and ConsumerNotFound.
        This needs permission for the consumer's info, and is not checked for a consumer that was bound without a
        request.

        Args:
            stop_after: End after this many messages; 0: no limit.
        """
        if type(stop_after) is not int or stop_after < 0:
            raise ConfigError("stop_after", stop_after, "must be a number of messages, 0 for no end")
        source = PushSource(
            self._api.connection,
            self.deliver_subject,
            stream=self.stream_name,
            consumer=self.name,
            queue=self.deliver_group,
            heartbeat=self._heartbeat,
            ack_wait=AckWait.of(self._known_config(), self._api.prefix),
            stop_after=stop_after,
            lookup=self.info,
            leftover=self._unread,
            wait_push_bound=None if self.deliver_group or self._info is None else self._wait_push_bound,
        )
        return Messages(source, self._description, self._return_unread)

    def consume(
        self,
        handler: Handler,
        *,
        stop_after: int = 0,
        concurrency: int = 1,
        key: Callable[[JsMessage], Hashable] | None = None,
        on_success: OnSuccess = "ack",
        on_error: OnError = "nak",
        nak_delay: NakDelay | None = None,
        keep_alive: bool | Duration = False,
        error_cb: Callable[[JsMessage, BaseException], object] | None = None,
        executor: Executor = None,
    ) -> ConsumeContext:
        """Call ``handler`` (def or async def) with every message; see PullConsumer.consume.

        Args:
            handler: Called with each message, ``def`` or ``async def``.
            stop_after: End after this many messages; 0: no limit.
            concurrency: How many messages are handled at a time; 1 keeps their order.
            key: Returns the key of a message: those of one key are handled one after the other. None: any order.
            on_success: When the handler returns: "ack" (default), "ack_sync", which waits for the server's
                confirmation, or "nothing".
            on_error: When the handler raises: "nak" (default), "term", which ends the deliveries of the message, or
                "nothing".
            nak_delay: Seconds before a failed message is delivered again, or a function of the message that returns
                them; None: the consumer's ``backoff``, or else 0.25 s, doubled with each delivery up to 30 s.
            keep_alive: Tell the server that work goes on, so that ``ack_wait`` does not pass while the handler runs:
                True, or the seconds between two such notes.
            error_cb: Called with a message and the exception of its handler, beside the log and the HandlerFailed
                event; None: not called.
            executor: For a ``def`` handler that blocks: True calls it in daemon threads, as many as are handled at a
                time, or give a ThreadPoolExecutor. None: the handler is called on the event loop.
        """
        options = HandlerOptions(
            concurrency=concurrency,
            key=key,
            on_success=on_success,
            on_error=on_error,
            nak_delay=nak_delay,
            keep_alive=keep_alive,
            error_cb=error_cb,
            executor=executor,
            backoff=() if self._info is None else self._info.config.backoff,
        )
        messages = self.messages(stop_after=stop_after)
        tasks = HandlerTasks(self._api.connection, self._description, messages, handler, options)
        return ConsumeContext(self._description, messages, tasks)

    async def _wait_push_bound(self, is_bound: bool) -> None:
        """Wait until the consumer has a reader (``is_bound``) or none; AlreadyBound when another reader stays."""
        for wait in (*(WAITS_FOR_BIND_S if is_bound else WAITS_FOR_UNBIND_S), None):
            try:
                info = await self.info()
            except (ConsumerNotFound, StreamNotFound):
                raise
            except NatsError:
                return  # no permission or no reply: unknown
            if info.push_bound == is_bound:
                return
            if wait is not None:
                await asyncio.sleep(wait)
        if not is_bound:
            raise AlreadyBound(self.stream_name, self.name)

    def _return_unread(self, messages: list[JsMessage]) -> None:
        config = self._known_config()
        if config is not None and config.ack_policy != AckPolicy.NONE:
            nak_all(messages)
        else:
            self._unread.extendleft(reversed(messages))
