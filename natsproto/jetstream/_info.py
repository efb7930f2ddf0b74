"""The replies of the JetStream API: the state of streams, consumers and accounts.

Owns the fields of the replies, with the server's names. Only types are checked; the fields of a newer server are kept
in ``extra``. Sequences and sizes are unsigned ints of up to 64 bits; durations are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from natsproto._nats_py_names import STREAM_INFO, explain_missing
from natsproto.errors import InvalidReply
from natsproto.jetstream._api_errors import api_error
from natsproto.jetstream._codec import (
    NEVER,
    Choice,
    Many,
    Moment,
    Record,
    Seconds,
    Strings,
    age,
    blob,
    choice,
    counts,
    decode,
    flag,
    instant,
    integer,
    integers,
    labels,
    many,
    moment,
    nested,
    optional,
    parse,
    records,
    seconds,
    strings,
    text,
)
from natsproto.jetstream._config import ConsumerConfig, ExternalStream, Placement, StreamConfig, SubjectTransform
from natsproto.jetstream._policies import RetentionPolicy, RetentionPolicyLike
from natsproto.jetstream._record import restored
from natsproto.jetstream._timestamp import Timestamp
from natsproto.protocol.frames import ServerInfo


def api_level(server: ServerInfo) -> int:
    """Return the level of a server's API. Server 2.11 does not report its level, which is 1."""
    return server.api_lvl or int(server.version.startswith("2.11."))


# ---------------------------------------------------------------- clusters


class PeerInfo(Record):
    """One server of a replicated stream or consumer; its last contact was ``active`` seconds ago, None for never."""

    name: str = text(default="")
    current: bool = flag(default=False)
    offline: bool = flag(default=False)
    active: float | None = age(default=None)
    lag: int = integer(default=0)
    peer: str = text(default="")
    pending: bool = flag(default=False)


class ReconfigurationOrigin(Record):
    """The state of a stream or consumer before the current reconfiguration."""

    replicas: int = integer(default=0)
    placement: Placement | None = optional(Placement, default=None)
    retention: Choice[RetentionPolicy, RetentionPolicyLike] = choice(RetentionPolicy, default=RetentionPolicy.LIMITS)


class ReconfigurationStatus(Record):
    """The status of a reconfiguration: ``type`` to match on, ``description`` to read."""

    description: str = text(default="")
    type: str = text(default="")
    err: str = text(default="")


class DesiredCluster(Record):
    """The future servers of a stream or consumer while it moves or scales."""

    name: str = text(default="")
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    origin: ReconfigurationOrigin | None = optional(ReconfigurationOrigin, default=None)
    status: ReconfigurationStatus | None = optional(ReconfigurationStatus, default=None)


class ClusterInfo(Record):
    """The servers of a stream or consumer. ``leader`` is "" for none; ``replicas`` are the other servers."""

    name: str = text(default="")
    raft_group: str = text(default="")
    leader: str = text(default="")
    leader_since: Moment = moment(default=None)
    system_account: bool = flag(default=False)
    traffic_account: str = text(default="")
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    desired: DesiredCluster | None = optional(DesiredCluster, default=None)


class ErrorInfo(Record):
    """An error that is reported in a field, not raised."""

    code: int = integer(default=0)
    err_code: int = integer(default=0)
    description: str = text(default="")


# ---------------------------------------------------------------- streams


class LostStreamData(Record):
    """Messages lost by the storage."""

    msgs: tuple[int, ...] = integers(default=())
    bytes: int = integer(default=0)


class StreamState(Record):
    """The state of a stream. The times are None when it is empty.

    ``subjects`` (messages by subject) and ``deleted`` (sequences) are filled only when asked for.
    """

    messages: int = integer(default=0)
    bytes: int = integer(default=0)
    first_seq: int = integer(default=0)
    first_ts: Moment = moment(default=None)
    last_seq: int = integer(default=0)
    last_ts: Moment = moment(default=None)
    num_subjects: int = integer(default=0)
    subjects: Mapping[str, int] = counts(default=None)
    num_deleted: int = integer(default=0)
    deleted: tuple[int, ...] = integers(default=())
    lost: LostStreamData | None = optional(LostStreamData, default=None)
    consumer_count: int = integer(default=0)


class StreamSourceInfo(Record):
    """The state of a mirror or source: ``lag`` in messages, last active ``active`` seconds ago (None: never)."""

    name: str = text(default="")
    external: ExternalStream | None = optional(ExternalStream, default=None)
    lag: int = integer(default=0)
    active: float | None = age(default=None)
    error: ErrorInfo | None = optional(ErrorInfo, default=None)
    filter_subject: str = text(default="")
    subject_transforms: Many[SubjectTransform] = many(SubjectTransform, default=())


