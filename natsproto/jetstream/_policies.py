"""The enumerations of stream and consumer configurations, and the types that accept their plain strings, too."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

from natsproto.jetstream._codec import Unlisted


class RetentionPolicy(StrEnum):
    """When a stream removes messages: at its limits, when no consumer needs them, or when acknowledged."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORK_QUEUE = "workqueue"


RetentionPolicyLike: TypeAlias = RetentionPolicy | Unlisted | Literal["limits", "interest", "workqueue"]


class StorageType(StrEnum):
    """Where a stream keeps messages."""

    FILE = "file"
    MEMORY = "memory"


StorageTypeLike: TypeAlias = StorageType | Unlisted | Literal["file", "memory"]


class DiscardPolicy(StrEnum):
    """The messages that a limit removes: the oldest, or the new one (which is refused)."""

    OLD = "old"
    NEW = "new"


DiscardPolicyLike: TypeAlias = DiscardPolicy | Unlisted | Literal["old", "new"]


class Compression(StrEnum):
    """How a file stream is compressed."""

    NONE = "none"
    S2 = "s2"


CompressionLike: TypeAlias = Compression | Unlisted | Literal["none", "s2"]


class PersistMode(StrEnum):
    """The persistence of a message before it is acknowledged (ADR-56)."""

    DEFAULT = "default"
    ASYNC = "async"


PersistModeLike: TypeAlias = PersistMode | Unlisted | Literal["default", "async"]


class DeliverPolicy(StrEnum):
    """Where in the stream a consumer starts."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


DeliverPolicyLike: TypeAlias = (
    DeliverPolicy | Unlisted | Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
)


class AckPolicy(StrEnum):
    """Which acknowledgements a consumer waits for."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


AckPolicyLike: TypeAlias = AckPolicy | Unlisted | Literal["none", "all", "explicit", "flow_control"]


class ReplayPolicy(StrEnum):
    """The rate at which stored messages are delivered: as fast as possible, or at the rate they were received."""

    INSTANT = "instant"
    ORIGINAL = "original"


ReplayPolicyLike: TypeAlias = ReplayPolicy | Unlisted | Literal["instant", "original"]


class PriorityPolicy(StrEnum):
    """How pulls of a priority group are chosen (ADR-42)."""

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


PriorityPolicyLike: TypeAlias = PriorityPolicy | Unlisted | Literal["none", "overflow", "pinned_client", "prioritized"]
