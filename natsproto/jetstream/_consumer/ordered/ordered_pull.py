"""Reading one pull consumer of an ordered reader: the messages that are in order go into the buffer."""

from __future__ import annotations

import asyncio

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.events import Connected, Disconnected, Event, Moved, PermissionViolation, Reconnected
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.delivery.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.message import JsMessage, counted_size
from natsproto.jetstream._consumer.ordered.ordered_cursor import ConsumerEnd, OrderedCursor
from natsproto.jetstream._consumer.pull.pull import Puller
from natsproto.jetstream._consumer.pull.pull_state import DONE, KEEP, PullDecision, PullPhase, PullState
from natsproto.jetstream._consumer.pull.pull_subscription import PullAddress, PullSubscription
from natsproto.jetstream._consumer.pull_options import PullMode, PullOptions


class OrderedPull(Puller):
    """Reads one pull consumer into the buffer of an ordered reader, which stays open for the next one.

    ``ended`` is resolved when the consumer has ended, its heartbeats are missed, or a message is out of order.
    """

    def __init__(
        self,
        connection: Connection,
        address: PullAddress,
        options: PullOptions,
        buffer: Buffer,
        cursor: OrderedCursor,
        subscription: PullSubscription,
    ) -> None:
        super().__init__(connection, address, options)
        self.buffer = buffer
        self.ended: asyncio.Future[ConsumerEnd] = self._loop.create_future()
        self.subscription: PullSubscription = subscription
        """Its own; another reader of the same consumer may continue with it."""
        self._cursor = cursor

    def start(self, predecessor: PullState | None, until: float, prefetch: AdaptivePrefetch | None) -> None:
        """Start to pull."""
        now = self._loop.time()
        self.state = PullState(
            self._options,
            self.buffer,
            now,
            consumer=(self._address.consumer, self._address.stream),
            until=until,
            prefetch=prefetch,
            predecessor=predecessor,
        )
        self._replies = self.subscription
        self._replies.attach(self.on_change)
        self._send_pulls(now)

    def close(self) -> None:
        """End its pulls on the server."""
        self._detach()
        self.subscription.close()

    def on_event(self, event: Event) -> None:
        """The connection was lost or is back, or pulling is not permitted."""
        if isinstance(event, Disconnected):
            self.on_disconnect()
        elif isinstance(event, (Connected, Reconnected, Moved)):
            self.on_reconnect()
        elif isinstance(event, PermissionViolation) and event.error.subject == self._address.subject:
            self.end(event.error)

    def end(self, error: errors.NatsError | None) -> None:
        """End reading from this consumer and from others."""
        self._finish(ConsumerEnd(error))

    def _finish(self, how: ConsumerEnd) -> None:
        self._detach()
        if not self.ended.done():
            self.ended.set_result(how)

    def _receive(self, messages: list[JsMessage], now: float) -> None:
        """Put the messages into the buffer as far as they are in order and wanted."""
        buffer, state, options = self.buffer, self.state, self._options
        if self._replies is None:  # given up within this chunk
            return
        if options.mode is not PullMode.ENDLESS:
            messages = messages[: max(options.max_messages - buffer.received + buffer.consumed, 0)]
        expected = self._cursor.on_messages(messages) if messages else 0
        if expected:
            ordered = messages if expected == len(messages) else messages[:expected]
            size = counted_size(ordered) if options.max_bytes else 0
            buffer.put(ordered, size)
            if state.phase is not PullPhase.DONE:  # else it is finishing, and these were in flight
                decision = state.on_messages(expected, size, now)
                if decision is DONE:
                    self.end(None)
                elif decision is not KEEP:
                    self._send_pulls(now)
        if expected < len(messages):
            self._finish(ConsumerEnd(None, lost=True))

    def _on_status(self, message: JsMessage, number: str, now: float) -> None:
        headers = message.headers
        last = headers.last("Nats-Last-Consumer") if headers._status == 100 else ""
        if last.isdecimal() and not self._cursor.on_heartbeat(int(last)):
            self._finish(ConsumerEnd(None, lost=True))
        else:
            super()._on_status(message, number, now)

    def _apply(self, decision: PullDecision, now: float) -> None:
        error = decision.error or decision.notice
        if isinstance(error, (errors.ConsumerGone, errors.HeartbeatMissed)):
            self._finish(ConsumerEnd(error, lost=True))
        else:
            super()._apply(decision, now)
