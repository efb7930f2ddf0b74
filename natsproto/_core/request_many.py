"""One request with many replies (ADR-47): its deadline, and the conditions that end it.

Owns the deadline, the stall timer and the count of one such request. It reads a subscription of its own, which ends
with it. The Connection validates and sends the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeAlias

from natsproto import errors
from natsproto._core.deadline import Deadline
from natsproto._core.engine.engine import Engine
from natsproto._core.events import Disconnected, Event, PermissionViolation
from natsproto._core.inbox.subscription import Subscription
from natsproto.protocol.frames import Message

Sentinel: TypeAlias = Callable[[Message], bool] | Literal["empty"]
"""Returns True for the message that ends the replies; "empty" means a message without payload."""


class RequestMany:
    """The replies to one request.

    Replies are accepted for ``timeout`` seconds after the request (None: no limit). ``stall`` is the longest wait in
    seconds for another reply after the first (None: no limit); without a timeout, for the first reply too.
    """

    def __init__(
        self,
        engine: Engine,
        subject: str,
        timeout: float | None,
        stall: float | None,
        max_messages: int | None,
        sentinel: Sentinel | None,
    ) -> None:
        self._engine = engine
        self._subject = subject
        self._timeout = timeout
        self._stall = stall
        self._max_messages = max_messages
        self._is_last = _is_empty if sentinel == "empty" else sentinel
        self._is_over = False

    async def replies(
        self, subscribe: Callable[[], Subscription], ask: Callable[[str], None]
    ) -> AsyncGenerator[Message]:
        """Send through the inbox that ``subscribe`` creates, and yield as Connection.request_many documents."""
        engine = self._engine
        limit = self._timeout or self._stall
        deadline = None if limit is None else Deadline(limit)
        if engine.outbox.must_wait:
            await engine.outbox.wait_writable(deadline, f"request to {self._subject!r}")
        inbox = self._inbox = subscribe()
        # The deadline ends receiving, not reading: a slow reader still gets the replies that came in time.
        timer = None
        if self._timeout is not None and deadline is not None:
            timer = asyncio.get_running_loop().call_at(deadline.at, self._end)
        unlisten = engine.event_bus.listen(self._on_event)
        count, unsent = 0, False
        try:
            ask(inbox.subject)
            while True:
                try:
                    message = await inbox.next(self._stall if count or timer is None else None)
                except errors.RequestTimeout:  # stalled
                    self._is_over = True
                    break
                except errors.SubscriptionClosed:
                    break
                if not message.data and message.has_headers and message.headers._status >= 200:
                    if not count and message.is_no_responders:
                        raise errors.NoResponders(self._subject)
                    yield message  # a status ends the replies (a 1xx does not)
                    return
                if self._is_last is not None and self._is_last(message):
                    return
                count += 1
                yield message
                if count == self._max_messages:
                    return
        finally:
            if timer is not None:
                timer.cancel()
            unlisten()
            engine.registry.unsubscribe(inbox, None)
            if engine.session is None:  # it may wait in the outbox, and nobody waits for its replies any more
                unsent = bool(engine.outbox.take_back(inbox.subject.encode()))
        if not self._is_over:
            raise engine.outbox.closed_error(f"request to {self._subject!r}")
        if unsent:
            timeout = self._timeout or self._stall or 0.0
            raise engine.outages.timeout_error(f"request to {self._subject!r}", timeout, sent=False)

    def _end(self, error: errors.NatsError | None = None) -> None:
        self._is_over = True
        self._engine.registry.remove(self._inbox)
        self._inbox._close(error)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, PermissionViolation):
            if event.error.operation.startswith("publish") and event.error.subject == self._subject:
                self._end(event.error)
        elif isinstance(event, Disconnected) and self._engine.options.fail_requests_on_disconnect:
            reason = f"replies to {self._subject!r} may be missing: {event.cause}"
            self._end(errors.ConnectionLost(reason, event.server))


def _is_empty(message: Message) -> bool:
    return not message.data
