"""``nats.js.api``: JetStream's requests and responses as the dataclasses of nats-py.

Durations are seconds. A class names its fields in a line, which ``natsproto.compat._json`` explains.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar, Self

from natsproto.compat._json import Base

DEFAULT_PREFIX = "$JS.API"
INBOX_PREFIX = b"_INBOX."
SCHEDULE_YEARLY, SCHEDULE_MONTHLY, SCHEDULE_WEEKLY = "@yearly", "@monthly", "@weekly"
SCHEDULE_DAILY, SCHEDULE_HOURLY = "@daily", "@hourly"


class Header(StrEnum):
    BATCH_COMMIT = "Nats-Batch-Commit"
    BATCH_ID = "Nats-Batch-Id"
    BATCH_SEQUENCE = "Nats-Batch-Sequence"
    CONSUMER_STALLED = "Nats-Consumer-Stalled"
    DESCRIPTION = "Description"
    EXPECTED_LAST_MSG_ID = "Nats-Expected-Last-Msg-Id"
    EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
    EXPECTED_STREAM = "Nats-Expected-Stream"
    INCR = "Nats-Incr"
    EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
    LAST_CONSUMER = "Nats-Last-Consumer"
    LAST_STREAM = "Nats-Last-Stream"
    MSG_ID = "Nats-Msg-Id"
    MSG_TTL = "Nats-TTL"
    ROLLUP = "Nats-Rollup"
    SCHEDULE = "Nats-Schedule"
    SCHEDULE_NEXT = "Nats-Schedule-Next"
    SCHEDULE_ROLLUP = "Nats-Schedule-Rollup"
    SCHEDULE_SOURCE = "Nats-Schedule-Source"
    SCHEDULE_TARGET = "Nats-Schedule-Target"
    SCHEDULE_TIME_ZONE = "Nats-Schedule-Time-Zone"
    SCHEDULE_TTL = "Nats-Schedule-TTL"
    SCHEDULER = "Nats-Scheduler"
    STATUS = "Status"


class RetentionPolicy(StrEnum):
    LIMITS = "limits"
    INTEREST = "interest"
    WORK_QUEUE = "workqueue"


class StorageType(StrEnum):
    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(StrEnum):
    OLD = "old"
    NEW = "new"


class StoreCompression(StrEnum):
    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    DEFAULT = "default"
    ASYNC = "async"


class ReplayPolicy(StrEnum):
    INSTANT = "instant"
    ORIGINAL = "original"


class AckPolicy(StrEnum):
    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class DeliverPolicy(StrEnum):
    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class StatusCode(StrEnum):
    SERVICE_UNAVAILABLE = "503"
    NO_MESSAGES = "404"
    REQUEST_TIMEOUT = "408"
    CONFLICT = "409"
    CONTROL_MESSAGE = "100"


class Placement(Base, fields="cluster? tags?"):
    """The cluster and tags that a stream must be placed by."""


class ExternalStream(Base, fields="api deliver?"):
    """A stream of another account or domain."""


class StreamConsumerSource(Base, fields="name deliver_subject"):
    """The consumer that reads a source."""


class SubjectTransform(Base, fields="src dest"):
    """A subject transform."""


class StreamSource(
    Base,
    fields="name opt_start_seq? opt_start_time?:t filter_subject? external?:ExternalStream "
    "subject_transforms?:SubjectTransform consumer?:StreamConsumerSource",
):
    """A mirror or source of a stream."""


class StreamSourceInfo(Base, fields="name lag? active? error?"):
    """The progress of a mirror or source."""


class LostStreamData(Base, fields="msgs? bytes?"):
    """The messages that a damaged stream has lost."""


class StreamState(
    Base,
    fields="messages bytes first_seq last_seq consumer_count deleted? num_deleted? lost?:LostStreamData subjects?",
):
    """The state of a stream."""


class RePublish(Base, fields="src? dest? headers_only?"):
    """Republishing of a stream's messages under another subject."""


class StreamConsumerLimits(Base, fields="inactive_threshold?:s max_ack_pending?"):
    """Limits of the consumers of a stream."""


class PeerInfo(Base, fields="name? current? offline? active? lag?"):
    """A server that has a replica."""


class ClusterInfo(Base, fields="leader? name? replicas?:PeerInfo raft_group? leader_since?:t traffic_acc?"):
    """The servers that have a stream or consumer."""


class SequenceInfo(Base, fields="consumer_seq stream_seq last_active?:t"):
    """A sequence in a consumer and its stream."""


class AccountLimits(
    Base,
    fields="max_memory max_storage max_streams max_consumers max_ack_pending memory_max_stream_bytes "
    "storage_max_stream_bytes max_bytes_required",
):
    """The limits of an account."""


class Tier(Base, fields="memory storage streams consumers limits:AccountLimits"):
    """The usage of an account for one number of replicas."""


class APIStats(Base, fields="total errors level?"):
    """The counters of API requests."""


class StreamPurgeRequest(Base, fields="seq? filter? keep?"):
    """The options of a purge."""


class ObjectLink(Base, fields="bucket name?"):
    """The target of a link."""


class ObjectMetaOptions(Base, fields="link?:ObjectLink max_chunk_size?"):
    """The storage options of an object."""


class PubAck(Base, fields="stream seq domain? duplicate? batch_id? batch_size? val?"):
    names: ClassVar[dict[str, str]] = {"batch_id": "batch", "batch_size": "count"}


