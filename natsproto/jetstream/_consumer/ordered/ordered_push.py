"""Reading one push consumer of an ordered reader: the messages that are in order go into the buffer."""

from __future__ import annotations

import asyncio

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.ordered.ordered_cursor import ConsumerEnd, OrderedCursor
from natsproto.jetstream._consumer.push.push_subscription import PushAddress, PushSubscription


class OrderedPush:
    """Reads one push consumer into the buffer of an ordered reader, which stays open for the next one.

    ``ended`` is resolved when the consumer has ended, its heartbeats are missed, or a message is out of order.
    """

    def __init__(
        self, connection: Connection, address: PushAddress, buffer: Buffer, cursor: OrderedCursor, stop_after: int
    ) -> None:
        self.buffer = buffer
        self.ended: asyncio.Future[ConsumerEnd] = asyncio.get_running_loop().create_future()
        self._cursor, self._stop_after = cursor, stop_after
        self._subscription = PushSubscription(connection, address, self)
        self._is_open = False

    def start(self) -> None:
        """Subscribe."""
        self._is_open = True
        self._subscription.open()

    def refill(self) -> None:
        """Answer the flow control requests whose earlier messages were consumed."""
        self._subscription.answer_requests()

    async def finish(self) -> None:
        """End the subscription and receive the messages in flight."""
        try:
            await self._subscription.drain()
        finally:
            self.close()

    def close(self) -> None:
        """End the subscription at once."""
        self._is_open = False
        self._subscription.close()

    def on_messages(self, messages: list[JsMessage]) -> None:
        """Put the messages into the buffer as far as they are in order and wanted."""
        if not self._is_open:
            return
        buffer = self.buffer
        if self._stop_after:
            messages = messages[: self._stop_after - buffer.received]
        expected = self._cursor.on_messages(messages) if messages else 0
        if expected:
            buffer.put(messages if expected == len(messages) else messages[:expected])
        if expected < len(messages):
            self._finish(ConsumerEnd(None, lost=True))
        elif self._stop_after and buffer.received >= self._stop_after:
            self.end(None)

    def on_heartbeat(self, last_consumer_seq: int) -> None:
        """Give the consumer up if messages are missing."""
        if not self._cursor.on_heartbeat(last_consumer_seq):
            self._finish(ConsumerEnd(None, lost=True))

    def on_silence(self, missed: errors.HeartbeatMissed | None) -> None:
        """Give the consumer up."""
        self._finish(ConsumerEnd(missed, lost=True))

    def on_reconnect(self) -> None:
        """Do nothing: the reader makes another consumer."""

    def end(self, error: errors.NatsError | None) -> None:
        """End reading from this consumer and from others."""
        self._finish(ConsumerEnd(error))

    def _finish(self, how: ConsumerEnd) -> None:
        if self._is_open:
            self.close()
            if not self.ended.done():
                self.ended.set_result(how)
