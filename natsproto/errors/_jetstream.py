"""Errors of JetStream: errors from its API, and of streams, consumers and acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from natsproto.errors._base import AlreadyExists, NatsError, NotFound, RequestTimeout, Transience, Unavailable, shown


class JetStreamError(NatsError):
    """Base of errors of JetStream: of its API, streams, consumers and acknowledgements."""


_WORK_QUEUE_ADVICE = "use one consumer for all workers, or give each a filter_subject that no other one has"
_INCOMPLETE_ADVICE = "all its messages must arrive, and be for one stream: check their subjects"
_ADVICE = {10099: _WORK_QUEUE_ADVICE, 10100: _WORK_QUEUE_ADVICE, 10176: _INCOMPLETE_ADVICE}
"""The advice by ``err_code``, for errors whose class has none."""


class ApiError(JetStreamError):
    """The JetStream API replied with an error.

    ``code`` is an HTTP-like status, ``err_code`` the exact reason (a number that nats-server lists in its errors.json),
    ``description`` the text of the server and ``operation`` the request. Codes with a subclass raise that; others
    raise a plain ApiError.
    """

    code: int
    err_code: int
    description: str
    operation: str

    advice: ClassVar[str] = ""

    def __init__(self, code: int, err_code: int, description: str, operation: str = "") -> None:
        self.code, self.err_code, self.description, self.operation = code, err_code, description, operation
        said = f"{operation}: {description}" if operation else description
        advice = self.advice or _ADVICE.get(err_code)
        super().__init__(f"{said} (code {code}, err_code {err_code}){f': {advice}' if advice else ''}")


class BadRequest(ApiError):
    """The server cannot read the request; older servers reject unknown fields with it."""


class BatchRefused(ApiError):
    """The server rejected an atomic or fast-ingest batch (ADR-50); ``description`` names the rule it broke."""


class ConsumerExists(ApiError, AlreadyExists):
    """A consumer of this name exists with another configuration.

    ``deliver_subject`` is that of the existing consumer if it is a push consumer and a pull consumer was asked for.
    ``differences`` names the other fields, such as "max_deliver is 3, not 5". Both are empty if the existing consumer
    could not be looked up.
    """

    deliver_subject: str
    differences: tuple[str, ...]

    advice = "update it, or create it under another name"

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        operation: str = "",
        deliver_subject: str = "",
        differences: Sequence[str] = (),
    ) -> None:
        self.deliver_subject, self.differences = deliver_subject, tuple(differences)
        if deliver_subject:
            description += (
                f", as a push consumer (deliver_subject {deliver_subject!r}), which cannot become a pull consumer"
            )
            advice = "open it with push_consumer(name), or create one under another name"
        elif differences:
            description += f", with {', '.join(differences)}"
        super().__init__(code, err_code, description, operation)
        if deliver_subject:
            self.args: tuple[str, ...] = (self.args[0].replace(self.advice, advice),)


class ConsumerNotFound(ApiError, NotFound):
    """The stream has no consumer of this name, or no longer.

    ``existing`` has at most ten names of consumers that exist, if they were looked up.
    """

    existing: tuple[str, ...] = ()

    def __init__(
        self, code: int, err_code: int, description: str, operation: str = "", existing: Sequence[str] = ()
    ) -> None:
        self.existing = tuple(existing[:10])
        super().__init__(code, err_code, description, operation)
        if existing:
            others = f" and {len(existing) - 10} more" if len(existing) > 10 else ""
            names = ", ".join(map(repr, self.existing))
            self.args: tuple[str, ...] = (f"{self.args[0]}: the stream has {names}{others}",)


class CounterRefused(ApiError):
    """The server rejected a counter message (ADR-49)."""


class InvalidConsumerConfig(ApiError):
    """The server rejected the consumer configuration."""


class InvalidStreamConfig(ApiError):
    """The server rejected the stream configuration."""


class JetStreamNotEnabled(ApiError):
    """JetStream is disabled for the server or the account."""

    _transience = Transience.OUTAGE
    _means_absent = True

    advice = "enable it for the server and the account, or pass the domain of another JetStream"


class JetStreamUnavailable(ApiError):
    """JetStream is temporarily unavailable: no leader, no quorum, or an offline asset. Retry later."""

    _transience = Transience.ELECTION


class LimitReached(ApiError):
    """A limit of the stream, the account or the server is reached."""


class MessageNotFound(ApiError, NotFound):
    """The stream holds no such message."""


class MessageTooLarge(ApiError):
    """The message or its headers exceed the limit of the stream."""


class ScheduleRefused(ApiError):
    """The server rejected a scheduled message (ADR-51)."""


class StreamExists(ApiError, AlreadyExists):
    """A stream of this name exists with another configuration.

    ``differences`` names the fields that differ, such as "max_msgs is 10, not 5"; empty if it could not be looked up.
    """

    advice = "update it, or create it under another name"
    differences: tuple[str, ...]

    def __init__(
        self, code: int, err_code: int, description: str, operation: str = "", differences: Sequence[str] = ()
    ) -> None:
        self.differences = tuple(differences)
        if differences:
            description += f", with {', '.join(differences)}"
        super().__init__(code, err_code, description, operation)


class StreamNotFound(ApiError, NotFound):
    """There is no stream of this name in this account and domain."""

    advice = "create it, or pass its domain"


class StreamProtected(ApiError):
    """The stream is sealed, or denies deleting or purging."""


class SubjectsOverlap(ApiError):
    """Another stream of the account has some of these subjects.

    ``stream`` is its name and ``subject`` the first one of yours that overlaps; empty if they could not be looked up.
    """

    stream: str
    subject: str

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        operation: str = "",
        stream: str = "",
        subject: str = "",
    ) -> None:
        self.stream, self.subject = stream, subject
        if stream:
            description += f": {subject!r} with those of stream {stream!r}"
        super().__init__(code, err_code, description, operation)


class TooManyRequests(ApiError):
    """The server has too many pending requests (429); wait and publish again."""

    _transience = Transience.ELECTION


class TtlRefused(ApiError):
    """The message's time to live is invalid, or the stream does not allow one (ADR-43)."""

    advice = "use a TTL of at least one second, and set allow_msg_ttl on the stream (limit_marker_ttl on a bucket)"

    def __init__(self, code: int, err_code: int, description: str, operation: str = "", bucket: str = "") -> None:
        super().__init__(code, err_code, description, operation)
        if bucket:
            advice = f"a TTL needs a limit_marker_ttl: js.update_key_value({bucket!r}, limit_marker_ttl=60)"
            self.args: tuple[str, ...] = (self.args[0].replace(self.advice, advice),)


