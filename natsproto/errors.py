"""Every error natsproto raises.

Owns the hierarchy and nothing else. Constructors take facts (fields); the sentence is rendered from
them and says what can be done. Timeouts are also ``TimeoutError``, bad arguments also ``ValueError``,
missing keys also ``KeyError``. Foreign errors (``OSError``, ``ssl.SSLError`` …) are translated where
they enter and kept as ``__cause__``. ``asyncio.CancelledError`` is never wrapped.

::

    NatsError
    ├── ConfigError(ValueError)
    │   ├── InvalidSubject
    │   ├── InvalidHeader
    │   └── InvalidCredentials
    ├── ProtocolError
    │   ├── LocalProtocolError
    │   │   └── PayloadTooLarge
    │   └── RemoteProtocolError
    ├── Unavailable
    │   ├── ConnectFailed
    │   │   └── LoginRefused(NotAuthorized)
    │   ├── NotAuthorized
    │   ├── ConnectionLost
    │   │   └── StaleConnection
    │   ├── TlsFailed
    │   ├── ConnectionClosed
    │   └── OutboxFull
    ├── RequestTimeout(TimeoutError)
    │   └── DrainTimeout
    ├── NoResponders
    ├── InvalidPayload(ValueError)
    ├── SubscriptionClosed
    ├── SlowConsumer
    ├── ServerError
    │   ├── PermissionDenied
    │   └── TooManySubscriptions
    ├── UnsupportedByServer
    ├── JetStreamError
    │   ├── ApiError
    │   │   ├── BadRequest
    │   │   ├── BatchRefused
    │   │   ├── ConsumerExists
    │   │   ├── ConsumerNotFound
    │   │   ├── CounterRefused
    │   │   ├── InvalidConsumerConfig
    │   │   ├── InvalidStreamConfig
    │   │   ├── JetStreamNotEnabled
    │   │   ├── JetStreamUnavailable
    │   │   ├── LimitReached
    │   │   ├── MessageNotFound
    │   │   ├── MessageTooLarge
    │   │   ├── ScheduleRefused
    │   │   ├── StreamNameInUse
    │   │   ├── StreamNotFound
    │   │   ├── StreamProtected
    │   │   ├── SubjectsOverlap
    │   │   ├── TooManyRequests
    │   │   ├── TtlRefused
    │   │   └── WrongExpectation
    │   │       └── WrongLastSequence
    │   ├── AlreadyAcked
    │   ├── AlreadyBound
    │   ├── ConsumerGone
    │   ├── DataLost
    │   ├── DeliveryUnknown
    │   ├── GroupChanged
    │   ├── GroupNotFound
    │   ├── HeartbeatMissed
    │   ├── InvalidReply
    │   ├── NoStream
    │   ├── PublishFailed
    │   ├── PublishUncertain
    │   │   └── PublishTimeout(TimeoutError)
    │   └── PullRefused
    ├── KeyValueError
    │   ├── BucketNotFound(ObjectStoreError)
    │   ├── KeyNotFound(KeyError)
    │   │   └── KeyDeleted
    │   ├── LockLost
    │   └── WrongRevision
    │       └── KeyExists
    ├── ObjectStoreError
    │   ├── ObjectNotFound(KeyError)
    │   ├── ObjectExists
    │   ├── ObjectChanged
    │   ├── ObjectLinkError
    │   └── DigestMismatch
    └── ServiceError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

__all__ = [
    "AlreadyAcked",
    "AlreadyBound",
    "ApiError",
    "BadRequest",
    "BatchRefused",
    "BucketNotFound",
    "ConfigError",
    "ConnectFailed",
    "ConnectionClosed",
    "ConnectionLost",
    "ConsumerExists",
    "ConsumerGone",
    "ConsumerNotFound",
    "CounterRefused",
    "DataLost",
    "DeliveryUnknown",
    "DigestMismatch",
    "DrainTimeout",
    "FailedMessage",
    "GroupChanged",
    "GroupNotFound",
    "HeartbeatMissed",
    "InvalidConsumerConfig",
    "InvalidCredentials",
    "InvalidHeader",
    "InvalidPayload",
    "InvalidReply",
    "InvalidStreamConfig",
    "InvalidSubject",
    "JetStreamError",
    "JetStreamNotEnabled",
    "JetStreamUnavailable",
    "KeyDeleted",
    "KeyExists",
    "KeyNotFound",
    "KeyValueError",
    "LimitReached",
    "LocalProtocolError",
    "LockLost",
    "LoginRefused",
    "MessageNotFound",
    "MessageTooLarge",
    "NatsError",
    "NoResponders",
    "NoStream",
    "NotAuthorized",
    "ObjectChanged",
    "ObjectExists",
    "ObjectLinkError",
    "ObjectNotFound",
    "ObjectStoreError",
    "OutboxFull",
    "PayloadTooLarge",
    "PermissionDenied",
    "ProtocolError",
    "PublishFailed",
    "PublishTimeout",
    "PublishUncertain",
    "PullRefused",
    "RemoteProtocolError",
    "RequestTimeout",
    "ScheduleRefused",
    "ServerError",
    "ServiceError",
    "SlowConsumer",
    "StaleConnection",
    "StreamNameInUse",
    "StreamNotFound",
    "StreamProtected",
    "SubjectsOverlap",
    "SubscriptionClosed",
    "TlsFailed",
    "TooManyRequests",
    "TooManySubscriptions",
    "TtlRefused",
    "Unavailable",
    "UnsupportedByServer",
    "WrongExpectation",
    "WrongLastSequence",
    "WrongRevision",
]


class NatsError(Exception):
    """Base of everything natsproto raises on purpose. It survives pickling with its fields."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