class StreamAlternate(Record):
    """The stream itself or a mirror of it, the nearest first."""

    name: str = text(default="")
    domain: str = text(default="")
    cluster: str = text(default="")


class StreamInfo(Record):
    """The configuration and state of a stream. Only the reply to creating it has ``did_create``."""

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(STREAM_INFO)

    config: StreamConfig = nested(StreamConfig)
    created: Timestamp = instant(default=NEVER)
    state: StreamState = nested(StreamState, default=StreamState())
    domain: str = text(default="")
    cluster: ClusterInfo | None = optional(ClusterInfo, default=None)
    mirror: StreamSourceInfo | None = optional(StreamSourceInfo, default=None)
    sources: Many[StreamSourceInfo] = many(StreamSourceInfo, default=())
    alternates: Many[StreamAlternate] = many(StreamAlternate, default=())
    ts: Timestamp = instant(default=NEVER)
    did_create: bool = flag(default=False)

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.config.name


# ---------------------------------------------------------------- consumers


class SequenceInfo(Record):
    """A position: ``consumer_seq`` counts deliveries, ``stream_seq`` is the message's sequence."""

    consumer_seq: int = integer(default=0)
    stream_seq: int = integer(default=0)
    last_active: Moment = moment(default=None)


class PriorityGroupState(Record):
    """A priority group (ADR-42) and the client it is pinned to."""

    group: str = text(default="")
    pinned_client_id: str = text(default="")
    pinned_ts: Moment = moment(default=None)


class ConsumerInfo(Record):
    """The configuration and state of a consumer."""

    stream_name: str = text()
    name: str = text()
    created: Timestamp = instant(default=NEVER)
    config: ConsumerConfig = nested(ConsumerConfig, default=ConsumerConfig())
    delivered: SequenceInfo = nested(SequenceInfo, default=SequenceInfo())
    ack_floor: SequenceInfo = nested(SequenceInfo, default=SequenceInfo())
    num_ack_pending: int = integer(default=0)
    num_redelivered: int = integer(default=0)
    num_waiting: int = integer(default=0)
    num_pending: int = integer(default=0)
    cluster: ClusterInfo | None = optional(ClusterInfo, default=None)
    push_bound: bool = flag(default=False)
    paused: bool = flag(default=False)
    pause_remaining: Seconds = seconds(default=0.0)
    ts: Timestamp = instant(default=NEVER)
    priority_groups: Many[PriorityGroupState] = many(PriorityGroupState, default=())


class ConsumerReset(ConsumerInfo):
    """A consumer after its reset (ADR-60); the next message is at ``reset_seq`` or after it."""

    reset_seq: int = integer(default=0)


class ConsumerPause(Record):
    """The pause of a consumer: its end, and the remaining seconds."""

    paused: bool = flag(default=False)
    pause_until: Moment = moment(default=None)
    pause_remaining: Seconds = seconds(default=0.0)


# ---------------------------------------------------------------- the account


class AccountLimits(Record):
    """The limits of an account or tier; -1 is no limit, sizes are bytes."""

    max_memory: int = integer(default=0, low=-1)
    max_storage: int = integer(default=0, low=-1)
    max_streams: int = integer(default=0, low=-1)
    max_consumers: int = integer(default=0, low=-1)
    max_ack_pending: int = integer(default=0, low=-1)
    memory_max_stream_bytes: int = integer(default=0, low=-1)
    storage_max_stream_bytes: int = integer(default=0, low=-1)
    max_bytes_required: bool = flag(default=False)


class AccountTier(Record):
    """The usage of a tier."""

    memory: int = integer(default=0)
    storage: int = integer(default=0)
    reserved_memory: int = integer(default=0)
    reserved_storage: int = integer(default=0)
    streams: int = integer(default=0)
    consumers: int = integer(default=0)
    limits: AccountLimits = nested(AccountLimits, default=AccountLimits())


class ApiStats(Record):
    """Requests to the API of this account. ``level`` is the API level of the server, 0 before 2.11."""

    level: int = integer(default=0)
    total: int = integer(default=0)
    errors: int = integer(default=0)
    inflight: int = integer(default=0)


class AccountInfo(AccountTier):
    """The usage and limits of an account. With ``tiers`` (by name, "R1", "R3") the limits are theirs."""

    domain: str = text(default="")
    api: ApiStats = nested(ApiStats, default=ApiStats())
    tiers: Mapping[str, AccountTier] = records(AccountTier, default=None)


# ---------------------------------------------------------------- messages


