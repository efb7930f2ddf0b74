"""The replies of the JetStream API: the state of streams, consumers and accounts.

Owns the fields of the replies, with the server's names. Only types are checked; the fields of a newer server are kept
in ``extra``. Sequences and sizes are unsigned ints of up to 64 bits; durations are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from natsproto.errors import InvalidReply
from natsproto.jetstream._values.codec import (
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
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.config_parts import ExternalStream, Placement, SubjectTransform
from natsproto.jetstream._values.error_codes import api_error
from natsproto.jetstream._values.policies import RetentionPolicy, RetentionPolicyLike
from natsproto.jetstream._values.record import restored
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.frames import ServerInfo


def api_level(server: ServerInfo) -> int:
    """Return the level of a server's API. Server 2.11 does not report its level, which is 1."""
    return server.api_lvl or int(server.version.startswith("2.11."))


# ---------------------------------------------------------------- clusters


class PeerInfo(Record):
    """One server of a replicated stream or consumer; its last contact was ``active`` seconds ago, None for never."""

    name: str = text(default="")
    """``server_name`` of its configuration."""
    current: bool = flag(default=False)
    """True if it has all that the leader has."""
    offline: bool = flag(default=False)
    """True if the cluster has lost it."""
    active: float | None = age(default=None)
    """Seconds since its last contact with the leader; None: never."""
    lag: int = integer(default=0)
    """Operations that it is behind the leader."""
    peer: str = text(default="")
    """The id of the server, which stays when its name changes."""
    pending: bool = flag(default=False)
    """True while it is about to be added or removed."""


class ReconfigurationOrigin(Record):
    """The state of a stream or consumer before the current reconfiguration."""

    replicas: int = integer(default=0)
    """How many servers had it."""
    placement: Placement | None = optional(Placement, default=None)
    """Where it was to be; None: anywhere."""
    retention: Choice[RetentionPolicy, RetentionPolicyLike] = choice(RetentionPolicy, default=RetentionPolicy.LIMITS)
    """How a stream was to keep its messages; of a consumer without meaning."""


class ReconfigurationStatus(Record):
    """The status of a reconfiguration: ``type`` to match on, ``description`` to read."""

    description: str = text(default="")
    type: str = text(default="")
    err: str = text(default="")
    """The reason why it does not get on; "" while it does."""


class DesiredCluster(Record):
    """The future servers of a stream or consumer while it moves or scales."""

    name: str = text(default="")
    """The cluster it moves to."""
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    """The servers that will have it, with how far they are."""
    origin: ReconfigurationOrigin | None = optional(ReconfigurationOrigin, default=None)
    """The former state, to which it can be taken back."""
    status: ReconfigurationStatus | None = optional(ReconfigurationStatus, default=None)
    """How far the move is; None where the server does not say."""


class ClusterInfo(Record):
    """The servers of a stream or consumer. ``leader`` is "" for none; ``replicas`` are the other servers."""

    name: str = text(default="")
    """The ``name`` of the servers' cluster configuration."""
    raft_group: str = text(default="")
    """The name of the group of replicas in the server's logs and monitoring."""
    leader: str = text(default="")
    """The server that takes messages; "": none at the moment."""
    leader_since: Moment = moment(default=None)
    """Since when it has been the leader (server 2.12); None: not reported."""
    system_account: bool = flag(default=False)
    """True if replicas are kept up to date in the system account."""
    traffic_account: str = text(default="")
    """The account that carries the traffic between replicas."""
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    desired: DesiredCluster | None = optional(DesiredCluster, default=None)
    """The servers that it moves to; None: it does not move."""


class ErrorInfo(Record):
    """An error that is reported in a field, not raised."""

    code: int = integer(default=0)
    """The kind of the error, as in HTTP: 404, 503."""
    err_code: int = integer(default=0)
    """The number of the server's error, which does not change between versions."""
    description: str = text(default="")
    """The server's words, which may change between versions."""


# ---------------------------------------------------------------- streams