# ---------------------------------------------------------------- arguments


class ConfigError(NatsError, ValueError):
    """An argument or option is wrong; nothing was sent."""

    what: str
    value: object
    rule: str

    def __init__(self, what: str, value: object, rule: str) -> None:
        self.what, self.value, self.rule = what, value, rule
        super().__init__(f"{what} {_shown(value)}: {rule}")


class InvalidSubject(ConfigError):
    """A subject, reply subject, queue group or other name breaks its rule (ADR-6); nothing was sent."""


class InvalidHeader(ConfigError):
    """A header name or value cannot be sent as it is (ADR-4); nothing was sent."""


class InvalidCredentials(ConfigError):
    """Credentials cannot be read or used. The value is never part of the message."""

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(what, HIDDEN, rule)
        if " file " in what:  # what is named is no secret
            self.args: tuple[str, ...] = (f"{what}: {rule}",)


# ---------------------------------------------------------------- protocol


class ProtocolError(NatsError):
    """One side broke the wire protocol."""


class LocalProtocolError(ProtocolError):
    """This side was asked for something the protocol or the server does not allow; nothing was sent."""


class PayloadTooLarge(LocalProtocolError):
    """The message, headers included, is bigger than the server accepts; nothing was sent."""

    size: int
    limit: int

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"message of {size} bytes (headers included); this server accepts {limit}: "
            "send it in pieces, put it into an object store, or raise the server's max_payload"
        )


class RemoteProtocolError(ProtocolError):
    """The server sent something that is not the NATS protocol; the connection is given up.

    ``position`` counts bytes from the start of the connection, ``excerpt`` holds the first bytes there.
    """

    reason: str
    position: int
    excerpt: bytes

    def __init__(self, reason: str, position: int = 0, excerpt: bytes = b"") -> None:
        self.reason, self.position, self.excerpt = reason, position, excerpt
        where = f" at byte {position}: {excerpt!r}" if excerpt else f" at byte {position}"
        super().__init__(f"{reason}{where}")


# ---------------------------------------------------------------- connection


