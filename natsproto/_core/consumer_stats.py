"""The state of the consumers that a client reads. All of it is in their deliveries, so nothing is sent for it.

Owns the set of these readers. The references are weak, so a reader that is gone leaves it by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Protocol
from weakref import WeakSet

from natsproto._value import Value


class ConsumerStats(Value):
    """The state of a consumer, as far as this client's readers of it know; several readers are added up.

    ``num_pending`` are the messages that the server had not delivered yet when it delivered the last one here, the lag;
    ``age`` is the time in seconds since that message was stored. Both are None before the first message.
    ``handle_time`` is the time in seconds that a handler takes (0: not measured yet, or nothing is acknowledged),
    ``prefetch`` the most messages to be requested, waiting or handled, ``waiting`` those that wait. ``stale`` messages
    were not handled because the server delivers them again, ``given_back`` ones were returned for others.
    """

    stream: str
    """The name of the stream that the consumer reads."""
    consumer: str
    """The name of the consumer; "" while an ordered one is being created."""
    num_pending: int | None
    age: float | None
    handle_time: float
    prefetch: int
    waiting: int
    stale: int
    given_back: int


class GroupStats(Value):
    """A member of a group that comes and goes by itself: its ``partitions``, and the revision of the configuration that
    gave it these (``generation``). Its lag is that of its consumer, which has the name of the member.
    """

    stream: str
    group: str
    member: str
    partitions: tuple[int, ...]
    generation: int


class MeasuredMember(Protocol):
    """A member of a group."""

    def stats(self) -> GroupStats | None:
        """Return its state; None when it has ended. May be called in any thread."""
        ...


class MeasuredReader(Protocol):
    """A reader of a consumer."""

    def stats(self, now: float) -> ConsumerStats | None:
        """Return its part at this time since the epoch; None when it has ended. May be called in any thread."""
        ...


class MeasuredReaders:
    """The readers of one client."""

    def __init__(self) -> None:
        self._readers: WeakSet[MeasuredReader] = WeakSet()
        self._members: WeakSet[MeasuredMember] = WeakSet()

    def add_member(self, member: MeasuredMember) -> None:
        """Include a member of a group until it ends."""
        self._members.add(member)

    def groups(self) -> list[GroupStats]:
        """Return the state of each member, by their names. May be called in any thread."""
        while True:
            try:
                found = [stats for member in list(self._members) if (stats := member.stats()) is not None]
            except RuntimeError:  # a collection changed its size during iteration
                continue
            return sorted(found, key=lambda stats: (stats.stream, stats.group, stats.member))

    def add(self, reader: MeasuredReader) -> None:
        """Include a reader until it ends."""
        self._readers.add(reader)

    def stats(self) -> list[ConsumerStats]:
        """Return the state of each consumer that is read now. May be called in any thread."""
        now = time()  # one for all, since the youngest message tells the lag
        while True:
            try:
                return add_up(found for reader in list(self._readers) if (found := reader.stats(now)) is not None)
            except RuntimeError:  # a collection changed its size during iteration
                continue


def add_up(parts: Iterable[ConsumerStats]) -> list[ConsumerStats]:
    """Return one state for each stream and consumer, in their order."""
    grouped: dict[tuple[str, str], list[ConsumerStats]] = {}
    for part in parts:
        grouped.setdefault((part.stream, part.consumer), []).append(part)
    return [_sum(grouped[key]) for key in sorted(grouped)]


def _sum(parts: list[ConsumerStats]) -> ConsumerStats:
    latest = min(parts, key=lambda part: float("inf") if part.age is None else part.age)
    return ConsumerStats(
        stream=latest.stream,
        consumer=latest.consumer,
        num_pending=latest.num_pending,
        age=latest.age,
        handle_time=max(part.handle_time for part in parts),
        prefetch=sum(part.prefetch for part in parts),
        waiting=sum(part.waiting for part in parts),
        stale=sum(part.stale for part in parts),
        given_back=sum(part.given_back for part in parts),
    )