class LostStreamData(Record):
    """Messages lost by the storage."""

    msgs: tuple[int, ...] = integers(default=())
    """The sequences that are gone."""
    bytes: int = integer(default=0)
    """Their size, with subjects and headers."""


class StreamState(Record):
    """The state of a stream. The times are None when it is empty.

    ``subjects`` (messages by subject) and ``deleted`` (sequences) are filled only when asked for.
    """

    messages: int = integer(default=0)
    """How many messages there are now."""
    bytes: int = integer(default=0)
    """Their size, with subjects, headers and overhead."""
    first_seq: int = integer(default=0)
    """The sequence of the oldest message; in an empty stream the next one."""
    first_ts: Moment = moment(default=None)
    """When it was stored; None: the stream is empty."""
    last_seq: int = integer(default=0)
    """The sequence of the newest message, also if it was deleted since."""
    last_ts: Moment = moment(default=None)
    """When it was stored; None: there was none."""
    num_subjects: int = integer(default=0)
    """How many subjects have messages."""
    subjects: Mapping[str, int] = counts(default=None)
    """Messages by subject, only with ``subjects_filter``."""
    num_deleted: int = integer(default=0)
    """Messages between first and last that were deleted."""
    deleted: tuple[int, ...] = integers(default=())
    """Their sequences, only with ``deleted_details``."""
    lost: LostStreamData | None = optional(LostStreamData, default=None)
    """Messages that the storage has lost; None: none."""
    consumer_count: int = integer(default=0)
    """How many consumers the stream has."""


class StreamSourceInfo(Record):
    """The state of a mirror or source: ``lag`` in messages, last active ``active`` seconds ago (None: never)."""

    name: str = text(default="")
    """The stream that is copied."""
    external: ExternalStream | None = optional(ExternalStream, default=None)
    """The API of another account or domain that it is read through; None: this one."""
    lag: int = integer(default=0)
    """Messages of the origin that are not copied yet."""
    active: float | None = age(default=None)
    """Seconds since the last message or heartbeat of the origin; None: never."""
    error: ErrorInfo | None = optional(ErrorInfo, default=None)
    """Why it cannot be copied; None: it can."""
    filter_subject: str = text(default="")
    """Only messages of these subjects are copied; "": all."""
    subject_transforms: Many[SubjectTransform] = many(SubjectTransform, default=())
    """Which subjects are copied, and what they become here."""


class StreamAlternate(Record):
    """The stream itself or a mirror of it, the nearest first."""

    name: str = text(default="")
    domain: str = text(default="")
    """The JetStream domain it is in; "" for none."""
    cluster: str = text(default="")
    """The cluster whose servers have it."""


class StreamInfo(Record):
    """The configuration and state of a stream. Only the reply to creating it has ``did_create``."""

    config: StreamConfig = nested(StreamConfig)
    """The configuration in use, with the server's values for fields that were left out."""
    created: Timestamp = instant(default=NEVER)
    """When the stream was created, by the clock of the server."""
    state: StreamState = nested(StreamState, default=StreamState())
    """Its messages, as the leader counted them when it answered."""
    domain: str = text(default="")
    """Its JetStream domain; "": none."""
    cluster: ClusterInfo | None = optional(ClusterInfo, default=None)
    """Its replicas; None: a server that is in no cluster."""
    mirror: StreamSourceInfo | None = optional(StreamSourceInfo, default=None)
    """How far it follows its origin; None: it is no mirror."""
    sources: Many[StreamSourceInfo] = many(StreamSourceInfo, default=())
    """How far it follows each of its sources."""
    alternates: Many[StreamAlternate] = many(StreamAlternate, default=())
    """The stream and its mirrors, the nearest first; direct gets may use any."""
    ts: Timestamp = instant(default=NEVER)
    """When the server made this report."""
    did_create: bool = flag(default=False)
    """True if the request has created it; it was there before otherwise."""

    @property
    def name(self) -> str:
        """``config.name``, for short."""
        return self.config.name