class Unavailable(NatsError):
    """There is no usable connection to a server."""


class ConnectFailed(Unavailable):
    """No server of the pool could be connected to. ``attempts`` holds (address, cause) in order."""

    attempts: tuple[tuple[str, BaseException], ...]
    elapsed: float

    def __init__(self, attempts: Sequence[tuple[str, BaseException]], elapsed: float = 0.0) -> None:
        self.attempts, self.elapsed = tuple(attempts), elapsed
        causes = "; ".join(_cause_at(address, exc) for address, exc in self.attempts)
        super().__init__(f"no server could be connected to in {elapsed:.1f} s: {causes or 'the pool is empty'}")


class NotAuthorized(Unavailable):
    """The server refused or withdrew the credentials; ``reason`` is its own text."""

    reason: str
    server: str

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason, self.server = reason, server
        super().__init__(f"{server or 'the server'} refused the credentials: {reason}")


class LoginRefused(ConnectFailed, NotAuthorized):
    """Every server was reached and refused the credentials. ``attempts`` holds (address, cause), ``reason`` is the last
    server's text, ``anonymous`` whether no credentials were given.
    """

    server: str
    reason: str
    anonymous: bool

    def __init__(
        self, attempts: Sequence[tuple[str, NotAuthorized]], elapsed: float = 0.0, *, anonymous: bool = False
    ) -> None:
        super().__init__(attempts, elapsed)
        self.server, last = attempts[-1]
        self.reason, self.anonymous = last.reason, anonymous
        what = "a client without credentials" if anonymous else "the credentials"
        refusals = "; ".join(f"{server} refused {what}: {refusal.reason}" for server, refusal in attempts)
        give = ": give user and password, token, creds, nkey_seed, jwt or auth"
        self.args: tuple[str, ...] = (refusals + (give if anonymous else ""),)


class ConnectionLost(Unavailable):
    """The connection broke. For a call in flight the outcome is unknown unless it says otherwise."""

    reason: str
    server: str

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason, self.server = reason, server
        super().__init__(f"connection to {server} lost: {reason}" if server else f"connection lost: {reason}")


class StaleConnection(ConnectionLost):
    """Too many pings went unanswered; the peer is gone or frozen."""

    def __init__(self, outstanding: int, server: str = "") -> None:
        self.outstanding = outstanding
        super().__init__(f"{outstanding} pings unanswered", server)


class TlsFailed(Unavailable):
    """The TLS handshake did not succeed; nothing was sent in clear. ``reason`` says what to do."""

    reason: str
    server: str

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason, self.server = reason, server
        super().__init__(f"TLS with {server or 'the server'} failed: {reason}")


class ConnectionClosed(Unavailable):
    """The client was closed, by close(), drain() or a final refusal; connect anew to go on."""

    def __init__(self, doing: str = "") -> None:
        self.doing = doing
        super().__init__(f"{doing}: the connection is closed" if doing else "the connection is closed")


class OutboxFull(Unavailable):
    """The bound on bytes waiting for the connection is reached; this message was not taken."""

    waiting: int
    size: int
    limit: int

    def __init__(self, waiting: int, size: int, limit: int) -> None:
        self.waiting, self.size, self.limit = waiting, size, limit
        super().__init__(
            f"{waiting} bytes wait for the server, {size} more would pass the bound of {limit}: "
            "await publish() for back-pressure, wait for the reconnect, or raise outbox_limit"
        )


# ---------------------------------------------------------------- messaging


class RequestTimeout(NatsError, TimeoutError):
    """Nothing came in time. ``timeout`` is in seconds; whether the request was handled is unknown."""

    doing: str
    timeout: float

    def __init__(self, doing: str, timeout: float) -> None:
        self.doing, self.timeout = doing, timeout
        super().__init__(f"{doing}: no answer within {timeout:g} s")