class WrongExpectation(ApiError):
    """An expectation of the publisher does not hold (stream name, last message id …); nothing was stored."""


class WrongLastSequence(WrongExpectation):
    """The last sequence of the stream or subject differs from the expected one; nothing was stored.

    ``last`` is the actual sequence, or None if the server does not report it (replicated streams do not).
    """

    last: int | None

    def __init__(self, code: int, err_code: int, description: str, operation: str = "") -> None:
        super().__init__(code, err_code, description, operation)
        number = description.rpartition(" ")[2]
        self.last = int(number) if number.isdecimal() else None


class AlreadyAcked(JetStreamError):
    """The message was acknowledged already, with ``first_ack``; ``second_ack`` was not sent."""

    subject: str
    """Where the message was published to."""
    first_ack: str
    second_ack: str

    def __init__(self, subject: str, first_ack: str, second_ack: str) -> None:
        self.subject, self.first_ack, self.second_ack = subject, first_ack, second_ack
        super().__init__(f"message of {subject!r} was already acknowledged with {first_ack}: {second_ack} was not sent")


class AlreadyBound(JetStreamError):
    """The push consumer is bound to another subscriber; both would get every message."""

    stream: str
    consumer: str

    def __init__(self, stream: str, consumer: str) -> None:
        self.stream, self.consumer = stream, consumer
        super().__init__(
            f"push consumer {consumer!r} of stream {stream!r} is already bound to a subscriber: "
            "set a deliver_group to share its messages, or create another consumer"
        )


