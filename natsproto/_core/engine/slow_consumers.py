"""The subscriptions that drop messages, and what is reported of them.

Owns an episode for each: it begins with the first dropped message, and ends when for SLOW_CHECK_INTERVAL_S seconds
nothing was dropped and the reader has read what was waiting then. The event at the beginning is repeated during the
episode, and at its end, with the messages dropped since the last one; a log line at the end has the number of all. No
timer runs without an episode.
"""

from __future__ import annotations

import asyncio

from natsproto._core import events
from natsproto._core.event_bus import EventBus
from natsproto._core.inbox.subscription import Subscription

SLOW_CHECK_INTERVAL_S = 1.0
"""Seconds between two looks at the slow subscriptions, so that a burst is one episode."""

REPEAT_INTERVAL_S = 60.0
"""Seconds between two events of an episode."""


class Episode:
    """The dropped messages of a subscription since it fell behind."""

    __slots__ = ("dropped", "read_when_done", "repeat_at", "untold", "was_dropping")

    def __init__(self, repeat_at: float) -> None:
        self.dropped = self.untold = 0
        self.repeat_at = repeat_at
        self.was_dropping = True
        self.read_when_done = 0
        """The messages that have been read in all when the reader has caught up."""


class SlowConsumers:
    """The episodes of one client."""

    def __init__(self, event_bus: EventBus) -> None:
        self._event_bus = event_bus
        self._loop = asyncio.get_running_loop()
        self._episodes: dict[Subscription, Episode] = {}
        self._timer: asyncio.TimerHandle | None = None

    def on_dropped(self, subscription: Subscription, count: int) -> None:
        """A subscription has dropped messages."""
        episode = self._episodes.get(subscription)
        begins = episode is None
        if episode is None:
            episode = self._episodes[subscription] = Episode(self._loop.time() + REPEAT_INTERVAL_S)
            if self._timer is None:
                self._timer = self._loop.call_later(SLOW_CHECK_INTERVAL_S, self._check)
        episode.dropped += count
        episode.untold += count
        episode.was_dropping = True
        episode.read_when_done = subscription.delivered + subscription.pending_msgs
        if begins:
            self._report(subscription, episode)

    def on_ended(self, subscription: Subscription) -> None:
        """A subscription has ended: its reader cannot catch up any more."""
        episode = self._episodes.pop(subscription, None)
        if episode is not None and episode.untold:
            self._report(subscription, episode)
            self._event_bus.log.warning(
                "subscription to %r has ended; it lost %d messages", subscription.subject, episode.dropped
            )
        if not self._episodes and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """End the episodes that are over, and repeat the reports of the others."""
        now = self._loop.time()
        for subscription, episode in list(self._episodes.items()):
            if not episode.was_dropping and subscription.delivered >= episode.read_when_done:
                del self._episodes[subscription]
                if episode.untold:
                    self._report(subscription, episode)
                self._event_bus.log.warning(
                    "subscription to %r has caught up; it lost %d messages", subscription.subject, episode.dropped
                )
            elif episode.untold and now >= episode.repeat_at:
                episode.repeat_at = now + REPEAT_INTERVAL_S
                self._report(subscription, episode)
            episode.was_dropping = False
        self._timer = self._loop.call_later(SLOW_CHECK_INTERVAL_S, self._check) if self._episodes else None

    def _report(self, subscription: Subscription, episode: Episode) -> None:
        dropped, episode.untold = episode.untold, 0
        error = subscription._slow_error(dropped)
        self._event_bus.emit(events.SlowConsumerDetected(subscription=subscription, error=error))
