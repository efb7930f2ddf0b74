"""The buffer between a source of messages and a reader.

Owns the received messages that are not read yet, the waiting readers, and the counts. A source appends to it;
``messages`` reads it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from natsproto._core.notifier import release, running_loop, wrong_loop_error
from natsproto.errors import NatsError
from natsproto.jetstream._consumer.delivery_state import FAST_CALL_S, MAX_UNCOUNTED, NEVER, DeliveryQueue, Verdict
from natsproto.jetstream._consumer.prefetch import AdaptivePrefetch
from natsproto.jetstream._message import ACKED, JsMessage, consumer_seq, counted_size

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.deliveries import Deliveries

NEVER_REFILL: Final = 2**63


def is_any(message: JsMessage) -> bool:
    """True: all messages are handled in one order."""
    return True


class Buffer:
    """The messages between one source and one reader, whose limit is ``max_messages``.

    With ``counts_bytes`` the source needs the sizes of messages. ``prefetch`` measures the reader, if given, and
    ``deliveries`` also follows the ages of the messages.
    """

    def __init__(
        self,
        max_messages: int = 2**63,
        *,
        counts_bytes: bool = False,
        prefetch: AdaptivePrefetch | None = None,
        deliveries: Deliveries | None = None,
    ) -> None:
        self.max_messages: int = max_messages
        """The most messages to be requested or unread."""
        self.counts_bytes: bool = counts_bytes
        self.count_interval: int = max(1, min(MAX_UNCOUNTED, max_messages // 8))
        """The number of consumed messages that are counted together."""
        self.prefetch: AdaptivePrefetch | None = prefetch
        self.deliveries: Deliveries | None = deliveries
        self.queue: DeliveryQueue[JsMessage] = DeliveryQueue()
        self._queues: list[DeliveryQueue[JsMessage]] = [self.queue]
        self._in_hand: dict[int, list[JsMessage | None]] = {}
        self._readers: dict[int, int] = {}  # how many messages each loop reads at a time
        self.remember: Callable[[bytes | str | None], None] = deque[Any](maxlen=0).append
        """Called with the ack subject of a message that was acknowledged after it was handled."""
        if deliveries is not None:
            self._queues = deliveries.state.queues
            self.queue = self._queues[0]
            self._in_hand = deliveries.redeliveries.in_hand
            self.remember = deliveries.redeliveries.acknowledged.recent.append
            self.count_interval = 1
        self.sample_above: float = NEVER if deliveries is None else 0.0
        """Seconds: each call of a handler that takes longer is measured, and every 16th of the others."""
        self.ready: deque[JsMessage] = self.queue.messages
        """Received messages that are not read yet."""
        self.received: int = 0
        self.received_bytes: int = 0
        """Messages, and their bytes, received in total."""
        self.consumed: int = 0
        self.consumed_bytes: int = 0
        """Messages, and their bytes, that the reader has consumed."""
        self.refill_at: int = NEVER_REFILL
        """The number of consumed messages at which the source is to be called."""
        self.ended: bool = False
        """True if no more messages will arrive."""
        self.error: NatsError | None = None
        """The error that ended it; None if its owner did."""
        self.unread: list[JsMessage] | None = None
        """Messages received after the reader stopped; None while it reads."""
        self._keys = count()
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._end_waiters: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- the source's side

    def put(self, messages: list[JsMessage], size: int = 0) -> None:
        """Append received messages of ``size`` bytes in total (0 unless ``counts_bytes``)."""
        if self.prefetch is not None:
            self.prefetch.on_messages(messages, self.received - self.consumed, monotonic())
        self.received += len(messages)
        self.received_bytes += size
        if self.unread is not None:
            self.unread += messages
            return
        queue = self.queue
        if not self.ready:
            queue.filled_at = monotonic()
        queue.last_ack_subject = messages[-1]._reply
        self.ready += messages
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def put_counted(self, messages: list[JsMessage]) -> None:
        """Append received messages and count their bytes."""
        self.put(messages, counted_size(messages) if self.counts_bytes else 0)

    def drop_after(self, last_known: int) -> None:
        """Drop unread messages after this consumer sequence, the last one that the server knows: it redelivers the
        rest. A server that was killed may have lost its last deliveries. It repeats them with the same sequences, and
        ignores acknowledgements of the first ones until then.
        """
        for queue in self._queues:
            self.on_removed([one for one, _ in queue.remove(lambda one, _: consumer_seq(one) > last_known)])

    def on_removed(self, messages: list[JsMessage]) -> None:
        """Count messages that were removed as never received."""
        self.received -= len(messages)
        if self.counts_bytes:
            self.received_bytes -= counted_size(messages)

    def end(self, error: NatsError | None) -> None:
        """End the buffer: no more messages will arrive."""
        self.ended, self.error = True, error
        waiters = [*self._waiters, *self._end_waiters]
        self._waiters, self._end_waiters = [], []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---------------------------------------------------------------- the reader's side

    @property
    def is_finished(self) -> bool:
        """True if no more messages will arrive, or the reader has stopped."""
        return self.ended or self.unread is not None

    @property
    def waiting(self) -> int:
        """Messages that wait to be read or handled."""
        return sum(len(queue.messages) for queue in self._queues)

    def next_change(self) -> asyncio.Future[None]:
        """A future to await when ``ready`` is empty: done when messages arrive or the buffer ends, and by ``wake``."""
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        waiter: asyncio.Future[None] = self._loop.create_future()
        if len(self._waiters) > 8:  # cancelled readers leave theirs behind
            self._waiters = [one for one in self._waiters if not one.done()]
        self._waiters.append(waiter)
        return waiter

    def wait_end(self) -> asyncio.Future[None]:
        """A future that is done when the buffer ends."""
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._end_waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Wake all waiting readers."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)

    def stop(self) -> list[JsMessage]:
        """Stop reading; return the list of unread messages, to which messages that arrive later are added."""
        if self.deliveries is not None:
            self.deliveries.drop_expired()
        self.unread = unread = [message for queue in reversed(self._queues) for message, _ in queue.take_all()]
        self.wake()
        return unread

    def add_queues(self, count: int) -> list[DeliveryQueue[JsMessage]]:
        """Add queues of messages that were taken and are not handled yet."""
        self._queues += [DeliveryQueue() for _ in range(count)]
        return self._queues[1:]

    def lend_queue(self) -> DeliveryQueue[JsMessage]:
        """Add a queue that other threads take from."""
        queue: DeliveryQueue[JsMessage] = DeliveryQueue()
        self._queues.append(queue)
        return queue

    def move(self, indexes: Sequence[int]) -> None:
        """Move the first messages to these of the added queues."""
        if self.deliveries is not None:
            self.deliveries.state.move(indexes)
            return
        for index in indexes:
            self._queues[index + 1].messages.append(self.ready.popleft())

    def add_reader(self, size: int = 1) -> int:
        """Another loop reads, ``size`` messages at a time; returns its key among the messages in hand."""
        key = next(self._keys)
        self.hand_of(key)
        self._readers[key] = size
        self._on_readers()
        return key

    def fair_count(self) -> int:
        """The part of the messages that wait which one reader may take, so that the others get some too."""
        return -(-len(self.ready) // max(len(self._readers), 1))

    def fair_size(self, size: int) -> int:
        """The messages of a full batch of ``size``: no more than may wait, less the batches of the other readers."""
        most = self.max_messages if self.deliveries is None else self.deliveries.state.bound
        return max(min(size, most * size // max(sum(self._readers.values()), size)), 1)

    def hand_of(self, key: int) -> list[JsMessage | None]:
        """The messages that a reader handles now; it changes the list, whose first element may be None."""
        return self._in_hand.setdefault(key, [None])

    def forget_hand(self, key: int) -> None:
        """A reader that was never added handles no message any more."""
        self._in_hand.pop(key, None)

    def remove_reader(self, key: int) -> None:
        """A loop has ended."""
        del self._in_hand[key], self._readers[key]
        self._on_readers()

    def _on_readers(self) -> None:
        if self.deliveries is not None:
            self.deliveries.on_workers(max(sum(self._readers.values()), 1))

    def withhold(self, message: JsMessage) -> asyncio.Future[None] | None:
        """Return None if a message that was taken may be handed over; else a future to await before the next is taken.

        It is dropped if the server delivers it again, or waits again until there is a connection.
        """
        if self.deliveries is None:
            return None
        is_behind = None if len(self._in_hand) > 1 else is_any
        verdict = self.deliveries.check(self.queue, message, monotonic(), is_behind, may_wait=not self.is_finished)
        if verdict is Verdict.HAND_OVER:
            return None
        waiter = self.next_change()
        if verdict is Verdict.DROP:
            waiter.set_result(None)
        return waiter

    def take_batch(self, most: int) -> list[JsMessage]:
        """Take all messages that may be handed over; at most ``most`` (0: no limit), and no more than may wait."""
        ready, queue = self.ready, self.queue
        most = most or len(ready)
        if self.deliveries is not None:
            most = min(most, self.deliveries.state.bound)
        now = monotonic()
        if len(ready) <= most and now < queue.check_at:  # as nearly always
            batch = list(ready)
            ready.clear()
            return batch
        batch = []
        while ready and len(batch) < most:
            message = ready.popleft()
            if now < queue.check_at or (waiter := self.withhold(message)) is None:
                batch.append(message)
            elif not waiter.done():
                break
        return batch

    def on_batch_handled(self, messages: list[JsMessage], seconds: float, size: int = 1) -> None:
        """The reader, which handles ``size`` messages at a time, is done with these after so long."""
        if self.deliveries is not None:
            acked = [message._reply for message in messages if message._note is ACKED]
            self.deliveries.redeliveries.acknowledged.recent.extend(acked)
            self.on_handled(seconds * min(size / len(messages), 1.0))
            if seconds > self.deliveries.state.free_seconds:
                self.deliveries.on_slow_call(messages, seconds)

    def on_handled(self, seconds: float, messages: Sequence[JsMessage] = ()) -> None:
        """A call of the handler took so long, with these messages."""
        if self.deliveries is not None:
            state = self.deliveries.state
            state.on_handled(seconds)
            if seconds > state.free_seconds:
                self.deliveries.on_slow_call(messages, seconds)
            self.count_interval = state.count_interval
            self.sample_above = 0.0 if state.handle_time > FAST_CALL_S else FAST_CALL_S

    def on_consumed(self, count: int, size: int) -> None:
        """Count messages, and their bytes, that the reader has consumed."""
        self.consumed += count
        self.consumed_bytes += size
        if self.deliveries is not None:
            self.deliveries.state.on_consumed(count)
            self.count_interval = self.deliveries.state.count_interval
        elif self.prefetch is not None:
            self.prefetch.on_consumed(count, monotonic())
