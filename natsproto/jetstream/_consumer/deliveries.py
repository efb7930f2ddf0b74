"""Deliveries that are still ours: carries out the decisions of a DeliveryState for one reader (decision 0041).

Owns one timer, which extends waiting messages, and reports what a user has to know: messages that were not handled in
time, and handlers that take longer than ack_wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import ClassVar, Final, Protocol

from natsproto._core.engine import State
from natsproto._core.events import Event
from natsproto.jetstream._consumer.delivery_state import (
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
    ack_wait: float

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "a handler of consumer %(consumer)r takes longer than its ack_wait of %(ack_wait)g s (%(seconds).3g s so far), "
        "so its message is delivered again: pass keep_alive=True, or give the consumer a longer ack_wait"
    )


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
        self.keeps_alive: bool = True
        """True if the messages in hand may be kept alive."""
        self.may_give_back: bool = True
        """False if a delivery that nobody handled counts as an attempt that matters."""
        self._source, self._inbox, self._connection = source, inbox, inbox.connection
        self._timer: asyncio.TimerHandle | None = None
        self._in_hand: list[tuple[JsMessage, float]] = []  # with the times at which a tick first saw them
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
        self.redeliveries.acknowledged.keep()
        self.state.on_disconnect(self._connection._round_trips.confirmed_at)

    def on_reconnect(self) -> None:
        """The connection is back."""
        self.state.on_reconnect(monotonic())

    # ---------------------------------------------------------------- the reader's side

    def on_slow_call(self, seconds: float) -> None:
        """A handler took long."""
        if seconds > self.state.terms.shortest and not self.keeps_alive:
            self._report_exceeded(seconds)

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
                ours, lost = self.state.drop_behind(queue, lambda one: is_behind(one) and may_nak(one), now)
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
        """See RedeliveryReceiver."""
        self._report_exceeded(self.state.terms.shortest)

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
            return
        state.on_round_trip(trips.shortest)
        due = state.on_tick(monotonic(), trips.confirmed_at, is_read=trips.is_emptied, may_give_back=self.may_give_back)
        extend_all(due.extend)
        nak_all(due.give_back)
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
        """Find handlers that run longer than ack_wait; keep the pin while none does."""
        held = self.redeliveries.held()
        before = {id(message): since for message, since in self._in_hand}
        self._in_hand = [(message, before.get(id(message), now)) for message in held]
        if not held:
            return
        longest = now - min(since for _, since in self._in_hand)
        if longest <= self.state.terms.shortest or self.keeps_alive:
            self._keep_pin(now)
        else:
            self._report_exceeded(longest)

    def _keep_pin(self, now: float) -> None:
        """Keep the pin of a pinned client while its handlers are busy: without a pull the server gives it to others."""
        config = self._inbox.config
        if config is not None and config.priority_groups and now >= self._pin_due:
            self._pin_due = now + (config.priority_timeout or DEFAULT_PRIORITY_TIMEOUT_S) / PIN_PULLS_PER_TIMEOUT
            self._source.keep_pin()

    # ---------------------------------------------------------------- events

    def _report_exceeded(self, seconds: float) -> None:
        if self._is_exceeded_reported or not self.state.terms.is_known:
            return
        self._is_exceeded_reported = True
        inbox = self._inbox
        self._connection._emit(
            AckWaitExceeded(
                stream=inbox.stream, consumer=inbox.consumer, seconds=seconds, ack_wait=self.state.terms.shortest
            )
        )

    def _report_stale(self) -> None:
        count = self.state.stale - self._stale_reported
        if count:
            self._stale_reported = self.state.stale
            inbox = self._inbox
            self._connection._emit(DeliveriesExpired(stream=inbox.stream, consumer=inbox.consumer, count=count))
