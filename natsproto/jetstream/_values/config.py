"""The configurations of streams and consumers.

Owns their fields: all fields of nats-server 2.15, with the server's names. Types and ranges are checked in the
constructor, so an invalid value fails where it is written. ``check()`` is called before a request and finds
combinations to which a server replies with a misleading error or, as for a dot in a stream name, not at all. All other
rules are left to the server, whose errors are clear and whose rules change.

A default of 0, "" or -1 means that the server decides; its reply has the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from natsproto import errors
from natsproto.jetstream._values.asset_names import check_consumer_name, check_priority_group, check_stream_name
from natsproto.jetstream._values.codec import (
    INT32,
    UINT64,
    Choice,
    Delays,
    Many,
    Moment,
    Record,
    Seconds,
    Strings,
    choice,
    delays,
    flag,
    integer,
    labels,
    lifetime,
    many,
    moment,
    nested,
    optional,
    seconds,
    strings,
    text,
)
from natsproto.jetstream._values.config_parts import (
    Placement,
    Republish,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)
from natsproto.jetstream._values.policies import (
    AckPolicy,
    AckPolicyLike,
    Compression,
    CompressionLike,
    DeliverPolicy,
    DeliverPolicyLike,
    DiscardPolicy,
    DiscardPolicyLike,
    PersistMode,
    PersistModeLike,
    PriorityPolicy,
    PriorityPolicyLike,
    ReplayPolicy,
    ReplayPolicyLike,
    RetentionPolicy,
    RetentionPolicyLike,
    StorageType,
    StorageTypeLike,
)
from natsproto.protocol.subject import publish_subject, subscribe_subject

if TYPE_CHECKING:
    from typing import Self

    from natsproto.jetstream._values.arguments import ConsumerArgs, StreamArgs

MAX_DESCRIPTION = 4 * 1024
MAX_METADATA = 128 * 1024

_SAMPLING = re.compile(r"[0-9]+%?")


class StreamConfig(Record):
    """The configuration of a stream. Only ``name`` is required.

    Sizes are in bytes, durations in seconds; -1 is no limit.
    """

    name: str = text(default="")
    """1 to 255 bytes without spaces, ``.``, ``*``, ``>``, ``/`` and ``\\``. Cannot be changed."""
    description: str = text(default="")
    """A text for people, at most 4 KiB."""
    subjects: Strings = strings(default=())
    """Messages published to these subjects are stored; wildcards allowed. No other stream of the account may have one
    of them. Left out: the name of the stream, or none for a mirror and a stream with sources.
    """
    retention: Choice[RetentionPolicy, RetentionPolicyLike] = choice(RetentionPolicy, default=RetentionPolicy.LIMITS)
    """When a message is removed before a limit removes it: never ("limits", the default), after every consumer that it
    matches has acknowledged it ("interest"), or after the one consumer that gets it has ("workqueue"). A stream cannot
    become a work queue later, nor stop being one.
    """
    max_consumers: int = integer(default=-1, low=-1)
    """How many consumers may exist at a time; -1 (default): as many as the account allows."""
    max_msgs: int = integer(default=-1, low=-1)
    """Messages to keep; -1 (default): no limit. ``discard`` decides which one goes."""
    max_bytes: int = integer(default=-1, low=-1)
    """Bytes to keep, with subjects, headers and about 30 bytes of overhead for each message; -1 (default): no limit.
    Some accounts require a value.
    """
    max_age: Seconds = seconds(default=0.0)
    """Seconds after which a message is removed, at least 0.1; 0 (default): never."""
    max_msgs_per_subject: int = integer(default=-1, low=-1)
    """Messages to keep of each subject; -1 (default): no limit. With 1 a stream holds the last value of each subject,
    as key/value buckets do.
    """
    max_msg_size: int = integer(default=-1, low=-1, high=INT32)
    """Bytes of payload and headers above which a message is refused; -1 (default): the server's ``max_payload``."""
    discard: Choice[DiscardPolicy, DiscardPolicyLike] = choice(DiscardPolicy, default=DiscardPolicy.OLD)
    """At a limit, remove the oldest message ("old", the default) or refuse the new one ("new"), which raises
    LimitReached.
    """
    discard_new_per_subject: bool = flag(default=False)
    """With ``discard="new"``, refuse a message to a subject that has its ``max_msgs_per_subject``; False (default):
    remove the oldest of that subject. Server 2.9.
    """
    storage: Choice[StorageType, StorageTypeLike] = choice(StorageType, default=StorageType.FILE)
    """On disk ("file", the default) or in memory ("memory"), which is empty after all servers with a replica have
    restarted. Cannot be changed.
    """
    num_replicas: int = integer(default=1, high=5)
    """Servers that each hold all messages, 1 (default) to 5; 3 survives the loss of any one. Needs a cluster of as
    many.
    """
    no_ack: bool = flag(default=False)
    """Do not acknowledge published messages; then ``js.publish`` cannot know whether they are stored, and times out."""
    duplicate_window: Seconds = seconds(default=0.0)
    """Seconds for which ``msg_id`` of a message is remembered; a second message with it is acknowledged and not stored
    again. 0: the server's 120, or ``max_age`` if that is shorter.
    """
    placement: Placement | None = optional(Placement, default=None)
    """The cluster and tags of the servers that may hold replicas; None: any."""
    mirror: StreamSource | None = optional(StreamSource, default=None)
    """Make this stream a read-only copy of another one. Then it has no ``subjects`` and no ``sources``."""
    sources: Many[StreamSource] = many(StreamSource, default=())
    """Streams whose messages are copied into this one, beside those of its own ``subjects``."""
    compression: Choice[Compression, CompressionLike] = choice(Compression, default=Compression.NONE)
    """With "s2" the files of the stream are compressed on disk, with "none" (default) not. Server 2.10."""
    first_seq: int = integer(default=0, high=UINT64)
    """The sequence of the first message, for a stream that continues another one; 0: 1. Used when the stream is
    created; server 2.10.
    """
    subject_transform: SubjectTransform | None = optional(SubjectTransform, default=None)
    """Stores messages under another subject than they were published to. Server 2.10."""
    republish: Republish | None = optional(Republish, default=None)
    """Publishes every stored message again, for subscribers of core NATS."""
    allow_direct: bool = flag(default=False)
    """Let any replica answer ``get_message`` and the like, not the leader alone: faster, and a replica may be a moment
    behind. Buckets set it.
    """
    mirror_direct: bool = flag(default=False)
    """Let a mirror answer direct gets of its origin, too."""
    sealed: bool = flag(default=False)
    """True in the configuration of a stream that takes no more messages and removes none; ``stream.seal()`` sets it,
    and nothing unsets it.
    """
    deny_delete: bool = flag(default=False)
    """Refuse ``stream.delete_message``. Cannot be unset."""
    deny_purge: bool = flag(default=False)
    """Refuse ``stream.purge``. Cannot be unset."""
    allow_rollup_hdrs: bool = flag(default=False)
    """Let a message with ``rollup="sub"`` or "all" replace the earlier ones of its subject or of the stream."""
    consumer_limits: StreamConsumerLimits = nested(StreamConsumerLimits, default=StreamConsumerLimits())
    """Upper limits for consumers of this stream, which are also their defaults. Server 2.10."""
    allow_msg_ttl: bool = flag(default=False)
    """Let a message have a time to live of its own: ``js.publish(..., ttl=60)`` (ADR-43). Cannot be unset; server 2.11.
    """
    subject_delete_marker_ttl: Seconds = lifetime(default=0.0)
    """When the last message of a subject expires, store a marker that says so and keep it for this long: seconds, at
    least 1. 0 (default): no marker. The server then allows message TTLs and rollups, too; server 2.11.
    """
    allow_msg_counter: bool = flag(default=False)
    """Make each subject a counter, to which ``js.counter_add`` adds (ADR-49). Set when the stream is created; server
    2.12.
    """
    allow_atomic: bool = flag(default=False)
    """Accept batches that are stored as a whole or not at all: ``js.atomic_batch`` (ADR-50). Server 2.12."""
    allow_msg_schedules: bool = flag(default=False)
    """Accept messages that the stream publishes later or repeatedly: ``js.publish(..., schedule=)`` (ADR-51). Cannot be
    unset; server 2.12.
    """
    persist_mode: Choice[PersistMode, PersistModeLike] = choice(PersistMode, default=PersistMode.DEFAULT)
    """With "async" the server acknowledges before a message is on disk, so a crash of the server may lose the last
    ones; for one replica only (ADR-56). "default" acknowledges afterwards. Cannot be changed; server 2.12.
    """
    allow_batched: bool = flag(default=False)
    """Accept fast ingest: ``js.fast_publisher`` (ADR-50). Server 2.14."""
    metadata: Mapping[str, str] = labels(default=None)
    """Labels of your own, at most 128 KiB in sum; the server adds some that begin with ``_nats.``. Server 2.10."""

    if TYPE_CHECKING:

        def replace(self, *, extra: Mapping[str, object] = ..., **changes: Unpack[StreamArgs]) -> Self:  # type: ignore[override]
            """Return a copy with some fields changed; they are checked as in the constructor."""
            ...

    def check(self) -> None:
        """ConfigError (InvalidSubject for names) for values that a server would reject unclearly, or not reply to."""
        check_stream_name(self.name)
        for subject in self.subjects:
            subscribe_subject(subject, "subjects")
        for source in (self.mirror, *self.sources):
            if source is not None:
                check_stream_name(source.name)
                if source.filter_subject:
                    subscribe_subject(source.filter_subject, "filter_subject")
                if source.external is not None:
                    publish_subject(source.external.api, "external.api")
        _check_words(self.description, self.metadata)


