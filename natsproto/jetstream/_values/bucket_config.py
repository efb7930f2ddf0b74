"""The configurations of key/value buckets and object stores, and those of their streams.

They are checked as those of streams are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from natsproto import errors
from natsproto.jetstream._values.asset_names import check_bucket_name
from natsproto.jetstream._values.codec import (
    INT32,
    Choice,
    Many,
    Record,
    Seconds,
    accept_lifetime,
    choice,
    flag,
    integer,
    labels,
    many,
    optional,
    seconds,
    text,
)
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.config_parts import Placement, Republish, StreamSource, SubjectTransform
from natsproto.jetstream._values.policies import Compression, DiscardPolicy, StorageType, StorageTypeLike
from natsproto.protocol.subject import matches

if TYPE_CHECKING:
    from typing import Self

    from natsproto.jetstream._values.arguments import KeyValueArgs, ObjectStoreArgs

MAX_HISTORY = 64
KV_STREAM, KV_SUBJECTS = "KV_", "$KV."
OBJECT_STREAM, OBJECT_SUBJECTS = "OBJ_", "$O."


class KeyValueConfig(Record):
    """The configuration of a key/value bucket (ADR-8). Only ``bucket`` is required."""

    bucket: str = text()
    """A-Z, a-z, 0-9, ``-`` and ``_``, at least one of them. The stream of the bucket is ``KV_<bucket>``."""
    description: str = text(default="")
    """A text for people, at most 4 KiB."""
    history: int = integer(default=1, low=1, high=MAX_HISTORY)
    """Revisions to keep of each key, 1 (default) to 64."""
    ttl: Seconds = seconds(default=0.0)
    """Seconds after which a value disappears, at least 0.1; 0 (default): never. Every write starts it anew."""
    max_value_size: int = integer(default=-1, low=-1, high=INT32)
    """Bytes of a value above which a write is refused; -1 (default): the server's ``max_payload``."""
    max_bytes: int = integer(default=-1, low=-1)
    """Bytes of the whole bucket, with keys and history, above which writes are refused; -1 (default): no limit."""
    storage: Choice[StorageType, StorageTypeLike] = choice(StorageType, default=StorageType.FILE)
    """On disk ("file", the default) or in memory ("memory"), which is empty after all servers with a replica have
    restarted. Cannot be changed.
    """
    num_replicas: int = integer(default=1, high=5)
    """Servers that each hold the whole bucket, 1 (default) to 5."""
    placement: Placement | None = optional(Placement, default=None)
    """The cluster and tags of the servers that may hold replicas; None: any."""
    republish: Republish | None = optional(Republish, default=None)
    """Publishes every change again, for subscribers of core NATS."""
    mirror: StreamSource | None = optional(StreamSource, default=None)
    """Make this bucket a read-only copy of another one, whose name may be the bucket's or the stream's. Writes go to
    the origin.
    """
    sources: Many[StreamSource] = many(StreamSource, default=())
    """Buckets whose keys are copied into this one. A source with ``subject_transforms`` is used as it is."""
    compression: bool = flag(default=False)
    """Compress the files of the bucket on disk. Server 2.10."""
    limit_marker_ttl: Seconds = seconds(default=0.0)
    """Allow a ``ttl`` for each key, and show watchers that a key has expired by a marker that is kept for this long:
    seconds, at least 1. 0 (default): neither. Server 2.11.
    """
    allow_atomic: bool = flag(default=False)
    """Allow ``kv.atomic()``, which writes several keys or none. Server 2.12."""
    metadata: Mapping[str, str] = labels(default=None)
    """Labels of your own, at most 128 KiB in sum. Server 2.10."""

    if TYPE_CHECKING:

        def replace(self, *, extra: Mapping[str, object] = ..., **changes: Unpack[KeyValueArgs]) -> Self:  # type: ignore[override]
            """Return a copy with some fields changed; they are checked as in the constructor."""
            ...

    def to_stream(self) -> StreamConfig:
        """Return the configuration of the bucket's stream. ConfigError when a value is invalid."""
        check_bucket_name(self.bucket)
        accept_lifetime("limit_marker_ttl", self.limit_marker_ttl)
        if 0 < self.limit_marker_ttl < 1:
            raise errors.ConfigError("limit_marker_ttl", self.limit_marker_ttl, "must be at least one second")
        if self.mirror and self.sources:
            raise errors.ConfigError("mirror", self.mirror.name, "a bucket has a mirror or sources, not both")
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
        """Return the configuration of the bucket in a stream. ConfigError when the name is not a bucket's.

        Args:
            config: The configuration of the bucket's stream.
        """
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
    """The configuration of an object store (ADR-20). Only ``bucket`` is required."""

    bucket: str = text()
    """A-Z, a-z, 0-9, ``-`` and ``_``, at least one of them. The stream of the store is ``OBJ_<bucket>``."""
    description: str = text(default="")
    """A text for people, at most 4 KiB."""
    ttl: Seconds = seconds(default=0.0)
    """Seconds after which an object disappears, counted from its put; 0 (default): never."""
    max_bytes: int = integer(default=-1, low=-1)
    """Bytes of the whole store above which a put is refused; -1 (default): no limit."""
    storage: Choice[StorageType, StorageTypeLike] = choice(StorageType, default=StorageType.FILE)
    """On disk ("file", the default) or in memory ("memory"), which is empty after all servers with a replica have
    restarted. Cannot be changed.
    """
    num_replicas: int = integer(default=1, high=5)
    """Servers that each hold the whole store, 1 (default) to 5."""
    placement: Placement | None = optional(Placement, default=None)
    """The cluster and tags of the servers that may hold replicas; None: any."""
    compression: bool = flag(default=False)
    """Compress the files of the store on disk. Server 2.10."""
    allow_batched: bool = flag(default=False)
    """Let ``put`` send chunks by fast ingest (ADR-50). Server 2.14."""
    metadata: Mapping[str, str] = labels(default=None)
    """Labels of your own, at most 128 KiB in sum. Server 2.10."""

    if TYPE_CHECKING:

        def replace(self, *, extra: Mapping[str, object] = ..., **changes: Unpack[ObjectStoreArgs]) -> Self:  # type: ignore[override]
            """Return a copy with some fields changed; they are checked as in the constructor."""
            ...

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
        """Return the configuration of the store in a stream. ConfigError when the name is not a store's.

        Args:
            config: The configuration of the store's stream.
        """
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
        raise errors.ConfigError("stream", stream, f"is not a {what}: its name does not begin with {prefix}")
    return stream[len(prefix) :]


def check_bucket(bucket: str, config: StreamConfig, prefix: str, subjects: str) -> None:
    """Raise BucketNotFound unless the stream has the subjects of this bucket, or is the mirror of a bucket.

    A stream of another kind may have the name of a bucket; its messages are not entries.
    """
    if config.mirror is not None:
        if not config.mirror.name.startswith(prefix):
            raise errors.BucketNotFound(
                bucket, f"stream {config.name!r} is a mirror of {config.mirror.name!r}, which is not a bucket"
            )
        return
    held = [*config.subjects, *(rule.dest for source in config.sources for rule in source.subject_transforms)]
    wanted = f"{subjects}{bucket}."
    if not any(pattern.startswith(wanted) or matches(pattern, f"{wanted}>") for pattern in held):
        raise errors.BucketNotFound(
            bucket, f"stream {config.name!r} holds {', '.join(held) or 'no subjects'}, not {wanted}>"
        )
