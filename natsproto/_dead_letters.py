"""Dead letters: messages that no handler could handle, in a stream of their own.

Owns the headers of a dead letter, how an advisory of the server becomes one, and the replay of dead letters.
``natsproto.retry`` decides which messages become one.

A message that a consumer of any client gives up has no copy, but the server reports its sequence: the message may still
be in its stream. Such a report is a dead letter that has left out everything, until it is loaded.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from natsproto import errors
from natsproto._core.events import Event
from natsproto._value import Value
from natsproto.errors._base import is_transient
from natsproto.jetstream._consumer.ack_subject import Metadata
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream.advisories import MaxDeliveries, MessageTerminated, read_advisory
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers, encode_headers
from natsproto.protocol.subject import is_api_subject, matches, publish_subject

DEAD_LETTER_ADVISORIES: Final = (
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
    "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
)
"""Subjects on which servers report messages that are not redelivered, for the stream of dead letters."""
SET_ASIDE = "dead letter"
"""How the reason of ``term`` begins if the message has a dead letter of its own: its report is none."""

SUBJECT_HEADER, STREAM_HEADER = "Dead-Letter-Subject", "Dead-Letter-Stream"
SEQUENCE_HEADER, CONSUMER_HEADER = "Dead-Letter-Sequence", "Dead-Letter-Consumer"
ATTEMPTS_HEADER = "Dead-Letter-Attempts"
ERROR_TYPE_HEADER, DEAD_LETTER_ERROR_HEADER = "Dead-Letter-Error-Type", "Dead-Letter-Error"
LEFT_OUT_HEADER = "Dead-Letter-Left-Out"

_BUCKETS = ("$KV.", "$O.")
_OF_ONE_LETTER = (
    errors.ApiError,
    errors.ConfigError,
    errors.LocalProtocolError,
    errors.NoStream,
    errors.PermissionDenied,
)
"""Errors of one dead letter, which is left; the others may be sent."""
_MAX_ERROR_CHARS = 1024
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f]+")
_ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER."
NOT_ACKNOWLEDGED = "its last worker ended, took longer than ack_wait, had no policy or could not store the dead letter"


class DeadLetterLeft(Event):
    """A replay has left a dead letter in its stream, because of ``error``; ``seq`` is its sequence there."""

    stream: str
    seq: int
    error: errors.NatsError

    level = logging.WARNING
    line = "dead letter %(seq)d of stream %(stream)r is not replayed: %(error)s"


class AttemptedMessage(NamedTuple):
    """A message that is to become a dead letter."""

    message: JsMessage
    metadata: Metadata
    attempts: int
    """How often a handler was called with it."""
    error: BaseException | None


class DeadLetter(Value):
    """A decoded dead letter: the original message, and the error of the last attempt.

    ``seq`` is the message's sequence in ``stream``, from which ``consumer`` delivered it. ``headers`` are the
    original ones without those that servers act upon (``Nats-…``).
    """

    subject: str
    """Where the message was published to, not that of the dead letter."""
    data: bytes
    """The payload as it was."""
    headers: Headers
    stream: str
    seq: int
    consumer: str
    attempts: int
    """How often it was delivered to a handler, also before there was a policy."""
    error_type: str
    """The class of the last error, such as ``builtins.ValueError``."""
    error: str
    """The text of the last error."""
    left_out: str = ""
    """Parts of the message that the dead letter could not carry, such as ``headers``; empty: none."""

    @classmethod
    def of(cls, message: Message | RawMessage) -> DeadLetter:
        """Decode the headers of a message, or a report of the server: an advisory on one of DEAD_LETTER_ADVISORIES,
        whose dead letter has no subject, headers and data. LocalProtocolError when the message is neither.

        Args:
            message: What a consumer or ``get_message`` of the stream of dead letters returned.
        """
        headers = message.headers
        subject = headers.get(SUBJECT_HEADER)
        try:
            if subject is None:
                return cls._of_report(message)
            return cls(
                subject=subject,
                data=message.data,
                headers=Headers(_original(headers.pairs())),
                stream=headers.get(STREAM_HEADER) or "",
                seq=int(headers.get(SEQUENCE_HEADER) or 0),
                consumer=headers.get(CONSUMER_HEADER) or "",
                attempts=int(headers.get(ATTEMPTS_HEADER) or 0),
                error_type=headers.get(ERROR_TYPE_HEADER) or "",
                error=headers.get(DEAD_LETTER_ERROR_HEADER) or "",
                left_out=headers.get(LEFT_OUT_HEADER) or "",
            )
        except ValueError:
            raise errors.LocalProtocolError(f"the message on {message.subject!r} is not a dead letter") from None

    @classmethod
    def _of_report(cls, message: Message | RawMessage) -> DeadLetter:
        """Return the dead letter of a report. ValueError if it is none, or the message has a dead letter of its own."""
        report = read_advisory(message.data)
        kind = "MSG_TERMINATED" if isinstance(report, MessageTerminated) else "MAX_DELIVERIES"
        if not isinstance(report, (MaxDeliveries, MessageTerminated)):
            raise ValueError
        if message.subject != f"{_ADVISORIES}{kind}.{report.stream}.{report.consumer}":
            raise ValueError  # who may publish on the subject of one consumer may not report for others
        error = f"delivered {report.deliveries} times and not acknowledged in time"
        if isinstance(report, MessageTerminated):
            error = report.reason or "terminated without a reason"
            if error.startswith(SET_ASIDE):
                raise ValueError
        return cls(
            subject="",
            data=b"",
            headers=Headers(),
            stream=report.stream,
            seq=report.stream_seq,
            consumer=report.consumer,
            attempts=report.deliveries,
            error_type="",
            error=_CONTROL_CHARS.sub(" ", error)[:_MAX_ERROR_CHARS].strip(),
            left_out="subject, headers and payload",
        )

    @classmethod
    async def load(cls, js: JetStream, message: Message | RawMessage) -> DeadLetter:
        """Decode a dead letter as ``of`` does. The message of a report is read from its stream.

        It stays as it is if that message may not be read or is no longer there: a work queue keeps no terminated
        message, or somebody has removed it. LocalProtocolError when the message is not a dead letter; RequestTimeout
        and the other errors of ``get_message``. Cancelling has no effect.

        Args:
            js: A context of the account in question, from ``nc.jetstream()``.
            message: What a consumer or ``get_message`` of the stream of dead letters returned.
        """
        return (await _load(js, message))[0]


async def _load(js: JetStream, message: Message | RawMessage) -> tuple[DeadLetter, str]:
    """Return what ``DeadLetter.load`` does, and the nanosecond when its stream stored the message, "" if unknown."""
    letter = DeadLetter.of(message)
    if SUBJECT_HEADER in message.headers:
        name, _, time = (message.headers.get("Nats-Msg-Id") or "").rpartition(":")
        return letter, time if name == _message_name(letter.stream, letter.consumer, letter.seq) else ""
    try:
        stream = await js.stream(letter.stream)
        if stream.cached_info.created > read_advisory(message.data).time:
            return letter, ""  # the stream was created anew
        found = await stream.get_message(letter.seq, direct=False)
    except (errors.StreamNotFound, errors.MessageNotFound, errors.PermissionDenied):
        return letter, ""
    headers, left_out = _sendable(found.headers.pairs(), len(found.headers.invalid_lines))
    letter = letter.replace(subject=found.subject, data=found.data, headers=Headers(headers), left_out=left_out)
    return letter, str(found.time.ns)


def _is_report(message: RawMessage) -> bool:
    try:
        return bool(DeadLetter.of(message))
    except errors.LocalProtocolError:
        return False


async def replay(
    js: JetStream,
    stream: str,
    *,
    subject: str = ">",
    select: Callable[[DeadLetter], bool] | None = None,
    to: str | None = None,
    streams: Iterable[str] | None = None,
) -> int:
    """Publish the dead letters of a stream on their original subjects, delete them, and return their number.

    The messages of reports (DEAD_LETTER_ADVISORIES) are read from their streams and published again, too. They also
    stay there: in a work queue, which delivers them to no consumer that has given them up, delete them yourself.

    It replays the dead letters that are in the stream now, oldest first. ``subject`` (wildcards allowed) and ``select``
    choose among them. ``to`` is another subject to publish to. A dead letter is deleted after its publication was
    acknowledged. It is published with a message id, so if the deletion failed, another replay within the target
    stream's ``duplicate_window`` stores the message only once. Other messages of the stream are left alone.

    A message may have several dead letters: two consumers gave it up, a worker ended before it could terminate it, or
    a server reports it again. If they have the same content, it is published once, and each counts as replayed.

    The sender of a dead letter has chosen what its headers say, and it is published with the permissions of this
    client. Without ``to``, its subject must be one of the subjects of ``streams``, by their configuration; without
    ``streams``, of the stream that the dead letter names, which must be no bucket. Subjects of APIs (``$JS.API.>``,
    ``$SYS.>``) are refused. A dead letter that is refused, cannot be read, or is rejected by the server or this client
    stays in the stream, with a DeadLetterLeft event, and the others are replayed.

    StreamNotFound for the stream, or one of ``streams``; PublishUncertain and the errors of a lost connection.
    Cancelling leaves the remaining dead letters.

    Args:
        js: A context of the account in question, from ``nc.jetstream()``.
        stream: The stream of dead letters.
        subject: Only dead letters on this subject; wildcards allowed.
        select: Returns True for dead letters to replay; None: all.
        to: The subject to publish them to; None: each to its original subject.
        streams: Publish only to subjects of these streams, which may be buckets; None: of the stream that each dead
            letter names.
    """
    targets = _Targets(js, to, None if streams is None else await _subjects_of(js, streams))
    letters = await js.stream(stream)
    last = (await letters.info()).state.last_seq
    number, seq = 0, 1
    published = set[str]()
    while seq <= last:
        try:
            message = await letters.get_next_message(subject, start_seq=seq)
        except errors.MessageNotFound:
            break
        seq = message.seq + 1
        if message.seq > last or not (SUBJECT_HEADER in message.headers or _is_report(message)):
            continue
        try:
            letter, time = await _load(js, message)
            if select is not None and not select(letter):
                continue
            if "payload" in letter.left_out:
                raise errors.LocalProtocolError(
                    f"its payload is in message {letter.seq} of stream {letter.stream!r} only"
                )
            msg_id = _replay_id(letter, time) if time else f"replay:{stream}:{message.seq}:{message.time.ns}"
            if msg_id not in published:
                target = await targets.of(letter)
                await js.publish(target, letter.data, headers=letter.headers or None, msg_id=msg_id)
                published.add(msg_id)
        except _OF_ONE_LETTER as exc:
            if is_transient(exc, existed=False):
                raise
            js.connection._event_bus.emit(DeadLetterLeft(stream=stream, seq=message.seq, error=exc))
            continue
        try:
            await letters.delete_message(message.seq)
        except errors.MessageNotFound:
            continue  # another program has replayed it too
        number += 1
    return number


class _Targets:
    """Where dead letters may be published: ``to``, or their own subjects if one of ``allowed`` matches. ``allowed`` is
    None for the subjects of the stream that each of them names.
    """

    def __init__(self, js: JetStream, to: str | None, allowed: Sequence[str] | None) -> None:
        self._js, self._to, self._allowed = js, to, allowed
        self._known: dict[str, Sequence[str]] = {}

    async def of(self, letter: DeadLetter) -> str:
        """Return the subject to publish to. InvalidSubject if it is not allowed; StreamNotFound."""
        if self._to is not None:
            return self._to
        subject, allowed = letter.subject, self._allowed
        publish_subject(subject)
        if allowed is None:
            if is_api_subject(subject):
                raise errors.InvalidSubject(
                    "subject", subject, "is one of an API or a bucket: name the bucket in streams="
                )
            if letter.stream not in self._known:
                self._known[letter.stream] = await _subjects_of(self._js, (letter.stream,))
            allowed = self._known[letter.stream]
        elif is_api_subject(subject) and not subject.startswith(_BUCKETS):
            raise errors.InvalidSubject("subject", subject, "is one of an API")
        if not any(matches(pattern, subject) for pattern in allowed):
            where = "the stream that it names" if self._allowed is None else "the given streams"
            raise errors.InvalidSubject("subject", subject, f"is no subject of {where}: pass streams= or to=")
        return subject


async def _subjects_of(js: JetStream, streams: Iterable[str]) -> Sequence[str]:
    """Return the subjects that these streams listen to. StreamNotFound."""
    if isinstance(streams, str):
        raise TypeError("streams must be names of streams, not one str")
    return [subject for name in streams for subject in (await js.stream(name)).cached_info.config.subjects]


def forms_of(failed: AttemptedMessage) -> Iterator[tuple[bytes, Headers]]:
    """Return the payload and headers of a dead letter: as it is, without its headers, then without its payload."""
    message, metadata = failed.message, failed.metadata
    own = {
        CONSUMER_HEADER: metadata.consumer,
        SEQUENCE_HEADER: str(metadata.stream_seq),
        ATTEMPTS_HEADER: str(failed.attempts),
    }
    headers = failure_headers(message.subject, metadata.stream, failed.error, own)
    for data, pairs in forms(message.data, message.headers.pairs(), headers, len(message.headers.invalid_lines)):
        yield data, Headers(pairs)


def forms(
    data: bytes, pairs: Iterable[tuple[str, str]], own: list[tuple[str, str]], unread: int = 0
) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
    """Return the forms of a dead letter, of which the first one that fits is stored; ``own`` are its own headers."""
    original, left_out = _sendable(pairs, unread)
    yield data, [*original, *own, *_left_out(left_out)]
    yield data, [*own, *_left_out("headers")]
    yield b"", [*own, *_left_out(f"headers and payload of {len(data)} bytes")]


def _sendable(pairs: Iterable[tuple[str, str]], unread: int) -> tuple[list[tuple[str, str]], str]:
    """Return the publisher's headers that can be sent, and how many cannot, "" for none."""
    original = _original(pairs)
    sendable = [pair for pair in original if is_sendable(pair)]
    count = len(original) - len(sendable) + unread
    return sendable, f"{count} headers" if count else ""