class ConsumerGone(JetStreamError):
    """The consumer delivers no more messages: it was deleted, or changed incompatibly."""

    reason: str
    """The server's words, such as ``Consumer Deleted``."""
    consumer: str
    stream: str

    def __init__(self, reason: str, consumer: str = "", stream: str = "") -> None:
        self.reason, self.consumer, self.stream = reason, consumer, stream
        super().__init__(f"{_consumer(consumer, stream)}: {reason}" if consumer else reason)


class ConsumerDeleted(ConsumerGone, ConsumerNotFound):
    """The consumer delivers no more messages: it was deleted, which the server said with this ``reason``."""

    code: int
    """Always 404."""
    err_code: int
    """Always 10014, that of a consumer that is not found."""
    description: str
    """The same as ``reason``."""
    operation: str
    """Always "": no request of yours failed."""
    reason: str
    consumer: str
    stream: str

    def __init__(self, reason: str, consumer: str = "", stream: str = "") -> None:
        self.code, self.err_code = 404, 10014
        self.description, self.operation = reason, ""
        self.reason, self.consumer, self.stream = reason, consumer, stream
        NatsError.__init__(self, f"{_consumer(consumer, stream)}: {reason}" if consumer else reason)


class DataLost(JetStreamError):
    """Some of the messages ``first`` to ``last`` of a stream are gone before they were read; ``reason`` says why."""

    stream: str
    first: int
    last: int
    reason: str

    def __init__(self, stream: str, first: int, last: int, reason: str) -> None:
        self.stream, self.first, self.last, self.reason = stream, first, last, reason
        super().__init__(
            f"messages {first} to {last} of stream {stream!r} cannot all be read: {reason}; "
            "turn off fail_on_data_loss to read the rest"
        )


class DeliveryUnknown(JetStreamError):
    """The server has lost its record of this delivery in a restart.

    It delivers the message again; acknowledge that delivery.
    """

    stream: str
    consumer: str
    consumer_seq: int
    """The number of the delivery that was to be acknowledged."""
    last_known: int
    """The last delivery that the restarted server knows of."""

    def __init__(self, stream: str, consumer: str, consumer_seq: int, last_known: int) -> None:
        self.stream, self.consumer = stream, consumer
        self.consumer_seq, self.last_known = consumer_seq, last_known
        super().__init__(
            f"consumer {consumer!r} of stream {stream!r} has no record of delivery {consumer_seq}, only up to "
            f"{last_known}: the server was restarted, and delivers the message again"
        )


class GroupChanged(JetStreamError):
    """The partitioned consumer group was changed, or differs from the requested one; ``reason`` says how."""

    stream: str
    group: str
    reason: str

    def __init__(self, stream: str, group: str, reason: str) -> None:
        self.stream, self.group, self.reason = stream, group, reason
        super().__init__(f"consumer group {group!r} of stream {stream!r}: {reason}")


class GroupNotFound(JetStreamError, NotFound):
    """The stream has no partitioned consumer group of this name and kind, or no longer."""

    stream: str
    group: str

    def __init__(self, stream: str, group: str) -> None:
        self.stream, self.group = stream, group
        super().__init__(f"stream {stream!r} has no consumer group {group!r} of this kind: create it")


class HeartbeatMissed(JetStreamError):
    """No heartbeat came from the server for ``silence`` seconds."""

    _transience = Transience.OUTAGE

    silence: float
    consumer: str
    """Its name; "" where it has none yet."""
    stream: str
    """Its stream; "" where the consumer has no name yet."""

    def __init__(self, silence: float, consumer: str = "", stream: str = "") -> None:
        self.silence, self.consumer, self.stream = silence, consumer, stream
        what = _consumer(consumer, stream) if consumer else "the consumer"
        super().__init__(f"{what}: no heartbeat for {silence:g} s")


class InvalidReply(JetStreamError):
    """A field of a server reply has an unexpected type or value; ``path`` is its place in ``reply``."""

    reply: str
    path: str
    value: object
    """The value that the server sent there."""
    rule: str
    """The rule that the value breaks."""

    def __init__(self, reply: str, path: str, value: object, rule: str) -> None:
        self.reply, self.path, self.value, self.rule = reply, path, value, rule
        super().__init__(f"{reply}{f'.{path}' if path else ''} {shown(value)}: {rule}")