class DrainTimeout(RequestTimeout):
    """drain() or close() ended at its deadline; ``left`` says what was not done."""

    left: tuple[str, ...]

    def __init__(self, doing: str, timeout: float, left: Sequence[str]) -> None:
        self.left = tuple(left)
        super().__init__(doing, timeout)
        self.args: tuple[str, ...] = (f"{doing}: not finished within {timeout:g} s; left undone: {'; '.join(left)}",)


class NoResponders(NatsError):
    """Nobody is subscribed to the subject, said the server at once; the request reached no one."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"nobody listens on {subject!r}")


class InvalidPayload(NatsError, ValueError):
    """A codec cannot make a payload of a value (nothing was sent), or a value of a payload.

    ``kind`` is the type wanted, ``reason`` says what is wrong and where.
    """

    doing: str
    kind: str
    reason: str

    def __init__(self, doing: str, kind: str, reason: str) -> None:
        self.doing, self.kind, self.reason = doing, kind, reason
        super().__init__(f"cannot {doing} {kind}: {reason}")


class SubscriptionClosed(NatsError):
    """The subscription has ended and everything it had received was delivered."""

    subject: str
    reason: str

    def __init__(self, subject: str, reason: str = "unsubscribed") -> None:
        self.subject, self.reason = subject, reason
        super().__init__(f"subscription on {subject!r} is closed: {reason}")


class SlowConsumer(NatsError):
    """A subscription was not read fast enough; ``dropped`` messages were lost in this episode."""

    subject: str
    dropped: int
    pending_msgs: int
    pending_bytes: int

    def __init__(self, subject: str, dropped: int, pending_msgs: int, pending_bytes: int) -> None:
        self.subject, self.dropped = subject, dropped
        self.pending_msgs, self.pending_bytes = pending_msgs, pending_bytes
        super().__init__(
            f"subscription on {subject!r} is too slow: {dropped} messages dropped with "
            f"{pending_msgs} messages ({pending_bytes} bytes) waiting"
        )


class ServerError(NatsError):
    """The server sent ``-ERR``; ``text`` is what it said, without the quotes."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"server error: {text}")


class PermissionDenied(ServerError):
    """The account may not publish to or subscribe to ``subject``."""

    operation: str
    subject: str
    queue: str

    def __init__(self, text: str, operation: str, subject: str, queue: str = "") -> None:
        self.operation, self.subject, self.queue = operation, subject, queue
        super().__init__(text)
        group = f" queue {queue!r}" if queue else ""
        self.args: tuple[str, ...] = (f"permission denied: {operation} {subject!r}{group}",)


class TooManySubscriptions(ServerError):
    """The client has as many subscriptions as the server allows; that on ``subject`` was refused."""

    subject: str
    queue: str

    def __init__(self, text: str, subject: str = "", queue: str = "") -> None:
        self.subject, self.queue = subject, queue
        super().__init__(text)
        if subject:
            told = f"subscription on {subject!r}{f' queue {queue!r}' if queue else ''} refused: {text}: end others"
            self.args: tuple[str, ...] = (f"{told}, share a wildcard, or raise the server's max_subscriptions",)


class UnsupportedByServer(NatsError):
    """The connected server lacks what was asked for (headers, TLS, a JetStream level …)."""

    what: str
    why: str

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}")


# ---------------------------------------------------------------- JetStream


class JetStreamError(NatsError):
    """Something is wrong with JetStream: the API refused, or streams, consumers and acknowledgements went astray."""


class ApiError(JetStreamError):
    """The JetStream API answered with an error.

    ``code`` is of the HTTP kind, ``err_code`` says exactly what (``natsproto.jetstream._api_errors.ErrCode`` names
    them all), ``description`` is the server's text and ``asked`` what it was asked for. Which subclass stands for
    which ``err_code`` is said in ``natsproto.jetstream._api_errors``; a code without one is a plain ApiError.
    """

    code: int
    err_code: int
    description: str
    asked: str

    advice: ClassVar[str] = ""

    def __init__(self, code: int, err_code: int, description: str, asked: str = "") -> None:
        self.code, self.err_code, self.description, self.asked = code, err_code, description, asked
        said = f"{asked}: {description}" if asked else description
        super().__init__(f"{said} (code {code}, err_code {err_code}){f': {self.advice}' if self.advice else ''}")


