"""The seam: all that JetStream, services and other layers on top use of a connection beside its public methods.

``python -m tests.house`` counts its members and their uses, and fails at any use of another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from natsproto._core.cleanups import Cleanups
from natsproto._core.engine.ping_tokens import RoundTrips
from natsproto._core.event_bus import EventBus
from natsproto._core.inbox.handler import Handler
from natsproto._core.inbox.inbox_limits import SlowPolicy, SlowPolicyLike
from natsproto._core.inbox.readers import ActiveReaders
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.instrumentation import Instrumentation
from natsproto._core.outbox import Outbox
from natsproto._core.replies.outages import Outages
from natsproto._core.replies.pending_replies import Resending
from natsproto._core.replies.reply_guard import ReplyGuard
from natsproto._core.replies.reply_handler import ReplyHandler
from natsproto._core.socket.wire import Runtime
from natsproto._options.options import Options
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike


class Seam(Protocol):
    """A Connection as the layers on top see it. The objects are those of the core, whose public methods they call."""

    _options: Options
    """The options of the client, for defaults."""
    _runtime: Runtime
    """Unique ids, and random bits for tokens."""
    _outbox: Outbox
    """Puts messages that are encoded, or must not wait, and says when to wait."""
    _instrumentation: Instrumentation | None
    """Receives a report of what is sent, received and settled."""
    _event_bus: EventBus
    """Emits events of the layer, and logs under the name of the client."""
    _readers: ActiveReaders
    """The readers for which a drain waits, and those whose state is reported."""
    _outages: Outages
    """The last outage, the wait for its end, and the suspicion that the server is cut off."""
    _round_trips: RoundTrips
    """How long a message travels, and whether all that had come is read."""
    _reply_guard: ReplyGuard
    """Refuses reply subjects that would lend this client's permissions to others."""
    _cleanups: Cleanups
    """Run something that has to end before the client closes, also when its caller is cancelled."""

    def _check_loop(self) -> None:
        """Raise LocalProtocolError in another event loop, thread or process than the client's."""

    def _subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: Handler | None = None,
        max_messages: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicyLike = SlowPolicy.DROP_NEWEST,
        message_type: type[Message] = Message,
        message_note: object = None,
        expects_replies: bool = False,
    ) -> Subscription:
        """Subscribe with a subclass of Message, whose objects get the note."""
        ...

    def _add_reply_handler(self, handler: ReplyHandler) -> Callable[[], None]:
        """Subscribe a handler for many replies, each to a message of its own; return a function that unsubscribes."""
        ...

    def _request_encoded(
        self,
        subject: str,
        encoded_subject: bytes,
        payload: Payload = b"",
        *,
        timeout: float,
        headers: HeadersLike | None = None,
        resending: Resending | None = None,
    ) -> Awaitable[Message]:
        """Send a request to a checked subject, again as ``resending`` says, and wait for its reply."""
        ...

    async def _further_reply(self, first: Message, timeout: float) -> Message | None:
        """Wait for another reply to the request that got ``first``."""
        ...
