"""Receiving what a push consumer sends: the messages, flow control requests and heartbeats (ADR-9, ADR-15).

PushSubscription owns the subscription on the deliver subject, the queued flow control requests and the timer for
silence. It notifies its receiver, which owns the buffer and decides what becomes of the reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.events import Connected, Disconnected, Event, Moved, Reconnected
from natsproto._core.inbox.subscription import Subscription
from natsproto.jetstream._api.retry import TIMER_SLACK_S
from natsproto.jetstream._api.unexpected import wrap_unexpected
from natsproto.jetstream._consumer.delivery.buffer import NEVER_REFILL, Buffer
from natsproto.jetstream._consumer.message import DeliveryStamp, JsMessage, none_has_headers
from natsproto.jetstream._consumer.pull.pull_subscription import DRAIN_TIMEOUT_S
from natsproto.protocol.frames import Route

MAX_MISSED_PUSH_HEARTBEATS: Final = 3
"""Missed heartbeats that mean a loss: more than for pulls, as nothing else reveals it (ADR-15)."""
SILENCE_S: Final = 5.0
"""Seconds of silence of a consumer without heartbeats. The members of a group share its heartbeats at random, so one of
them may miss any number.
"""


class PushAddress(NamedTuple):
    """A push consumer, and where its messages go. ``heartbeat`` is in seconds, 0: it sends none."""

    stream: str
    consumer: str
    subject: str
    queue: str = ""
    heartbeat: float = 0.0
    ack_wait: DeliveryStamp | None = None

    @property
    def description(self) -> str:
        """Its description in errors."""
        return f"consumer {self.consumer!r} of stream {self.stream!r}"


class PushReceiver(Protocol):
    """The reader of a push consumer."""

    buffer: Buffer

    def on_messages(self, messages: list[JsMessage]) -> None:
        """Messages have arrived."""
        ...

    def on_heartbeat(self, last_consumer_seq: int) -> None:
        """A heartbeat named the last message that was delivered."""
        ...

    def on_silence(self, missed: errors.HeartbeatMissed | None) -> None:
        """Nothing has arrived for long. ``missed``: although there should have been heartbeats."""
        ...

    def on_reconnect(self) -> None:
        """The connection is back."""
        ...

    def end(self, error: errors.NatsError | None) -> None:
        """End reading."""
        ...


class PushSubscription:
    """Receives what a push consumer sends.

    With flow control the server stops sending until its request is answered, which happens when all earlier messages
    were consumed: a slow reader slows the server down.
    """

    def __init__(self, connection: Connection, address: PushAddress, receiver: PushReceiver) -> None:
        self._connection, self._address, self._receiver = connection, address, receiver
        self.heartbeat: float = address.heartbeat
        """Seconds between heartbeats of the consumer, 0: it sends none."""
        self._loop = asyncio.get_running_loop()
        self._is_connected = True
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_heard = 0.0
        self._flow_control_requests: deque[tuple[int, str]] = deque()  # (messages before it, reply subject)
        self._stalled = ""  # the last request that a heartbeat repeated

    def open(self) -> None:
        """Subscribe without limits: flow control bounds the pending messages, and none may be dropped."""
        connection, address = self._connection, self._address
        self._is_connected = connection.is_connected
        self._subscription = connection._subscribe(
            address.subject,
            queue=address.queue or None,
            pending_msgs_limit=0,
            pending_bytes_limit=0,
            message_type=JsMessage,
            message_note=address.ack_wait,
        )
        self._subscription._on_change = self._on_change
        self._unlisten = connection.add_listener(self._on_event)
        self._last_heard = self._loop.time()
        self._arm()

    @property
    def route(self) -> Route:
        """The route of the open subscription; its note is the stamp of the messages that arrive next."""
        assert self._subscription is not None
        return self._subscription._route

    async def drain(self) -> None:
        """End the subscription and receive the messages in flight."""
        subscription = self._subscription
        self._stop_timer()
        try:
            if subscription is not None and not subscription.closed and self._connection.is_connected:
                await subscription.drain(DRAIN_TIMEOUT_S)
        except errors.NatsError:
            return  # not confirmed: a message in flight is redelivered if the consumer has acknowledgements

    def close(self) -> None:
        """End the subscription at once."""
        self._stop_timer()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription._on_change = None
            subscription._unsubscribe_nowait()

    # ---------------------------------------------------------------- incoming messages

    def _on_change(self) -> None:
        """Called when messages have arrived or the subscription has ended. An unexpected error ends the reader, not the
        connection.
        """
        subscription, receiver = self._subscription, self._receiver
        if subscription is None:
            return
        try:
            received = cast("list[JsMessage]", subscription._read_batch_nowait())
            if received:
                self._last_heard = self._loop.time()
                if none_has_headers(received):
                    receiver.on_messages(received)
                else:
                    self._sort_out(received)
            if subscription.closed:
                receiver.end(subscription.error)
        except Exception as exc:
            receiver.end(wrap_unexpected(f"reading {self._address.description}", exc))

    def _sort_out(self, received: list[JsMessage]) -> None:
        for is_status, messages in groupby(received, attrgetter("_is_status")):
            if is_status:
                for message in messages:
                    self._on_status(message)
            else:
                self._receiver.on_messages(list(messages))

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
        if last.isdecimal():
            self._receiver.on_heartbeat(int(last))

    # ---------------------------------------------------------------- flow control

    def answer_requests(self) -> None:
        """Answer the flow control requests whose earlier messages were consumed."""
        requests, buffer = self._flow_control_requests, self._receiver.buffer
        while requests and requests[0][0] <= buffer.consumed:
            self._answer(requests.popleft()[1])
        buffer.refill_at = requests[0][0] if requests else NEVER_REFILL

    def _queue_request(self, request: str) -> None:
        buffer = self._receiver.buffer
        if buffer.received <= buffer.consumed:
            self._answer(request)
        else:
            self._flow_control_requests.append((buffer.received, request))
            buffer.refill_at = self._flow_control_requests[0][0]

    def _answer(self, request: str) -> None:
        if request[:1] == "$" and self._connection._reply_guard.is_refused(request):
            return  # it is not from the server
        try:
            self._connection.publish_nowait(request)
        except errors.NatsError:
            return  # no room or no connection: the next heartbeat asks again

    # ---------------------------------------------------------------- timeouts and reconnects

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self._is_connected = False
            self._flow_control_requests.clear()
        elif isinstance(event, (Connected, Reconnected, Moved)):
            self._is_connected = True
            self._receiver.on_reconnect()
            self._last_heard = self._loop.time()
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._subscription is not None and self._is_connected:
            self._timer = self._loop.call_at(self._last_heard + self._idle_timeout, self._on_timer)

    @property
    def _idle_timeout(self) -> float:
        return SILENCE_S if self._address.queue else MAX_MISSED_PUSH_HEARTBEATS * self.heartbeat or SILENCE_S

    def _on_timer(self) -> None:
        self._timer = None
        silence, address = self._idle_timeout, self._address
        if self._is_connected and self._loop.time() >= self._last_heard + silence - TIMER_SLACK_S:
            self._last_heard = self._loop.time()
            is_due = self.heartbeat and not address.queue
            self._receiver.on_silence(
                errors.HeartbeatMissed(silence, address.consumer, address.stream) if is_due else None
            )
        self._arm()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