class StreamConfig(
    Base,
    fields="name? description? subjects? retention? max_consumers? max_msgs? max_bytes? discard? "
    "discard_new_per_subject? max_age?:s0 max_msgs_per_subject? max_msg_size? storage? num_replicas? no_ack? "
    "template_owner? duplicate_window?:s0 placement?:Placement mirror?:StreamSource sources?:StreamSource sealed? "
    "deny_delete? deny_purge? allow_rollup_hdrs? first_seq? republish?:RePublish subject_transform?:SubjectTransform "
    "allow_direct? mirror_direct? compression? allow_msg_ttl? allow_msg_schedules? allow_atomic? allow_batched? "
    "allow_msg_counter? persist_mode? metadata? consumer_limits?:StreamConsumerLimits subject_delete_marker_ttl?:s",
    discard=DiscardPolicy.OLD,
    discard_new_per_subject=False,
    max_msgs_per_subject=-1,
    max_msg_size=-1,
    no_ack=False,
    duplicate_window=0,
    sealed=False,
    deny_delete=False,
    deny_purge=False,
    allow_rollup_hdrs=False,
):
    def as_dict(self) -> dict[str, Any]:
        if self.compression and self.compression not in tuple(StoreCompression):
            raise ValueError(f"nats: invalid store compression type: {self.compression}")
        if self.metadata and not isinstance(self.metadata, dict):
            raise ValueError("nats: invalid metadata format")
        sent = super().as_dict()
        if sent.get("subject_delete_marker_ttl", 0) <= 0:
            sent.pop("subject_delete_marker_ttl", None)  # 0 is refused, and says what leaving it out says
        return sent


class StreamInfo(
    Base,
    fields="config:StreamConfig state:StreamState mirror?:StreamSourceInfo sources?:StreamSourceInfo "
    "cluster?:ClusterInfo did_create? created?:t",
):
    """The configuration and state of a stream."""


class StreamsListIterator:
    def __init__(self, offset: int, total: int, streams: list[dict[str, Any]]) -> None:
        self.offset: int = offset
        self.total: int = total
        self.streams: list[dict[str, Any]] = streams
        self._left = iter(streams)

    def __iter__(self) -> Iterator[StreamInfo]:
        return self

    def __next__(self) -> StreamInfo:
        return StreamInfo.from_response(next(self._left))


class ConsumerConfig(
    Base,
    fields="name? durable_name? description? deliver_policy? opt_start_seq? opt_start_time?:t ack_policy? ack_wait?:s0 "
    "max_deliver? backoff?:s filter_subject? filter_subjects? replay_policy? rate_limit_bps? sample_freq? "
    "max_waiting? max_ack_pending? flow_control? idle_heartbeat?:s0 headers_only? deliver_subject? deliver_group? "
    "inactive_threshold?:s0 num_replicas? mem_storage? metadata? pause_until?",
    deliver_policy=DeliverPolicy.ALL,
    ack_policy=AckPolicy.EXPLICIT,
    replay_policy=ReplayPolicy.INSTANT,
):
    """The configuration of a consumer; with ``deliver_subject`` a push consumer."""


class ConsumerInfo(
    Base,
    fields="name stream_name config:ConsumerConfig created:t delivered?:SequenceInfo ack_floor?:SequenceInfo "
    "num_ack_pending? num_redelivered? num_waiting? num_pending? cluster?:ClusterInfo push_bound? paused? "
    "pause_remaining?",
):
    """The configuration and progress of a consumer."""


class ConsumerPause(Base, fields="paused pause_until? pause_remaining?"):
    """The pause state of a consumer."""


class ConsumerReset(Base, fields="info:ConsumerInfo reset_seq"):
    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> Self:
        return cls(info=ConsumerInfo.from_response(resp), reset_seq=resp["reset_seq"])


class AccountInfo(
    Base, fields="memory storage streams consumers limits:AccountLimits api:APIStats domain? tiers?:{Tier}"
):
    """The usage and limits of the account."""


class RawStreamMsg(Base, fields="subject? seq? data? hdrs? headers? stream? time?:t"):
    @property
    def sequence(self) -> int | None:
        return self.seq  # type: ignore[no-any-return]  # as all fields are

    @property
    def header(self) -> dict[str, str] | None:
        return self.headers  # type: ignore[no-any-return]  # as all fields are


class KeyValueConfig(
    Base,
    fields="bucket description? max_value_size? history? ttl?:s0 max_bytes? storage? replicas? placement?:Placement "
    "republish?:RePublish direct? limit_marker_ttl?:s",
    history=1,
    replicas=1,
):
    def as_dict(self) -> dict[str, Any]:
        """Return all fields except ``limit_marker_ttl``, which the bucket's stream has under another name."""
        sent = super().as_dict()
        sent.pop("limit_marker_ttl", None)
        return sent


class ObjectStoreConfig(
    Base, fields="bucket? description? ttl?:s0 max_bytes? storage? replicas? placement?:Placement", replicas=1
):
    """The configuration of an object store."""


class ObjectMeta(Base, fields="name? description? headers? options?:ObjectMetaOptions"):
    """The metadata of an object."""


class ObjectInfo(
    Base,
    fields="name bucket nuid size? mtime? chunks? digest? deleted? description? headers? options?:ObjectMetaOptions",
    deleted=False,
):
    @property
    def meta(self) -> ObjectMeta:
        return ObjectMeta(self.name, self.description, self.headers, self.options)

    def is_link(self) -> bool:
        return self.options is not None and self.options.link is not None
