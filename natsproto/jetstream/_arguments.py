"""The keyword arguments of the calls that configure a stream, consumer or bucket.

Type checkers get the fields of the configurations from here, for every call that accepts them instead of a whole
configuration. It is not used at runtime. A test compares it with the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypedDict

from natsproto.jetstream._codec import Duration
from natsproto.jetstream._config import Placement, Republish, StreamConsumerLimits, StreamSource, SubjectTransform
from natsproto.jetstream._policies import (
    AckPolicyLike,
    CompressionLike,
    DeliverPolicyLike,
    DiscardPolicyLike,
    PersistModeLike,
    PriorityPolicyLike,
    ReplayPolicyLike,
    RetentionPolicyLike,
    StorageTypeLike,
)


class StreamArgs(TypedDict, total=False):
    """The fields of StreamConfig."""

    name: str
    description: str
    subjects: Iterable[str]
    retention: RetentionPolicyLike
    max_consumers: int
    max_msgs: int
    max_bytes: int
    max_age: Duration
    max_msgs_per_subject: int
    max_msg_size: int
    discard: DiscardPolicyLike
    discard_new_per_subject: bool
    storage: StorageTypeLike
    num_replicas: int
    no_ack: bool
    duplicate_window: Duration
    placement: Placement | None
    mirror: StreamSource | None
    sources: Iterable[StreamSource]
    compression: CompressionLike
    first_seq: int
    subject_transform: SubjectTransform | None
    republish: Republish | None
    allow_direct: bool
    mirror_direct: bool
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    allow_rollup_hdrs: bool
    consumer_limits: StreamConsumerLimits
    allow_msg_ttl: bool
    subject_delete_marker_ttl: Duration
    allow_msg_counter: bool
    allow_atomic: bool
    allow_msg_schedules: bool
    persist_mode: PersistModeLike
    allow_batched: bool
    metadata: Mapping[str, str]


class ConsumerArgs(TypedDict, total=False):
    """The fields of ConsumerConfig."""

    name: str
    durable_name: str
    description: str
    deliver_policy: DeliverPolicyLike
    opt_start_seq: int
    opt_start_time: datetime | None
    ack_policy: AckPolicyLike
    ack_wait: Duration
    max_deliver: int
    backoff: Iterable[Duration]
    filter_subject: str
    filter_subjects: Iterable[str]
    replay_policy: ReplayPolicyLike
    rate_limit_bps: int
    sample_freq: str
    max_waiting: int
    max_ack_pending: int
    headers_only: bool
    max_batch: int
    max_expires: Duration
    max_bytes: int
    deliver_subject: str
    deliver_group: str
    flow_control: bool
    idle_heartbeat: Duration
    inactive_threshold: Duration
    num_replicas: int
    mem_storage: bool
    pause_until: datetime | None
    priority_groups: Iterable[str]
    priority_policy: PriorityPolicyLike
    priority_timeout: Duration
    metadata: Mapping[str, str]


class KeyValueArgs(TypedDict, total=False):
    """The fields of KeyValueConfig."""

    bucket: str
    description: str
    history: int
    ttl: Duration
    max_value_size: int
    max_bytes: int
    storage: StorageTypeLike
    num_replicas: int
    placement: Placement | None
    republish: Republish | None
    mirror: StreamSource | None
    sources: Iterable[StreamSource]
    compression: bool
    limit_marker_ttl: Duration
    allow_atomic: bool
    metadata: Mapping[str, str]


class ObjectStoreArgs(TypedDict, total=False):
    """The fields of ObjectStoreConfig."""

    bucket: str
    description: str
    ttl: Duration
    max_bytes: int
    storage: StorageTypeLike
    num_replicas: int
    placement: Placement | None
    compression: bool
    allow_batched: bool
    metadata: Mapping[str, str]