class NoStream(JetStreamError):
    """No stream has the subject; the message was not stored.

    ``waited`` is the number of seconds spent on retries, which need a message id; 0.0 without.
    """

    _transience = Transience.ELECTION
    _means_absent = True

    subject: str
    """Where the message was published to."""
    waited: float

    def __init__(self, subject: str, waited: float = 0.0) -> None:
        self.subject, self.waited = subject, waited
        tried = f" after retries for {waited:g} s (see retry_attempts)" if waited else ""
        super().__init__(
            f"no stream has the subject {subject!r}{tried}: create one, check its subjects, pass its domain, "
            "or enable JetStream if it is off"
        )


class StreamUnavailable(NoStream, Unavailable):
    """A bucket or store has no leader, as in an election or after the loss of its servers; nothing was stored."""

    _means_absent = False

    resource: str
    """The bucket or store, in words: bucket 'orders'."""
    subject: str
    """Where the message was published to."""
    waited: float
    """Seconds spent on retries."""

    def __init__(self, resource: str, subject: str, waited: float) -> None:
        self.resource, self.subject, self.waited = resource, subject, waited
        tried = f" after {waited:g} s" if waited else ""
        NatsError.__init__(
            self,
            f"{resource} has no leader{tried}, so nothing was stored: its servers elect one, or are down; try again, "
            "or raise timeout=",
        )


class PublishUncertain(JetStreamError):
    """The stream may or may not have stored the message, for this ``reason``.

    Publishing it again with the same ``msg_id`` stores it once, within the stream's ``duplicate_window``.
    """

    _transience = Transience.OUTAGE

    subject: str
    """Where the message was published to."""
    reason: str

    def __init__(self, subject: str, reason: str) -> None:
        self.subject, self.reason = subject, reason
        NatsError.__init__(self, _uncertain(subject, reason))


class StreamWentBack(JetStreamError):
    """The stream stored the message, but under a sequence that it had given before: it has lost acknowledged messages.

    They had the sequences from ``seq``, which this message has now, to ``last_lost``. Raised once; a
    StreamLostMessages event says the same.
    """

    stream: str
    seq: int
    last_lost: int

    def __init__(self, stream: str, seq: int, last_lost: int) -> None:
        self.stream, self.seq, self.last_lost = stream, seq, last_lost
        super().__init__(
            f"stream {stream!r} stored the message as {seq}, but has lost its messages from {seq} to {last_lost}, which"
            " were acknowledged: publish those again that you still have"
        )


class CursorMoved(JetStreamError):
    """The cursor is not where its last ``load`` or ``advance`` left it; nothing of this advance counts.

    Another writer has advanced it, if ``seq`` is above ``expected_seq``; the stream has lost messages, as in a power
    failure, if it is below. ``value`` is what the stream has now: call ``load`` and continue the source from there.
    """

    stream: str
    cursor: str
    """The name of the cursor."""
    expected_seq: int
    seq: int
    """The sequence of the cursor's message in the stream; 0: there is none."""
    value: int | bytes | None

    def __init__(self, stream: str, cursor: str, expected_seq: int, seq: int, value: int | bytes | None) -> None:
        self.stream, self.cursor, self.expected_seq, self.seq, self.value = stream, cursor, expected_seq, seq, value
        why = "another writer has advanced it"
        if seq < expected_seq:
            why = "the stream has lost messages that were acknowledged"
        super().__init__(
            f"cursor {cursor!r} of stream {stream!r} is at sequence {seq}, not {expected_seq}: {why}; call load() and"
            f" continue from its value {shown(value)}"
        )


class StateTooLarge(JetStreamError):
    """The state of a partition of a processor would exceed ``max_state_bytes``; nothing is stored."""

    processor: str
    """The name of the processor that ends."""
    partition: int
    """Its number, from 0."""
    size: int
    """Bytes of all keys and values of the partition."""
    limit: int
    """The bytes of ``max_state_bytes``."""

    def __init__(self, processor: str, partition: int, size: int, limit: int) -> None:
        self.processor, self.partition, self.size, self.limit = processor, partition, size, limit
        super().__init__(
            f"processor {processor!r}: the state of partition {partition} would have {size} bytes, above the limit of"
            f" {limit}: delete keys, raise max_state_bytes=, or keep such state in a database"
        )


