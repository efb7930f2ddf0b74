"""Retries and dead letters for messages whose handler raises.

Owns the retry policy and the middleware that applies it. ``natsproto._dead_letters`` makes and replays dead letters.
Consumers know only which messages it has nakked.

A message is terminated only after the stream has acknowledged its dead letter. If the worker dies in between, the
message is redelivered and its dead letter published again with the same message id, which the stream stores once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TypeAlias

from natsproto import errors
from natsproto._core.engine.engine import State
from natsproto._core.events import Event, HandlerFailed
from natsproto._dead_letters import (
    DEAD_LETTER_ADVISORIES,
    NOT_ACKNOWLEDGED,
    SET_ASIDE,
    AttemptedMessage,
    DeadLetter,
    DeadLetterLeft,
    forms_of,
    message_id_of,
    replay,
)
from natsproto._durations import seconds
from natsproto._handler_threads import is_still_running, note_running
from natsproto._handlers import Blocking, HandlerResult, finish
from natsproto._help import guesses as _guesses
from natsproto._value import Value
from natsproto.jetstream._consumer.ack_subject import Metadata
from natsproto.jetstream._consumer.message import JsMessage, is_reported, mark_reported, max_deliver_of
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.codec import accept_delays, accept_seconds
from natsproto.middleware import Call
from natsproto.protocol.subject import publish_subject

__all__ = [
    "DEAD_LETTER_ADVISORIES",
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

_PERMANENT = (errors.ConfigError, errors.LocalProtocolError)
"""Refusals of a dead letter by this client, which no repetition mends."""
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
        line = self.line if self.error is not None else self.line.replace("%(error)r", NOT_ACKNOWLEDGED)
        return self.level, line.replace(" attempts", " attempt") if self.attempts == 1 else line


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
    give_up_on: Errors = errors.InvalidPayload
    free: Errors = ()

    def _check(self) -> None:
        publish_subject(self.dead_letter_subject, "dead_letter_subject")
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise errors.ConfigError("max_attempts", self.max_attempts, "must be a positive int")
        if not 0 <= self.jitter <= 1:
            raise errors.ConfigError("jitter", self.jitter, "must be a fraction of the delay, from 0 to 1")
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
                self._js.connection._event_bus.log.failure(
                    "%s failed for message %d (%r): %r",
                    where,
                    message.seq,
                    message.subject,
                    exc,
                    error=exc,
                )
            self._js.connection._event_bus.emit(HandlerFailed(handler=where, error=exc))
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
        self._js.connection._event_bus.emit(
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
            self._js.connection._event_bus.log.warning(
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
        attempts = metadata.num_delivered - (error is None)  # else there was no call
        failed = AttemptedMessage(message, metadata, attempts, error)
        failure = await self._store(failed)
        if failure is None or message.is_acked:
            return
        limit = max_deliver_of(message)
        if not limit or metadata.num_delivered < limit:
            await self._nak(message, seconds("max_delay", self.policy.max_delay))
        elif not isinstance(failure, _PERMANENT):  # else the server reports it: MAX_DELIVERIES
            name = f"natsproto dead letter {metadata.stream_seq}"
            keeping = asyncio.create_task(self._keep_until_stored(failed), name=name)
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
            note_running(message, keeping)

    async def _keep_until_stored(self, failed: AttemptedMessage) -> None:
        """Keep a message in progress and try again, while the client is open."""
        attempt, connection = 0, self._js.connection
        async with failed.message.keep_alive():
            while connection.state is not State.CLOSED and not failed.message.is_acked:
                attempt += 1
                await asyncio.sleep(self.policy.delay_of(attempt))
                if isinstance(failure := await self._store(failed), _PERMANENT) or failure is None:
                    return

    async def _store(self, failed: AttemptedMessage) -> errors.NatsError | None:
        """Publish a dead letter and terminate its message; return the error of that."""
        message, metadata, subject = failed.message, failed.metadata, self.policy.dead_letter_subject
        try:
            await self._publish(failed)
            await message.term(f"{SET_ASIDE} on {subject}")
        except errors.NatsError as exc:
            self._report(f"dead letter of message {metadata.stream_seq} of stream {metadata.stream!r}", exc)
            return exc
        mark_reported(message)
        self._js.connection._event_bus.emit(
            MessageDeadLettered(
                stream=metadata.stream,
                consumer=metadata.consumer,
                seq=metadata.stream_seq,
                attempts=failed.attempts,
                dead_letter_subject=subject,
                error=failed.error,
            )
        )
        return None

    async def _publish(self, failed: AttemptedMessage) -> None:
        """Publish a dead letter; with less if the server or the stream does not accept it as it is."""
        refusal: errors.NatsError | None = None
        for data, headers in forms_of(failed):
            try:
                await self._js.publish(
                    self.policy.dead_letter_subject, data, headers=headers, msg_id=message_id_of(failed.metadata)
                )
                return
            except (errors.PayloadTooLarge, errors.InvalidHeader, errors.MessageTooLarge) as exc:
                refusal = exc
        assert refusal is not None
        raise refusal

    async def _nak(self, message: JsMessage, delay: float) -> bool:
        try:
            await message.nak(delay)
        except errors.NatsError as exc:  # the server redelivers it after ack_wait
            self._report(f"nak of a message of {message.subject!r}", exc)
            return False
        return True

    def _report(self, where: str, error: errors.NatsError) -> None:
        self._js.connection._event_bus.log.warning("%s failed: %s", where, error)
        self._js.connection._event_bus.emit(HandlerFailed(handler=where, error=error))


_guesses.attach(__name__)
