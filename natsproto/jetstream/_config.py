"""The configurations of streams, consumers, buckets and object stores.

Owns their fields (all fields of nats-server 2.15, with the server's names), their enumerations and the rules for names.
Types and ranges are checked in the constructor, so an invalid value fails where it is written. ``check()`` is called
before a request and finds combinations to which a server replies with a misleading error or, as for a dot in a stream
name, not at all. All other rules are left to the server, whose errors are clear and whose rules change.

A default of 0, "" or -1 means that the server decides; its reply has the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

from natsproto.errors import BucketNotFound, ConfigError, InvalidSubject
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
    Unlisted,
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
from natsproto.protocol.subject import matches, publish_subject, subscribe_subject

MAX_NAME = 255
MAX_DESCRIPTION = 4 * 1024
MAX_METADATA = 128 * 1024
MAX_HISTORY = 64
KV_STREAM, KV_SUBJECTS = "KV_", "$KV."
OBJECT_STREAM, OBJECT_SUBJECTS = "OBJ_", "$O."

_NOT_IN_NAMES = re.compile(r"[\x00-\x20\x7f.*>/\\]")
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_GROUP = re.compile(r"[A-Za-z0-9/_=-]{1,16}")
_SAMPLING = re.compile(r"[0-9]+%?")


# ---------------------------------------------------------------- names (ADR-6)


def check_stream_name(name: str) -> str:
    """Return a valid name, or raise InvalidSubject: a server does not reply to some invalid names."""
    return _asset_name("stream name", name)


def check_consumer_name(name: str) -> str:
    """Return a valid name, or raise InvalidSubject with the rule it breaks."""
    return _asset_name("consumer name", name)


def check_bucket_name(name: str) -> str:
    """Return a valid name of a key/value bucket or object store, or raise InvalidSubject."""
    if not isinstance(name, str):
        raise TypeError(f"bucket name must be a str, not {type(name).__name__}")
    if not _BUCKET.fullmatch(name):
        raise InvalidSubject("bucket name", name, "only A-Z, a-z, 0-9, '-' and '_', at least one of them")
    return _asset_name("bucket name", name)


def check_bucket(bucket: str, config: StreamConfig, prefix: str, subjects: str) -> None:
    """Raise BucketNotFound unless the stream has the subjects of this bucket, or is the mirror of a bucket.

    A stream of another kind may have the name of a bucket; its messages are not entries.
    """
    if config.mirror is not None:
        if not config.mirror.name.startswith(prefix):
            raise BucketNotFound(
                bucket, f"stream {config.name!r} is a mirror of {config.mirror.name!r}, which is not a bucket"
            )
        return
    held = [*config.subjects, *(rule.dest for source in config.sources for rule in source.subject_transforms)]
    wanted = f"{subjects}{bucket}."
    if not any(pattern.startswith(wanted) or matches(pattern, f"{wanted}>") for pattern in held):
        raise BucketNotFound(bucket, f"stream {config.name!r} holds {', '.join(held) or 'no subjects'}, not {wanted}>")


def check_priority_group(name: str) -> str:
    """Return a valid name of a priority group (ADR-42), or raise InvalidSubject."""
    if not isinstance(name, str):
        raise TypeError(f"priority group must be a str, not {type(name).__name__}")
    if not _GROUP.fullmatch(name):
        raise InvalidSubject("priority group", name, "1 to 16 characters from A-Z, a-z, 0-9, '-', '_', '/' and '='")
    return name


def _asset_name(what: str, name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    if not name:
        raise InvalidSubject(what, name, "must not be empty")
    if _NOT_IN_NAMES.search(name):
        raise InvalidSubject(what, name, "must not contain '.', '*', '>', '/', '\\', spaces or control characters")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        raise InvalidSubject(what, name, f"is longer than {MAX_NAME} bytes")
    return name


# ---------------------------------------------------------------- enumerations


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


# ---------------------------------------------------------------- streams


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


# ---------------------------------------------------------------- consumers


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


# ---------------------------------------------------------------- buckets and object stores


class KeyValueConfig(Record):
    """The configuration of a key/value bucket (ADR-8). Only ``bucket`` is required.

    ``history`` is the number of values kept per key (1 to 64). Values expire ``ttl`` seconds after they were written.
    ``limit_marker_ttl`` in seconds (at least 1) allows a TTL for each key and keeps a marker of an expired key for that
    long; it needs server 2.11. ``mirror`` and ``sources`` name buckets, or streams with your own transforms (ADR-57).
    ``allow_atomic`` allows atomic writes to several keys (server 2.12).
    """

    bucket: str = text()
    description: str = text(default="")
    history: int = integer(default=1, low=1, high=MAX_HISTORY)
    ttl: Seconds = seconds(default=0.0)
    max_value_size: int = integer(default=-1, low=-1, high=INT32)
    max_bytes: int = integer(default=-1, low=-1)
    storage: Choice[StorageType, StorageTypeLike] = choice(StorageType, default=StorageType.FILE)
    num_replicas: int = integer(default=1, high=5)
    placement: Placement | None = optional(Placement, default=None)
    republish: Republish | None = optional(Republish, default=None)
    mirror: StreamSource | None = optional(StreamSource, default=None)
    sources: Many[StreamSource] = many(StreamSource, default=())
    compression: bool = flag(default=False)
    limit_marker_ttl: Seconds = seconds(default=0.0)
    allow_atomic: bool = flag(default=False)
    metadata: Mapping[str, str] = labels(default=None)

    def to_stream(self) -> StreamConfig:
        """Return the configuration of the bucket's stream. ConfigError when a value is invalid."""
        check_bucket_name(self.bucket)
        if 0 < self.limit_marker_ttl < 1:
            raise ConfigError("limit_marker_ttl", self.limit_marker_ttl, "must be at least one second")
        if self.mirror and self.sources:
            raise ConfigError("mirror", self.mirror.name, "a bucket has a mirror or sources, not both")
        mirror = self.mirror
        if mirror is not None and not mirror.name.startswith(KV_STREAM):
            mirror = mirror.replace(name=KV_STREAM + mirror.name)
        config = StreamConfig(
            name=KV_STREAM + self.bucket,
            description=self.description,
            subjects=() if mirror else (f"{KV_SUBJECTS}{self.bucket}.>",),
            max_msgs_per_subject=self.history,
            max_bytes=self.max_bytes,
            max_age=self.ttl,
            max_msg_size=self.max_value_size,
            storage=self.storage,
            num_replicas=self.num_replicas,
            placement=self.placement,
            republish=self.republish,
            mirror=mirror,
            sources=tuple(self._source(source) for source in self.sources),
            discard=DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            mirror_direct=mirror is not None,
            compression=Compression.S2 if self.compression else Compression.NONE,
            allow_msg_ttl=self.limit_marker_ttl > 0,
            subject_delete_marker_ttl=self.limit_marker_ttl,
            allow_atomic=self.allow_atomic,
            metadata=self.metadata,
            extra=self.extra,
        )
        config.check()
        return config

    def _source(self, source: StreamSource) -> StreamSource:
        """Return a bucket as a source: its keys become this bucket's. A source with transforms is not changed."""
        if source.subject_transforms:
            return source
        origin = source.name.removeprefix(KV_STREAM)
        keys = source.filter_subject.removeprefix(f"{KV_SUBJECTS}{origin}.") or ">"
        return source.replace(
            name=KV_STREAM + origin,
            filter_subject="",
            subject_transforms=(
                SubjectTransform(src=f"{KV_SUBJECTS}{origin}.{keys}", dest=f"{KV_SUBJECTS}{self.bucket}.{keys}"),
            ),
        )

    @classmethod
    def from_stream(cls, config: StreamConfig) -> KeyValueConfig:
        """Return the configuration of the bucket in a stream. ConfigError when the name is not a bucket's."""
        return cls(
            bucket=_bucket_of(config.name, KV_STREAM, "key/value bucket"),
            description=config.description,
            history=min(max(config.max_msgs_per_subject, 1), MAX_HISTORY),
            ttl=config.max_age,
            max_value_size=config.max_msg_size,
            max_bytes=config.max_bytes,
            storage=config.storage,
            num_replicas=config.num_replicas,
            placement=config.placement,
            republish=config.republish,
            mirror=config.mirror,
            sources=config.sources,
            compression=config.compression == Compression.S2,
            limit_marker_ttl=config.subject_delete_marker_ttl,
            allow_atomic=config.allow_atomic,
            metadata=config.metadata,
            extra=config.extra,
        )


