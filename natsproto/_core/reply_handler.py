"""Inboxes of layers on top, for many replies at little cost.

Owns the vocabulary between the engine and whoever publishes messages that are answered one by one: a JetStream
publisher with a thousand messages in flight. A Subscription would do, but each reply would be a message in a
queue read by a task, and what happens to the connection would be heard of later and in another order.
"""

from __future__ import annotations

from typing import Protocol

from natsproto.errors import ConnectionLost, NatsError, PermissionDenied
from natsproto.protocol.frames import Message


class ReplyHandler(Protocol):
    """Who is told of replies as they are read.

    All of this is called inside the receive path or the engine's own steps: it must be quick, must not raise and
    must not close the inbox of somebody else.
    """

    @property
    def subject(self) -> str:
        """What to subscribe to: an inbox that ends in ``.*`` or ``.>``; what the wildcard stands for is the token."""
        ...

    def on_message(self, message: Message) -> None:
        """A reply came."""
        ...

    def on_batch_end(self) -> None:
        """All replies of one chunk have been handed over; the moment to wake those who wait."""
        ...

    def on_disconnect(self, error: ConnectionLost) -> None:
        """The connection has ended. What waits in the outbox will go out on the next one unless it is withdrawn."""
        ...

    def on_reconnect(self) -> None:
        """There is a connection again, or another one after a move: interest is back, the outbox is being sent."""
        ...

    def on_permission_error(self, error: PermissionDenied) -> None:
        """The server refuses messages to ``error.subject``."""
        ...

    def on_end(self, error: NatsError) -> None:
        """No reply will come any more: the client is closed, or the server refuses the inbox."""
        ...
