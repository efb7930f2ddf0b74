"""The keyword arguments of the calls that configure a stream, consumer or bucket.

Type checkers get the fields of the configurations from here, for every call that accepts them instead of a whole
configuration. It is not used at runtime. A test compares it with the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypedDict

from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.config_parts import (
    Placement,
    Republish,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)
from natsproto.jetstream._values.policies import (
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
    """1 to 255 bytes without spaces, ``.``, ``*``, ``>``, ``/`` and ``\\``. Cannot be changed."""
    description: str
    """A text for people, at most 4 KiB."""
    subjects: Iterable[str]
    """Messages published to these subjects are stored; wildcards allowed. No other stream of the account may have one
    of them. Left out: the name of the stream, or none for a mirror and a stream with sources.
    """
    retention: RetentionPolicyLike
    """When a message is removed before a limit removes it: never ("limits", the default), after every consumer that it
    matches has acknowledged it ("interest"), or after the one consumer that gets it has ("workqueue"). A stream cannot
    become a work queue later, nor stop being one.
    """
    max_consumers: int
    """How many consumers may exist at a time; -1 (default): as many as the account allows."""
    max_msgs: int
    """Messages to keep; -1 (default): no limit. ``discard`` decides which one goes."""
    max_bytes: int
    """Bytes to keep, with subjects, headers and about 30 bytes of overhead for each message; -1 (default): no limit.
    Some accounts require a value.
    """
    max_age: Duration
    """Seconds after which a message is removed, at least 0.1; 0 (default): never."""
    max_msgs_per_subject: int
    """Messages to keep of each subject; -1 (default): no limit. With 1 a stream holds the last value of each subject,
    as key/value buckets do.
    """
    max_msg_size: int
    """Bytes of payload and headers above which a message is refused; -1 (default): the server's ``max_payload``."""
    discard: DiscardPolicyLike
    """At a limit, remove the oldest message ("old", the default) or refuse the new one ("new"), which raises
    LimitReached.
    """
    discard_new_per_subject: bool
    """With ``discard="new"``, refuse a message to a subject that has its ``max_msgs_per_subject``; False (default):
    remove the oldest of that subject. Server 2.9.
    """
    storage: StorageTypeLike
    """On disk ("file", the default) or in memory ("memory"), which is empty after all servers with a replica have
    restarted. Cannot be changed.
    """
    num_replicas: int
    """Servers that each hold all messages, 1 (default) to 5; 3 survives the loss of any one. Needs a cluster of as
    many.
    """
    no_ack: bool
    """Do not acknowledge published messages; then ``js.publish`` cannot know whether they are stored, and times out."""
    duplicate_window: Duration
    """Seconds for which ``msg_id`` of a message is remembered; a second message with it is acknowledged and not stored
    again. 0: the server's 120, or ``max_age`` if that is shorter.
    """
    placement: Placement | None
    """The cluster and tags of the servers that may hold replicas; None: any."""
    mirror: StreamSource | None
    """Make this stream a read-only copy of another one. Then it has no ``subjects`` and no ``sources``."""
    sources: Iterable[StreamSource]
    """Streams whose messages are copied into this one, beside those of its own ``subjects``."""
    compression: CompressionLike
    """With "s2" the files of the stream are compressed on disk, with "none" (default) not. Server 2.10."""
    first_seq: int
    """The sequence of the first message, for a stream that continues another one; 0: 1. Used when the stream is
    created; server 2.10.
    """
    subject_transform: SubjectTransform | None
    """Stores messages under another subject than they were published to. Server 2.10."""
    republish: Republish | None
    """Publishes every stored message again, for subscribers of core NATS."""
    allow_direct: bool
    """Let any replica answer ``get_message`` and the like, not the leader alone: faster, and a replica may be a moment
    behind. Buckets set it.
    """
    mirror_direct: bool
    """Let a mirror answer direct gets of its origin, too."""
    sealed: bool
    """True in the configuration of a stream that takes no more messages and removes none; ``stream.seal()`` sets it,
    and nothing unsets it.
    """
    deny_delete: bool
    """Refuse ``stream.delete_message``. Cannot be unset."""
    deny_purge: bool
    """Refuse ``stream.purge``. Cannot be unset."""
    allow_rollup_hdrs: bool
    """Let a message with ``rollup="sub"`` or "all" replace the earlier ones of its subject or of the stream."""
    consumer_limits: StreamConsumerLimits
    """Upper limits for consumers of this stream, which are also their defaults. Server 2.10."""
    allow_msg_ttl: bool
    """Let a message have a time to live of its own: ``js.publish(..., ttl=60)`` (ADR-43). Cannot be unset; server 2.11.
    """
    subject_delete_marker_ttl: Duration
    """When the last message of a subject expires, store a marker that says so and keep it for this long: seconds, at
    least 1. 0 (default): no marker. The server then allows message TTLs and rollups, too; server 2.11.
    """
    allow_msg_counter: bool
    """Make each subject a counter, to which ``js.counter_add`` adds (ADR-49). Set when the stream is created; server
    2.12.
    """
    allow_atomic: bool
    """Accept batches that are stored as a whole or not at all: ``js.atomic_batch`` (ADR-50). Server 2.12."""
    allow_msg_schedules: bool
    """Accept messages that the stream publishes later or repeatedly: ``js.publish(..., schedule=)`` (ADR-51). Cannot be
    unset; server 2.12.
    """
    persist_mode: PersistModeLike
    """With "async" the server acknowledges before a message is on disk, so a crash of the server may lose the last
    ones; for one replica only (ADR-56). "default" acknowledges afterwards. Cannot be changed; server 2.12.
    """
    allow_batched: bool
    """Accept fast ingest: ``js.fast_publisher`` (ADR-50). Server 2.14."""
    metadata: Mapping[str, str]
    """Labels of your own, at most 128 KiB in sum; the server adds some that begin with ``_nats.``. Server 2.10."""