class BadRequest(ApiError):
    """The server could not read the request; an older server says so of fields it does not know."""


class BatchRefused(ApiError):
    """An atomic or fast-ingest batch was not taken (ADR-50); ``description`` says which rule it broke."""


class ConsumerExists(ApiError):
    """A consumer of this name exists with another configuration."""

    advice = "update it, or create it under another name"


class ConsumerNotFound(ApiError):
    """The stream has no consumer of this name (any more)."""


class CounterRefused(ApiError):
    """A counter message was not taken (ADR-49)."""


class InvalidConsumerConfig(ApiError):
    """The server does not accept this consumer configuration."""


class InvalidStreamConfig(ApiError):
    """The server does not accept this stream configuration."""


class JetStreamNotEnabled(ApiError):
    """JetStream is off, for this server or for this account."""

    advice = "enable it in the server's or the account's configuration, or give the domain that has it"


class JetStreamUnavailable(ApiError):
    """JetStream cannot answer now: no leader, no quorum, an offline asset. It may be asked again later."""


class LimitReached(ApiError):
    """A limit of the stream, the account or the server is reached."""


class MessageNotFound(ApiError):
    """The stream holds no such message."""


class MessageTooLarge(ApiError):
    """The message or its headers are bigger than the stream accepts."""


class ScheduleRefused(ApiError):
    """A scheduled message was not taken (ADR-51)."""


class StreamNameInUse(ApiError):
    """A stream of this name exists with another configuration."""

    advice = "update it, or create it under another name"


class StreamNotFound(ApiError):
    """There is no stream of this name in this account and domain."""


class StreamProtected(ApiError):
    """The stream is sealed, or denies deleting or purging."""


class SubjectsOverlap(ApiError):
    """Another stream of the account listens on some of these subjects already."""


class TooManyRequests(ApiError):
    """The server has more work in flight than it takes on (429); wait and publish again."""


class TtlRefused(ApiError):
    """The message's time to live is invalid, or the stream does not allow one (ADR-43)."""

    advice = "a TTL is at least one second, and the stream needs allow_msg_ttl (a key/value bucket: limit_marker_ttl)"


class WrongExpectation(ApiError):
    """The stream is not as the publisher expected it (stream name, last message id …); nothing was stored."""


class WrongLastSequence(WrongExpectation):
    """The last sequence of the stream or subject is not the expected one; nothing was stored.

    ``last`` is the real one where the server tells it (a replicated stream does not), else None.
    """

    last: int | None

    def __init__(self, code: int, err_code: int, description: str, asked: str = "") -> None:
        super().__init__(code, err_code, description, asked)
        number = description.rpartition(" ")[2]
        self.last = int(number) if number.isdecimal() else None


class AlreadyAcked(JetStreamError):
    """The message was acknowledged before; ``answer`` says how, ``subject`` names the message."""

    subject: str
    answer: str
    again: str

    def __init__(self, subject: str, answer: str, again: str) -> None:
        self.subject, self.answer, self.again = subject, answer, again
        super().__init__(f"message of {subject!r} was answered with {answer}; it cannot be answered with {again} too")


class AlreadyBound(JetStreamError):
    """Somebody else reads this push consumer: both would get every message."""

    stream: str
    consumer: str

    def __init__(self, stream: str, consumer: str) -> None:
        self.stream, self.consumer = stream, consumer
        super().__init__(
            f"push consumer {consumer!r} of stream {stream!r} has a reader already: "
            "give it a deliver_group to share its messages, or make another consumer"
        )


