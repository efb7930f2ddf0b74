"""PURE. How long deliveries may wait for their reader, and how many are requested (decision 0041).

A delivery belongs to this client for ``ack_wait`` seconds, then the server delivers the message again, to anyone.
DeliveryState owns the handle time, the bound that follows from it, and the ages of the messages that wait;
DeliveryQueue owns messages that wait in one order. Neither knows a clock: the time is passed in as float seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import chain, repeat
from typing import Any, Final, Generic, NamedTuple, TypeVar

from natsproto.jetstream._consumer.pull_options import DEFAULT_MAX_MESSAGES

M = TypeVar("M")

WAITING_PART: Final = 0.1
"""The part of ack_wait for which a delivery may wait and be handed over as it is."""
MAX_SPAN_S: Final = 1.0
"""Seconds of work that may wait, unless round trips are long: what waits here is missing at other replicas."""
MAX_WAITING_PART: Final = 0.25
"""The same on a link whose round trips take longer."""
EXTEND_AT_PART: Final = 0.5
"""The part of ack_wait after which a waiting delivery is extended."""
MARGIN_PART, MIN_MARGIN_S, MAX_MARGIN_PART = 0.05, 0.05, 0.25
"""The rest of ack_wait that suffices to extend a delivery: a part of it, with a lower and an upper bound."""
STALLED_AFTER: Final = 2.0
"""The multiple of ack_wait after which a waiting delivery is given back."""
FAST_CALL_S: Final = 0.001
"""Handlers that take longer are measured at each call, others at every 16th."""
SAMPLE_MASK: Final = 15
MAX_BEHIND: Final = 2
"""Messages for each worker that may wait for others of their keys while another worker is idle."""
UNKNOWN_ACK_WAIT_S: Final = 1.5
TICKS_PER_ACK_WAIT: Final = 40
MIN_TICK_S: Final = 0.01
MAX_UNCOUNTED: Final = 64
"""Messages that may be consumed before the buffer counts them; counting each one costs 0.4 µs."""
NEVER: Final = float("inf")
UNLIMITED: Final = 2**63


class DeliveryTerms(NamedTuple):
    """The rules for deliveries in the configuration of a consumer."""

    ack_wait: float = UNKNOWN_ACK_WAIT_S
    backoff: Sequence[float] = ()
    max_deliver: int = 0
    """0: no limit."""
    max_ack_pending: int = 0
    """0: no limit."""
    is_single: bool = True
    """True if each message is acknowledged by itself, so that one may be dropped or given back."""
    is_known: bool = False

    def wait_of(self, number: int) -> float:
        """Seconds until the server repeats the ``number``-th delivery (from 1) of a message."""
        if self.backoff:
            return self.backoff[min(number, len(self.backoff)) - 1]
        return self.ack_wait

    @property
    def shortest(self) -> float:
        """The shortest of these times."""
        return min(self.backoff, default=self.ack_wait)


class Chunk:
    """Messages that arrived together: when the server sent them at the earliest, when they were last extended, when
    they arrived, the number of their delivery, and its ack_wait.
    """

    __slots__ = ("arrived", "began", "extended", "number", "wait")

    def __init__(self, began: float, arrived: float, number: int, wait: float) -> None:
        self.began: float = began
        self.arrived: float = arrived
        self.number: int = number
        self.wait: float = wait
        self.extended: float = began

    def age(self, now: float) -> float:
        """Seconds for which the server has waited for an acknowledgement, at most."""
        return now - self.extended

    @property
    def margin(self) -> float:
        """Seconds that must be left of ``wait`` to extend the delivery in time."""
        return min(max(MIN_MARGIN_S, MARGIN_PART * self.wait), MAX_MARGIN_PART * self.wait)

    def is_lost(self, now: float) -> bool:
        """True if the server may already have repeated the delivery, or would before an extension arrives."""
        return self.age(now) > self.wait - self.margin


_UNKNOWN_CHUNK: Final = Chunk(0.0, 0.0, 0, NEVER)


class Verdict(Enum):
    """The decision about a message that a reader has taken."""

    HAND_OVER = "hand over"
    EXTEND = "extend"
    """Hand it over, after the server was asked for a new ack_wait."""
    DROP = "drop"
    """It is not ours any more: the server delivers it again."""
    WAIT = "wait"
    """Put it back until there is a connection."""


class DeliveryQueue(Generic[M]):
    """Messages that wait in one order, and the chunks they came in.

    Readers, which may be other threads, take from the left of ``messages`` without a call; what they have taken follows
    from its length.
    """

    __slots__ = ("_entries", "_total", "check_at", "filled_at", "last_ack_subject", "messages")

    def __init__(self) -> None:
        self.messages: deque[M] = deque()
        self.check_at: float = NEVER
        """Until this time the next message may be handed over as it is."""
        self.filled_at: float = 0.0
        """When the oldest message arrived, or earlier."""
        self.last_ack_subject: bytes | str | None = None
        """The ack subject of the message that arrived last."""
        self._entries: deque[list[Any]] = deque()  # [number of messages, chunk], the oldest first
        self._total = 0

    def add(self, count: int, chunk: Chunk, check_at: float) -> None:
        """Note the chunk of ``count`` messages, which are about to be appended."""
        if self.messages:
            self._forget_taken(0)
        elif self._total:  # without a call, as nearly always
            self._entries.clear()
            self._total = 0
        if not self._entries or check_at < self.check_at:
            self.check_at = check_at
        if self._entries and self._entries[-1][1] is chunk:
            self._entries[-1][0] += count
        else:
            self._entries.append([count, chunk])
        self._total += count

    def put_back(self, message: M) -> None:
        """Put back the message that was taken last: it is the next one again."""
        self._forget_taken(1)
        self.messages.appendleft(message)

    def chunk_of_taken(self) -> Chunk | None:
        """The chunk of the message that was taken last."""
        self._forget_taken(1)
        return self._entries[0][1] if self._total > len(self.messages) else None

    def chunks(self, taken: int = 0) -> list[Chunk]:
        """The chunks of the messages that wait, the oldest first, and of the ``taken`` last ones before them."""
        self._forget_taken(taken)
        return [chunk for _, chunk in self._entries]

    def pairs(self) -> Iterator[tuple[M, Chunk]]:
        """The messages that wait, with their chunks."""
        self._forget_taken(0)
        chunks = chain.from_iterable(repeat(chunk, count) for count, chunk in self._entries)
        return zip(tuple(self.messages), chain(chunks, repeat(_UNKNOWN_CHUNK)), strict=False)

    def remove(self, is_wanted: Callable[[M, Chunk], bool]) -> list[tuple[M, Chunk]]:
        """Remove the messages for which the function is true; return them with their chunks."""
        if not any(is_wanted(message, chunk) for message, chunk in self.pairs()):
            return []
        removed: list[tuple[M, Chunk]] = []
        for message, chunk in self.take_all():
            if is_wanted(message, chunk):
                removed.append((message, chunk))
            else:
                self.add(1, chunk, self.check_at)
                self.messages.append(message)
        return removed

    def take_all(self) -> list[tuple[M, Chunk]]:
        """Take all messages, from the right, so that each goes either here or to another thread."""
        taken: deque[M] = deque()
        with suppress(IndexError):
            while True:
                taken.appendleft(self.messages.pop())
        self._forget_taken(len(taken))
        chunks = [chunk for count, chunk in self._entries for _ in range(count)]
        self._entries.clear()
        self._total = 0
        return list(zip(taken, chain(chunks, repeat(_UNKNOWN_CHUNK)), strict=False))

    def _forget_taken(self, last: int) -> None:
        """Forget the chunks of the messages that were taken, except the ``last`` ones."""
        surplus = self._total - len(self.messages) - last
        while surplus > 0:
            entry = self._entries[0]
            count = min(entry[0], surplus)
            entry[0] -= count
            self._total -= count
            surplus -= count
            if not entry[0]:
                self._entries.popleft()


class Due(NamedTuple, Generic[M]):
    """The waiting messages to extend, and those to give back."""

    extend: list[M]
    give_back: list[M]


class DeliveryState(Generic[M]):
    """Decides how many deliveries may wait for a reader, and what to do with those that wait for long.

    ``prefetch`` is the most that may be requested or waiting, unless more ``workers`` handle messages at a time. A
    waiting delivery is extended in time, so the server does not repeat it. After twice its ack_wait, it is given back
    once, for others.

    The time of a delivery is not on the wire. The server sent it after the pull, if there was only one, and after the
    socket was last read empty, less the time it travels. The event loop has polled the sockets between two ticks of a
    timer, so all that had arrived by one tick was read by the next.
    """

    def __init__(self, terms: DeliveryTerms, prefetch: int, now: float) -> None:
        self.terms: DeliveryTerms = terms
        self.prefetch: int = prefetch
        self.workers: int = 1
        self.queues: list[DeliveryQueue[M]] = [DeliveryQueue()]
        """The queue that messages arrive in, then one for each key partition."""
        self.handle_time: float = 0.0
        """Seconds of a call: at least as many as the last one took, and down slowly."""
        self.handled: int = 0
        self.stale: int = 0
        """Messages that were dropped because they were not ours any more."""
        self.given_back: int = 0
        """Messages that were returned because they had waited for twice their ack_wait."""
        self.round_trip: float = 0.0
        self.free_seconds: float = 0.0
        """Seconds for which a delivery with the shortest ack_wait may wait and be handed over as it is."""
        self.is_connected: bool = True
        self._behind = 0  # messages that wait for others of their keys
        self.bound: int = 1
        """The most messages to be requested, waiting or in work."""
        self._polled = self._ticked = self._pulled = now
        self.on_round_trip(0.0)

    @property
    def adapts_bytes(self) -> bool:
        """See Prefetch."""
        return False

    def reset(self) -> None:
        """See Prefetch: it does not measure bytes."""

    def decide(self) -> int:
        """See Prefetch."""
        return self.bound

    # ------------------------------------------------------------ how many

    @property
    def threshold(self) -> int:
        """The number of requested, waiting and running messages at which more are requested."""
        return self.bound - max(1, (self.bound - self.workers - self._behind) // 2)

    @property
    def count_interval(self) -> int:
        """The number of consumed messages to count together."""
        return max(1, min(MAX_UNCOUNTED, (self.bound - self.workers - self._behind) // 8))

    @property
    def tick_interval(self) -> float:
        """Seconds between two ticks."""
        return max(MIN_TICK_S, self.terms.shortest / TICKS_PER_ACK_WAIT)

    def on_workers(self, workers: int) -> None:
        """Set the number of messages that are handled at a time."""
        self.workers = workers
        self._decide()

    def on_handled(self, seconds: float) -> None:
        """A call of the handler took so long."""
        self.handle_time = max(seconds, self.handle_time + (seconds - self.handle_time) / 8)
        self._decide()

    def on_running(self, seconds: float) -> None:
        """All calls that run have taken so long already."""
        if seconds > self.handle_time:
            self.handle_time = seconds
            self._decide()

    def on_consumed(self, count: int) -> None:
        """Record consumed messages."""
        is_starting = 4 * self.handled < self.prefetch
        self.handled += count
        if is_starting:
            self._decide()

    def on_round_trip(self, seconds: float) -> None:
        """Record how long the last round trip to the server took."""
        self.round_trip = seconds
        shortest = self.terms.shortest
        self.free_seconds = self._free_part(shortest) * shortest

    def on_terms(self, terms: DeliveryTerms) -> None:
        """The configuration is known, or has changed: the server applies it to deliveries in flight, too."""
        self.terms = terms
        self.on_round_trip(self.round_trip)
        for chunk in self._all_chunks():
            chunk.wait = terms.wait_of(chunk.number)
        self._set_check_times()
        self._decide()

    def on_behind(self, count: int) -> None:
        """A worker is idle, while ``count`` messages wait for others of their keys: more may be requested."""
        self._behind = min(count, MAX_BEHIND * self.workers)
        self._decide()

    def _decide(self) -> None:
        workers, prefetch, handle_time = self.workers, self.prefetch, self.handle_time
        waiting = min(4 * self.handled, prefetch)
        if waiting and handle_time:
            span = min(self.free_seconds, max(MAX_SPAN_S, 2 * self.round_trip))
            waiting = min(waiting, max(int(workers * (span / handle_time - 1)), 0))
        spare = workers // 4 if prefetch >= DEFAULT_MAX_MESSAGES else 0  # so that not each one pulls for itself
        self.bound = min(
            workers + waiting + self._behind, max(prefetch, workers + spare), self.terms.max_ack_pending or UNLIMITED
        )

    def _free_part(self, wait: float) -> float:
        """The part of an ack_wait for which a delivery may wait as it is."""
        return min(max(WAITING_PART, 2 * self.round_trip / wait), MAX_WAITING_PART)

    # ------------------------------------------------------------ arrivals

    def on_pull(self, now: float) -> None:
        """A pull was sent, and no other one is open."""
        self._pulled = now

    def on_arrival(self, count: int, number: int, now: float) -> None:
        """Messages arrived, all in their ``number``-th delivery, and are about to be appended to the first queue."""
        self.on_leftover(count, number, self.began(now), now)

    def began(self, now: float) -> float:
        """The time from which on the server may have sent what arrives now."""
        travel = min(self.round_trip, self.free_seconds)
        return min(max(self._polled - travel, self._pulled), now)

    def on_leftover(self, count: int, number: int, began: float, now: float) -> None:
        """Messages that were delivered at ``began`` are about to be appended to the first queue."""
        chunk = Chunk(began, now, number, self.terms.wait_of(number))
        self.queues[0].add(count, chunk, self._check_time(chunk))

    def move(self, indexes: Iterable[int]) -> None:
        """Move the first messages of the first queue to these others, counted from 0."""
        source = self.queues[0]
        for (message, chunk), index in zip(source.pairs(), indexes, strict=False):
            queue = self.queues[index + 1]
            queue.add(1, chunk, self._check_time(chunk))
            source.messages.popleft()
            queue.messages.append(message)

    def lend(self, queue: DeliveryQueue[M], most: int) -> None:
        """Move up to ``most`` messages from the first queue to another one."""
        source = self.queues[0]
        for (message, chunk), _ in zip(list(source.pairs()), range(most), strict=False):
            queue.add(1, chunk, self._check_time(chunk))
            source.messages.popleft()
            queue.messages.append(message)

    def take_back(self, queue: DeliveryQueue[M]) -> None:
        """Move the messages of a lent queue, which other threads may take meanwhile, to the front of the first one."""
        source = self.queues[0]
        for message, chunk in [*queue.take_all(), *source.take_all()]:
            source.add(1, chunk, self._check_time(chunk))
            source.messages.append(message)

    def _check_time(self, chunk: Chunk) -> float:
        if chunk.wait == self.terms.ack_wait and not self.terms.backoff:
            return chunk.extended + self.free_seconds
        return chunk.extended + self._free_part(chunk.wait) * chunk.wait

    def _set_check_times(self) -> None:
        for queue in self.queues:
            queue.check_at = min(map(self._check_time, queue.chunks()), default=NEVER)

    # ------------------------------------------------------------ readers

    def verdict(self, queue: DeliveryQueue[M], now: float, *, may_wait: bool = True) -> Verdict:
        """Say what to do with the message that was taken from a queue last. ``may_wait``: WAIT is possible."""
        chunk = queue.chunk_of_taken()
        queue.check_at = min(map(self._check_time, queue.chunks(1)), default=NEVER)
        if chunk is None or now <= self._check_time(chunk):
            return Verdict.HAND_OVER
        if not self.is_connected and may_wait:
            return Verdict.WAIT
        if self.terms.is_single and (chunk.is_lost(now) or not self.is_connected):
            self.stale += 1
            return Verdict.DROP
        return Verdict.EXTEND

    def drop_behind(
        self, queue: DeliveryQueue[M], is_behind: Callable[[M], bool], now: float
    ) -> tuple[list[M], list[M]]:
        """Remove the messages that must not overtake one that was dropped. Returns those to be given back, and those
        that are lost as well.
        """
        ours: list[M] = []
        lost: list[M] = []
        for message, chunk in queue.remove(lambda message, _: is_behind(message)):
            (lost if chunk.is_lost(now) else ours).append(message)
        self.stale += len(lost)
        return ours, lost

    def remove_lost(self, now: float) -> list[M]:
        """Remove the messages that are not ours any more, because reading ends."""
        lost = [pair[0] for queue in self.queues for pair in queue.remove(lambda _, chunk: self._is_stale(chunk, now))]
        self.stale += len(lost)
        return lost

    def _is_stale(self, chunk: Chunk, now: float) -> bool:
        return self.terms.is_single and chunk.is_lost(now)

    # ------------------------------------------------------------ ticks

    def on_tick(self, now: float, confirmed_at: float, *, is_read: bool, may_give_back: bool) -> Due[M]:
        """Decide about waiting messages, every ``tick_interval`` seconds.

        The server has handled what was sent until ``confirmed_at``. ``is_read``: the last read emptied the socket.
        """
        if is_read:
            self._polled = self._ticked
        self._ticked = now
        back: list[M] = []
        extend: list[M] = []
        extended: set[Chunk] = set()
        for queue in self.queues:
            for chunk in queue.chunks():
                if chunk.extended <= confirmed_at:
                    chunk.began = chunk.extended
                if not self.is_connected or (self.terms.is_single and chunk.is_lost(now)):
                    continue
                if may_give_back and self._is_stalled(chunk, now):
                    back += [message for message, _ in queue.remove(lambda _, one, mine=chunk: one is mine)]  # type: ignore[misc]
                elif chunk.age(now) >= EXTEND_AT_PART * chunk.wait:
                    extend += [message for message, one in queue.pairs() if one is chunk]
                    extended.add(chunk)
        for chunk in extended:
            chunk.extended = now
        self.given_back += len(back)
        return Due(extend, back)

    def _is_stalled(self, chunk: Chunk, now: float) -> bool:
        terms = self.terms
        return (
            terms.is_known
            and terms.is_single
            and chunk.number == 1
            and (not terms.max_deliver or terms.max_deliver > 2)
            and now - chunk.arrived >= STALLED_AFTER * chunk.wait
        )

    # ------------------------------------------------------------ the connection

    def on_disconnect(self, confirmed_at: float) -> None:
        """The connection was lost: extensions after ``confirmed_at`` may not have arrived."""
        self.is_connected = False
        for chunk in self._all_chunks():
            if chunk.extended <= confirmed_at:
                chunk.began = chunk.extended
            chunk.extended = chunk.began
        self._set_check_times()

    def on_reconnect(self, now: float) -> None:
        """The connection is back: only what is pulled from now on arrives on it."""
        self.is_connected = True
        self._pulled = now

    def _all_chunks(self) -> set[Chunk]:
        return {chunk for queue in self.queues for chunk in queue.chunks()}
