"""Retries and dead letters for messages whose handler raises.

Owns the retry policy, the middleware that applies it, the headers of a dead letter, and the replay of dead letters.
Consumers know only which messages it has nakked.

A message is terminated only after the stream has acknowledged its dead letter. If the worker dies in between, the
message is redelivered and its dead letter published again with the same message id, which the stream stores once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from natsproto._core.engine.engine import State
from natsproto._core.events import Event, HandlerFailed
from natsproto._durations import seconds
from natsproto._handler_threads import is_still_running, note_running
from natsproto._handlers import Blocking, HandlerResult, finish
from natsproto._value import Value
from natsproto.errors import (
    ApiError,
    ConfigError,
    InvalidHeader,
    InvalidPayload,
    InvalidSubject,
    LocalProtocolError,
    MessageNotFound,
    MessageTooLarge,
    NatsError,
    NoStream,
    PayloadTooLarge,
    PermissionDenied,
)
from natsproto.errors._base import is_transient
from natsproto.jetstream._consumer.message import JsMessage, Metadata, is_reported, mark_reported, max_deliver_of
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.codec import accept_delays, accept_seconds
from natsproto.middleware import Call
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers, encode_headers
from natsproto.protocol.subject import is_api_subject, matches, publish_subject

__all__ = [
    "DeadLetter",
    "DeadLetterLeft",
    "MessageDeadLettered",
    "MessageRetried",
    "Retry",
    "RetryPolicy",
    "replay",
]

Handler: TypeAlias = Callable[[JsMessage], HandlerResult]
Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
"""An exception class or several, as ``except`` takes them."""

SUBJECT_HEADER, STREAM_HEADER = "Dead-Letter-Subject", "Dead-Letter-Stream"
SEQUENCE_HEADER, CONSUMER_HEADER = "Dead-Letter-Sequence", "Dead-Letter-Consumer"
ATTEMPTS_HEADER = "Dead-Letter-Attempts"
ERROR_TYPE_HEADER, ERROR_HEADER = "Dead-Letter-Error-Type", "Dead-Letter-Error"
LEFT_OUT_HEADER = "Dead-Letter-Left-Out"

_BUCKETS = ("$KV.", "$O.")
_OF_ONE_LETTER = (ApiError, ConfigError, LocalProtocolError, NoStream, PermissionDenied)
"""Errors of one dead letter, which is left; the others may be sent."""
_PERMANENT = (ConfigError, LocalProtocolError, MessageTooLarge, PermissionDenied)
"""Refusals of a dead letter that no repetition mends."""
_MAX_ERROR_CHARS = 1024
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f]+")
_NOT_ACKNOWLEDGED = "its last worker ended, took longer than ack_wait, had no policy or could not store the dead letter"
_rng = random.SystemRandom()


class MessageRetried(Event):
    """A handler raised in ``attempt`` (from 1) of ``max_attempts``; the message is redelivered in ``delay`` seconds."""

    stream: str
    consumer: str
    seq: int
    """The sequence of the message in ``stream``."""
    attempt: int
    max_attempts: int
    delay: float
    error: BaseException
    """The exception of the handler."""

    level = logging.WARNING
    line = (
        "handler of consumer %(consumer)r of stream %(stream)r failed for message %(seq)d, "
        "attempt %(attempt)d of %(max_attempts)d, again in %(delay).3g s: %(error)r"
    )


class MessageDeadLettered(Event):
    """A message became a dead letter after ``attempts`` attempts. It is stored on ``dead_letter_subject``.

    ``error`` is None when the message had too many attempts before this one. The last of them left no error: its worker
    ended, took longer than ``ack_wait``, had no policy yet, or could not store the dead letter.
    """

    stream: str
    consumer: str
    seq: int
    """The sequence of the message in ``stream``."""
    attempts: int
    dead_letter_subject: str
    error: BaseException | None

    level = logging.ERROR
    line = (
        "message %(seq)d of stream %(stream)r is a dead letter after %(attempts)d attempts "
        "of consumer %(consumer)r: %(error)r"
    )
    trace_level = logging.ERROR

    def log_line(self) -> tuple[int, str]:
        """See Event."""
        line = self.line if self.error is not None else self.line.replace("%(error)r", _NOT_ACKNOWLEDGED)
        return self.level, line.replace(" attempts", " attempt") if self.attempts == 1 else line


class DeadLetterLeft(Event):
    """A replay has left a dead letter in its stream, because of ``error``; ``seq`` is its sequence there."""

    stream: str
    seq: int
    error: NatsError

    level = logging.WARNING
    line = "dead letter %(seq)d of stream %(stream)r is not replayed: %(error)s"


class RetryPolicy(Value):
    """The number and the delays of retries, and the subject for dead letters.

    ``dead_letter_subject`` is a subject of a stream. ``max_attempts`` (5) counts all deliveries, also those to other
    workers and those before there was a policy. ``delays`` are the seconds after each attempt; the last one is used for
    all further attempts. Without ``delays``, ``first_delay`` (1) doubles up to ``max_delay`` (60). A random part of up
    to ``jitter`` (0.2) of the delay is added.

    ``retry_on`` (Exception) are the errors that are retried. ``give_up_on`` (InvalidPayload) are errors that no retry
    can fix: they make a dead letter at once, and take precedence. ``free`` are errors of what the handler depends on,
    such as a database that is away: they use no attempt up. The message stays in progress, and the handler is called
    again after the delays, until it returns, raises another error or is cancelled. ConfigError or InvalidSubject for
    invalid values.
    """

    dead_letter_subject: str
    max_attempts: int = 5
    delays: Sequence[float | timedelta] = ()
    first_delay: float | timedelta = 1.0
    max_delay: float | timedelta = 60.0
    jitter: float = 0.2
    retry_on: Errors = Exception
    give_up_on: Errors = InvalidPayload
    free: Errors = ()

    def _check(self) -> None:
        publish_subject(self.dead_letter_subject, "dead_letter_subject")
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigError("max_attempts", self.max_attempts, "must be a positive int")
        if not 0 <= self.jitter <= 1:
            raise ConfigError("jitter", self.jitter, "must be a fraction of the delay, from 0 to 1")
        fields = self.__dict__
        fields["delays"] = accept_delays("delays", self.delays)
        for name in ("first_delay", "max_delay"):
            fields[name] = accept_seconds(name, getattr(self, name))

    def delay_of(self, attempt: int) -> float:
        """Return the seconds between this attempt (from 1) and the next, without the jitter.

        Args:
            attempt: How often the message was delivered, from 1.
        """
        if self.delays:
            return seconds("delays", self.delays[min(attempt, len(self.delays)) - 1])
        grown = seconds("first_delay", self.first_delay) * 2.0 ** min(attempt - 1, 60)
        return min(grown, seconds("max_delay", self.max_delay))

    def gives_up(self, error: BaseException, attempt: int) -> bool:
        """Return True when no attempt follows this error in this attempt (from 1).

        Args:
            error: The exception of the handler.
            attempt: How often the message was delivered, from 1.
        """
        if attempt >= self.max_attempts or isinstance(error, self.give_up_on):
            return True
        return not isinstance(error, self.retry_on)


class _Letter(NamedTuple):
    """A message that is to become a dead letter."""

    message: JsMessage
    metadata: Metadata
    attempts: int
    error: BaseException | None


class Retry:
    """Middleware that applies a RetryPolicy to handlers of consumers with acknowledgement.

    ``js`` publishes the dead letters; its timeout limits how long an outage of their stream may last. The handler's
    error is raised again, and ``consume`` counts it as ``failed``. The log has one line for it: a WARNING if the
    message is retried, an ERROR with the handler's frames if it becomes a dead letter. A message that the handler has
    acknowledged itself is left alone. A message delivered more often than ``max_attempts`` has killed its workers, or
    was beside one that has; it becomes a dead letter without another call.
    Leave the consumer's ``max_deliver`` unlimited, or set it higher than ``max_attempts``: the last delivery that the
    consumer allows is the last attempt, and without acknowledgements it is the only one. The log warns of it once.

    Args:
        js: A context of the account in question, from ``nc.jetstream()``.
        policy: When to retry, and where dead letters go.
    """

    def __init__(self, js: JetStream | Blocking[JetStream], policy: RetryPolicy) -> None:
        js = getattr(js, "_inner", js)
        if not isinstance(js, JetStream):
            raise TypeError(
                f"Retry publishes dead letters with a JetStream context, nc.jetstream(), not {type(js).__name__}"
            )
        self._js = js
        self._has_warned = False
        self._keeping: set[asyncio.Task[None]] = set()  # for dead letters that cannot be stored now
        self.policy: RetryPolicy = policy

    async def __call__(self, message: JsMessage, call: Call) -> None:
        """Call the handler. If it raises, retry the message or make it a dead letter.

        Args:
            message: What the handler would get.
            call: Calls the next middleware or the handler.
        """
        if message.metadata.num_delivered > self.policy.max_attempts:
            await self._give_up(message, None)
            return
        try:
            await self._call(message, call)
        except Exception as exc:
            await self.failed(message, exc)
            raise

    async def _call(self, message: JsMessage, call: Call) -> None:
        """Call the handler, again after errors that are free."""
        if not self.policy.free:
            return await call()
        attempt = 0
        async with AsyncExitStack() as stack:
            while True:
                try:
                    return await call()
                except self.policy.free as exc:
                    if message.is_acked or is_still_running(message):
                        raise
                    error = exc
                if not attempt:
                    await stack.enter_async_context(message.keep_alive())
                attempt += 1
                delay = self.policy.delay_of(attempt)
                self._emit_retried(message.metadata, self.policy.max_attempts, delay, error)
                await asyncio.sleep(delay + delay * self.policy.jitter * _rng.random())

    async def handle(self, message: JsMessage, handler: Handler) -> bool:
        """Call the handler and acknowledge the message unless the handler has. For loops over ``messages``.

        Returns False when the handler raised: the error is logged and emitted as a HandlerFailed event, and the message
        is retried or becomes a dead letter. Cancelling leaves the message unacknowledged.

        Args:
            message: A delivery of a consumer with acknowledgement.
            handler: Called with the message, ``def`` or ``async def``.
        """

        async def call() -> None:
            await finish(handler(message))

        try:
            await self(message, call)
        except Exception as exc:
            where = f"handler of {message.metadata.consumer!r}"
            if not is_reported(message):
                self._js.connection._log.failure(
                    "%s failed for message %d (%r): %r",
                    where,
                    message.seq,
                    message.subject,
                    exc,
                    error=exc,
                )
            self._js.connection._emit(HandlerFailed(handler=where, error=exc))
            return False
        if not message.is_acked:
            await message.ack()
        return True

    async def failed(self, message: JsMessage, error: BaseException) -> None:
        """Retry the message or make it a dead letter, by the policy. For code without a handler, such as batches.

        Errors on the way are emitted as HandlerFailed events; the server then redelivers the message.

        Args:
            message: The delivery that could not be handled.
            error: The exception, which decides by the policy between a retry and a dead letter.
        """
        if message.is_acked or is_still_running(message):  # a thread goes on: it is delivered again after ack_wait
            return
        metadata = message.metadata
        max_attempts = self._max_attempts(message, metadata)
        if self.policy.gives_up(error, metadata.num_delivered) or metadata.num_delivered >= max_attempts:
            await self._give_up(message, error)
            return
        delay = self.policy.delay_of(metadata.num_delivered)
        delay += delay * self.policy.jitter * _rng.random()
        if await self._nak(message, delay):
            mark_reported(message)
            self._emit_retried(metadata, max_attempts, delay, error)

    def _emit_retried(self, metadata: Metadata, max_attempts: int, delay: float, error: BaseException) -> None:
        self._js.connection._emit(
            MessageRetried(
                stream=metadata.stream,
                consumer=metadata.consumer,
                seq=metadata.stream_seq,
                attempt=metadata.num_delivered,
                max_attempts=max_attempts,
                delay=delay,
                error=error,
            )
        )

    def _max_attempts(self, message: JsMessage, metadata: Metadata) -> int:
        """The attempts of the policy, or fewer where the consumer delivers less often."""
        wanted = self.policy.max_attempts
        limit = max_deliver_of(message) or wanted
        if limit < wanted and not self._has_warned:
            self._has_warned = True
            self._js.connection._log.warning(
                "consumer %r of stream %r limits deliveries to %d, below max_attempts=%d of the RetryPolicy",
                metadata.consumer,
                metadata.stream,
                limit,
                wanted,
            )
        return min(limit, wanted)

    async def _give_up(self, message: JsMessage, error: BaseException | None) -> None:
        """Make a message a dead letter. If that is not possible now, it comes again, or is kept in progress if it was
        delivered for the last time.
        """
        metadata = message.metadata
        letter = _Letter(message, metadata, metadata.num_delivered - (error is None), error)  # else there was no call
        failure = await self._store(letter)
        if failure is None or message.is_acked:
            return
        limit = max_deliver_of(message)
        if not limit or metadata.num_delivered < limit:
            await self._nak(message, seconds("max_delay", self.policy.max_delay))
        elif not isinstance(failure, _PERMANENT):  # else the server reports it: MAX_DELIVERIES
            name = f"natsproto dead letter {metadata.stream_seq}"
            keeping = asyncio.create_task(self._keep_until_stored(letter), name=name)
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
            note_running(message, keeping)

    async def _keep_until_stored(self, letter: _Letter) -> None:
        """Keep a message in progress and try again, while the client is open."""
        attempt, connection = 0, self._js.connection
        async with letter.message.keep_alive():
            while connection.state is not State.CLOSED and not letter.message.is_acked:
                attempt += 1
                await asyncio.sleep(self.policy.delay_of(attempt))
                if isinstance(failure := await self._store(letter), _PERMANENT) or failure is None:
                    return

    async def _store(self, letter: _Letter) -> NatsError | None:
        """Publish a dead letter and terminate its message; return the error of that."""
        message, metadata, subject = letter.message, letter.metadata, self.policy.dead_letter_subject
        try:
            await self._publish(letter)
            await message.term(f"dead letter on {subject}")
        except NatsError as exc:
            self._report(f"dead letter of message {metadata.stream_seq} of stream {metadata.stream!r}", exc)
            return exc
        mark_reported(message)
        self._js.connection._emit(
            MessageDeadLettered(
                stream=metadata.stream,
                consumer=metadata.consumer,
                seq=metadata.stream_seq,
                attempts=letter.attempts,
                dead_letter_subject=subject,
                error=letter.error,
            )
        )
        return None

    async def _publish(self, letter: _Letter) -> None:
        """Publish a dead letter; with less if the server or the stream does not accept it as it is."""
        refusal: NatsError | None = None
        for data, headers in _forms_of(letter):
            try:
                await self._js.publish(
                    self.policy.dead_letter_subject, data, headers=headers, msg_id=_dead_letter_id(letter.metadata)
                )
                return
            except (PayloadTooLarge, InvalidHeader, MessageTooLarge) as exc:
                refusal = exc
        assert refusal is not None
        raise refusal

    async def _nak(self, message: JsMessage, delay: float) -> bool:
        try:
            await message.nak(delay)
        except NatsError as exc:  # the server redelivers it after ack_wait
            self._report(f"nak of a message of {message.subject!r}", exc)
            return False
        return True

    def _report(self, where: str, error: NatsError) -> None:
        self._js.connection._log.warning("%s failed: %s", where, error)
        self._js.connection._emit(HandlerFailed(handler=where, error=error))


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
        """Decode the headers of a message. LocalProtocolError when it is not a dead letter.

        Args:
            message: What a consumer or ``get_message`` of the stream of dead letters returned.
        """
        headers = message.headers
        subject = headers.get(SUBJECT_HEADER)
        try:
            if subject is None:
                raise ValueError
            return cls(
                subject=subject,
                data=message.data,
                headers=Headers(_original(headers)),
                stream=headers.get(STREAM_HEADER) or "",
                seq=int(headers.get(SEQUENCE_HEADER) or 0),
                consumer=headers.get(CONSUMER_HEADER) or "",
                attempts=int(headers.get(ATTEMPTS_HEADER) or 0),
                error_type=headers.get(ERROR_TYPE_HEADER) or "",
                error=headers.get(ERROR_HEADER) or "",
                left_out=headers.get(LEFT_OUT_HEADER) or "",
            )
        except ValueError:
            raise LocalProtocolError(f"the message on {message.subject!r} is not a dead letter") from None


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

    It replays the dead letters that are in the stream now, oldest first. ``subject`` (wildcards allowed) and ``select``
    choose among them. ``to`` is another subject to publish to. A dead letter is deleted after its publication was
    acknowledged. It is published with a message id, so if the deletion failed, another replay within the target
    stream's ``duplicate_window`` stores the message only once. Other messages of the stream are left alone.

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
    while seq <= last:
        try:
            message = await letters.get_next_message(subject, start_seq=seq)
        except MessageNotFound:
            break
        seq = message.seq + 1
        if message.seq > last or SUBJECT_HEADER not in message.headers:
            continue
        try:
            letter = DeadLetter.of(message)
            if select is not None and not select(letter):
                continue
            if "payload" in letter.left_out:
                raise LocalProtocolError(f"its payload is in message {letter.seq} of stream {letter.stream!r} only")
            msg_id = f"replay:{stream}:{message.seq}:{message.time.ns}"
            target = await targets.of(letter)
            await js.publish(target, letter.data, headers=letter.headers or None, msg_id=msg_id)
        except _OF_ONE_LETTER as exc:
            if is_transient(exc, existed=False):
                raise
            js.connection._emit(DeadLetterLeft(stream=stream, seq=message.seq, error=exc))
            continue
        try:
            await letters.delete_message(message.seq)
        except MessageNotFound:
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
                raise InvalidSubject("subject", subject, "is one of an API or a bucket: name the bucket in streams=")
            if letter.stream not in self._known:
                self._known[letter.stream] = await _subjects_of(self._js, (letter.stream,))
            allowed = self._known[letter.stream]
        elif is_api_subject(subject) and not subject.startswith(_BUCKETS):
            raise InvalidSubject("subject", subject, "is one of an API")
        if not any(matches(pattern, subject) for pattern in allowed):
            where = "the stream that it names" if self._allowed is None else "the given streams"
            raise InvalidSubject("subject", subject, f"is no subject of {where}: pass streams= or to=")
        return subject


async def _subjects_of(js: JetStream, streams: Iterable[str]) -> Sequence[str]:
    """Return the subjects that these streams listen to. StreamNotFound."""
    if isinstance(streams, str):
        raise TypeError("streams must be names of streams, not one str")
    return [subject for name in streams for subject in (await js.stream(name)).cached_info.config.subjects]


def _forms_of(letter: _Letter) -> Iterator[tuple[bytes, Headers]]:
    """Return the payload and headers of a dead letter: as it is, without its headers, then without its payload."""
    message, own = letter.message, _dead_letter_headers(letter)
    original = _original(message.headers)
    sendable = [pair for pair in original if _is_sendable(pair)]
    count = len(original) - len(sendable) + len(message.headers.invalid_lines)
    yield message.data, Headers([*sendable, *own, *_left_out(f"{count} headers" if count else "")])
    yield message.data, Headers([*own, *_left_out("headers")])
    yield b"", Headers([*own, *_left_out(f"headers and payload of {len(message.data)} bytes")])


def _left_out(what: str) -> list[tuple[str, str]]:
    return [(LEFT_OUT_HEADER, what)] if what else []


def _is_sendable(pair: tuple[str, str]) -> bool:
    try:
        encode_headers([pair])
    except InvalidHeader:
        return False
    return True


def _dead_letter_headers(letter: _Letter) -> list[tuple[str, str]]:
    metadata, error, kind, text = letter.metadata, letter.error, "", _NOT_ACKNOWLEDGED
    if error is not None:
        kind, text = f"{type(error).__module__}.{type(error).__qualname__}", str(error)
    added = {
        SUBJECT_HEADER: letter.message.subject,
        STREAM_HEADER: metadata.stream,
        SEQUENCE_HEADER: str(metadata.stream_seq),
        CONSUMER_HEADER: metadata.consumer,
        ATTEMPTS_HEADER: str(letter.attempts),
        ERROR_TYPE_HEADER: kind,
        ERROR_HEADER: _CONTROL_CHARS.sub(" ", text)[:_MAX_ERROR_CHARS].strip(),
    }
    return [(name, value.encode("utf-8", "replace").decode()) for name, value in added.items() if value]


def _original(headers: Headers) -> list[tuple[str, str]]:
    """Return the publisher's headers, without those for the server (ids, expectations, TTLs) and of dead letters."""
    return [(name, value) for name, value in headers.pairs() if not name.lower().startswith(("nats-", "dead-letter-"))]


def _dead_letter_id(metadata: Metadata) -> str:
    """Return a message id that is the same in every attempt, and different if the stream is recreated."""
    return f"dead:{metadata.stream}:{metadata.consumer}:{metadata.stream_seq}:{metadata.timestamp.ns}"