class ConsumerGone(JetStreamError):
    """Messages cannot be had from this consumer any more: it was deleted, or it is not what it was."""

    reason: str
    consumer: str
    stream: str

    def __init__(self, reason: str, consumer: str = "", stream: str = "") -> None:
        self.reason, self.consumer, self.stream = reason, consumer, stream
        of = f" of stream {stream!r}" if stream else ""
        super().__init__(f"consumer {consumer!r}{of}: {reason}" if consumer else reason)


class DataLost(JetStreamError):
    """Messages ``first`` to ``last`` of a stream were to be read, and some of them are gone; ``reason`` says how."""

    stream: str
    first: int
    last: int
    reason: str

    def __init__(self, stream: str, first: int, last: int, reason: str) -> None:
        self.stream, self.first, self.last, self.reason = stream, first, last, reason
        super().__init__(
            f"messages {first} to {last} of stream {stream!r} cannot all be read: {reason}; "
            "read without fail_on_data_loss to have what is left"
        )


class DeliveryUnknown(JetStreamError):
    """The server does not know that it delivered this message: it was restarted without what it had not written yet.

    It delivers the message again; acknowledge that delivery.
    """

    stream: str
    consumer: str
    consumer_seq: int
    last_known: int

    def __init__(self, stream: str, consumer: str, consumer_seq: int, last_known: int) -> None:
        self.stream, self.consumer = stream, consumer
        self.consumer_seq, self.last_known = consumer_seq, last_known
        super().__init__(
            f"consumer {consumer!r} of stream {stream!r} knows deliveries up to {last_known}, not {consumer_seq}: "
            "the server was restarted meanwhile, and delivers the message again"
        )


class GroupChanged(JetStreamError):
    """The partitioned consumer group is not what it was, or not what was asked for; ``reason`` says in what."""

    stream: str
    group: str
    reason: str

    def __init__(self, stream: str, group: str, reason: str) -> None:
        self.stream, self.group, self.reason = stream, group, reason
        super().__init__(f"consumer group {group!r} of stream {stream!r}: {reason}")


class GroupNotFound(JetStreamError):
    """There is no such partitioned consumer group of this kind (any more)."""

    stream: str
    group: str

    def __init__(self, stream: str, group: str) -> None:
        self.stream, self.group = stream, group
        super().__init__(f"stream {stream!r} has no consumer group {group!r} of this kind: create it")


class HeartbeatMissed(JetStreamError):
    """The server owed heartbeats and none came for ``silence`` seconds."""

    silence: float
    consumer: str

    def __init__(self, silence: float, consumer: str = "") -> None:
        self.silence, self.consumer = silence, consumer
        super().__init__(f"{f'consumer {consumer!r}' if consumer else 'the consumer'}: no sign for {silence:g} s")


class InvalidReply(JetStreamError):
    """What the server sent is not what this reply holds; ``path`` is the place in ``what``."""

    what: str
    path: str
    value: object
    rule: str

    def __init__(self, what: str, path: str, value: object, rule: str) -> None:
        self.what, self.path, self.value, self.rule = what, path, value, rule
        super().__init__(f"{what}{f'.{path}' if path else ''} {_shown(value)}: {rule}")


class NoStream(JetStreamError):
    """No stream listens on the subject; the message was stored nowhere.

    ``waited`` is for how many seconds it was tried because the message has an id; 0.0 without.
    """

    subject: str
    waited: float

    def __init__(self, subject: str, waited: float = 0.0) -> None:
        self.subject, self.waited = subject, waited
        tried = f" for {waited:g} s (a message with an id waits for an election; see retry_attempts)" if waited else ""
        super().__init__(
            f"no stream listens on {subject!r}{tried}: create one, check its subjects, or give the domain it is in"
        )


