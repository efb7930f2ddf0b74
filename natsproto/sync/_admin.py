"""Monitoring and administration of the cluster for threads without an event loop.

Blocking wrappers of ``natsproto.system``, ``natsproto.jetstream.advisories``, ``_admin`` and ``_listing``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, Generic, TypeVar

from natsproto import system
from natsproto.jetstream import advisories as advisory
from natsproto.jetstream._api import admin, listing
from natsproto.sync._wrapper import ContextReader, SyncWrapper, as_iterator, blocking

T = TypeVar("T")


class System(SyncWrapper[system.System]):
    """Queries the servers' monitoring data. For users of the system account."""

    servers: Final = as_iterator(system.System.servers)
    server: Final = blocking(system.System.server)
    account: Final = as_iterator(system.System.account)
    user_info: Final = blocking(system.System.user_info)


class Admin(SyncWrapper[admin.Admin]):
    """The administration of the cluster: leaders, peers, servers and accounts."""

    step_down_stream_leader: Final = blocking(admin.Admin.step_down_stream_leader)
    step_down_consumer_leader: Final = blocking(admin.Admin.step_down_consumer_leader)
    remove_stream_peer: Final = blocking(admin.Admin.remove_stream_peer)
    evacuate_stream_peer: Final = blocking(admin.Admin.evacuate_stream_peer)
    remove_consumer_peer: Final = blocking(admin.Admin.remove_consumer_peer)
    evacuate_consumer_peer: Final = blocking(admin.Admin.evacuate_consumer_peer)
    cancel_stream_move: Final = blocking(admin.Admin.cancel_stream_move)
    step_down_meta_leader: Final = blocking(admin.Admin.step_down_meta_leader)
    remove_server: Final = blocking(admin.Admin.remove_server)
    evacuate_server: Final = blocking(admin.Admin.evacuate_server)
    move_stream: Final = blocking(admin.Admin.move_stream)
    cancel_account_stream_move: Final = blocking(admin.Admin.cancel_account_stream_move)
    purge_account: Final = blocking(admin.Admin.purge_account)
    rescue_meta: Final = blocking(admin.Admin.rescue_meta)


class Advisories(ContextReader[advisory.Advisories, advisory.Advisory]):
    """The JetStream events of an account from now on: iterate it, or call ``next``; ``stop`` ends it."""

    def next(self, timeout: float | timedelta | None = None) -> advisory.Advisory:
        """Return the next event. Waits at most ``timeout`` seconds (None: for ever). RequestTimeout;
        SubscriptionClosed.

        Args:
            timeout: Seconds to wait for an advisory; None: no limit.
        """
        return self._next(timeout)

    def __iter__(self) -> Iterator[advisory.Advisory]:
        return self._iterate()

    async def _next_item(self, timeout: float | None) -> advisory.Advisory:
        return await self._inner.next(timeout)


class Listing(SyncWrapper[listing.Listing[T]], Generic[T]):
    """The streams of an account, or the consumers of a stream, requested page by page. Iterate it once."""

    @property
    def missing(self) -> Sequence[str]:
        """The names of those that did not respond in time; grows while the list is read."""
        return self._inner.missing

    @property
    def offline(self) -> Mapping[str, str]:
        """The names of those that no running server can serve, with the reasons; grows while the list is read."""
        return self._inner.offline

    def __iter__(self) -> Iterator[T]:
        return self._portal.iterate(self._inner)
