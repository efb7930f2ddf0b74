"""The subscription for the replies to the pulls of one reader at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.inbox.subscription import Subscription
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.protocol.frames import Message, Route

DRAIN_TIMEOUT_S: Final = 2.0
"""Seconds to wait for the server to confirm the end of a subscription."""
UNSTAMPED: Final = object()


class PullAddress(NamedTuple):
    """A consumer, and the subject of its pulls."""

    stream: str
    consumer: str
    subject: str
    encoded_subject: bytes

    @classmethod
    def of(cls, api: Api, stream: str, consumer: str) -> PullAddress:
        """Return the address of a consumer."""
        subject = f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        return cls(stream, consumer, subject, subject.encode())

    @property
    def description(self) -> str:
        """Its description in errors."""
        return f"consumer {self.consumer!r} of stream {self.stream!r}"


class PullSubscription:
    """A subscription for the replies to the pulls of one reader at a time. ``inbox`` is a subject of its own."""

    __slots__ = (
        *("_connection", "_inbox", "_serial"),
        *("end_timeout", "idle_since", "prefix", "route", "stamped_for", "subscription"),
    )

    def __init__(self, connection: Connection, inbox: str) -> None:
        self._connection, self._inbox = connection, inbox
        self._serial = 0
        self.prefix: str = ""
        """The prefix of the reply subjects of the reader's pulls."""
        self.idle_since: float = 0.0
        self.subscription: Subscription[Message] = connection._subscribe(
            f"{inbox}.*.*",
            pending_msgs_limit=0,
            pending_bytes_limit=0,
            message_type=JsMessage,
        )  # no limits: bounded by what is asked for
        self.route: Route = self.subscription._route
        """Its note is the stamp of the messages that arrive next."""
        self.stamped_for: object = UNSTAMPED
        """The info of the consumer that the stamp was made for."""

        self.end_timeout: float = DRAIN_TIMEOUT_S
        """Seconds to wait for the server's confirmation of its end."""

    def attach(self, on_change: Callable[[], None]) -> None:
        """Assign it to a reader. Statuses about pulls of the previous reader are ignored from now on."""
        self._serial += 1
        self.prefix = f"{self._inbox}.{self._serial}."
        self.subscription._on_change = on_change

    def detach(self) -> None:
        """Drop all that arrives until the next reader is attached."""
        self.subscription._on_change = self.subscription._inbox.clear

    async def drain(self) -> None:
        """End it and receive the messages in flight; those that are not confirmed are delivered again."""
        with suppress(errors.NatsError):
            await self.subscription.drain(self.end_timeout)

    def close(self) -> None:
        """End it at once."""
        self.subscription._on_change = None
        self.subscription._unsubscribe_nowait()