class ConsumerArgs(TypedDict, total=False):
    """The fields of ConsumerConfig."""

    name: str
    """The name of a consumer that is not durable: the server deletes it after ``inactive_threshold`` seconds without a
    reader. "": the durable name, or one that the server makes.
    """
    durable_name: str
    """The name of a durable consumer, whose position in the stream stays until the consumer is deleted. The first
    argument of ``create_consumer`` sets it.
    """
    description: str
    """A text for people, at most 4 KiB."""
    deliver_policy: DeliverPolicyLike
    """The first message to deliver: "all" (default) from the first one, "new" those stored from now on, "last" from the
    last one, "last_per_subject" the last one of each subject and what follows, "by_start_sequence" and "by_start_time"
    as the next two fields say. Cannot be changed.
    """
    opt_start_seq: int
    """With ``deliver_policy="by_start_sequence"``, the sequence of the first message, at least 1."""
    opt_start_time: datetime | None
    """With ``deliver_policy="by_start_time"``, deliver messages stored at or after this time."""
    ack_policy: AckPolicyLike
    """With "explicit" (default) every message is acknowledged by itself. "all": an acknowledgement covers all earlier
    messages, too. "none": delivery counts as acknowledgement, so a message that a worker loses is gone. "flow_control"
    is for consumers that copy streams (server 2.14). Cannot be changed.
    """
    ack_wait: Duration
    """Seconds for an acknowledgement, after which the message is delivered again; 0: 30, the server's default.
    ``in_progress()`` starts it anew.
    """
    max_deliver: int
    """How often a message is delivered at most; -1 (default): no limit. After the last time it stays unacknowledged in
    the stream, and the server emits a MaxDeliveries advisory.
    """
    backoff: Iterable[Duration]
    """Seconds for the acknowledgement of the first, second … delivery, instead of ``ack_wait``; the last value repeats.
    ``nak()`` without a delay does not use it. No more values than ``max_deliver``.
    """
    filter_subject: str
    """Deliver messages of this subject only, wildcards allowed; "": all of the stream."""
    filter_subjects: Iterable[str]
    """Deliver messages of these subjects only, none of which overlaps another. Instead of ``filter_subject``; server
    2.10.
    """
    replay_policy: ReplayPolicyLike
    """The pace of delivery: as fast as possible ("instant", the default), or as the messages were stored ("original").
    Cannot be changed.
    """
    rate_limit_bps: int
    """Bits per second that a push consumer sends at most; 0 (default): no limit."""
    sample_freq: str
    """The share of acknowledgements for which the server emits a ConsumerAck advisory with the time they took, such as
    "30%"; "": none.
    """
    max_waiting: int
    """How many pulls may wait at a time; 0: 512, the server's default. Further ones are refused. Cannot be changed."""
    max_ack_pending: int
    """How many delivered messages may wait for their acknowledgement, over all readers; the consumer delivers no more
    until some are settled. 0: 1,000, the server's default; -1: no limit. With 1, messages are handled one at a time, in
    order.
    """
    headers_only: bool
    """Deliver headers without payloads; ``Nats-Msg-Size`` has the size of the payload."""
    max_batch: int
    """The most messages that one pull may ask for; 0 (default): no limit."""
    max_expires: Duration
    """The longest time that one pull may wait, in seconds; 0 (default): no limit."""
    max_bytes: int
    """The most bytes that one pull may ask for; 0 (default): no limit."""
    deliver_subject: str
    """Makes it a push consumer: the server sends its messages to this subject. ``create_push_consumer`` chooses an
    inbox if it is left out.
    """
    deliver_group: str
    """The queue group that shares a push consumer: each message goes to one of its subscribers."""
    flow_control: bool
    """Let the server pause a push consumer whose reader does not keep up. Needs ``idle_heartbeat``."""
    idle_heartbeat: Duration
    """Seconds without a message after which a push consumer sends a heartbeat, so that its reader notices its end; 0:
    none, and 1 in ``create_push_consumer``.
    """
    inactive_threshold: Duration
    """Seconds without a reader after which the server deletes the consumer, also a durable one; 0: never for a durable
    one, 5 for others.
    """
    num_replicas: int
    """Servers that hold the state of the consumer, 1 to 5; 0 (default): as many as those of the stream."""
    mem_storage: bool
    """Keep the state in memory, not on disk: faster, and lost when all its servers restart."""
    pause_until: datetime | None
    """Deliver nothing before this time; None: not paused. ``consumer.pause`` changes it. Server 2.11."""
    priority_groups: Iterable[str]
    """The names that pulls may give as ``priority_group`` (ADR-42): 1 to 16 of the characters A-Z, a-z, 0-9, ``-``,
    ``_``, ``/``, ``=``. Server 2.11.
    """
    priority_policy: PriorityPolicyLike
    """Which pull of a group gets a message: "overflow" those whose ``min_pending`` or ``min_ack_pending`` is reached,
    "pinned_client" those of one client until it goes, "prioritized" those of the lowest ``priority`` (server 2.12).
    "none" (default). Server 2.11.
    """
    priority_timeout: Duration
    """Seconds without a pull after which a pinned client loses its pin; 0: 120, the server's default."""
    metadata: Mapping[str, str]
    """Labels of your own, at most 128 KiB in sum; the server adds some that begin with ``_nats.``. Server 2.10."""


