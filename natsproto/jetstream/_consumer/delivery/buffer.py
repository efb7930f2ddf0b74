"""The buffer between a source of messages and a reader.

Owns the received messages that are not read yet, the waiting readers, and the counts. A source appends to it;
``messages`` reads it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from natsproto import errors
from natsproto._core.notifier import release, running_loop, wrong_loop_error
from natsproto._durations import NO_LIMIT_S
from natsproto.jetstream._consumer.delivery.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.delivery.worker_prefetch import FAST_CALL_S, MAX_UNCOUNTED
from natsproto.jetstream._consumer.message import ACKED, JsMessage, consumer_seq, counted_size

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.delivery.deliveries import Deliveries

NEVER_REFILL: Final = 2**63


class Arrivals(NamedTuple):
    """The messages that have arrived: since when one waits, and the ack subject of the last one."""

    since: float
    last_ack_subject: bytes | str | None


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
        self.ready: deque[JsMessage] = deque()
        """Received messages that are not read yet."""
        self.arrivals: Arrivals = Arrivals(0.0, None)
        """When the oldest of them arrived, or earlier, and the ack subject of the last message."""
        self._queues: list[deque[JsMessage]] = [self.ready]
        self._in_hand: dict[int, list[JsMessage | None]] = {} if deliveries is None else deliveries.in_hand
        self._readers: dict[int, int] = {}  # how many messages each loop reads at a time
        acks = deque[Any](maxlen=0) if deliveries is None else deliveries.acks.last
        self.note_ack: Callable[[tuple[bytes | str | None, float]], None] = acks.append
        """Called with the ack subject of a message that was acknowledged after it was handled, and the time."""
        if deliveries is not None:
            deliveries.queues = self._queues
            self.count_interval = 1
        self.sample_above: float = NO_LIMIT_S if deliveries is None else 0.0
        """Seconds: each call of a handler that takes longer is measured, and every 16th of the others."""
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
        self.error: errors.NatsError | None = None
        """The error that ended it; None if its owner did."""
        self.unread: list[JsMessage] | None = None
        """Messages received after the reader stopped; None while it reads."""
        self.end_waiters: list[asyncio.Future[None]] = []
        """Futures that are done when it ends."""
        self._keys = count()
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []

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
        self.arrivals = Arrivals(self.arrivals.since if self.ready else monotonic(), messages[-1]._reply)
        self.ready += messages
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def put_first(self, message: JsMessage) -> None:
        """Add a message that is the next one, also at the end of reading."""
        self.received += 1
        if self.counts_bytes:
            self.received_bytes += counted_size([message])
        self.ready.appendleft(message)
        self.wake()

    def put_counted(self, messages: list[JsMessage]) -> None:
        """Append received messages and count their bytes."""
        self.put(messages, counted_size(messages) if self.counts_bytes else 0)

    def drop_after(self, last_known: int) -> None:
        """Drop unread messages after this consumer sequence, the last one that the server knows: it redelivers the
        rest. A server that was killed may have lost its last deliveries. It repeats them with the same sequences, and
        ignores acknowledgements of the first ones until then.
        """
        for queue in self._queues:
            lost = [one for one in queue if consumer_seq(one) > last_known]
            if lost:
                kept = [one for one in queue if consumer_seq(one) <= last_known]
                queue.clear()
                queue += kept
                self.on_removed(lost)

    def on_removed(self, messages: list[JsMessage]) -> None:
        """Count messages that were removed as never received."""
        self.received -= len(messages)
        if self.counts_bytes:
            self.received_bytes -= counted_size(messages)

    def end(self, error: errors.NatsError | None) -> None:
        """End the buffer: no more messages will arrive."""
        self.ended, self.error = True, error
        waiters = [*self._waiters, *self.end_waiters]
        self._waiters, self.end_waiters = [], []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---------------------------------------------------------------- the reader's side

    @property
    def is_finished(self) -> bool:
        """True if no more messages will arrive, or the reader has stopped."""
        return self.ended or self.unread is not None

    @property
    def is_followed(self) -> bool:
        """True if the ages of the messages count."""
        return self.deliveries is not None

    @property
    def newest(self) -> dict[int, JsMessage]:
        """See Deliveries."""
        return {} if self.deliveries is None else self.deliveries.newest

    @property
    def waiting(self) -> int:
        """Messages that wait to be read or handled."""
        return sum(map(len, self._queues))

    def next_change(self) -> asyncio.Future[None]:
        """A future to await when ``ready`` is empty: done when messages arrive or the buffer ends, and by ``wake``."""
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        waiter: asyncio.Future[None] = self._loop.create_future()
        if len(self._waiters) > 8:  # cancelled readers leave theirs behind
            self._waiters = [one for one in self._waiters if not one.done()]
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Wake all waiting readers."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)

    def stop(self) -> list[JsMessage]:
        """Stop reading; return the list of unread messages, to which messages that arrive later are added."""
        self.unread = unread = self.take_waiting()
        self.wake()
        return unread

    def take_waiting(self) -> list[JsMessage]:
        """Take all messages that wait."""
        return [message for queue in reversed(self._queues) for message in take_all(queue)]

    def add_queues(self, count: int) -> list[deque[JsMessage]]:
        """Add queues of messages that were taken and are not handled yet."""
        added: list[deque[JsMessage]] = [deque() for _ in range(count)]
        self._queues += added
        return added

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
        most = self.max_messages if self.deliveries is None else self.deliveries.prefetch.bound
        return max(min(size, most * size // max(sum(self._readers.values()), size)), 1)

    def hand_of(self, key: int) -> list[JsMessage | None]:
        """The messages that a reader handles now; it changes the list, whose first element may be None."""
        return self._in_hand.setdefault(key, [None])

    def forget_hand(self, key: int) -> list[JsMessage]:
        """A reader that was never added handles no message any more. Return those that it had."""
        return [message for message in self._in_hand.pop(key, ()) if message is not None]

    def remove_reader(self, key: int) -> None:
        """A loop has ended."""
        del self._in_hand[key], self._readers[key]
        self._on_readers()

    def _on_readers(self) -> None:
        if self.deliveries is not None:
            self.deliveries.on_workers(max(sum(self._readers.values()), 1))

    def remove_queue(self, queue: deque[JsMessage]) -> None:
        """Remove an added queue."""
        self._queues[:] = [one for one in self._queues if one is not queue]

    def may_hand_over(self, message: JsMessage, now: float) -> bool:
        """False for a message that was taken and must not be handled: the server delivers it again."""
        return self.deliveries is None or self.deliveries.may_hand_over(message, now)

    def take_batch(self, most: int) -> list[JsMessage]:
        """Take all messages that may be handed over; at most ``most`` (0: no limit), and no more than may wait."""
        ready, deliveries = self.ready, self.deliveries
        most = most or len(ready)
        if deliveries is not None:
            most = min(most, deliveries.prefetch.bound)
        batch: list[JsMessage] = []
        while ready and len(batch) < most:
            taken = [ready.popleft() for _ in range(min(most - len(batch), len(ready)))]
            if deliveries is not None:
                now = monotonic()
                if any(now >= one._note.check_at for one in taken):
                    taken = [one for one in taken if now < one._note.check_at or deliveries.may_hand_over(one, now)]
            batch += taken
        return batch

    def on_batch_handled(self, messages: list[JsMessage], seconds: float, size: int = 1) -> None:
        """The reader, which handles ``size`` messages at a time, is done with these after so long."""
        if self.deliveries is not None:
            now = monotonic()
            self.deliveries.acks.last.extend([(one._reply, now) for one in messages if one._note is ACKED])
            self.on_handled(seconds * min(size / len(messages), 1.0))
            self.deliveries.on_slow_call(messages, seconds)
            if self.newest:
                for message in messages:
                    self.deliveries.on_released(message)

    def requeue(self, message: JsMessage) -> None:
        """Add a message that is to be handled next, or return it at the end of reading."""
        if self.deliveries is not None:
            self.deliveries.requeue(message)

    def on_released(self, message: JsMessage) -> None:
        """A message whose newest delivery came while it was in hand is not in hand any more."""
        if self.deliveries is not None:
            self.deliveries.on_released(message)

    def on_handled(self, seconds: float, messages: Sequence[JsMessage] = ()) -> None:
        """A call of the handler took so long, with these messages."""
        if self.deliveries is not None:
            prefetch = self.deliveries.prefetch
            prefetch.on_handled(seconds)
            if seconds > prefetch.free_seconds:
                self.deliveries.on_slow_call(messages, seconds)
            self.count_interval = prefetch.count_interval
            self.sample_above = 0.0 if prefetch.handle_time > FAST_CALL_S else FAST_CALL_S

    def on_consumed(self, count: int, size: int) -> None:
        """Count messages, and their bytes, that the reader has consumed."""
        self.consumed += count
        self.consumed_bytes += size
        if self.deliveries is not None:
            prefetch = self.deliveries.prefetch
            if prefetch.is_starting:
                prefetch.on_consumed(count)
            self.count_interval = prefetch.count_interval
        elif self.prefetch is not None:
            self.prefetch.on_consumed(count, monotonic())


def take_all(queue: deque[JsMessage]) -> list[JsMessage]:
    """Take all messages, from the right, so that each goes either here or to another thread."""
    taken: deque[JsMessage] = deque()
    with suppress(IndexError):
        while True:
            taken.appendleft(queue.pop())
    return list(taken)