class ObjectStoreConfig(Record):
    """The configuration of an object store (ADR-20). Only ``bucket`` is required.

    Objects expire ``ttl`` seconds after they were put. ``allow_batched`` allows fast ingest (ADR-50, server 2.14).
    """

    bucket: str = text()
    description: str = text(default="")
    ttl: Seconds = seconds(default=0.0)
    max_bytes: int = integer(default=-1, low=-1)
    storage: Choice[StorageType, StorageTypeLike] = choice(StorageType, default=StorageType.FILE)
    num_replicas: int = integer(default=1, high=5)
    placement: Placement | None = optional(Placement, default=None)
    compression: bool = flag(default=False)
    allow_batched: bool = flag(default=False)
    metadata: Mapping[str, str] = labels(default=None)

    def to_stream(self) -> StreamConfig:
        """Return the configuration of the store's stream. ConfigError when a value is invalid."""
        bucket = check_bucket_name(self.bucket)
        config = StreamConfig(
            name=OBJECT_STREAM + bucket,
            description=self.description,
            subjects=(f"{OBJECT_SUBJECTS}{bucket}.C.>", f"{OBJECT_SUBJECTS}{bucket}.M.>"),
            max_age=self.ttl,
            max_bytes=self.max_bytes,
            storage=self.storage,
            num_replicas=self.num_replicas,
            placement=self.placement,
            discard=DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_direct=True,
            compression=Compression.S2 if self.compression else Compression.NONE,
            allow_batched=self.allow_batched,
            metadata=self.metadata,
            extra=self.extra,
        )
        config.check()
        return config

    @classmethod
    def from_stream(cls, config: StreamConfig) -> ObjectStoreConfig:
        """Return the configuration of the store in a stream. ConfigError when the name is not a store's."""
        return cls(
            bucket=_bucket_of(config.name, OBJECT_STREAM, "object store"),
            description=config.description,
            ttl=config.max_age,
            max_bytes=config.max_bytes,
            storage=config.storage,
            num_replicas=config.num_replicas,
            placement=config.placement,
            compression=config.compression == Compression.S2,
            allow_batched=config.allow_batched,
            metadata=config.metadata,
            extra=config.extra,
        )


def _bucket_of(stream: str, prefix: str, what: str) -> str:
    if not stream.startswith(prefix):
        raise ConfigError("stream", stream, f"is not a {what}: its name does not begin with {prefix}")
    return stream[len(prefix) :]