class KeyValueArgs(TypedDict, total=False):
    """The fields of KeyValueConfig."""

    bucket: str
    """A-Z, a-z, 0-9, ``-`` and ``_``, at least one of them. The stream of the bucket is ``KV_<bucket>``."""
    description: str
    """A text for people, at most 4 KiB."""
    history: int
    """Revisions to keep of each key, 1 (default) to 64."""
    ttl: Duration
    """Seconds after which a value disappears, at least 0.1; 0 (default): never. Every write starts it anew."""
    max_value_size: int
    """Bytes of a value above which a write is refused; -1 (default): the server's ``max_payload``."""
    max_bytes: int
    """Bytes of the whole bucket, with keys and history, above which writes are refused; -1 (default): no limit."""
    storage: StorageTypeLike
    """On disk ("file", the default) or in memory ("memory"), which is empty after all servers with a replica have
    restarted. Cannot be changed.
    """
    num_replicas: int
    """Servers that each hold the whole bucket, 1 (default) to 5."""
    placement: Placement | None
    """The cluster and tags of the servers that may hold replicas; None: any."""
    republish: Republish | None
    """Publishes every change again, for subscribers of core NATS."""
    mirror: StreamSource | None
    """Make this bucket a read-only copy of another one, whose name may be the bucket's or the stream's. Writes go to
    the origin.
    """
    sources: Iterable[StreamSource]
    """Buckets whose keys are copied into this one. A source with ``subject_transforms`` is used as it is."""
    compression: bool
    """Compress the files of the bucket on disk. Server 2.10."""
    limit_marker_ttl: Duration
    """Allow a ``ttl`` for each key, and show watchers that a key has expired by a marker that is kept for this long:
    seconds, at least 1. 0 (default): neither. Server 2.11.
    """
    allow_atomic: bool
    """Allow ``kv.atomic()``, which writes several keys or none. Server 2.12."""
    metadata: Mapping[str, str]
    """Labels of your own, at most 128 KiB in sum. Server 2.10."""


class ObjectStoreArgs(TypedDict, total=False):
    """The fields of ObjectStoreConfig."""

    bucket: str
    """A-Z, a-z, 0-9, ``-`` and ``_``, at least one of them. The stream of the store is ``OBJ_<bucket>``."""
    description: str
    """A text for people, at most 4 KiB."""
    ttl: Duration
    """Seconds after which an object disappears, counted from its put; 0 (default): never."""
    max_bytes: int
    """Bytes of the whole store above which a put is refused; -1 (default): no limit."""
    storage: StorageTypeLike
    """On disk ("file", the default) or in memory ("memory"), which is empty after all servers with a replica have
    restarted. Cannot be changed.
    """
    num_replicas: int
    """Servers that each hold the whole store, 1 (default) to 5."""
    placement: Placement | None
    """The cluster and tags of the servers that may hold replicas; None: any."""
    compression: bool
    """Compress the files of the store on disk. Server 2.10."""
    allow_batched: bool
    """Let ``put`` send chunks by fast ingest (ADR-50). Server 2.14."""
    metadata: Mapping[str, str]
    """Labels of your own, at most 128 KiB in sum. Server 2.10."""
