"""What servers and JetStream tell of themselves, and the cluster's administration, for threads without an event loop.

Owns nothing: every verb is that of ``natsproto.system``, ``natsproto.jetstream._admin`` and ``…advisory``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from natsproto import system
from natsproto.jetstream import _admin as admin
from natsproto.jetstream import _advisory as advisory
from natsproto.jetstream import _listing as listing
from natsproto.sync._facade import Facade, Watcher, blocking, iterating

T = TypeVar("T")


class System(Facade[system.System]):
    """Asks the servers of the cluster: for users of the system account."""

    servers = iterating(system.System.servers)
    server = blocking(system.System.server)
    account = iterating(system.System.account)
    user_info = blocking(system.System.user_info)


class Admin(Facade[admin.Admin]):
    """The administrative calls: leaders, peers, servers, accounts."""

    step_down_stream_leader = blocking(admin.Admin.step_down_stream_leader)
    step_down_consumer_leader = blocking(admin.Admin.step_down_consumer_leader)
    remove_stream_peer = blocking(admin.Admin.remove_stream_peer)
    evacuate_stream_peer = blocking(admin.Admin.evacuate_stream_peer)
    cancel_stream_move = blocking(admin.Admin.cancel_stream_move)
    step_down_meta_leader = blocking(admin.Admin.step_down_meta_leader)
    remove_server = blocking(admin.Admin.remove_server)
    evacuate_server = blocking(admin.Admin.evacuate_server)
    move_stream = blocking(admin.Admin.move_stream)
    cancel_account_stream_move = blocking(admin.Admin.cancel_account_stream_move)
    purge_account = blocking(admin.Admin.purge_account)
    rescue_meta = blocking(admin.Admin.rescue_meta)


class Advisories(Watcher[advisory.Advisories, advisory.Advisory]):
    """The events of an account from the moment this was made: iterate it, or ask for the ``next``; ``stop`` ends it."""

    def next(self, timeout: float | timedelta | None = None) -> advisory.Advisory:
        """The next event; waits at most ``timeout`` seconds (None: for ever). RequestTimeout; SubscriptionClosed."""
        return self._next(timeout)

    def __iter__(self) -> Iterator[advisory.Advisory]:
        return self._each()

    async def _one(self, wait: float | None) -> advisory.Advisory:
        return await self._inner.next(wait)


class Listing(Facade[listing.Listing[T]], Generic[T]):
    """The streams of an account, or the consumers of a stream, asked for page by page. Iterate it once."""

    @property
    def missing(self) -> Sequence[str]:
        """Those that did not answer in time; grows while the list is read."""
        return self._inner.missing

    @property
    def offline(self) -> Mapping[str, str]:
        """Those that no running server can serve, and why; grows while the list is read."""
        return self._inner.offline

    def __iter__(self) -> Iterator[T]:
        return self._portal.iterate(self._inner)
