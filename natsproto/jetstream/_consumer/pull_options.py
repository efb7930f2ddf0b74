"""PURE. The options of a reader: the arguments of ``fetch``, ``messages`` and ``consume``, and their checks (ADR-37,
ADR-42).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, TypedDict, Unpack

from natsproto import errors
from natsproto._durations import seconds, time_limit
from natsproto.jetstream._values.asset_names import check_priority_group
from natsproto.jetstream._values.codec import INT64, Duration, Record, integer, text

UNBOUNDED_BATCH: Final = 1_000_000
"""The batch of a pull that only bytes limit; without a batch the server delivers one message (ADR-37)."""
DEFAULT_MAX_MESSAGES: Final = 500
DEFAULT_EXPIRES_S: Final = 30.0
MAX_TIMEOUT_S: Final = 2.0**31
MIN_EXPIRES_WITH_HEARTBEAT_S: Final = 1.0
"""A pull that ends sooner has no heartbeats."""
MAX_PULL_HEARTBEAT_S: Final = 2.0
"""Seconds between heartbeats. ADR-37 says half of ``expires``, but with 15 s the loss of a leader would be noticed
after 30. Two of these are shorter than any election (4 to 9 s), so that pulls are sent again by the time there is a new
leader.
"""


class PullMode(Enum):
    """The extent of one reading."""

    ENDLESS = "endless"
    """All messages, pull after pull."""
    BOUNDED = "bounded"
    """One pull, which ends when it is full or expires."""
    AVAILABLE = "available"
    """The available messages, at least one if one arrives in time."""
    NO_WAIT = "no_wait"
    """The available messages."""


class PriorityOptions(Record):
    """The checked options of priority groups (ADR-42)."""

    group: str = text(default="")
    min_pending: int = integer(default=0)
    min_ack_pending: int = integer(default=0)
    priority: int = integer(default=0, high=9)


NO_PRIORITY: Final = PriorityOptions()


class PullOptions(NamedTuple):
    """The checked arguments of a method that reads.

    ``max_messages`` limits the messages that are requested or unread, ``max_bytes`` their bytes (0: no limit): the
    ``prefetch`` and ``prefetch_bytes`` of an endless reader. A pull is sent when the rest of one of them is at or below
    ``refill_at`` or ``refill_at_bytes`` (None: half, rounded up). ``stop_after`` is the number of messages after which
    reading ends (0: never); with ``stop_when_empty`` it ends when the server has no more for now. ``is_adaptive``: no
    limit was given, so it may adapt to the reader.
    """

    mode: PullMode
    max_messages: int
    max_bytes: int
    expires: float
    heartbeat: float
    refill_at: int | None
    refill_at_bytes: int
    stop_after: int
    stop_when_empty: bool
    is_adaptive: bool
    is_bytes_only: bool
    priority: PriorityOptions

    @property
    def most_messages(self) -> int:
        """The most messages that it reads in all."""
        return self.max_messages if self.mode is not PullMode.ENDLESS else self.stop_after or UNBOUNDED_BATCH


class PriorityArgs(TypedDict, total=False):
    """The arguments of everything that pulls, for priority groups (ADR-42)."""

    priority_group: str
    """One of the consumer's ``priority_groups``, which a consumer with a ``priority_policy`` requires; "" (default):
    none.
    """
    min_pending: int
    """With the policy "overflow": get messages only while at least this many wait in the stream; 0 (default): no such
    condition.
    """
    min_ack_pending: int
    """With the policy "overflow": get messages only while at least this many wait for their acknowledgement; 0
    (default): no such condition.
    """
    priority: int
    """With the policy "prioritized": 0 (first, the default) to 9 (last)."""


class PrefetchArgs(TypedDict, total=False):
    """The arguments of an endless reader: what waits ahead of it, and after how many messages it ends."""

    prefetch: int | None
    """Messages that may wait ahead of the reader; None (default): 500, fewer if handling takes long."""
    prefetch_bytes: int | None
    """Bytes that may wait ahead of the reader; None (default): no limit."""
    expires: Duration
    """Seconds that one pull may wait before the next one replaces it, at least 1; 30 by default."""
    heartbeat: Duration | None
    """Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull again. None
    (default): 2 at most.
    """
    refill_at: int | None
    """Pull again when no more than this many messages wait; None (default): half of ``prefetch``."""
    refill_at_bytes: int | None
    """Pull again when no more than this many bytes wait; None (default): half of ``prefetch_bytes``."""
    stop_after: int
    """End after this many messages; 0 (default): no limit."""


class ReadArgs(PrefetchArgs, PriorityArgs, total=False):
    """The arguments of ``messages`` of a pull consumer, which ``consume`` takes, too."""

    stop_when_empty: bool
    """End when the server has no more messages for now; False (default) waits for more."""


def check_names(options: Mapping[str, object], kind: type[object]) -> None:
    """Raise TypeError for an argument that is not one of this TypedDict."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no argument {name!r}: it has {', '.join(known)}")


