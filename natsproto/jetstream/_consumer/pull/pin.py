"""The pin of a pinned client (ADR-42): without a pull within ``priority_timeout`` the server gives it to another one.

Owns a timer, which runs from the first message until the pin is lost, or a message in hand has expired: a handler that
hangs loses the pin.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from natsproto.jetstream._consumer.pull.pull_inbox import PullInbox

KEEP_PIN: Final = '"batch":1,"no_wait":true,"max_bytes":1'
"""The beginning of a pull that keeps the pin of a client; no message is small enough for it."""
PULLS_PER_TIMEOUT: Final = 3
DEFAULT_PRIORITY_TIMEOUT_S: Final = 120.0
"""The ``priority_timeout`` of a consumer without one."""


class PinSource(Protocol):
    """A PullSource."""

    def keep_pin(self) -> bool:
        """Keep the pin without a message; False if that is over."""
        ...


class PinKeeper:
    """Keeps the pin of one reader."""

    def __init__(self, source: PinSource, inbox: PullInbox) -> None:
        self._source, self._inbox = source, inbox
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """A message with a pin has come."""
        if self._timer is None:
            config = self._inbox.config
            timeout = (config and config.priority_timeout) or DEFAULT_PRIORITY_TIMEOUT_S
            self._timer = self._inbox.loop.call_later(timeout / PULLS_PER_TIMEOUT, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._source.keep_pin():
            self.start()
