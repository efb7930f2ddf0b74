"""The last acknowledgements of one reader: those that may be lost with a connection, or cross a redelivery.

1. The subjects of the last acknowledgements are kept, with the times. They are all that is known of settled messages.
2. After a lost connection they are sent again, once the consumer's info says that it is the same consumer and that it
   was not reset: after a reset it may have delivered these messages anew, to anybody.
3. A redelivery of a message that was acknowledged a moment ago, or is settled and still in hand, may have crossed the
   acknowledgement on the way, as when ack_wait was shortened. It waits for the same info, and is acknowledged then. It
   is handled if that does not come.
4. Otherwise they are never compared with what arrives: a server repeats what was reset, and what it has forgotten, with
   the same sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from natsproto._core.connection import Connection
from natsproto.jetstream._consumer.ack_subject import AckSubject, MessageKey, position_of
from natsproto.jetstream._consumer.message import JsMessage, send_acks
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.timestamp import Timestamp

MAX_ACKS: Final = 1000
"""Acknowledgements that are kept, unless ``max_ack_pending`` is smaller."""
MIN_CROSSING_S: Final = 0.05
CROSSING_ROUND_TRIPS: Final = 4
"""A redelivery may cross an acknowledgement for that many seconds, and round trips, after it was sent."""


class SentAcks:
    """The acknowledgements of one reader."""

    def __init__(self, connection: Connection, info: ConsumerInfo | None) -> None:
        limit = info.config.max_ack_pending if info is not None else 0
        self.last: deque[tuple[AckSubject, float]] = deque(maxlen=min(limit, MAX_ACKS) if limit > 0 else MAX_ACKS)
        """The ack subjects of acknowledged messages, with the times; readers append to it."""
        self._connection = connection
        self._created: Timestamp | None = None if info is None else info.created
        self._unconfirmed: list[AckSubject] = []
        self._crossed: list[JsMessage] = []

    @property
    def needs_info(self) -> bool:
        """True if something waits for the consumer's info."""
        return bool(self._unconfirmed or self._crossed)

    def on_reconnect(self, in_hand: Iterable[AckSubject]) -> None:
        """The connection was lost, and with it perhaps the last acknowledgements, also of messages still in hand."""
        self._unconfirmed = [*self._unconfirmed, *(subject for subject, _ in list(self.last)), *in_hand][-MAX_ACKS:]
        self.last.clear()

    def since(self, time: float) -> dict[MessageKey, int]:
        """Return the messages that were acknowledged since then, with the consumer sequences of their deliveries."""
        found: dict[MessageKey, int] = {}
        for subject, acked_at in reversed(list(self.last)):  # threads append to it
            if acked_at < time:
                break
            if (position := position_of(subject)) is not None:
                found[position.key] = position.consumer_seq
        return found

    def keep_crossed(self, message: JsMessage) -> None:
        """Keep a redelivery that may have crossed its acknowledgement, until the info comes."""
        self._crossed.append(message)

    def on_info(self, info: ConsumerInfo | None) -> list[JsMessage]:
        """The info has come, or None: it cannot be had now. Return kept messages that have to be handled."""
        crossed, self._crossed = self._crossed, []
        if info is None:
            return crossed
        is_same, self._created = self._created == info.created, info.created
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        if not is_same:
            return crossed
        positions = [position for subject in unconfirmed if (position := position_of(subject)) is not None]
        if info.delivered.consumer_seq >= max((one.consumer_seq for one in positions), default=0):
            send_acks(self._connection, unconfirmed)
        send_acks(self._connection, [message._reply for message in crossed])
        return []