class PublishUncertain(JetStreamError):
    """Nobody said whether a stream has the message. ``reason`` is why.

    Published again with the same ``msg_id`` it is stored once, within the stream's ``duplicate_window``.
    """

    subject: str
    reason: str

    def __init__(self, subject: str, reason: str) -> None:
        self.subject, self.reason = subject, reason
        super().__init__(
            f"message to {subject!r}: {reason}; a stream may have it or not: publish it again with the same msg_id, "
            "which stores it once, or look there first"
        )


class PublishTimeout(PublishUncertain, TimeoutError):
    """No acknowledgement came within ``timeout`` seconds. Streams with ``no_ack`` never send one."""

    def __init__(self, subject: str, timeout: float) -> None:
        self.timeout = timeout
        super().__init__(
            subject,
            f"no acknowledgement within {timeout:g} s (a stream with no_ack never sends one: use nc.publish for it)",
        )


class FailedMessage(NamedTuple):
    """A message that a publisher could not get acknowledged."""

    number: int
    """Which of the publisher's messages it was, from 1."""
    subject: str
    size: int
    """Bytes of its payload."""
    error: NatsError


class PublishFailed(JetStreamError):
    """Some messages of a publisher were refused, or it is not known what became of them.

    ``failures`` lists them in the order in which they were published. The cause is the first one's error.
    """

    failures: tuple[FailedMessage, ...]

    def __init__(self, failures: Sequence[FailedMessage]) -> None:
        self.failures = tuple(failures)
        first = self.failures[0]
        more = f", and {len(self.failures) - 1} more" if len(self.failures) > 1 else ""
        super().__init__(f"message {first.number} to {first.subject!r} ({first.size} bytes): {first.error}{more}")


class PullRefused(JetStreamError):
    """The server refused a pull request for good; ``description`` is its text."""

    code: int
    description: str
    consumer: str

    def __init__(self, code: int, description: str, consumer: str = "") -> None:
        self.code, self.description, self.consumer = code, description, consumer
        super().__init__(f"{f'consumer {consumer!r}' if consumer else 'pull'}: {description} (status {code})")


# ---------------------------------------------------------------- key/value and object stores, services


class KeyValueError(NatsError):
    """Something is wrong with a key/value bucket."""


class ObjectStoreError(NatsError):
    """Something is wrong with an object store."""


class BucketNotFound(KeyValueError, ObjectStoreError):
    """There is no such key/value bucket or object store in this account and domain (any more).

    ``reason`` says why the stream of that name is none, where there is one.
    """

    bucket: str
    reason: str

    def __init__(self, bucket: str, reason: str = "") -> None:
        self.bucket, self.reason = bucket, reason
        hint = reason or "create it, or give the domain it is in"
        super().__init__(f"there is no bucket {bucket!r}: {hint}")