class PubAck(Record):
    """The stream has the message. ``duplicate``: it had it before, as ``seq``.

    ``val`` is the new value of a counter, as decimal digits. ``batch`` and ``count`` close a batch: the id and the
    number of messages (of an atomic batch) or the highest batch sequence (of a fast-ingest one).
    """

    stream: str = text()
    seq: int = integer()
    domain: str = text(default="")
    duplicate: bool = flag(default=False)
    val: str = text(default="")
    batch: str = text(default="")
    count: int = integer(default=0)


PLAIN_ACK = re.compile(
    rb'\{"stream":"([^"\\]+)", ?(?:"domain":"([^"\\]+)", ?)?"seq": ?([0-9]{1,20})(, ?"duplicate": ?true)?\}'
)
"""The usual acknowledgement. Parsing it with this pattern takes 1.6 µs, as JSON 2.6."""


def pub_ack(data: bytes, operation: str = "") -> PubAck:
    """Return the acknowledgement in a reply to a publish. ApiError when it is an error, InvalidReply otherwise."""
    if plain := PLAIN_ACK.fullmatch(data):
        stream, domain, seq, duplicate = plain.groups()
        name, where = stream.decode("utf-8", "replace"), domain.decode("utf-8", "replace") if domain else ""
        return restored(PubAck, ({}, name, int(seq), where, duplicate is not None, "", "", 0))
    payload = parse(data, "PubAck")
    if "error" in payload:  # such a reply has a stream and a sequence too
        raise api_error(payload, operation)
    return decode_pub_ack(payload)


def decode_pub_ack(payload: dict[str, object]) -> PubAck:
    """Return the acknowledgement in a JSON object, or raise InvalidReply."""
    ack = decode(PubAck, payload)
    for name, number in (("seq", ack.seq), ("count", ack.count)):
        if number < 0:
            raise InvalidReply("PubAck", name, number, "must not be negative")
    return ack


class StoredMessage(Record):
    """A message in a reply of the API; ``hdrs`` is the raw header block."""

    subject: str = text()
    seq: int = integer()
    hdrs: bytes = blob(default=b"")
    data: bytes = blob(default=b"")
    time: Timestamp = instant(default=NEVER)


# ---------------------------------------------------------------- pages


class StreamNamesPage(Record):
    """Up to 1,024 names out of ``total``, from ``offset`` on."""

    total: int = integer(default=0)
    offset: int = integer(default=0)
    limit: int = integer(default=0)
    streams: Strings = strings(default=())


class StreamPage(Record):
    """Up to 256 of ``total`` streams; ``missing`` did not reply, ``offline`` has reasons by name."""

    total: int = integer(default=0)
    offset: int = integer(default=0)
    limit: int = integer(default=0)
    streams: Many[StreamInfo] = many(StreamInfo, default=())
    missing: Strings = strings(default=())
    offline: Mapping[str, str] = labels(default=None)


class ConsumerNamesPage(Record):
    """Up to 1,024 names out of ``total``, from ``offset`` on."""

    total: int = integer(default=0)
    offset: int = integer(default=0)
    limit: int = integer(default=0)
    consumers: Strings = strings(default=())


class ConsumerPage(Record):
    """Up to 256 of ``total`` consumers; ``missing`` did not reply, ``offline`` has reasons by name."""

    total: int = integer(default=0)
    offset: int = integer(default=0)
    limit: int = integer(default=0)
    consumers: Many[ConsumerInfo] = many(ConsumerInfo, default=())
    missing: Strings = strings(default=())
    offline: Mapping[str, str] = labels(default=None)


class SubjectsPage(Record):
    """The position of a page of up to 100,000 ``subjects`` in a stream's info."""

    total: int = integer(default=0)
    offset: int = integer(default=0)
    limit: int = integer(default=0)


# ---------------------------------------------------------------- small replies


class Done(Record):
    """The reply to a deletion, step-down or removal."""

    success: bool = flag(default=False)


class Purged(Done):
    """The number of messages that a purge removed."""

    purged: int = integer(default=0)


class SnapshotStarted(Record):
    """The configuration and state in a snapshot; restoring needs both."""

    config: StreamConfig = nested(StreamConfig)
    state: StreamState = nested(StreamState, default=StreamState())


class RestoreStarted(Record):
    """The subject to which the chunks of a snapshot are sent."""

    deliver_subject: str = text()


class AccountPurge(Record):
    """The reply to a purge of an account's assets: True if it has started (system account only)."""

    initiated: bool = flag(default=False)


class MetaRescue(Record):
    """One server's reply to a meta rescue: the old and the new quorum (system account only, 2.15)."""

    server: str = text(default="")
    server_id: str = text(default="")
    prev_quorum: int = integer(default=0)
    new_quorum: int = integer(default=0)