# ---------------------------------------------------------------- consumers


class SequenceInfo(Record):
    """A position: ``consumer_seq`` counts deliveries, ``stream_seq`` is the message's sequence."""

    consumer_seq: int = integer(default=0)
    """How many deliveries there were up to here, redeliveries included."""
    stream_seq: int = integer(default=0)
    """The sequence of the message in the stream."""
    last_active: Moment = moment(default=None)
    """When that was; None: never."""


class PriorityGroupState(Record):
    """A priority group (ADR-42) and the client it is pinned to."""

    group: str = text(default="")
    """One of the consumer's ``priority_groups``."""
    pinned_client_id: str = text(default="")
    """The pin that the server gave to the client; "": no client is pinned."""
    pinned_ts: Moment = moment(default=None)
    """When it was pinned."""


class ConsumerInfo(Record):
    """The configuration and state of a consumer."""

    stream_name: str = text()
    name: str = text()
    created: Timestamp = instant(default=NEVER)
    """When the consumer was created, by the clock of the server."""
    config: ConsumerConfig = nested(ConsumerConfig, default=ConsumerConfig())
    """The configuration in use, with the server's values for fields that were left out."""
    delivered: SequenceInfo = nested(SequenceInfo, default=SequenceInfo())
    """The last delivery."""
    ack_floor: SequenceInfo = nested(SequenceInfo, default=SequenceInfo())
    """The last message up to which all are acknowledged."""
    num_ack_pending: int = integer(default=0)
    """Deliveries that wait for their acknowledgement; at ``max_ack_pending`` the consumer stops."""
    num_redelivered: int = integer(default=0)
    """Messages that wait for their acknowledgement and were delivered more than once."""
    num_waiting: int = integer(default=0)
    """Pulls that wait for messages."""
    num_pending: int = integer(default=0)
    """Messages of the stream that match and were not delivered yet: the backlog."""
    cluster: ClusterInfo | None = optional(ClusterInfo, default=None)
    """The servers that have it; None: a server without a cluster."""
    push_bound: bool = flag(default=False)
    """True if a push consumer has a subscriber."""
    paused: bool = flag(default=False)
    """True while ``pause_until`` is in the future."""
    pause_remaining: Seconds = seconds(default=0.0)
    """Seconds until it goes on; 0: it is not paused."""
    ts: Timestamp = instant(default=NEVER)
    """When the server made this report."""
    priority_groups: Many[PriorityGroupState] = many(PriorityGroupState, default=())
    """To which client each group is pinned; empty without ``priority_policy``."""


class ConsumerReset(ConsumerInfo):
    """A consumer after its reset (ADR-60); the next message is at ``reset_seq`` or after it."""

    reset_seq: int = integer(default=0)
    """Messages with this sequence or a higher one are delivered from now on."""


class ConsumerPause(Record):
    """The pause of a consumer: its end, and the remaining seconds."""

    paused: bool = flag(default=False)
    """True until the pause is over; False too if ``pause_until`` was in the past."""
    pause_until: Moment = moment(default=None)
    """Until when it is paused; None: it is not."""
    pause_remaining: Seconds = seconds(default=0.0)
    """Seconds until then; 0: it is not paused."""


# ---------------------------------------------------------------- the account


class AccountLimits(Record):
    """The limits of an account or tier; -1 is no limit, sizes are bytes."""

    max_memory: int = integer(default=0, low=-1)
    """Bytes of all streams in memory."""
    max_storage: int = integer(default=0, low=-1)
    """Bytes of all streams on disk."""
    max_streams: int = integer(default=0, low=-1)
    """How many streams; buckets and object stores are streams, too."""
    max_consumers: int = integer(default=0, low=-1)
    """How many consumers of one stream."""
    max_ack_pending: int = integer(default=0, low=-1)
    """The most that a consumer may set as ``max_ack_pending``."""
    memory_max_stream_bytes: int = integer(default=0, low=-1)
    """The most bytes of one stream in memory."""
    storage_max_stream_bytes: int = integer(default=0, low=-1)
    """The most bytes of one stream on disk."""
    max_bytes_required: bool = flag(default=False)
    """True if every stream must have a ``max_bytes``."""


