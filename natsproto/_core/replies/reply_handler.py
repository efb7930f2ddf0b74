"""The interface of JetStream publishers that receive many replies at little cost.

A publisher with a thousand messages in flight gets a reply to each. With a Subscription each reply would be a message
in a queue that a task reads, and connection events would come later and in another order.
"""

from __future__ import annotations

from typing import Protocol

from natsproto import errors
from natsproto.protocol.frames import Message


class ReplyHandler(Protocol):
    """Callbacks for replies as they are read.

    They run inside the receive path or a step of the engine: they must be quick, must not raise, and must not remove
    other handlers.
    """

    @property
    def subject(self) -> str:
        """The subject to subscribe to: an inbox, mostly with ``.*`` or ``.>``, for which the rest is the token."""
        ...

    @property
    def expects_replies(self) -> bool:
        """True while somebody waits for a reply."""
        ...

    def on_message(self, message: Message, /) -> None:
        """A reply came."""
        ...

    def on_replies_handled(self) -> None:
        """All replies of one chunk were passed to on_message; wake waiters now."""
        ...

    def on_disconnect(self, error: errors.ConnectionLost) -> None:
        """The connection has ended. Messages in the outbox go out on the next one unless they are taken back."""
        ...

    def on_reconnect(self) -> None:
        """There is a connection again, or another one after a move; the subscription is restored."""
        ...

    def on_permission_error(self, error: errors.PermissionDenied) -> None:
        """The server rejects messages to ``error.subject``."""
        ...

    def on_end(self, error: errors.NatsError) -> None:
        """No more replies will come: the client is closed, or the server rejected the subscription."""
        ...
