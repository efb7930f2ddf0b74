"""Stops reading from the server while a subscription with the policy ``pause`` is full.

Owns the subscriptions that are full. The rules:

1. All subscriptions share one connection, so reading stops for all of them. The server waits.
2. Nothing is dropped: what was read waits in its subscription.
3. Replies come behind the messages that the server has sent before. So reading goes on while somebody waits for one (a
   request, a flush, a publish to a stream), and these messages wait beyond the limits of their subscription.
4. While reading is stopped, silence of the server proves nothing: its pings are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

HOLD_CHECK_INTERVAL_S = 0.01
"""Seconds until reading goes on for a request that begins while it is stopped. Without a full subscription there is no
timer, and a request costs nothing more."""


class Reading(Protocol):
    """The part of a session that is needed."""

    def hold_reading(self, wanted: bool) -> None:
        """Stop or resume reading."""
        ...


class ReadingHold:
    """The full subscriptions of a client. ``expects_replies`` is asked only while there are some."""

    __slots__ = ("_expects_replies", "_full", "_session", "_timer", "inboxes")

    def __init__(self, session: Callable[[], Reading | None], expects_replies: Callable[[], bool]) -> None:
        self._session, self._expects_replies = session, expects_replies
        self._full: set[object] = set()
        self.inboxes: set[object] = set()
        """Subscriptions that receive replies to one call, and end with it."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, subscription: object) -> None:
        """The subscription is full."""
        self._full.add(subscription)
        self.apply()

    def discard(self, subscription: object) -> None:
        """The subscription was read."""
        if subscription in self._full:
            self._full.remove(subscription)
            self.apply()

    def on_ended(self, subscription: object) -> None:
        """The subscription has ended."""
        self.inboxes.discard(subscription)
        self.discard(subscription)

    def apply(self) -> None:
        """Stop or resume reading of the current session, and check again while a subscription is full."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        session = self._session()
        if session is not None:
            session.hold_reading(bool(self._full) and not self.inboxes and not self._expects_replies())
            if self._full:
                self._timer = asyncio.get_running_loop().call_later(HOLD_CHECK_INTERVAL_S, self.apply)
