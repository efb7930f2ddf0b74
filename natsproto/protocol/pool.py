"""The server pool: the next server, and the wait before it is tried.

Owns the list of servers (given by the user, or discovered in INFO), the attempts and rejections of each, and the
back-off. It never dials and never sleeps: the time and a random fraction come in as arguments, an ``Attempt`` comes
out. It shows host and port of a server, never the user info of a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from itertools import islice

from natsproto import errors
from natsproto._durations import seconds
from natsproto._value import Value
from natsproto.errors._base import HIDDEN
from natsproto.protocol.addresses import MalformedUrl, ServerAddress, address_key, is_ip, parse_host_port
from natsproto.protocol.frames import ServerInfo

MAX_DISCOVERED = 1000
"""Servers accepted from one INFO; a hostile peer could list any number."""

MAX_DROPPED = 8
"""Servers remembered that INFO does not list any more."""

REFUSAL_CONFIRM_S = 2.0
"""Seconds for which a rejection must repeat to count. nats.go gives up at the second rejection, which may come at once:
a configuration that is wrong for a second would then end every client.
"""

MAX_SHORT_CONNECTIONS = 3
"""Short-lived connections in a row that reset the back-off; later ones do not."""

EARLY_ROUNDS, EARLY_CAP_S = 14, 1.0
"""Rounds at the beginning of an outage in which no wait is longer than these seconds, about the first ten seconds: a
server that restarts takes a few, and clients notice that within a second.
"""

STABLE_AFTER_S = 1.0
"""Seconds after which a connection does not count as short-lived, whatever the back-off."""


class ServerState(Value):
    """A server for ``reconnect_to_server``, with its ``attempts`` since the last success of any server."""

    address: ServerAddress
    attempts: int
    discovered: bool
    """True if a server announced it; False: it was given."""


class Attempt(Value):
    """Wait ``delay`` seconds, then dial ``address``.

    ``fault`` is an error of a user's callable; the default was used instead.
    """

    address: ServerAddress
    delay: float = 0.0
    fault: Exception | None = None


class Discovery(Value):
    """The changes by one INFO: servers ``added`` and ``dropped``, and the number of ``rejected`` entries."""

    added: tuple[ServerAddress, ...] = ()
    dropped: tuple[ServerAddress, ...] = ()
    rejected: int = 0


_NOTHING_NEW = Discovery()

Chooser = Callable[[Sequence[ServerState], ServerInfo | None], tuple[ServerAddress, float | timedelta] | None]
"""Picks the server of the next attempt and the seconds to wait before it; None leaves it to the pool (ADR-40)."""

Shuffle = Callable[[list[ServerAddress]], object]
"""Reorders a list in place, as ``random.Random.shuffle`` does."""


# ---------------------------------------------------------------- the pool


class _Entry:
    """One server of the pool and its history."""

    __slots__ = ("address", "attempts", "discovered", "given_up", "refusal", "refused_at", "round", "silent")

    def __init__(self, address: ServerAddress, *, discovered: bool = False) -> None:
        self.address, self.discovered = address, discovered
        self.attempts = 0  # dials since the last success of any server
        self.round = -1  # the round it was last tried in
        self.silent = False  # it did not answer the last dial
        self.refusal = ""  # text of the last rejection of the credentials; empty if the last dial ended otherwise
        self.refused_at = 0.0  # when that text was first seen
        self.given_up = False  # repeated that text for REFUSAL_CONFIRM_S


def _first_to_dial(entries: Sequence[_Entry]) -> _Entry:
    """Return the first server that is not known to be silent, or else the first."""
    return next((entry for entry in entries if not entry.silent), entries[0])


class ServerPool:
    """The servers of one client, in the order they will be tried.

    A server that is tried goes to the back, and one that was silent stays behind all others until it answers: also
    behind the one whose connection was lost. The servers of a round follow each other at once; when all have been
    tried, the next attempt waits: ``wait`` seconds, doubled after every round up to ``wait_cap`` (up to EARLY_CAP_S in
    the first EARLY_ROUNDS, unless ``wait`` is longer), plus a random part of ``jitter`` (``jitter_tls`` with TLS), or
    what ``delay(rounds)`` says. A connection ends the outage and resets the counters. It also resets the back-off,
    unless it and at least three before it in a row were each shorter than both the back-off and STABLE_AFTER_S: a
    server that accepts and drops connections does not cause a busy loop. After such connections that carried traffic
    there is a pause, too, but it does not grow.

    ``max_attempts_per_server`` bounds the attempts of one outage, -1 for ever. ``shuffle`` orders servers at random,
    None keeps the order. Unless ``ignore_auth_error_abort``, a server that still rejects the credentials with the same
    text after REFUSAL_CONFIRM_S seconds is not tried again in this outage. ``tls`` says that every connection is
    encrypted, whatever the scheme.
    """

    __slots__ = (
        "_back_off",
        "_cap",
        "_carried_traffic",
        "_connected_at",
        "_current",
        "_delay",
        "_dropped",
        "_ignore_auth_error_abort",
        "_ignore_discovered",
        "_jitter",
        "_jitter_tls",
        "_max_attempts",
        "_order",
        "_refused",
        "_round",
        "_rounds",
        "_short_connections",
        "_shuffle",
        "_tls",
        "_wait",
    )  # fmt: skip

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        *,
        shuffle: Shuffle | None = None,
        ignore_discovered: bool = False,
        max_attempts_per_server: int = -1,
        wait: float = 0.05,
        wait_cap: float = 4.0,
        jitter: float = 0.1,
        jitter_tls: float = 1.0,
        delay: Callable[[int], float | timedelta] | None = None,
        ignore_auth_error_abort: bool = False,
        tls: bool = False,
    ) -> None:
        self._shuffle, self._ignore_discovered, self._tls = shuffle, ignore_discovered, tls
        self._max_attempts, self._ignore_auth_error_abort = max_attempts_per_server, ignore_auth_error_abort
        self._wait, self._cap, self._jitter, self._jitter_tls = wait, max(wait, wait_cap), jitter, jitter_tls
        self._delay = delay
        self._back_off = wait  # what the next full round costs
        self._round = 0
        self._rounds = 0  # full rounds of this outage
        self._short_connections = 0  # connections in a row that did not outlive the back-off
        self._connected_at: float | None = None
        self._carried_traffic = False  # the last connection
        self._current: tuple[str, int, str] | None = None
        self._refused: errors.NotAuthorized | None = None
        self._order: list[_Entry] = []
        self._dropped: list[ServerAddress] = []  # by INFO, the last ones first
        self.set_servers(addresses)

    # ------------------------------------------------------------ servers

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """Every server, the next one first, without secrets."""
        return tuple(entry.address.public() for entry in self._order)

    @property
    def discovered_servers(self) -> tuple[ServerAddress, ...]:
        """The servers learned from INFO, without secrets."""
        return tuple(entry.address.public() for entry in self._order if entry.discovered)

    @property
    def known_servers(self) -> tuple[ServerAddress, ...]:
        """Every server, and those that INFO has dropped last: a server that is cut off from its cluster drops all
        others. With the user info of their URLs.
        """
        known = [entry.address for entry in self._order]
        keys = set(map(address_key, known))
        return (*known, *(address for address in self._dropped if address_key(address) not in keys))

    @property
    def exhausted(self) -> bool:
        """True if every server was given up or has used all its attempts."""
        return not any(map(self._usable, self._order))

    @property
    def final_reason(self) -> errors.NotAuthorized | None:
        """The last rejection if rejections left no server to try; None when attempts merely ran out."""
        return self._refused if self.exhausted and any(entry.given_up for entry in self._order) else None

    def set_servers(self, addresses: Sequence[ServerAddress]) -> None:
        """Replace all servers, discovered ones included, and reset their counters (ADR-40).

        ConfigError without servers. The connection in use is not changed.
        """
        if not addresses:
            raise errors.ConfigError("servers", HIDDEN, "is empty: name at least one server")
        chosen = list({address_key(address): address for address in addresses}.values())
        if self._shuffle is not None and len(chosen) > 1:
            self._shuffle(chosen)
        self._order = [_Entry(address) for address in chosen]
        self._refused = None
        self._dropped = []
        self._move_to_back(self._current)

    def discovered(self, urls: Sequence[str], current: ServerAddress) -> Discovery:
        """Use the ``connect_urls`` (``host:port``) of an INFO from ``current``.

        New servers are added with the scheme and user info of ``current``. Discovered ones that are no longer listed
        are dropped, except ``current``; given ones stay. An INFO without URLs changes nothing.
        """
        if self._ignore_discovered or not urls:
            return _NOTHING_NEW
        named: dict[tuple[str, int], None] = {}
        rejected = max(0, len(urls) - MAX_DISCOVERED)
        for url in islice(urls, MAX_DISCOVERED):
            try:
                host, port = parse_host_port(url)
            except MalformedUrl:
                port = 0
            if port:
                named[host, port] = None
            else:
                rejected += 1
        if not named:
            return Discovery(rejected=rejected)
        here = address_key(current)
        kept: list[_Entry] = []
        dropped: list[_Entry] = []
        for entry in self._order:
            vanished = entry.discovered and (entry.address.host, entry.address.port) not in named
            (dropped if vanished and address_key(entry.address) != here else kept).append(entry)
        self._dropped = [*(entry.address for entry in dropped), *self._dropped][:MAX_DROPPED]
        known = {(entry.address.host, entry.address.port) for entry in kept}
        added = [
            current.replace(host=host, port=port, tls_name=current.tls_name if is_ip(host) else host)
            for host, port in named
            if (host, port) not in known
        ]
        if added:
            self._dropped = []
        if self._shuffle is not None:
            self._shuffle(added)
        self._order = kept + [_Entry(address, discovered=True) for address in added]
        self._move_to_back(here)
        return Discovery(
            added=tuple(address.public() for address in added),
            dropped=tuple(entry.address.public() for entry in dropped),
            rejected=rejected,
        )

    # ------------------------------------------------------------ attempts

    def one_pass(self) -> Iterator[ServerAddress]:
        """Yield every server once without waiting, also those discovered meanwhile: the first connect.

        These do not count as attempts. If none succeeds, ``next()`` continues with the back-off.
        """
        self._round += 1
        while (entry := self._first_untried(self._order)) is not None:
            self._mark_tried(entry)
            yield entry.address

    def next(
        self,
        now: float,
        fraction: float,
        *,
        dialled: Collection[ServerAddress] = (),
        choose: Chooser | None = None,
        info: ServerInfo | None = None,
    ) -> Attempt | None:
        """Return the next server and the wait before it, or None when all are exhausted or ``dialled`` at the moment.

        ``now`` is in seconds of a monotonic clock, ``fraction`` a random number in [0, 1). ``choose`` may override
        server and wait; it gets the servers in rotation and ``info``, the last INFO.
        """
        self._end_connection(now)
        usable = [entry for entry in self._order if self._usable(entry) and entry.address not in dialled]
        if not usable:
            return None
        fault: Exception | None = None
        entry, delay = None, 0.0
        if choose is not None:
            try:
                entry, delay = self._ask_chooser(choose, usable, info)
            except Exception as exc:  # a user's callable must not end the reconnecting; the caller reports it
                fault = exc
        if entry is None:
            entry = self._first_untried(usable)
            if entry is None:
                self._round += 1
                entry = _first_to_dial(usable)
                delay, late_fault = self._back_off_delay(entry.address, fraction)
                fault = fault or late_fault
        entry.attempts += 1
        self._mark_tried(entry)
        return Attempt(address=entry.address, delay=delay, fault=fault)

    def set_silent(self, address: ServerAddress, *, silent: bool) -> None:
        """A dial gets no answer, or has got one."""
        if (entry := self._find(address_key(address))) is not None:
            entry.silent = silent

    def failed(self, address: ServerAddress, now: float, refusal: str | None = None) -> None:
        """A dial failed, or a connection ended. ``refusal`` is the text of the server about credentials."""
        entry = self._find(address_key(address))
        if entry is None:
            return
        if refusal is None:
            entry.refusal = ""
            return
        if entry.refusal != refusal:
            entry.refusal, entry.refused_at = refusal, now
        elif now - entry.refused_at >= REFUSAL_CONFIRM_S and not self._ignore_auth_error_abort:
            entry.given_up = True  # until a success or set_servers
        self._refused = errors.NotAuthorized(refusal, str(address))

    def succeeded(self, address: ServerAddress, now: float) -> None:
        """A connection is established: the outage is over for every server."""
        self._connected_at, self._current = now, address_key(address)
        self._refused = None
        for entry in self._order:
            entry.attempts, entry.refusal, entry.given_up = 0, "", False
        self._move_to_back(self._current)

    def carried_traffic(self) -> None:
        """The connection that has ended delivered a message, or confirmed one: however short it was, the next one may
        be as useful.
        """
        self._carried_traffic = True

    # ------------------------------------------------------------ internals

    def _usable(self, entry: _Entry) -> bool:
        return not entry.given_up and (self._max_attempts < 0 or entry.attempts < self._max_attempts)

    def _first_untried(self, entries: Sequence[_Entry]) -> _Entry | None:
        """Return the first of ``entries`` that was not tried in this round; silent ones come last."""
        untried = [entry for entry in entries if entry.round != self._round]
        return _first_to_dial(untried) if untried else None

    def _mark_tried(self, entry: _Entry) -> None:
        entry.round = self._round
        self._order.remove(entry)
        self._order.append(entry)

    def _find(self, key: tuple[str, int, str] | None) -> _Entry | None:
        return next((entry for entry in self._order if address_key(entry.address) == key), None)

    def _move_to_back(self, key: tuple[str, int, str] | None) -> None:
        if len(self._order) < 2:
            return
        entry = self._find(key)
        if entry is not None:
            self._order.remove(entry)
            self._order.append(entry)

    def _end_connection(self, now: float) -> None:
        """Update the back-off after the end of a connection."""
        if self._connected_at is None:
            return
        self._short_connections = (
            0 if now - self._connected_at >= min(self._back_off, STABLE_AFTER_S) else self._short_connections + 1
        )
        self._connected_at = self._current = None
        useful, self._carried_traffic = self._carried_traffic, False
        if useful or self._short_connections <= MAX_SHORT_CONNECTIONS:
            self._back_off = self._wait
            self._rounds = 0
        if self._short_connections <= MAX_SHORT_CONNECTIONS:
            self._round += 1

    def _back_off_delay(self, address: ServerAddress, fraction: float) -> tuple[float, Exception | None]:
        """Return the wait after a full round, and the error of a ``delay`` callable."""
        self._rounds += 1
        is_early = self._rounds < EARLY_ROUNDS and self._wait < EARLY_CAP_S
        cap = min(self._cap, EARLY_CAP_S) if is_early else self._cap
        base, self._back_off = self._back_off, min(self._back_off * 2, cap)
        fault: Exception | None = None
        if self._delay is not None:
            try:
                return seconds("what reconnect_delay returned", self._delay(self._rounds)), None
            except Exception as exc:  # as for the chooser
                fault = exc
        return base + fraction * (self._jitter_tls if self._tls or address.tls else self._jitter), fault

    def _ask_chooser(
        self, choose: Chooser, usable: Sequence[_Entry], info: ServerInfo | None
    ) -> tuple[_Entry | None, float]:
        states = tuple(
            ServerState(address=entry.address.public(), attempts=entry.attempts, discovered=entry.discovered)
            for entry in usable
        )
        choice = choose(states, info)
        if choice is None:
            return None, 0.0
        if not (isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[0], ServerAddress)):
            raise TypeError("reconnect_to_server must return (server, seconds) or None")
        address, wait = choice
        for entry in usable:
            if address_key(entry.address) == address_key(address):
                return entry, seconds("the wait reconnect_to_server returned", wait)
        raise errors.ConfigError(
            "what reconnect_to_server returned", str(address), "must be one of the servers it was given"
        )
