"""The enumerations of stream and consumer configurations, and the types that accept their plain strings, too."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

from natsproto.jetstream._values.codec import Unlisted


class RetentionPolicy(StrEnum):
    """When a stream removes messages: at its limits, when no consumer needs them, or when acknowledged."""

    LIMITS = "limits"
    """Until a limit removes them."""
    INTEREST = "interest"
    """Until every consumer that they match has acknowledged them; at once if there is none."""
    WORK_QUEUE = "workqueue"
    """Until they are acknowledged. Each message goes to one consumer, so filters must not overlap."""


RetentionPolicyLike: TypeAlias = RetentionPolicy | Unlisted | Literal["limits", "interest", "workqueue"]
"""A RetentionPolicy, or its string."""


class StorageType(StrEnum):
    """Where a stream keeps messages."""

    FILE = "file"
    """On disk."""
    MEMORY = "memory"
    """In memory: gone when all servers with a replica have restarted."""


StorageTypeLike: TypeAlias = StorageType | Unlisted | Literal["file", "memory"]
"""A StorageType, or its string."""


class DiscardPolicy(StrEnum):
    """The messages that a limit removes: the oldest, or the new one (which is refused)."""

    OLD = "old"
    """The oldest message goes."""
    NEW = "new"
    """The new message is refused with LimitReached."""


DiscardPolicyLike: TypeAlias = DiscardPolicy | Unlisted | Literal["old", "new"]
"""A DiscardPolicy, or its string."""


class Compression(StrEnum):
    """How a file stream is compressed."""

    NONE = "none"
    """As they come."""
    S2 = "s2"
    """With S2, a fast relative of Snappy. Server 2.10."""


CompressionLike: TypeAlias = Compression | Unlisted | Literal["none", "s2"]
"""A Compression, or its string."""


class PersistMode(StrEnum):
    """The persistence of a message before it is acknowledged (ADR-56)."""

    DEFAULT = "default"
    """On disk first, then acknowledged."""
    ASYNC = "async"
    """Acknowledged first, so that a crash of the server may lose the last ones. Server 2.12."""


PersistModeLike: TypeAlias = PersistMode | Unlisted | Literal["default", "async"]
"""A PersistMode, or its string."""


class DeliverPolicy(StrEnum):
    """Where in the stream a consumer starts."""

    ALL = "all"
    """At the first message."""
    LAST = "last"
    """At the last message."""
    NEW = "new"
    """At the next message that is stored."""
    BY_START_SEQUENCE = "by_start_sequence"
    """At ``opt_start_seq``."""
    BY_START_TIME = "by_start_time"
    """At ``opt_start_time``."""
    LAST_PER_SUBJECT = "last_per_subject"
    """At the last message of each subject, then what follows."""


DeliverPolicyLike: TypeAlias = (
    DeliverPolicy | Unlisted | Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
)
"""A DeliverPolicy, or its string."""


class AckPolicy(StrEnum):
    """Which acknowledgements a consumer waits for."""

    NONE = "none"
    """A message counts as handled when it is delivered."""
    ALL = "all"
    """That of one message, which covers all earlier ones."""
    EXPLICIT = "explicit"
    """That of every message by itself."""
    FLOW_CONTROL = "flow_control"
    """Those of a stream that copies this one (server 2.14)."""


AckPolicyLike: TypeAlias = AckPolicy | Unlisted | Literal["none", "all", "explicit", "flow_control"]
"""An AckPolicy, or its string."""


class ReplayPolicy(StrEnum):
    """The rate at which stored messages are delivered: as fast as possible, or at the rate they were received."""

    INSTANT = "instant"
    """As fast as possible."""
    ORIGINAL = "original"
    """At the pace at which the messages were stored."""


ReplayPolicyLike: TypeAlias = ReplayPolicy | Unlisted | Literal["instant", "original"]
"""A ReplayPolicy, or its string."""


class PriorityPolicy(StrEnum):
    """How pulls of a priority group are chosen (ADR-42)."""

    NONE = "none"
    """All pulls alike."""
    OVERFLOW = "overflow"
    """Those whose ``min_pending`` or ``min_ack_pending`` is reached."""
    PINNED_CLIENT = "pinned_client"
    """Those of one client, until it is gone for ``priority_timeout``."""
    PRIORITIZED = "prioritized"
    """Those of the lowest ``priority`` first (server 2.12)."""


PriorityPolicyLike: TypeAlias = PriorityPolicy | Unlisted | Literal["none", "overflow", "pinned_client", "prioritized"]
"""A PriorityPolicy, or its string."""
