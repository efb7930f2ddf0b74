"""Deliveries that are still ours: carries out the decisions of a DeliveryState for one reader (decision 0041).

Owns one timer, which extends waiting messages, and reports what a user has to know: messages that were not handled in
time, and handlers that take longer than ack_wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import ClassVar, Final, NamedTuple, Protocol

from natsproto._core.engine import State
from natsproto._core.events import Event
from natsproto.errors import LocalProtocolError
from natsproto.jetstream._consumer.delivery_state import (
    EXTEND_AT_PART,
    MAX_WAITING_PART,
    DeliveryQueue,
    DeliveryState,
    DeliveryTerms,
    Verdict,
)
from natsproto.jetstream._consumer.pull_inbox import PullInbox
from natsproto.jetstream._consumer.redeliveries import Redeliveries
from natsproto.jetstream._message import JsMessage, extend_all, nak_all

KEEP_PIN: Final = '"batch":1,"no_wait":true,"max_bytes":1'
"""The beginning of a pull that keeps the pin of a client; no message is small enough for it."""
PIN_PULLS_PER_TIMEOUT: Final = 3
DEFAULT_PRIORITY_TIMEOUT_S: Final = 120.0
"""The ``priority_timeout`` of a consumer without one."""


class DeliveriesExpired(Event):
    """Messages waited in the client until they were not its own any more, because the program or the connection stood
    still. They were not handled: the server delivers them again. Reported once for each standstill.
    """

    stream: str
    consumer: str
    count: int
    """Messages that were given up; each comes again, here or at another worker."""

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "%(count)d messages of consumer %(consumer)r were not handled within ack_wait and are delivered again: "
        "the program or the connection stood still"
    )


class AckWaitExceeded(Event):
    """A handler ran longer than ``ack_wait`` without ``keep_alive``: the server delivers its message again, perhaps
    while the handler runs. Reported once for each reader.
    """

    stream: str
    consumer: str
    seconds: float
    """How long the handler had run by then."""
    ack_wait: float

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "a handler of consumer %(consumer)r takes longer than its ack_wait of %(ack_wait)g s (%(seconds).3g s so far), "
        "so its message is delivered again: give the consumer a longer ack_wait, or pass keep_alive=True to consume "
        "(it needs the event loop: executor=True for a def handler that blocks); smaller batches take less"
    )


class _InHand(NamedTuple):
    """A message that is handled: when a tick saw it first, and when it was extended last."""

    message: JsMessage
    since: float
    extended_at: float


class DeliverySource(Protocol):
    """Callbacks of Deliveries."""

    @property
    def is_pulling(self) -> bool:
        """True while messages may arrive."""
        ...

    def refill(self) -> None:
        """Send the pulls that are due."""

    def put_late(self, message: JsMessage, began: float) -> None:
        """Add a message that was delivered some time ago."""

    def remove_unread(self, messages: list[JsMessage]) -> None:
        """Count these messages, which were removed from the buffer, as never received."""

    def keep_pin(self) -> None:
        """Keep the pin of a pinned client without a message."""


class Deliveries:
    """The deliveries of one reader: a prefetch that adapts to its pace, and the ages of the messages that wait."""

    def __init__(self, source: DeliverySource, inbox: PullInbox, prefetch: int) -> None:
        self.redeliveries: Redeliveries = Redeliveries(inbox, self)
        self.state: DeliveryState[JsMessage] = DeliveryState(self.redeliveries.terms, prefetch, monotonic())
        self.may_give_back: bool = True
        """False if a delivery that nobody handled counts as an attempt that matters."""
        self._source, self._inbox, self._connection = source, inbox, inbox.connection
        self._timer: asyncio.TimerHandle | None = None
        self._in_hand: list[_InHand] = []  # at the last tick
        self._watched_at = 0.0  # the time of that
        self._progress: dict[int, int] = {}  # by the last message of each batch: acknowledged when it was extended
        self._is_exceeded_reported = False
        self._stale_before = self._stale_reported = 0  # at the last tick, and in events
        self._pin_due = 0.0  # when to keep the pin

    # ---------------------------------------------------------------- the source's side

    def start(self) -> None:
        """Start the timer."""
        if not self.state.terms.is_known:
            self.redeliveries.look_up()
        self._set_timer()

    def on_disconnect(self) -> None:
        """The connection was lost."""
        self.redeliveries.on_disconnect()
        self.state.on_disconnect(self._connection._round_trips.confirmed_at)

    def on_reconnect(self) -> None:
        """The connection is back."""
        self.state.on_reconnect(monotonic())
        self.redeliveries.on_reconnect([message for queue in self.state.queues for message in queue.messages])

    # ---------------------------------------------------------------- the reader's side

    def on_slow_call(self, messages: Sequence[JsMessage], seconds: float) -> None:
        """These messages were handled for long."""
        if seconds <= self.state.terms.shortest:
            return
        now = monotonic()
        began = now - seconds
        extended = {id(one.message): one.extended_at for one in self._in_hand}
        for message in messages:
            if id(message) in extended or (self._timer is not None and self._watched_at < began):
                self._check_in_hand(message, max(began, extended.get(id(message), 0.0)), now)
            # Else it was acknowledged before the last tick.

    def on_workers(self, workers: int) -> None:
        """Set the number of messages that are handled at a time; more of them are a reason to pull more."""
        is_more = workers > self.state.workers
        if workers != self.state.workers:
            self.state.on_workers(workers)
        if is_more:
            self._source.refill()

    def on_behind(self, count: int) -> None:
        """A worker is idle, while ``count`` messages wait for others of their keys."""
        self.state.on_behind(count)
        self._source.refill()

    def check(
        self,
        queue: DeliveryQueue[JsMessage],
        message: JsMessage,
        now: float,
        is_behind: Callable[[JsMessage], bool] | None,
        *,
        may_wait: bool,
    ) -> Verdict:
        """Decide about the message that was taken from a queue last, and do it: HAND_OVER, DROP or WAIT.

        ``is_behind`` tells which messages of the queue must not overtake a dropped one.
        """
        verdict = self.state.verdict(queue, now, may_wait=may_wait)
        if verdict is Verdict.EXTEND:
            extend_all([message])
            return Verdict.HAND_OVER
        if verdict is Verdict.DROP:
            dropped = [message]
            if is_behind is not None:
                may_nak = self._inbox.is_redelivered
                for one in dict.fromkeys((queue, self.state.queues[0])):
                    ours, lost = self.state.drop_behind(one, lambda one: is_behind(one) and may_nak(one), now)
                    nak_all(ours)
                    dropped += ours + lost
            self._remove_unread(dropped)
        elif verdict is Verdict.WAIT:
            queue.put_back(message)
        return verdict

    def drop_expired(self) -> None:
        """Drop what is not ours any more, because reading ends and the rest is given back."""
        self.state.remove_lost(monotonic())

    # ---------------------------------------------------------------- callbacks of Redeliveries

    def on_terms(self, terms: DeliveryTerms) -> None:
        """See RedeliveryReceiver."""
        self.state.on_terms(terms)
        self._set_timer()

    def on_overdue(self, message: JsMessage) -> None:
        """See RedeliveryReceiver. It may also be repeated early: because somebody else, who held it before, has nakked
        it, or because ack_wait is shorter now. Then the next tick reports it.
        """
        now = monotonic()
        seconds = now - min((one.since for one in self._in_hand if one.message is message), default=now)
        if seconds >= (1 - MAX_WAITING_PART) * self._wait_of(message):
            self._report_exceeded(seconds, self._wait_of(message))

    def remove_waiting(self, stream_seq: int) -> None:
        """See RedeliveryReceiver."""
        removed = [
            message for queue in self.state.queues for message, _ in queue.remove(lambda one, _: one.seq == stream_seq)
        ]
        self._remove_unread(removed)

    def began(self) -> float:
        """See RedeliveryReceiver."""
        return self.state.began(monotonic())

    def put_late(self, message: JsMessage, began: float) -> None:
        """See RedeliveryReceiver."""
        self._source.put_late(message, began)

    # ---------------------------------------------------------------- the timer

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._inbox.loop.call_later(self.state.tick_interval, self._on_tick)

    def _on_tick(self) -> None:
        self._timer = None
        state, trips = self.state, self._connection._round_trips
        if not self._source.is_pulling and not self._is_busy():
            self._report_stale()
            self.redeliveries.close()
            self._in_hand.clear()
            return
        state.on_round_trip(trips.shortest)
        may_give_back = self.may_give_back and self._source.is_pulling  # else they would not come back
        due = state.on_tick(monotonic(), trips.confirmed_at, is_read=trips.is_emptied, may_give_back=may_give_back)
        extend_all(due.extend)
        nak_all(due.give_back)
        self.redeliveries.on_tick(monotonic())
        self._remove_unread(due.give_back)
        self._watch_in_hand(monotonic())
        if state.stale == self._stale_before:
            self._report_stale()
        self._stale_before = state.stale
        self._set_timer()

    def _is_busy(self) -> bool:
        if self._connection.state is State.CLOSED:
            return False
        return bool(self.redeliveries.held()) or any(queue.messages for queue in self.state.queues)

    def _remove_unread(self, messages: list[JsMessage]) -> None:
        if messages:
            self._source.remove_unread(messages)
            self._source.refill()

    def _watch_in_hand(self, now: float) -> None:
        """Find messages that are handled beyond ack_wait and not kept alive; keep the pin while there are none."""
        before = {id(one.message): one.since for one in self._in_hand}
        self._watched_at = now
        self._in_hand = [
            _InHand(message, before.get(id(message), now), message._extended_at) for message in self.redeliveries.held()
        ]
        if self._in_hand and self.redeliveries.are_all_busy:
            self.state.on_running(now - max(one.since for one in self._in_hand))
        self._extend_batches()
        late = [one for one in self._in_hand if self._check_in_hand(one.message, max(one.since, one.extended_at), now)]
        if self._in_hand and not late:
            self._keep_pin(now)

    def _extend_batches(self) -> None:
        """Extend what is left of batches whose messages are acknowledged one by one: they wait while that goes on."""
        progress, self._progress = self._progress, {}
        seen = {id(one.message): one for one in self._in_hand}
        for acked, left in self.redeliveries.batches_in_hand():
            if not left:
                continue
            last = id(left[-1])
            self._progress[last] = before = progress.get(last, 0)
            since = min(max(one.since, one.extended_at) for one in map(seen.get, map(id, left)) if one is not None)
            if acked > before and self._watched_at - since >= EXTEND_AT_PART * self._wait_of(left[-1]):
                extend_all(left)
                self._progress[last] = acked

    def _check_in_hand(self, message: JsMessage, since: float, now: float) -> bool:
        """Return True, and report it, if a message was handled for longer than its ack_wait."""
        if now - since <= self.state.terms.shortest or now - since <= (wait := self._wait_of(message)):
            return False
        self._report_exceeded(now - since, wait)
        return True

    def _wait_of(self, message: JsMessage) -> float:
        terms = self.state.terms
        if not terms.backoff:
            return terms.ack_wait
        try:
            return terms.wait_of(message.metadata.num_delivered)
        except LocalProtocolError:
            return terms.shortest  # no consumer has delivered it

    def _keep_pin(self, now: float) -> None:
        """Keep the pin of a pinned client while its handlers are busy: without a pull the server gives it to others."""
        config = self._inbox.config
        if config is not None and config.priority_groups and now >= self._pin_due:
            self._pin_due = now + (config.priority_timeout or DEFAULT_PRIORITY_TIMEOUT_S) / PIN_PULLS_PER_TIMEOUT
            self._source.keep_pin()

    # ---------------------------------------------------------------- events

    def _report_exceeded(self, seconds: float, ack_wait: float) -> None:
        if self._is_exceeded_reported or not self.state.terms.is_known:
            return
        self._is_exceeded_reported = True
        stream, consumer = self._inbox.address[:2]
        seconds = max(seconds, ack_wait)  # it began before a tick saw it
        self._connection._emit(AckWaitExceeded(stream=stream, consumer=consumer, seconds=seconds, ack_wait=ack_wait))

    def _report_stale(self) -> None:
        count = self.state.stale - self._stale_reported
        if count:
            self._stale_reported = self.state.stale
            stream, consumer = self._inbox.address[:2]
            self._connection._emit(DeliveriesExpired(stream=stream, consumer=consumer, count=count))
