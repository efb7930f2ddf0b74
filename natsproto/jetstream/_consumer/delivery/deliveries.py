"""The deliveries of one reader, from their arrival until they are settled (decision 0041).

The rules, for consumers whose messages are acknowledged:

1. A delivery is ours for ``ack_wait`` seconds from its stamp, which is an upper bound of its age. Messages that arrive
   together share a stamp, the note of their route; an extension (``+WPI``) gives a message a new one. Nothing else
   keeps ages.
2. A message that is younger than a tenth of ack_wait is handed over as it is, an older one is extended first. Without a
   connection nothing can be extended: what is not expired is handed over.
3. An expired one is skipped, if the server is known to deliver it again. It is handed over otherwise: nobody else will
   handle it.
4. A timer runs only while something waits or is in hand. It extends what waits at half of its ack_wait, for twice
   ack_wait, so that others get what stands behind handlers that hang; for ever where no other reader can get it, or
   the server would not deliver it again.
5. A message in hand that has expired is reported. It is not extended: ``keep_alive`` does that. The rest of a batch is
   extended while its messages are acknowledged one after the other.
6. A redelivery of a message in hand is not handled beside it. The message in hand becomes that delivery, so that its
   outcome settles the newest one. One that is settled already counts as acknowledged.
7. After a reconnect also a first delivery may be a repetition: of what was in hand then, as long as it is.
8. A message in hand that is released unsettled, or nakked, is handled again next if a newer delivery came meanwhile.
   If no delivery follows that one, a failed message is not nakked but handled next.
9. A redelivery of a message that still waits takes the place of the older delivery: ack_wait is shorter now.
10. A redelivery that comes too early makes the reader look the consumer up. Until the configuration is known, an
    ack_wait of 1.5 s is assumed and nothing is skipped.
11. A message that a thread goes on with, although its call was given up, stays in hand until the thread ends.
12. Nothing is known of settled messages but their last acknowledgements: see ``sent_acks``.
13. At the end of reading, messages that the server delivers again are returned, and others are handled or reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from operator import attrgetter
from time import monotonic
from typing import Final, NamedTuple, Protocol

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.engine.engine import State
from natsproto._handler_threads import on_thread_end
from natsproto.jetstream._consumer.ack_subject import MessageKey, position_of
from natsproto.jetstream._consumer.delivery.arrival_times import ArrivalTimes
from natsproto.jetstream._consumer.delivery.delivery_events import ConsumerAddress, DeliveryReports
from natsproto.jetstream._consumer.delivery.delivery_terms import DeliveryTerms, margin_of
from natsproto.jetstream._consumer.delivery.sent_acks import CROSSING_ROUND_TRIPS, MIN_CROSSING_S, SentAcks
from natsproto.jetstream._consumer.delivery.worker_prefetch import WorkerPrefetch
from natsproto.jetstream._consumer.message import (
    ACKED,
    DeliveryStamp,
    JsMessage,
    extend_all,
    nak_delay_of,
    number_of,
    stamp_arrival,
)
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.protocol.frames import Route

EXTEND_AT_PART: Final = 0.5
"""The part of ack_wait after which a waiting delivery is extended."""
STALLED_AFTER: Final = 2.0
"""The multiple of ack_wait after which a waiting delivery is left to others."""
TICKS_PER_ACK_WAIT: Final = 40
MIN_TICK_S: Final = 0.01
REDELIVERY_SLACK_S: Final = 3.0
"""Seconds beyond its delay for which a nakked message is awaited."""
MAX_COMPARED: Final = 1000
"""Waiting messages that are compared with redeliveries; comparing more would cost more than handling one twice."""
LOOKUP_INTERVAL_S: Final = 1.0
"""Seconds between two look-ups of the consumer."""

_reply_of = attrgetter("_reply")


class DeliverySource(Protocol):
    """Callbacks of Deliveries."""

    def refill(self) -> None:
        """Send the pulls that are due."""

    def requeue(self, message: JsMessage) -> None:
        """Add a message that is to be handled next."""

    def on_skipped(self, message: JsMessage) -> None:
        """Count a message as never received."""


class _AwaitedRedelivery(NamedTuple):
    """A nakked message, and the end of waiting for its redelivery."""

    message: JsMessage
    end: Callable[[], None]


class Deliveries:
    """The deliveries of one reader.

    ``look_up`` requests the consumer's info, of which ``info`` is the last known. ``is_shared`` is False if no other
    reader can get what waits here.
    """

    def __init__(
        self,
        source: DeliverySource,
        connection: Connection,
        address: ConsumerAddress,
        info: ConsumerInfo | None,
        look_up: Callable[[], Awaitable[ConsumerInfo]],
        prefetch: int,
        *,
        is_shared: bool = True,
    ) -> None:
        self.terms: DeliveryTerms = DeliveryTerms.of(info)
        self.prefetch: WorkerPrefetch = WorkerPrefetch(self.terms, prefetch)
        self.reports: DeliveryReports = DeliveryReports(connection, address)
        self.acks: SentAcks = SentAcks(connection, info)
        self.queues: list[deque[JsMessage]] = []
        """The messages that wait: those of the buffer, then of key partitions or threads."""
        self.in_hand: dict[int, list[JsMessage | None]] = {}
        """The messages that each reader handles now."""
        self.newest: dict[int, JsMessage] = {}
        """The newest delivery, by the id of its message in hand, if it came while that was handled."""
        self.forget_ended: Callable[[], None] = lambda: None
        """Removes the messages of readers that have ended without saying so, such as threads."""
        self._source, self._connection, self._look_up_info = source, connection, look_up
        self._is_shared = is_shared
        self._loop = asyncio.get_running_loop()
        self._times = ArrivalTimes(connection)
        self._awaited: dict[int, _AwaitedRedelivery] = {}  # by the id of the nakked message
        self._acked_in_batches: dict[int, int] = {}  # at the last tick, by reader
        self._first: bytes | None = None  # how the ack subjects of first deliveries begin
        self._repeatable: set[MessageKey] = set()  # in hand at the last reconnect: the server may have forgotten them
        self._timer: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[None] | None = None
        self._next_lookup = 0.0

    # ---------------------------------------------------------------- arrivals

    def on_pull(self) -> None:
        """A pull is sent, and no other one is open."""
        self._times.on_pull()

    def on_arrival(self, messages: list[JsMessage], route: Route) -> list[JsMessage]:
        """Stamp messages that have arrived; return those to handle."""
        now = monotonic()
        travel, is_ticking = min(self.prefetch.round_trip, self.prefetch.free_seconds), self._timer is not None
        since = self._times.sent_after(now, travel, is_ticking=is_ticking)
        stamp_arrival(messages, route, self.prefetch.free_seconds, since)
        if self._timer is None:
            self._start_timer(now)
        first = self._first
        try:
            # As bytes, 1. is before 10. and 2., so the largest shows for all whether it is their first delivery.
            if first is not None and not self._repeatable and max(map(_reply_of, messages)).startswith(first):
                return messages
        except (TypeError, AttributeError):
            pass  # some are not from a stream, or their subjects were read
        return self._without_repetitions(messages, now)

    def _without_repetitions(self, messages: list[JsMessage], now: float) -> list[JsMessage]:
        """Return the messages without repetitions of what is in hand, waits, or was acknowledged a moment ago."""
        held, acked = self._held_by_key()
        self._repeatable &= held.keys()
        found = [(message, position_of(message._reply)) for message in messages]
        repeated = {one.key for _, one in found if one is not None and not one.first}
        waiting: dict[MessageKey, JsMessage] = {}
        if repeated:
            waiting, acked = self._waiting(repeated), acked | self.acks.since(now - self._crossing_seconds)
        mine: list[JsMessage] = []
        for message, position in found:
            if position is None or not self.terms.is_single:
                mine.append(message)
                continue
            key, older = position.key, held.get(position.key)
            if position.first:
                self._first = position.first
                if older is not None and key in self._repeatable:
                    self._on_redelivery_in_hand(older, message, now)
                else:
                    mine.append(message)  # also what somebody has reset, to have it delivered anew
            elif older is not None:
                self._on_redelivery_in_hand(older, message, now)
            elif (older := waiting.get(key)) is not None:
                older._reply, older._note = message._reply, message._note
                self.look_up()
            elif acked.get(key, position.consumer_seq) < position.consumer_seq:
                self.acks.keep_crossed(message)
                self.look_up(at_once=True)
            else:
                mine.append(message)
        return mine

    def _held_by_key(self) -> tuple[dict[MessageKey, JsMessage], dict[MessageKey, int]]:
        """Return the messages in hand, and those that are settled already with the consumer sequences of them."""
        held: dict[MessageKey, JsMessage] = {}
        settled: dict[MessageKey, int] = {}
        for message in self.held():
            if (position := position_of(message._reply)) is None:
                continue
            if message.is_acked and nak_delay_of(message) is None:
                settled[position.key] = position.consumer_seq
            else:
                held[position.key] = message
        return held, settled

    @property
    def _crossing_seconds(self) -> float:
        return max(MIN_CROSSING_S, CROSSING_ROUND_TRIPS * self.prefetch.round_trip)

    def _waiting(self, keys: Collection[MessageKey]) -> dict[MessageKey, JsMessage]:
        """Return which of these messages wait, unless too many do to compare them."""
        if sum(map(len, self.queues)) > MAX_COMPARED:
            return {}
        found: dict[MessageKey, JsMessage] = {}
        for message in (message for queue in self.queues for message in list(queue)):
            position = position_of(message._reply)
            if position is not None and position.key in keys:
                found[position.key] = message
        return found

    def _on_redelivery_in_hand(self, older: JsMessage, message: JsMessage, now: float) -> None:
        """A message in hand, which becomes this delivery. A nakked one waits for it, or is about to be released."""
        note = older._note
        self.newest[id(older)] = message
        if not isinstance(note, DeliveryStamp):
            if (awaited := self._awaited.get(id(older))) is not None:
                awaited.end()
            return
        if now - note.since < self._wait_of(older) - margin_of(self.terms.shortest):
            self.look_up()  # too early: ack_wait is shorter now, or somebody else has nakked it
        else:
            self._report_exceeded(older, now)
        older._reply, older._note = message._reply, message._note

    # ---------------------------------------------------------------- hand-over and release

    def may_hand_over(self, message: JsMessage, now: float) -> bool:
        """Decide about a message that was taken and has waited beyond ``check_at``; extend it if that is needed."""
        note = message._note
        if not isinstance(note, DeliveryStamp):
            return True
        wait, age = self._wait_of(message), now - note.since
        if age <= self.prefetch.free_of(wait):
            return True
        if age < wait - margin_of(wait) or not self.terms.repeats(number_of(message)):
            self._extend([message])
            return True
        if now - note.arrived > STALLED_AFTER * wait:
            self.reports.given_back += 1
        else:
            self.reports.stale += 1
        self._source.on_skipped(message)
        return False

    def on_released(self, message: JsMessage) -> None:
        """A message is not in hand any more. If it is not settled, its newest delivery is handled next."""
        if -id(message) in self.in_hand:
            return  # but in a thread
        newest = self.newest.pop(id(message), None)
        if newest is not None and (type(message._note) is not bytes or nak_delay_of(message) is not None):
            self._source.requeue(newest)

    def keep_in_hand(self, messages: list[JsMessage]) -> None:
        """Their call was given up, but a thread goes on with them: they stay in hand until it ends."""

        def on_end() -> None:
            for message in messages:
                self.in_hand.pop(-id(message), None)
                self.on_released(message)

        for message in messages:
            self.in_hand[-id(message)] = [message]
        on_thread_end(messages[0], on_end)

    def requeue(self, message: JsMessage) -> None:
        """Handle a message next, or return it at the end of reading."""
        self._source.requeue(message)

    def comes_again(self, message: JsMessage) -> bool:
        """True for a message that was released and is handled again: its newest delivery has come, or it is nakked."""
        if type(message._note) is bytes and nak_delay_of(message) is None:
            self.newest.pop(id(message), None)
            return False
        is_nakked = type(message._note) is bytes
        return id(message) in self.newest or (is_nakked and self.terms.repeats(number_of(message)))

    def await_redelivery(self, message: JsMessage, then: Callable[[JsMessage | None], None]) -> None:
        """Call ``then`` with the next delivery of it, or with None if others have got it or reading ends."""

        def end() -> None:
            timer.cancel()
            del self._awaited[id(message)]
            then(self.newest.pop(id(message), None))

        timer = self._loop.call_later((nak_delay_of(message) or 0.0) + REDELIVERY_SLACK_S, end)
        self._awaited[id(message)] = _AwaitedRedelivery(message, end)
        if id(message) in self.newest:
            end()

    def is_last(self, message: JsMessage) -> bool:
        """True if the server is known not to deliver this message again."""
        return self.terms.is_last(number_of(message))

    def is_last_unhandled(self, message: JsMessage) -> bool:
        """True for a message in hand that would not come again, although no call has had its newest delivery."""
        return id(message) in self.newest and not self.terms.repeats(number_of(message))

    def is_late(self) -> bool:
        """True if a message in hand has expired and is not kept alive."""
        now = monotonic()
        return any(
            isinstance(note := one._note, DeliveryStamp) and now - note.since > self._wait_of(one)
            for one in self.held()
        )

    def on_slow_call(self, messages: Sequence[JsMessage], seconds: float) -> None:
        """A call with these messages took so long. If no tick came meanwhile, it kept the event loop."""
        if messages and seconds > self.terms.shortest and self._times.ticked_at < monotonic() - seconds:
            self._report_exceeded(messages[0], monotonic(), seconds)

    def held(self) -> list[JsMessage]:
        """The messages in hand, and those that were nakked and are awaited."""
        self.forget_ended()
        held = [message for hand in list(self.in_hand.values()) for message in hand if message is not None]
        return held + [one.message for one in self._awaited.values()] if self._awaited else held

    def on_workers(self, workers: int) -> None:
        """Set the number of messages that are handled at a time; more of them are a reason to pull more."""
        is_more = workers > self.prefetch.workers
        if workers != self.prefetch.workers:
            self.prefetch.on_workers(workers)
        if is_more:
            self._source.refill()

    def on_behind(self, count: int) -> None:
        """A worker is idle, while ``count`` messages wait for others of their keys."""
        self.prefetch.on_behind(count)
        self._source.refill()

    def on_held_back(self, count: int) -> None:
        """Set the number of messages that wait for the redelivery of a failed one of their key, these included."""
        self.prefetch.on_held_back(count)
        self._source.refill()

    def _wait_of(self, message: JsMessage) -> float:
        return self.terms.wait_of(number_of(message)) if self.terms.backoff else self.terms.ack_wait

    # ---------------------------------------------------------------- the timer

    def start(self) -> None:
        """Reading begins."""
        if not self.terms.is_known:
            self.look_up()
        self._start_timer(monotonic())

    def _start_timer(self, now: float) -> None:
        if self._timer is None:
            self._times.on_start(now)
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(max(MIN_TICK_S, self.terms.shortest / TICKS_PER_ACK_WAIT), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, trips, held, is_waiting = monotonic(), self._connection._round_trips, self.held(), any(self.queues)
        self.reports.on_tick(is_idle=not is_waiting)
        if (not held and not is_waiting) or self._connection.state is State.CLOSED:
            return
        self._times.on_tick(now)
        if trips.shortest != self.prefetch.round_trip:
            self.prefetch.on_round_trip(trips.shortest)
        if is_waiting:
            self._extend(self._due(now))
        self._extend_batches(now)
        shortest = self.terms.shortest
        for message in held:
            note = message._note
            if isinstance(note, DeliveryStamp) and shortest < now - note.since > self._wait_of(message):
                self._report_exceeded(message, now)
                break
        self._set_timer()

    def _extend(self, messages: list[JsMessage]) -> None:
        if self._connection.is_connected:
            extend_all(messages)

    def _extend_batches(self, now: float) -> None:
        """Extend what is left of the batches in hand of which some messages were acknowledged since the last tick."""
        before, self._acked_in_batches = self._acked_in_batches, {}
        for key, hand in list(self.in_hand.items()):
            if len(hand) < 2:
                continue
            left = [message for message in hand if message is not None and not message.is_acked]
            self._acked_in_batches[key] = len(hand) - len(left)
            if left and len(hand) - len(left) > before.get(key, 0):
                young = now - EXTEND_AT_PART * self._wait_of(left[-1])
                self._extend([message for message in left if message._note.since < young])

    def _due(self, now: float) -> list[JsMessage]:
        """Return the waiting messages whose ack_wait has to begin anew."""
        young, due = now - EXTEND_AT_PART * self.terms.shortest, list[JsMessage]()
        for message in (message for queue in self.queues for message in list(queue)):
            note = message._note
            if not isinstance(note, DeliveryStamp) or note.since >= young:
                continue
            wait = self._wait_of(message)
            if not EXTEND_AT_PART * wait <= now - note.since <= wait - margin_of(wait):
                continue
            if (
                not self._is_shared
                or now - note.arrived < STALLED_AFTER * wait
                or not self.terms.repeats(number_of(message))
            ):
                due.append(message)
        return due

    # ---------------------------------------------------------------- the connection and the consumer

    def on_reconnect(self) -> None:
        """The connection is back; no pull has survived."""
        held = self.held()
        self._times.on_pull()
        self.acks.on_reconnect([message._reply for message in held if message._note is ACKED])
        if self.acks.needs_info:
            self.look_up(at_once=True)
        self._repeatable = {one.key for message in held if (one := position_of(message._reply)) is not None}

    def look_up(self, *, at_once: bool = False) -> None:
        """Look up the consumer in the background, unless that is going on or, unless ``at_once``, was done lately."""
        if self._lookup is None and (at_once or monotonic() >= self._next_lookup):
            self._lookup = self._loop.create_task(self._look_up(), name="natsproto look-up of ack_wait")

    def close(self) -> None:
        """Reading ends."""
        if self._lookup is not None:
            self._lookup.cancel()
        for awaited in list(self._awaited.values()):
            awaited.end()

    async def _look_up(self) -> None:
        info: ConsumerInfo | None = None
        try:
            while info is None:
                try:
                    info = await self._look_up_info()
                except (errors.ConsumerNotFound, errors.StreamNotFound, errors.PermissionDenied):
                    break
                except errors.NatsError:  # without a leader
                    pass
                self._on_info(info)
                if info is None:
                    if not self.acks.needs_info or self._connection.state is State.CLOSED:
                        break
                    await asyncio.sleep(LOOKUP_INTERVAL_S)
            if info is not None and (terms := DeliveryTerms.of(info)) != self.terms:
                self._on_terms(terms)
        finally:
            self._lookup, self._next_lookup = None, monotonic() + LOOKUP_INTERVAL_S
            self._on_info(None)

    def _on_info(self, info: ConsumerInfo | None) -> None:
        for message in self.acks.on_info(info):
            self._source.requeue(message)

    def _on_terms(self, terms: DeliveryTerms) -> None:
        """The configuration is known, or has changed: the server applies it to what is in flight, too."""
        self.terms = terms
        self.prefetch.on_terms(terms)
        for message in (message for queue in self.queues for message in list(queue)):
            if isinstance(message._note, DeliveryStamp) and message._note.arrived:
                message._note.check_at = message._note.since + self.prefetch.free_seconds
        self._source.refill()

    # ---------------------------------------------------------------- events

    def _report_exceeded(self, message: JsMessage, now: float, seconds: float = 0.0) -> None:
        if self.terms.is_known:
            note, wait = message._note, self.terms.shortest if seconds else self._wait_of(message)
            took = seconds or (now - note.since if isinstance(note, DeliveryStamp) else 0.0)
            self.reports.on_exceeded(max(took, wait), wait)