def _left_out(what: str) -> list[tuple[str, str]]:
    return [(LEFT_OUT_HEADER, what)] if what else []


def is_sendable(pair: tuple[str, str]) -> bool:
    """Return True if a header can be sent."""
    try:
        encode_headers([pair])
    except errors.InvalidHeader:
        return False
    return True


def failure_headers(
    subject: str, stream: str, error: BaseException | None, more: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return the own headers of a dead letter: what it was, what failed, and ``more``."""
    kind, text = "", NOT_ACKNOWLEDGED
    if error is not None:
        kind, text = f"{type(error).__module__}.{type(error).__qualname__}", str(error)
    added = {
        SUBJECT_HEADER: _CONTROL_CHARS.sub(" ", subject),
        STREAM_HEADER: stream,
        **(more or {}),
        ERROR_TYPE_HEADER: kind,
        DEAD_LETTER_ERROR_HEADER: _CONTROL_CHARS.sub(" ", text)[:_MAX_ERROR_CHARS].strip(),
    }
    return [(name, value.encode("utf-8", "replace").decode()) for name, value in added.items() if value]


def _original(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the publisher's headers, without those for the server (ids, expectations, TTLs) and of dead letters."""
    return [(name, value) for name, value in pairs if not name.lower().startswith(("nats-", "dead-letter-"))]


def message_id_of(metadata: Metadata) -> str:
    """Return a message id that is the same in every attempt, and different if the stream is recreated."""
    name = _message_name(metadata.stream, metadata.consumer, metadata.stream_seq)
    return f"{name}:{metadata.timestamp.ns}"


def _message_name(stream: str, consumer: str, seq: int) -> str:
    return f"dead:{stream}:{consumer}:{seq}"


def _replay_id(letter: DeadLetter, time: str) -> str:
    """Return a message id that all dead letters of a message have. The content is part of it, since the sender of a
    dead letter chooses what its headers say: a forged letter replaces no other.
    """
    content = hashlib.sha256(repr([letter.subject, *letter.headers.pairs()]).encode())
    content.update(letter.data)
    return f"replay:{letter.stream}:{letter.seq}:{time}:{content.hexdigest()[:32]}"