class AccountTier(Record):
    """The usage of a tier."""

    memory: int = integer(default=0)
    """Bytes of streams in memory."""
    storage: int = integer(default=0)
    """Bytes of streams on disk."""
    reserved_memory: int = integer(default=0)
    """Bytes that streams in memory may have together, by their ``max_bytes``."""
    reserved_storage: int = integer(default=0)
    """Bytes that streams on disk may have together, by their ``max_bytes``."""
    streams: int = integer(default=0)
    """How many streams have this number of replicas."""
    consumers: int = integer(default=0)
    """How many consumers these streams have."""
    limits: AccountLimits = nested(AccountLimits, default=AccountLimits())
    """The limits of this tier; an account with tiers has none of its own."""


class ApiStats(Record):
    """Requests to the API of this account. ``level`` is the API level of the server, 0 before 2.11."""

    level: int = integer(default=0)
    """The level of the server's API; 0: before 2.11, 1: 2.11, 2: 2.12, 4: 2.14, 5: 2.15."""
    total: int = integer(default=0)
    """Requests since the servers were started."""
    errors: int = integer(default=0)
    """Requests that were refused or failed since then."""
    inflight: int = integer(default=0)
    """Requests that wait for their turn."""


class AccountInfo(AccountTier):
    """The usage and limits of an account. With ``tiers`` (by name, "R1", "R3") the limits are theirs."""

    domain: str = text(default="")
    """The JetStream domain; "": none."""
    api: ApiStats = nested(ApiStats, default=ApiStats())
    """Requests to the JetStream API that the servers have counted."""
    tiers: Mapping[str, AccountTier] = records(AccountTier, default=None)
    """Usage and limits by the number of replicas, "R1" and "R3", if the account has such limits."""


# ---------------------------------------------------------------- messages


class PubAck(Record):
    """The stream has the message. ``duplicate``: it had it before, as ``seq``.

    ``val`` is the new value of a counter, as decimal digits. ``batch`` and ``count`` close a batch: the id and the
    number of messages (of an atomic batch) or the highest batch sequence (of a fast-ingest one).
    """

    stream: str = text()
    """The stream that has stored it."""
    seq: int = integer()
    """Where it is in the stream; with ``duplicate``, where the first one is."""
    domain: str = text(default="")
    """The JetStream domain of the stream; "": none."""
    duplicate: bool = flag(default=False)
    """True if the stream had a message with this id within its ``duplicate_window``, and has not stored another."""
    val: str = text(default="")
    """The new value of a counter, as decimal digits; "": it is no counter."""
    batch: str = text(default="")
    """The id of the batch that this acknowledgement ends; "": none."""
    count: int = integer(default=0)
    """Messages of that batch, or the highest batch sequence with fast ingest; 0: no batch."""


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


class SnapshotReply(Record):
    """The configuration and state in a snapshot; restoring needs both."""

    config: StreamConfig = nested(StreamConfig)
    state: StreamState = nested(StreamState, default=StreamState())


class RestoreReply(Record):
    """The subject to which the chunks of a snapshot are sent."""

    deliver_subject: str = text()
    """Where to send the chunks; each one is acknowledged."""


class AccountPurge(Record):
    """The reply to a purge of an account's assets: True if it has started (system account only)."""

    initiated: bool = flag(default=False)


class MetaRescue(Record):
    """One server's reply to a meta rescue: the old and the new quorum (system account only, 2.15)."""

    server: str = text(default="")
    """``server_name`` of the one that answered."""
    server_id: str = text(default="")
    """Its public key."""
    prev_quorum: int = integer(default=0)
    """Servers that had to agree before."""
    new_quorum: int = integer(default=0)
    """Servers that have to agree from now on."""