class ConsumerConfig(Record):
    """The configuration of a consumer; with ``deliver_subject`` a push consumer, otherwise a pull consumer.

    With ``durable_name`` it is durable. With only ``name`` it is removed after ``inactive_threshold`` seconds of
    inactivity; without either, the server also chooses the name. Durations are in seconds, sizes in bytes.
    """

    name: str = text(default="")
    """The name of a consumer that is not durable: the server deletes it after ``inactive_threshold`` seconds without a
    reader. "": the durable name, or one that the server makes.
    """
    durable_name: str = text(default="")
    """The name of a durable consumer, whose position in the stream stays until the consumer is deleted. The first
    argument of ``create_consumer`` sets it.
    """
    description: str = text(default="")
    """A text for people, at most 4 KiB."""
    deliver_policy: Choice[DeliverPolicy, DeliverPolicyLike] = choice(DeliverPolicy, default=DeliverPolicy.ALL)
    """The first message to deliver: "all" (default) from the first one, "new" those stored from now on, "last" from the
    last one, "last_per_subject" the last one of each subject and what follows, "by_start_sequence" and "by_start_time"
    as the next two fields say. Cannot be changed.
    """
    opt_start_seq: int = integer(default=0, high=UINT64)
    """With ``deliver_policy="by_start_sequence"``, the sequence of the first message, at least 1."""
    opt_start_time: Moment = moment(default=None)
    """With ``deliver_policy="by_start_time"``, deliver messages stored at or after this time."""
    # Always sent: the server's default is "none", which loses messages.
    ack_policy: Choice[AckPolicy, AckPolicyLike] = choice(AckPolicy, default=AckPolicy.EXPLICIT, always=True)
    """With "explicit" (default) every message is acknowledged by itself. "all": an acknowledgement covers all earlier
    messages, too. "none": delivery counts as acknowledgement, so a message that a worker loses is gone. "flow_control"
    is for consumers that copy streams (server 2.14). Cannot be changed.
    """
    ack_wait: Seconds = seconds(default=0.0)
    """Seconds for an acknowledgement, after which the message is delivered again; 0: 30, the server's default.
    ``in_progress()`` starts it anew.
    """
    max_deliver: int = integer(default=-1, low=-1)
    """How often a message is delivered at most; -1 (default): no limit. After the last time it stays unacknowledged in
    the stream, and the server emits a MaxDeliveries advisory.
    """
    backoff: Delays = delays(default=())
    """Seconds for the acknowledgement of the first, second … delivery, instead of ``ack_wait``; the last value repeats.
    ``nak()`` without a delay does not use it. No more values than ``max_deliver``.
    """
    filter_subject: str = text(default="")
    """Deliver messages of this subject only, wildcards allowed; "": all of the stream."""
    filter_subjects: Strings = strings(default=())
    """Deliver messages of these subjects only, none of which overlaps another. Instead of ``filter_subject``; server
    2.10.
    """
    replay_policy: Choice[ReplayPolicy, ReplayPolicyLike] = choice(ReplayPolicy, default=ReplayPolicy.INSTANT)
    """The pace of delivery: as fast as possible ("instant", the default), or as the messages were stored ("original").
    Cannot be changed.
    """
    rate_limit_bps: int = integer(default=0, high=UINT64)
    """Bits per second that a push consumer sends at most; 0 (default): no limit."""
    sample_freq: str = text(default="")
    """The share of acknowledgements for which the server emits a ConsumerAck advisory with the time they took, such as
    "30%"; "": none.
    """
    max_waiting: int = integer(default=0)
    """How many pulls may wait at a time; 0: 512, the server's default. Further ones are refused. Cannot be changed."""
    max_ack_pending: int = integer(default=0, low=-1)
    """How many delivered messages may wait for their acknowledgement, over all readers; the consumer delivers no more
    until some are settled. 0: 1,000, the server's default; -1: no limit. With 1, messages are handled one at a time, in
    order.
    """
    headers_only: bool = flag(default=False)
    """Deliver headers without payloads; ``Nats-Msg-Size`` has the size of the payload."""
    max_batch: int = integer(default=0)
    """The most messages that one pull may ask for; 0 (default): no limit."""
    max_expires: Seconds = seconds(default=0.0)
    """The longest time that one pull may wait, in seconds; 0 (default): no limit."""
    max_bytes: int = integer(default=0)
    """The most bytes that one pull may ask for; 0 (default): no limit."""
    deliver_subject: str = text(default="")
    """Makes it a push consumer: the server sends its messages to this subject. ``create_push_consumer`` chooses an
    inbox if it is left out.
    """
    deliver_group: str = text(default="")
    """The queue group that shares a push consumer: each message goes to one of its subscribers."""
    flow_control: bool = flag(default=False)
    """Let the server pause a push consumer whose reader does not keep up. Needs ``idle_heartbeat``."""
    idle_heartbeat: Seconds = seconds(default=0.0)
    """Seconds without a message after which a push consumer sends a heartbeat, so that its reader notices its end; 0:
    none, and 1 in ``create_push_consumer``.
    """
    inactive_threshold: Seconds = seconds(default=0.0)
    """Seconds without a reader after which the server deletes the consumer, also a durable one; 0: never for a durable
    one, 5 for others.
    """
    num_replicas: int = integer(default=0, high=5)
    """Servers that hold the state of the consumer, 1 to 5; 0 (default): as many as those of the stream."""
    mem_storage: bool = flag(default=False)
    """Keep the state in memory, not on disk: faster, and lost when all its servers restart."""
    pause_until: Moment = moment(default=None)
    """Deliver nothing before this time; None: not paused. ``consumer.pause`` changes it. Server 2.11."""
    priority_groups: Strings = strings(default=())
    """The names that pulls may give as ``priority_group`` (ADR-42): 1 to 16 of the characters A-Z, a-z, 0-9, ``-``,
    ``_``, ``/``, ``=``. Server 2.11.
    """
    priority_policy: Choice[PriorityPolicy, PriorityPolicyLike] = choice(PriorityPolicy, default=PriorityPolicy.NONE)
    """Which pull of a group gets a message: "overflow" those whose ``min_pending`` or ``min_ack_pending`` is reached,
    "pinned_client" those of one client until it goes, "prioritized" those of the lowest ``priority`` (server 2.12).
    "none" (default). Server 2.11.
    """
    priority_timeout: Seconds = seconds(default=0.0)
    """Seconds without a pull after which a pinned client loses its pin; 0: 120, the server's default."""
    metadata: Mapping[str, str] = labels(default=None)
    """Labels of your own, at most 128 KiB in sum; the server adds some that begin with ``_nats.``. Server 2.10."""

    if TYPE_CHECKING:

        def replace(self, *, extra: Mapping[str, object] = ..., **changes: Unpack[ConsumerArgs]) -> Self:  # type: ignore[override]
            """Return a copy with some fields changed; they are checked as in the constructor."""
            ...

    @property
    def filters(self) -> tuple[str, ...]:
        """The filter subjects, from either field."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())

    def check(self) -> None:
        """ConfigError (InvalidSubject for names) for values that a server would reject unclearly, or not reply to."""
        for name in (self.name, self.durable_name):
            if name:
                check_consumer_name(name)
        if self.name and self.durable_name and self.name != self.durable_name:
            raise errors.ConfigError(
                "name", self.name, f"differs from durable_name {self.durable_name!r}: give one of them"
            )
        if self.filter_subject and self.filter_subjects:
            raise errors.ConfigError(
                "filter_subject", self.filter_subject, "put it into filter_subjects with the others"
            )
        for subject in self.filters:
            subscribe_subject(subject, "filter subject")
        if self.deliver_subject:
            publish_subject(self.deliver_subject, "deliver_subject")
        if self.sample_freq and not _SAMPLING.fullmatch(self.sample_freq):
            raise errors.ConfigError("sample_freq", self.sample_freq, 'must be a percentage such as "30%"')
        for group in self.priority_groups:
            check_priority_group(group)
        _check_words(self.description, self.metadata)


def _check_words(description: str, metadata: Mapping[str, str]) -> None:
    if len(description.encode("utf-8", "surrogatepass")) > MAX_DESCRIPTION:
        raise errors.ConfigError("description", description, f"is longer than {MAX_DESCRIPTION} bytes")
    size = sum(len(word.encode("utf-8", "surrogatepass")) for pair in metadata.items() for word in pair)
    if size > MAX_METADATA:
        raise errors.ConfigError("metadata", f"of {size} bytes", f"keys and values may have {MAX_METADATA} in sum")
