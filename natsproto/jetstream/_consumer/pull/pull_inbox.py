"""The subscriptions for the replies to the pulls of a consumer handle: one for each reader at a time.

Owns the subscriptions of a handle, and the messages that arrived for a reader that had left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.events import Connected, Disconnected, Event, Moved, PermissionViolation, Reconnected
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.retry import TIMER_SLACK_S
from natsproto.jetstream._consumer.delivery.delivery_events import report_unhandled
from natsproto.jetstream._consumer.delivery.delivery_terms import MAX_WAITING_PART, WAITING_PART, DeliveryTerms
from natsproto.jetstream._consumer.message import DeliveryStamp, JsMessage, age_of, nak_all, number_of, stamp_arrival
from natsproto.jetstream._consumer.pull.pull_subscription import UNSTAMPED, PullAddress, PullSubscription
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.policies import AckPolicy

IDLE_SUBSCRIPTION_S: Final = 1.0
"""Seconds for which a subscription is kept after a fetch, so that a loop of fetches subscribes once."""


class PullReceiver(Protocol):
    """Receives the replies to its pulls; PullSource."""

    def on_change(self) -> None:
        """Messages have arrived, or the subscription has ended."""
        ...

    def on_leftover(self, leftover: list[JsMessage], now: float) -> int:
        """Offer messages that arrived for an earlier reader; return the number it accepts."""
        ...

    def on_disconnect(self) -> None:
        """The connection was lost."""
        ...

    def on_reconnect(self) -> None:
        """The connection is back; no pull has survived."""
        ...

    def end(self, error: errors.NatsError | None) -> None:
        """End reading."""
        ...

    def fail(self, bug: Exception) -> None:
        """End reading because of an unexpected error."""
        ...


class Informed(Protocol):
    """The handle of a consumer."""

    _info: ConsumerInfo | None
    """The last info that it got, if any."""


class PullInbox:
    """The subscriptions for the pulls of a consumer handle, and its unread messages.

    A reader has its own subscription, so that it gets the messages of its own priority and limits, and so that ending
    the subscription ends only its pulls on the server.

    A reader that leaves while its pulls are open ends its subscription, and with it the pulls. Messages that arrive
    until the server confirms that are offered to the other readers of the handle, then to the next one. Without readers
    and subscriptions they are nakked; where that would lose a message (no acknowledgements, its last delivery, or an
    unknown configuration) they stay for the next reader.

    ``pins`` holds the pin ids of the handle by group (ADR-42).
    """

    def __init__(self, api: Api, stream: str, consumer: str, handle: Informed) -> None:
        self.pins: dict[str, str] = {}
        self.address: PullAddress = PullAddress.of(api, stream, consumer)
        self.connection: Connection = api.connection
        self._api = api
        self._handle = handle
        self._looked_up: ConsumerInfo | None = None
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.is_connected: bool = True
        """True while the client is connected; kept only while there are subscriptions."""
        self.leftover: deque[JsMessage] = deque()
        """Messages that arrived for a reader that had left."""
        self._open: dict[PullSubscription, PullReceiver | None] = {}  # with their readers, those that are ending too
        self._idle: list[PullSubscription] = []
        self._ending: dict[PullSubscription, asyncio.Task[None]] = {}
        self._unlisten: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def info(self) -> ConsumerInfo | None:
        """The last known info of the consumer."""
        return self._looked_up or self._handle._info

    @property
    def config(self) -> ConsumerConfig | None:
        """The last known configuration of the consumer."""
        info = self.info
        return None if info is None else info.config

    @property
    def waiting_part(self) -> float:
        """Seconds for which a delivery may wait and be handed over as it is."""
        return WAITING_PART * DeliveryTerms.of(self.info).shortest

    @property
    def may_redeliver(self) -> bool:
        """False if the server is known to repeat no message."""
        config = self.config
        return config is None or config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL)

    async def look_up(self) -> ConsumerInfo:
        """Get the info of the consumer; raises the errors of every call of the API."""
        stream, consumer = self.address[:2]
        self._looked_up = info = await self._api.call_for(
            ConsumerInfo, f"CONSUMER.INFO.{stream}.{consumer}", operation=f"info of consumer {consumer!r}"
        )
        return info

    # ---------------------------------------------------------------- readers

    def join(self, reader: PullReceiver) -> PullSubscription:
        """Assign a subscription to a reader, until it leaves."""
        if self._idle:
            replies = self._idle.pop()
        else:
            replies = PullSubscription(self.connection, self._api.new_inbox())
        if self._unlisten is None:
            self.is_connected = self.connection.is_connected
            self._unlisten = self.connection.add_listener(self._on_event)
        if (info := self._looked_up or self._handle._info) is not replies.stamped_for:
            replies.route.note = DeliveryStamp.of(None if info is None else info.config, self._api.prefix)
            replies.stamped_for = info
        replies.attach(reader.on_change)
        self._open[replies] = reader
        return replies

    def leave(self, replies: PullSubscription, *, reuse: bool) -> None:
        """Remove the reader of a subscription. ``reuse``: none of its pulls is open, so that it can serve another
        reader.
        """
        if replies not in self._open:
            return
        self._open[replies] = None
        replies.subscription._on_change = lambda: self._on_unclaimed(replies)
        if reuse and replies not in self._ending:
            replies.idle_since = self.loop.time()
            self._idle.append(replies)
            if self._timer is None:
                self._wait_idle()
        else:
            self.end(replies)

    def _on_unclaimed(self, replies: PullSubscription) -> None:
        """Keep the messages that arrive for a reader that has left."""
        received = cast("list[JsMessage]", replies.subscription._read_batch_nowait())
        if messages := [message for message in received if not message._is_status]:
            stamp_arrival(messages, replies.route, self.waiting_part)
            self.keep_leftover(messages)
        if replies.subscription.closed:
            self.remove(replies)

    def end(self, replies: PullSubscription) -> asyncio.Task[None] | None:
        """End a subscription and its pulls. Returns the task that receives the messages in flight, if any."""
        if replies in self._ending:
            return self._ending[replies]
        if replies not in self._open:
            return None
        if not self.connection.is_connected:
            self.remove(replies)
            return None
        replies.subscription._stop_delivery_nowait()
        task = self.loop.create_task(self._end(replies), name="natsproto end of pulls")
        self._ending[replies] = task
        return task

    async def _end(self, replies: PullSubscription) -> None:
        try:
            await replies.drain()
        finally:
            self.remove(replies)

    def close(self) -> None:
        """End all subscriptions at once. Unread messages stay for the next reader."""
        for replies in list(self._open):
            self.remove(replies)

    def remove(self, replies: PullSubscription) -> None:
        """Remove a subscription that has ended, or end now."""
        if replies not in self._open:
            return
        del self._open[replies]
        self._ending.pop(replies, None)
        if replies in self._idle:
            self._idle.remove(replies)
        replies.close()
        if not self._open and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        if not self._is_in_use:
            self._nak_leftover()

    @property
    def _is_in_use(self) -> bool:
        """True while there is a reader, or the server may still send messages of its pulls."""
        return len(self._open) > len(self._idle)

    def _wait_idle(self) -> None:
        self._timer = self.loop.call_later(IDLE_SUBSCRIPTION_S, self._on_idle)

    def _on_idle(self) -> None:
        self._timer = None
        now = self.loop.time() + TIMER_SLACK_S
        for replies in [one for one in self._idle if one.idle_since + IDLE_SUBSCRIPTION_S <= now]:
            self.remove(replies)
        if self._idle:
            self._timer = self.loop.call_at(self._idle[0].idle_since + IDLE_SUBSCRIPTION_S, self._on_idle)
        elif not self._open:
            self._nak_leftover()

    # ---------------------------------------------------------------- left-over messages

    def take_leftover(self, most: int) -> list[JsMessage]:
        """Take up to ``most`` messages that arrived for a reader that had left and that are still ours."""
        self._drop_expired()
        leftover = self.leftover
        return [leftover.popleft() for _ in range(min(len(leftover), most))]

    def _drop_expired(self) -> None:
        """Drop messages that the server delivers again, or is about to."""
        info, now = self.info, monotonic()
        if info is None or not self.leftover:
            return
        ours = DeliveryTerms.of(info).shortest * (1 - MAX_WAITING_PART)
        kept = [one for one in self.leftover if age_of(one, now) <= ours or not self.is_redelivered(one)]
        if len(kept) < len(self.leftover):
            self.leftover.clear()
            self.leftover += kept

    def keep_leftover(self, messages: list[JsMessage]) -> None:
        """Keep messages that arrived without a reader."""
        for replies in self._open:
            replies.stamped_for = UNSTAMPED  # these may have the stamp of those that arrive next
        self.leftover += messages
        self._offer_leftover()

    def put_back(self, messages: list[JsMessage]) -> None:
        """Put back messages that were taken and not delivered: they are the next ones again."""
        self.leftover.extendleft(reversed(messages))
        self._offer_leftover()

    def return_unread(self, messages: list[JsMessage]) -> None:
        """Nak unread messages, or keep them where a nak would lose them. Those in their last delivery are reported,
        unless another reader takes them at once.
        """
        kept = [message for message in messages if not self.is_redelivered(message)]
        nak_all([message for message in messages if self.is_redelivered(message)])
        if kept:
            self.put_back(kept)
            terms, left = DeliveryTerms.of(self.info), set(map(id, self.leftover))
            last = [one for one in kept if id(one) in left and terms.is_single and terms.is_last(number_of(one))]
            if last:
                report_unhandled(self.connection, self.address, last)

    def _offer_leftover(self) -> None:
        """Offer left-over messages to active readers; the rest waits for the next one."""
        self._drop_expired()
        leftover, now = self.leftover, self.loop.time()
        for reader in list(self._open.values()):
            if not leftover:
                return
            if reader is not None:
                offered = list(leftover)
                leftover.clear()  # a reader that ends with them puts the rest back
                accepted = reader.on_leftover(offered, now)
                leftover.extendleft(reversed(offered[accepted:]))
        if leftover and not self._is_in_use and self._timer is None:
            self._wait_idle()

    def _nak_leftover(self) -> None:
        left = self.take_leftover(len(self.leftover))
        self.leftover += [one for one in left if not self.is_redelivered(one)]
        nak_all([one for one in left if self.is_redelivered(one)])

    def is_redelivered(self, message: JsMessage) -> bool:
        """True if the server is known to redeliver this message when it is not acknowledged."""
        config = self.config
        if config is None or config.ack_policy == AckPolicy.NONE:
            return False
        return config.max_deliver <= 0 or message.metadata.num_delivered < config.max_deliver

    # ---------------------------------------------------------------- the connection

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self.is_connected = False
        elif isinstance(event, (Connected, Reconnected, Moved)):
            self.is_connected = True
        for reader in list(self._open.values()):
            if reader is None:
                continue
            try:
                if isinstance(event, Disconnected):
                    reader.on_disconnect()
                elif isinstance(event, (Connected, Reconnected, Moved)):
                    reader.on_reconnect()
                elif isinstance(event, PermissionViolation) and event.error.subject == self.address.subject:
                    reader.end(event.error)
            except Exception as exc:
                reader.fail(exc)