def fetch_options(
    mode: PullMode,
    max_messages: int | None,
    timeout: Duration | None,
    reply_timeout: float,
    max_bytes: int | None = None,
    heartbeat: Duration | None = None,
    **priority: Unpack[PriorityArgs],
) -> PullOptions:
    """The options of a fetch. With a timeout of 0 it gets the available messages, and waits ``reply_timeout`` seconds
    for the server's reply; with None it has no limit. ConfigError, TypeError.
    """
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout < MAX_TIMEOUT_S:
        timeout = time_limit("timeout", timeout)
    return pull_options(
        mode if timeout else PullMode.NO_WAIT,
        prefetch=max_messages,
        prefetch_bytes=max_bytes,
        expires=timeout or reply_timeout,
        heartbeat=heartbeat,
        **priority,
    )


cached_fetch_options = lru_cache(maxsize=64, typed=True)(fetch_options)
"""Loops fetch with the same arguments again and again. TypeError for one that cannot be hashed."""


def pull_options(
    mode: PullMode = PullMode.ENDLESS,
    *,
    prefetch: int | None = None,
    prefetch_bytes: int | None = None,
    expires: Duration = DEFAULT_EXPIRES_S,
    heartbeat: Duration | None = None,
    refill_at: int | None = None,
    refill_at_bytes: int | None = None,
    stop_after: int = 0,
    stop_when_empty: bool = False,
    priority_group: str = "",
    min_pending: int = 0,
    min_ack_pending: int = 0,
    priority: int = 0,
) -> PullOptions:
    """The options with these arguments. ConfigError, TypeError."""
    is_bytes_only = prefetch is None and bool(prefetch_bytes)
    is_adaptive = prefetch is None and not prefetch_bytes and refill_at is None
    most = prefetch
    if most is None:
        most = UNBOUNDED_BATCH if prefetch_bytes else DEFAULT_MAX_MESSAGES
    most_bytes = 0 if prefetch_bytes is None else prefetch_bytes
    if (
        type(most) is not int
        or prefetch_bytes == 0
        or type(most_bytes) is not int
        or type(stop_after) is not int
        or not 1 <= most <= INT64
        or not 0 <= most_bytes <= INT64
        or not 0 <= stop_after <= INT64
        or refill_at is not None
        or refill_at_bytes is not None
    ):
        _check_bounds(mode, most, prefetch_bytes, stop_after, refill_at, refill_at_bytes)
    if not isinstance(expires, (int, float)) or isinstance(expires, bool) or not 0 < expires < MAX_TIMEOUT_S:
        expires = seconds("expires", expires)
    if heartbeat is not None:
        heartbeat = seconds("heartbeat", heartbeat)
    if expires <= 0:
        raise errors.ConfigError("expires", expires, "must be more than 0 seconds")
    if heartbeat is None:
        heartbeat = (
            0.0
            if mode is PullMode.NO_WAIT or stop_when_empty or expires < MIN_EXPIRES_WITH_HEARTBEAT_S
            else min(expires / 2, MAX_PULL_HEARTBEAT_S)
        )
    elif heartbeat * 2 > expires:
        raise errors.ConfigError("heartbeat", heartbeat, f"must be from 0 to half of expires ({expires:g} s)")
    priority_options = NO_PRIORITY
    if priority_group != "" or min_pending != 0 or min_ack_pending != 0 or priority != 0:
        priority_options = PriorityOptions(
            group=priority_group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
        )
        if priority_options.group:
            check_priority_group(priority_options.group)
    return PullOptions(
        mode,
        most,
        most_bytes,
        expires,
        heartbeat,
        refill_at,
        -(-most_bytes // 2) if refill_at_bytes is None else refill_at_bytes,
        stop_after,
        stop_when_empty,
        is_adaptive,
        is_bytes_only,
        priority_options,
    )


def _check_bounds(
    mode: PullMode,
    max_messages: int,
    max_bytes: int | None,
    stop_after: int,
    refill_at: int | None,
    refill_at_bytes: int | None,
) -> None:
    is_endless = mode is PullMode.ENDLESS
    for what, bound, least in (
        ("prefetch" if is_endless else "max_messages", max_messages, 1),
        ("prefetch_bytes" if is_endless else "max_bytes", 1 if max_bytes is None else max_bytes, 1),
        ("stop_after", stop_after, 0),
        ("refill_at", 0 if refill_at is None else refill_at, 0),
        ("refill_at_bytes", 0 if refill_at_bytes is None else refill_at_bytes, 0),
    ):
        if type(bound) is not int:
            raise TypeError(f"{what} must be an int, not {type(bound).__name__}")
        if not least <= bound <= INT64:
            raise errors.ConfigError(what, bound, f"must be at least {least}, and less than 2**63")
    for what, given, bound in (
        ("refill_at", refill_at, max_messages),
        ("refill_at_bytes", refill_at_bytes, max_bytes or 0),
    ):
        if given is not None and given > bound:
            raise errors.ConfigError(what, given, f"cannot be above its bound of {bound}")


def default_heartbeat(expires: float) -> float:
    """The default heartbeat of a pull: half of ``expires``, 2 s at most; none below one second.

    The server refuses a heartbeat longer than half of ``expires``.
    """
    return min(expires / 2, MAX_PULL_HEARTBEAT_S) if expires >= MIN_EXPIRES_WITH_HEARTBEAT_S else 0.0
