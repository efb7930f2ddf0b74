"""Which worker handles which key, so that messages of one key are handled one after the other.

Owns the keys of the messages that wait for a worker or are handled. A key belongs to a worker while it has messages;
after that the next free worker gets it, so that no worker is idle beside one with several keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.message import JsMessage

_NO_KEY: Final = object()


class KeyLanes:
    """A queue for each of ``count`` workers, filled from those that wait in the buffer."""

    def __init__(self, buffer: Buffer, key: Callable[[JsMessage], Hashable], count: int) -> None:
        self.queues = buffer.add_queues(count)
        self._buffer, self._key, self._count = buffer, key, count
        self._keys: list[deque[Hashable]] = [deque() for _ in range(count)]  # of the messages in the queues
        self._running: list[Hashable] = [_NO_KEY] * count
        self._lane_of: dict[Hashable, int] = {}
        self._held: dict[Hashable, int] = {}  # messages in queues and hands
        self._total = self._behind = 0  # all of them, and those that waited beside a free worker
        self._free: dict[int, None] = dict.fromkeys(range(count))  # workers without a message
        self._next = self._last_count = 0
        self._held_back: dict[Hashable, deque[JsMessage]] = {}  # by key: they wait for a failed one

    def on_released(self, lane: int, message: JsMessage) -> None:
        """A worker is done with a message. If it comes again, those of its key are held back until then."""
        deliveries = self._buffer.deliveries
        if deliveries is None or not deliveries.comes_again(message):
            return
        key = self._running[lane]  # its handler may have changed the message
        if key in self._held_back:
            return
        waiting = self.queues[lane]
        (held_back,) = self._buffer.add_queues(1)
        self._held_back[key] = held_back
        held_back += [one for one in waiting if self._key(one) == key]
        left = [one for one in waiting if self._key(one) != key]
        waiting.clear()
        waiting += left
        self._count_held_back()
        deliveries.await_redelivery(message, lambda again: self._go_on(key, again))

    def _go_on(self, key: Hashable, again: JsMessage | None) -> None:
        """The failed message has come again, or does not come to this reader: handle the rest of its key after it."""
        buffer, held_back = self._buffer, self._held_back.pop(key)
        buffer.remove_queue(held_back)
        buffer.ready.extendleft(reversed(held_back))
        if again is not None:
            buffer.requeue(again)
        self._count_held_back()
        buffer.wake()

    def _count_held_back(self) -> None:
        """As many more may be requested."""
        if self._buffer.deliveries is not None:
            count = len(self._held_back) + sum(map(len, self._held_back.values()))
            if count != self._last_count:
                self._last_count = count
                self._buffer.deliveries.on_held_back(count)

    def take(self, lane: int, message: JsMessage) -> None:
        """A worker has taken this message from its queue, and is done with the one before."""
        self._end_call(lane)
        keys = self._keys[lane]
        if len(keys) != len(self.queues[lane]) + 1:
            self._count_again(lane)  # some were removed, or put back
            self._running[lane] = self._hold(self._key(message), lane)
        else:
            self._running[lane] = keys.popleft()

    def release(self, lane: int) -> None:
        """A worker has no message any more, unless its queue has."""
        self._end_call(lane)
        if len(self._keys[lane]) != len(self.queues[lane]):
            self._count_again(lane)
        if not self._keys[lane]:
            self._free[lane] = None

    def distribute(self) -> None:
        """Move messages to the queues of their keys, in their order, until one has to wait for a free worker."""
        buffer, lanes = self._buffer, list[deque[JsMessage]]()
        for message in buffer.ready:
            key = self._key(message)
            if key in self._held_back:
                lanes.append(self._held_back[key])
                continue
            lane = self._lane_of.get(key)
            if lane is None and (lane := self._find_lane()) is None:
                break
            self._keys[lane].append(self._hold(key, lane))
            lanes.append(self.queues[lane])
        for queue in lanes:
            queue.append(buffer.ready.popleft())
        if lanes:
            buffer.wake()
        if self._held_back:
            self._count_held_back()
        if self._free and (deliveries := buffer.deliveries) is not None:
            behind = self._total - (self._count - len(self._free))
            if behind != self._behind:
                self._behind = behind
                deliveries.on_behind(behind)

    def _find_lane(self) -> int | None:
        """A free worker, or one that may have more messages waiting."""
        if self._free:
            return self._free.popitem()[0]
        deliveries = self._buffer.deliveries
        if deliveries is None or not self._buffer.sample_above:
            return None  # a slow handler: each worker has one key at a time
        most = deliveries.prefetch.bound // self._count
        for offset in range(self._count):
            lane = (self._next + offset) % self._count
            if len(self._keys[lane]) < most:
                self._next = lane + 1
                return lane
        return None

    def _hold(self, key: Hashable, lane: int) -> Hashable:
        self._lane_of[key] = lane
        self._held[key] = self._held.get(key, 0) + 1
        self._total += 1
        self._free.pop(lane, None)
        return key

    def _let_go(self, key: Hashable) -> None:
        self._total -= 1
        if (left := self._held[key] - 1) > 0:
            self._held[key] = left
        else:
            del self._held[key], self._lane_of[key]

    def _end_call(self, lane: int) -> None:
        if (key := self._running[lane]) is not _NO_KEY:
            self._running[lane] = _NO_KEY
            self._let_go(key)

    def _count_again(self, lane: int) -> None:
        keys = [self._key(message) for message in self.queues[lane]]
        for key in keys:
            self._hold(key, lane)
        for key in self._keys[lane]:
            self._let_go(key)
        self._keys[lane] = deque(keys)
