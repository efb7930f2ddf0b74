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

from natsproto.errors import ConfigError
from natsproto.jetstream._asset_names import check_consumer_name, check_priority_group, check_stream_name
from natsproto.jetstream._codec import (
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
    many,
    moment,
    nested,
    optional,
    seconds,
    strings,
    text,
)
from natsproto.jetstream._policies import (
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

    from natsproto.jetstream._arguments import ConsumerArgs, StreamArgs

MAX_DESCRIPTION = 4 * 1024
MAX_METADATA = 128 * 1024

_SAMPLING = re.compile(r"[0-9]+%?")


class Placement(Record):
    """The servers for the replicas. ``preferred`` names the next leader, in step-down requests only."""

    cluster: str = text(default="")
    tags: Strings = strings(default=())
    preferred: str = text(default="")


class SubjectTransform(Record):
    """Subjects that match ``src`` become ``dest`` (mapping rules of ADR-30)."""

    src: str = text()
    dest: str = text()


class Republish(Record):
    """Republishes stored messages whose subjects match ``src`` ("" for all) on ``dest``."""

    src: str = text(default="")
    dest: str = text()
    headers_only: bool = flag(default=False)


class ExternalStream(Record):
    """A stream of another account or domain: the prefixes of its API and of its deliver subjects."""

    api: str = text()
    deliver: str = text(default="")


class StreamSourceConsumer(Record):
    """The durable consumer that is used for sourcing (ADR-60, server 2.14)."""

    name: str = text(default="")
    deliver_subject: str = text(default="")


class StreamSource(Record):
    """A stream whose messages are copied into this one: the origin of a mirror, or one of the sources."""

    name: str = text()
    opt_start_seq: int = integer(default=0, high=UINT64)
    opt_start_time: Moment = moment(default=None)
    filter_subject: str = text(default="")
    subject_transforms: Many[SubjectTransform] = many(SubjectTransform, default=())
    external: ExternalStream | None = optional(ExternalStream, default=None)
    consumer: StreamSourceConsumer | None = optional(StreamSourceConsumer, default=None)

    @classmethod
    def in_domain(cls, name: str, domain: str, **fields: object) -> StreamSource:
        """Create a source in another JetStream domain of the same account."""
        return cls(name=name).replace(external=ExternalStream(api=f"$JS.{domain}.API"), **fields)


class StreamConsumerLimits(Record):
    """Limits and defaults for the consumers of a stream."""

    inactive_threshold: Seconds = seconds(default=0.0)
    max_ack_pending: int = integer(default=0, low=-1)


class StreamConfig(Record):
    """The configuration of a stream. Only ``name`` is required; the default of ``subjects`` is the name.

    Sizes are in bytes, durations in seconds; -1 is no limit. ``max_age`` and ``duplicate_window`` are at least 0.1 s
    when given. ``sealed``, ``deny_delete``, ``deny_purge`` and ``allow_msg_ttl`` cannot be unset.
    """

    name: str = text(default="")
    description: str = text(default="")
    subjects: Strings = strings(default=())
    retention: Choice[RetentionPolicy, RetentionPolicyLike] = choice(RetentionPolicy, default=RetentionPolicy.LIMITS)
    max_consumers: int = integer(default=-1, low=-1)
    max_msgs: int = integer(default=-1, low=-1)
    max_bytes: int = integer(default=-1, low=-1)
    max_age: Seconds = seconds(default=0.0)
    max_msgs_per_subject: int = integer(default=-1, low=-1)
    max_msg_size: int = integer(default=-1, low=-1, high=INT32)
    discard: Choice[DiscardPolicy, DiscardPolicyLike] = choice(DiscardPolicy, default=DiscardPolicy.OLD)
    discard_new_per_subject: bool = flag(default=False)
    storage: Choice[StorageType, StorageTypeLike] = choice(StorageType, default=StorageType.FILE)
    num_replicas: int = integer(default=1, high=5)
    no_ack: bool = flag(default=False)
    duplicate_window: Seconds = seconds(default=0.0)
    placement: Placement | None = optional(Placement, default=None)
    mirror: StreamSource | None = optional(StreamSource, default=None)
    sources: Many[StreamSource] = many(StreamSource, default=())
    compression: Choice[Compression, CompressionLike] = choice(Compression, default=Compression.NONE)
    first_seq: int = integer(default=0, high=UINT64)
    subject_transform: SubjectTransform | None = optional(SubjectTransform, default=None)
    republish: Republish | None = optional(Republish, default=None)
    allow_direct: bool = flag(default=False)
    mirror_direct: bool = flag(default=False)
    sealed: bool = flag(default=False)
    deny_delete: bool = flag(default=False)
    deny_purge: bool = flag(default=False)
    allow_rollup_hdrs: bool = flag(default=False)
    consumer_limits: StreamConsumerLimits = nested(StreamConsumerLimits, default=StreamConsumerLimits())
    allow_msg_ttl: bool = flag(default=False)
    subject_delete_marker_ttl: Seconds = seconds(default=0.0)
    allow_msg_counter: bool = flag(default=False)
    allow_atomic: bool = flag(default=False)
    allow_msg_schedules: bool = flag(default=False)
    persist_mode: Choice[PersistMode, PersistModeLike] = choice(PersistMode, default=PersistMode.DEFAULT)
    allow_batched: bool = flag(default=False)
    metadata: Mapping[str, str] = labels(default=None)

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
    inactivity; without either, the server also chooses the name. Durations are in seconds, sizes in bytes, and
    ``rate_limit_bps`` in bits per second. ``max_batch``, ``max_expires`` and ``max_bytes`` limit each pull request.
    ``num_replicas`` 0 means the number of the stream. The first delay of ``backoff`` overrides ``ack_wait``.
    """

    name: str = text(default="")
    durable_name: str = text(default="")
    description: str = text(default="")
    deliver_policy: Choice[DeliverPolicy, DeliverPolicyLike] = choice(DeliverPolicy, default=DeliverPolicy.ALL)
    opt_start_seq: int = integer(default=0, high=UINT64)
    opt_start_time: Moment = moment(default=None)
    # Always sent: the server's default is "none", which loses messages.
    ack_policy: Choice[AckPolicy, AckPolicyLike] = choice(AckPolicy, default=AckPolicy.EXPLICIT, always=True)
    ack_wait: Seconds = seconds(default=0.0)
    max_deliver: int = integer(default=-1, low=-1)
    backoff: Delays = delays(default=())
    filter_subject: str = text(default="")
    filter_subjects: Strings = strings(default=())
    replay_policy: Choice[ReplayPolicy, ReplayPolicyLike] = choice(ReplayPolicy, default=ReplayPolicy.INSTANT)
    rate_limit_bps: int = integer(default=0, high=UINT64)
    sample_freq: str = text(default="")
    max_waiting: int = integer(default=0)
    max_ack_pending: int = integer(default=0, low=-1)
    headers_only: bool = flag(default=False)
    max_batch: int = integer(default=0)
    max_expires: Seconds = seconds(default=0.0)
    max_bytes: int = integer(default=0)
    deliver_subject: str = text(default="")
    deliver_group: str = text(default="")
    flow_control: bool = flag(default=False)
    idle_heartbeat: Seconds = seconds(default=0.0)
    inactive_threshold: Seconds = seconds(default=0.0)
    num_replicas: int = integer(default=0, high=5)
    mem_storage: bool = flag(default=False)
    pause_until: Moment = moment(default=None)
    priority_groups: Strings = strings(default=())
    priority_policy: Choice[PriorityPolicy, PriorityPolicyLike] = choice(PriorityPolicy, default=PriorityPolicy.NONE)
    priority_timeout: Seconds = seconds(default=0.0)
    metadata: Mapping[str, str] = labels(default=None)

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
            raise ConfigError("name", self.name, f"differs from durable_name {self.durable_name!r}: give one of them")
        if self.filter_subject and self.filter_subjects:
            raise ConfigError("filter_subject", self.filter_subject, "put it into filter_subjects with the others")
        for subject in self.filters:
            subscribe_subject(subject, "filter subject")
        if self.deliver_subject:
            publish_subject(self.deliver_subject, "deliver_subject")
        if self.sample_freq and not _SAMPLING.fullmatch(self.sample_freq):
            raise ConfigError("sample_freq", self.sample_freq, 'must be a percentage such as "30%"')
        for group in self.priority_groups:
            check_priority_group(group)
        _check_words(self.description, self.metadata)


def _check_words(description: str, metadata: Mapping[str, str]) -> None:
    if len(description.encode("utf-8", "surrogatepass")) > MAX_DESCRIPTION:
        raise ConfigError("description", description, f"is longer than {MAX_DESCRIPTION} bytes")
    size = sum(len(word.encode("utf-8", "surrogatepass")) for pair in metadata.items() for word in pair)
    if size > MAX_METADATA:
        raise ConfigError("metadata", f"of {size} bytes", f"keys and values may have {MAX_METADATA} in sum")
