"""Messages that arrive again: which of them are not handled twice.

Owns what a reader has in hand and has acknowledged, and the look-up of the consumer when the server repeats a message
too early. The first copy's acknowledgement settles all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, Protocol

from natsproto.errors import ConnectionLost, LocalProtocolError, NatsError
from natsproto.jetstream._consumer.acknowledged import MAX_REMEMBERED, Acknowledged, Position, position_of
from natsproto.jetstream._consumer.delivery_state import DeliveryTerms
from natsproto.jetstream._consumer.pull_inbox import DEFAULT_ACK_WAIT_S, PullInbox
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import ACKED, JsMessage, send_acks
from natsproto.jetstream._policies import AckPolicy
from natsproto.jetstream._timestamp import Timestamp

LOOKUP_INTERVAL_S: Final = 1.0
"""Seconds between two look-ups of the consumer."""
MAX_LOOKUPS: Final = 3
"""Look-ups while connections are lost, until messages that were perhaps acknowledged are handled again."""
_reply_of = attrgetter("_reply")


class RedeliveryReceiver(Protocol):
    """Callbacks of Redeliveries."""

    def on_terms(self, terms: DeliveryTerms) -> None:
        """The configuration of the consumer is known, or was read again."""
        ...

    def on_overdue(self, message: JsMessage) -> None:
        """The server has repeated a message that is being handled."""
        ...

    def remove_waiting(self, stream_seq: int) -> None:
        """Remove an older delivery of a message that waits to be handled."""
        ...

    def began(self) -> float:
        """The time from which on the server may have sent what arrives now."""
        ...

    def put_late(self, message: JsMessage, began: float) -> None:
        """Add a message that is to be handled after all."""
        ...


class Redeliveries:
    """Finds the messages of a reader that are delivered again while it handles them, or after it acknowledged them."""

    def __init__(self, inbox: PullInbox, receiver: RedeliveryReceiver) -> None:
        info = inbox.info
        self.terms: DeliveryTerms = DeliveryTerms() if info is None else terms_of(info)
        """The terms in the last known configuration."""
        self.acknowledged: Acknowledged = Acknowledged(self.terms.max_ack_pending or MAX_REMEMBERED)
        """Messages whose acknowledgements may be lost."""
        self.in_hand: dict[int, list[JsMessage | None]] = {}
        """The messages that each reader handles now."""
        self.forget_ended: Callable[[], None] = lambda: None
        """Removes the messages of readers that have ended without saying so, such as threads."""
        self._inbox, self._receiver = inbox, receiver
        self._created: Timestamp | None = None if info is None else info.created
        self._first: bytes | None = None  # how the ack subjects of first deliveries begin
        # Acknowledged before, if this is still the same consumer; with the times of their deliveries.
        self._doubtful: list[tuple[JsMessage, float]] = []
        self._has_received = False  # since the last tick
        self._unconfirmed: list[bytes | str | None] = []  # acknowledgements that may be lost with a connection
        # Messages, and the last of all, that a server may deliver as if for the first time: it was killed.
        self._repeatable: set[Position] = set()
        self._repeated_until = 0
        self._lookup_task: asyncio.Task[None] | None = None
        self._next_lookup = 0.0

    def select(self, messages: list[JsMessage]) -> list[tuple[int, list[JsMessage]]]:
        """Return the messages to handle, with the number of their delivery (from 1), in their order."""
        first, self._has_received = self._first, True
        try:
            # As bytes, 1. is before 10. and 2., so that the largest tells for all whether it is their first delivery.
            if first is not None and not self._repeated_until and max(map(_reply_of, messages)).startswith(first):
                return [(1, messages)]
        except (TypeError, AttributeError):
            pass  # some are not from a stream, or their subjects were read
        numbered = [(self._number_of(message), message) for message in messages]
        return [
            (number, [message for _, message in run])
            for number, run in groupby((pair for pair in numbered if pair[0]), itemgetter(0))
        ]

    def _number_of(self, message: JsMessage) -> int:
        """The number of the delivery; 0 for a message that is not to be handled now."""
        try:
            metadata = message.metadata
        except LocalProtocolError:
            return 1  # somebody has published to the inbox
        number, position = metadata.num_delivered, _position_of(message)
        if number == 1 and not self._is_repeated(position):
            if type(message._reply) is bytes:
                tokens = message._reply.split(b".")
                self._first = b".".join(tokens[: 7 if len(tokens) > 10 else 5]) + b"."
            return 1
        if not self.terms.is_single:
            return number
        self._receiver.remove_waiting(metadata.stream_seq)
        same = [one for one in self._in_hand() if _position_of(one) == position]
        for one in same:
            if not one.is_acked:
                self._receiver.on_overdue(one)
                self.look_up()
                return 0
        if position in self.acknowledged or any(one._note is ACKED for one in same):
            self._doubtful.append((message, self._receiver.began()))
            self.look_up()
            return 0
        return number

    def on_tick(self, now: float) -> None:
        """Some time has passed."""
        if self._has_received:
            self._has_received = False
            self.acknowledged.on_tick(now)

    def _is_repeated(self, position: Position) -> bool:
        """True for a first delivery if a server that was killed may have forgotten an earlier one."""
        if position[0] > self._repeated_until:
            self._repeated_until = 0  # they come in their order
            self._repeatable.clear()
            return False
        self._repeatable.update(self.acknowledged.keep(), map(_position_of, self._in_hand()))
        return position in self._repeatable

    def on_disconnect(self) -> None:
        """The connection was lost."""
        self.acknowledged.recent += [message._reply for message in self._in_hand() if message._note is ACKED]

    def on_reconnect(self, waiting: Iterable[JsMessage]) -> None:
        """The connection is back; these messages wait to be handled."""
        lately = self.acknowledged.lately()
        if self.terms.is_single:
            self._repeatable.update(lately, map(_position_of, self._in_hand()))
            self._repeated_until = max([*self._repeatable, *map(_position_of, waiting)], default=(0, 0))[0]
        if lately:
            self._unconfirmed = list(lately.values())
            self.look_up()

    def held(self) -> list[JsMessage]:
        """The messages that are handled now and not acknowledged yet."""
        return [message for message in self._in_hand() if not message.is_acked]

    @property
    def are_all_busy(self) -> bool:
        """True if each reader handles a message, not a batch."""
        return all(len(hand) == 1 and hand[0] is not None for hand in list(self.in_hand.values()))

    def batches_in_hand(self) -> list[tuple[int, list[JsMessage]]]:
        """The batches that are handled now, with the numbers of their messages that are acknowledged; those that are
        not.
        """
        found = []
        for hand in list(self.in_hand.values()):
            if len(hand) > 1:
                left = [message for message in hand if message is not None and not message.is_acked]
                found.append((len(hand) - len(left), left))
        return found

    def _in_hand(self) -> list[JsMessage]:
        self.forget_ended()
        hands = list(self.in_hand.values())
        return [message for hand in hands for message in hand if message is not None]

    def look_up(self) -> None:
        """Look up the consumer in the background, unless that is going on."""
        if self._lookup_task is None:
            self._lookup_task = self._inbox.loop.create_task(self._look_up(), name="natsproto look-up of ack_wait")

    def close(self) -> None:
        """End the look-up."""
        if self._lookup_task is not None:
            self._lookup_task.cancel()

    async def _look_up(self) -> None:
        inbox, info = self._inbox, None
        try:
            for _ in range(MAX_LOOKUPS):
                wait = self._next_lookup - inbox.loop.time()
                self._next_lookup = max(inbox.loop.time(), self._next_lookup) + LOOKUP_INTERVAL_S
                if wait > 0:
                    await asyncio.sleep(wait)
                with suppress(ConnectionLost):
                    info = await inbox.look_up()
                    break
        except NatsError:
            pass  # without the permission, or without a leader: the messages are handled again
        finally:
            self._lookup_task = None
            doubtful, self._doubtful = self._doubtful, []
            unconfirmed, self._unconfirmed = self._unconfirmed, []
            if info is not None and self._on_info(info):
                send_acks(self._inbox.connection, unconfirmed)  # so that no other reader gets these messages
                self._ack_again(doubtful)
            else:
                self._hand_over(doubtful)

    def _on_info(self, info: ConsumerInfo) -> bool:
        """Take over the configuration; False if this is another consumer than before."""
        is_same, self._created = self._created == info.created, info.created
        terms = terms_of(info)
        if terms != self.terms:
            self.terms = terms
            self._receiver.on_terms(terms)
        if not is_same:
            self.acknowledged.clear()
        return is_same

    def _ack_again(self, doubtful: list[tuple[JsMessage, float]]) -> None:
        for message, _ in doubtful:
            try:
                message.ack_nowait()
            except NatsError:
                return  # the server delivers it once more

    def _hand_over(self, doubtful: list[tuple[JsMessage, float]]) -> None:
        for message, began in doubtful:
            self.acknowledged.forget(_position_of(message))
            self._receiver.put_late(message, began)


def terms_of(info: ConsumerInfo) -> DeliveryTerms:
    """Return what the configuration of a consumer says about its deliveries."""
    config = info.config
    return DeliveryTerms(
        ack_wait=config.ack_wait or DEFAULT_ACK_WAIT_S,
        backoff=tuple(config.backoff),
        max_deliver=max(config.max_deliver, 0),
        max_ack_pending=max(config.max_ack_pending, 0),
        is_single=config.ack_policy == AckPolicy.EXPLICIT,
        is_known=True,
    )


def _position_of(message: JsMessage) -> Position:
    return position_of(message._reply)