class KeyNotFound(KeyValueError, KeyError):
    """The bucket holds no such key, or not at the revision asked for."""

    bucket: str
    key: str
    revision: int | None

    def __init__(self, bucket: str, key: str, revision: int | None = None) -> None:
        self.bucket, self.key, self.revision = bucket, key, revision
        super().__init__(f"{self._where()}: not found")

    def _where(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"key {self.key!r}{at} in bucket {self.bucket!r}"

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class KeyDeleted(KeyNotFound):
    """The key was deleted or purged; ``revision`` is that of the deletion, ``operation`` says which."""

    def __init__(self, bucket: str, key: str, revision: int, operation: str = "DEL") -> None:
        super().__init__(bucket, key, revision)
        self.operation = operation
        self.args: tuple[str, ...] = (f"{self._where()}: {'purged' if operation == 'PURGE' else 'deleted'}",)


class LockLost(KeyValueError):
    """A lock is not held any more; somebody else may hold it. ``token`` is the one of the lost tenure."""

    bucket: str
    key: str
    token: int

    def __init__(self, bucket: str, key: str, token: int) -> None:
        self.bucket, self.key, self.token = bucket, key, token
        super().__init__(f"lock {key!r} in bucket {bucket!r} is lost (token {token}): what it guards is not ours now")


class WrongRevision(KeyValueError):
    """The key's last revision is not the expected one; nothing was written.

    ``actual`` is the real one where the server tells it, else None.
    """

    bucket: str
    key: str
    expected: int
    actual: int | None

    def __init__(self, bucket: str, key: str, expected: int, actual: int | None = None) -> None:
        self.bucket, self.key, self.expected, self.actual = bucket, key, expected, actual
        now = f", it is {actual}" if actual is not None else ""
        super().__init__(f"key {key!r} in bucket {bucket!r} is not at revision {expected}{now}: get it and try again")


class KeyExists(WrongRevision):
    """create() found a value under the key; nothing was written."""

    def __init__(self, bucket: str, key: str, actual: int | None = None) -> None:
        super().__init__(bucket, key, 0, actual)
        self.args: tuple[str, ...] = (f"key {key!r} in bucket {bucket!r} has a value already",)


class ObjectNotFound(ObjectStoreError, KeyError):
    """The store holds no object of this name, or it was deleted."""

    bucket: str
    name: str

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        super().__init__(f"object {name!r} in store {bucket!r}: not found")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class ObjectExists(ObjectStoreError):
    """The store holds an object of this name already; nothing was changed."""

    bucket: str
    name: str

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        super().__init__(f"object {name!r} in store {bucket!r}: exists; delete it first, or take another name")


class ObjectChanged(ObjectStoreError):
    """The object was replaced or deleted while it was read or changed; what was read of it is incomplete."""

    bucket: str
    name: str

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        super().__init__(f"object {name!r} in store {bucket!r}: was replaced or deleted meanwhile; begin again")


class ObjectLinkError(ObjectStoreError):
    """A link leads nowhere, or cannot be made; ``reason`` says why."""

    bucket: str
    name: str
    reason: str

    def __init__(self, bucket: str, name: str, reason: str) -> None:
        self.bucket, self.name, self.reason = bucket, name, reason
        super().__init__(f"object {name!r} in store {bucket!r}: {reason}")


class DigestMismatch(ObjectStoreError):
    """The bytes received are not those that were put; do not use them.

    ``reason`` says so when bytes or chunks are missing; ``actual`` is the digest of what came.
    """

    bucket: str
    name: str
    expected: str
    actual: str
    reason: str

    def __init__(self, bucket: str, name: str, expected: str, actual: str, reason: str = "") -> None:
        self.bucket, self.name, self.expected, self.actual, self.reason = bucket, name, expected, actual, reason
        damage = reason or f"digest {actual}, expected {expected}"
        super().__init__(f"object {name!r} in store {bucket!r} is damaged: {damage}")


class ServiceError(NatsError):
    """A service answered with an error; raised in a handler, it is the answer (ADR-32)."""

    code: int
    description: str

    def __init__(self, code: int, description: str) -> None:
        self.code, self.description = code, description
        super().__init__(f"{description} (code {code})")


def _rebuilt(kind: type[NatsError], args: tuple[object, ...], fields: dict[str, object]) -> NatsError:
    """An error from another process. Its constructor takes facts, not ``args``, so it is not called."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


HIDDEN = "(hidden)"
"""Given as the value of a ConfigError when the value may hold a secret."""


def _shown(value: object) -> str:
    """The value in at most 80 characters; what is hidden stays bare."""
    if value is HIDDEN:
        return HIDDEN
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _cause_at(address: str, exc: BaseException) -> str:
    """The cause with its address, which it may have told itself."""
    text = _cause(exc)
    return text if address in text else f"{address}: {text}"


def _cause(exc: BaseException) -> str:
    text = str(exc)
    return text if isinstance(exc, NatsError) and text else f"{type(exc).__name__}{': ' if text else ''}{text}"
