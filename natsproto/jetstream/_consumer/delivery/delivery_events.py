"""The events about deliveries that outlast ack_wait, and the counts behind them.

Owns what was reported: each standstill once, and one slow handler for each reader.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Protocol

from natsproto._core.connection import Connection
from natsproto._core.events import Event
from natsproto.jetstream._consumer.message import JsMessage


class DeliveriesExpired(Event):
    """Messages waited in the client until they were not its own any more, because the program or the connection stood
    still, or their handlers hang. They were not handled: the server delivers them again. Reported once for each
    standstill.
    """

    stream: str
    consumer: str
    count: int
    """Messages that were given up; each comes again, here or at another worker."""

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "%(count)d messages of consumer %(consumer)r were not handled within ack_wait and are delivered again: "
        "the program, the connection or their handlers stood still"
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


class LastDeliveriesUnhandled(Event):
    """Reading ended before messages were handled that the server does not deliver again: ``max_deliver`` is used up.
    They wait for the next reader of the same consumer object; after the end of the program only the stream has them.
    """

    stream: str
    consumer: str
    count: int
    """How many messages these are."""
    sequences: tuple[int, ...]
    """Their sequences in the stream, for ``get_message``."""

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "%(count)d messages of consumer %(consumer)r of stream %(stream)r were not handled before the end of reading "
        "and are not delivered again, as max_deliver is used up: sequences %(sequences)s"
    )


class ConsumerAddress(Protocol):
    """Names a consumer; PullAddress and PushAddress."""

    @property
    def stream(self) -> str:
        """The stream."""
        ...

    @property
    def consumer(self) -> str:
        """The consumer."""
        ...


class DeliveryReports:
    """Reports the deliveries of one reader that outlast ack_wait."""

    def __init__(self, connection: Connection, address: ConsumerAddress) -> None:
        self.stale: int = 0
        """Messages that were skipped because they were not ours any more."""
        self.given_back: int = 0
        """Others that were skipped: they had waited for twice their ack_wait, so others got them."""
        self._connection, self._address = connection, address
        self._reported = self._before = 0  # stale ones in events, and at the last tick
        self._is_exceeded_reported = False

    def on_tick(self, *, is_idle: bool) -> None:
        """Report the messages of a standstill when no more are added to them."""
        count = self.stale - self._reported
        if count and (is_idle or self.stale == self._before):
            self._reported = self.stale
            address = self._address
            self._connection._event_bus.emit(
                DeliveriesExpired(stream=address.stream, consumer=address.consumer, count=count)
            )
        self._before = self.stale

    def on_exceeded(self, seconds: float, ack_wait: float) -> None:
        """A handler has run for so long: longer than the ack_wait of its message."""
        if not self._is_exceeded_reported:
            self._is_exceeded_reported = True
            address = self._address
            self._connection._event_bus.emit(
                AckWaitExceeded(stream=address.stream, consumer=address.consumer, seconds=seconds, ack_wait=ack_wait)
            )


def report_unhandled(connection: Connection, address: ConsumerAddress, messages: Sequence[JsMessage]) -> None:
    """Report messages that are not handled and not delivered again."""
    sequences = tuple(message.seq for message in messages)
    connection._event_bus.emit(
        LastDeliveriesUnhandled(
            stream=address.stream, consumer=address.consumer, count=len(sequences), sequences=sequences
        )
    )