class SourceChanged(JetStreamError):
    """The source of a processor is not what its positions count: it was recreated, went back, or is another one.

    Sequences of the source then belong to other messages, and some would be left out in silence.
    """

    processor: str
    """The name of the processor that ends."""
    source: str
    """The stream that it reads."""
    reason: str
    """The change of the stream, in words."""

    def __init__(self, processor: str, source: str, reason: str) -> None:
        self.processor, self.source, self.reason = processor, source, reason
        super().__init__(
            f"processor {processor!r}: source {source!r} {reason}: give the processor a new name to begin anew"
        )


_MANY_TIMEOUTS = 3


class PublishTimeout(PublishUncertain, RequestTimeout):
    """No acknowledgement came within ``timeout`` seconds. Streams with ``no_ack`` never send one.

    ``in_a_row`` counts the messages that got none, this one included, while the server answered pings; 0 if it did not.
    """

    subject: str
    """Where the message was published to."""
    reason: str
    """The seconds waited, and what is known of the silence."""
    in_a_row: int

    def __init__(self, subject: str, timeout: float, in_a_row: int = 0, *, disconnected: float = 0.0) -> None:
        RequestTimeout.__init__(self, f"publish to {subject!r}", timeout, disconnected=disconnected)
        self.subject, self.in_a_row = subject, in_a_row
        why = "streams with no_ack never send one: use nc.publish"
        if in_a_row >= _MANY_TIMEOUTS:
            why = f"number {in_a_row} in a row, while the server answers pings: its disk may be full, see its log"
        elif outage := round(disconnected, 2):
            why = f"the client was not connected to a server for {outage:g} s of them"
        self.reason = f"no acknowledgement within {timeout:g} s ({why})"
        self.args: tuple[str, ...] = (_uncertain(subject, self.reason),)


def with_advice(error: PublishUncertain, advice: str, operation: str = "") -> PublishUncertain:
    """Return the error with another advice, for a message that its caller cannot publish again. ``operation``: what the
    caller did, in words, instead of the subject.
    """
    error.args = (_uncertain(error.subject, error.reason, advice, operation),)
    return error


_PUBLISH_AGAIN = "publish it again with the same msg_id, which stores it once, or check the stream"


def _uncertain(subject: str, reason: str, advice: str = _PUBLISH_AGAIN, operation: str = "") -> str:
    return f"{operation or f'message to {subject!r}'} may or may not be stored: {reason}: {advice}"


class FailedMessage(NamedTuple):
    """A message of a publisher that was not acknowledged."""

    number: int
    """Number of the message in its publisher, from 1."""
    subject: str
    """Where it was published to."""
    size: int
    """Bytes of its payload."""
    error: NatsError
    """PublishUncertain, if it may be stored nevertheless."""


class PublishFailed(JetStreamError):
    """Some messages of a publisher were rejected, or their outcome is unknown.

    ``failures`` lists them in the order in which they were published. The cause is the first one's error.
    """

    failures: tuple[FailedMessage, ...]

    def __init__(self, failures: Sequence[FailedMessage]) -> None:
        self.failures = tuple(failures)
        first = self.failures[0]
        more = f", and {len(self.failures) - 1} more" if len(self.failures) > 1 else ""
        super().__init__(f"message {first.number} to {first.subject!r} ({first.size} bytes): {first.error}{more}")


class PullRefused(JetStreamError):
    """The server rejected a pull request; ``description`` is its text. Retrying does not help."""

    code: int
    """The status of the reply: 400, 409 …"""
    description: str
    consumer: str
    stream: str

    def __init__(self, code: int, description: str, consumer: str = "", stream: str = "") -> None:
        self.code, self.description, self.consumer, self.stream = code, description, consumer, stream
        super().__init__(f"{_consumer(consumer, stream) if consumer else 'pull'}: {description} (status {code})")


def _consumer(name: str, stream: str) -> str:
    return f"consumer {name!r} of stream {stream!r}" if stream else f"consumer {name!r}"
