"""Retries and dead letters: what becomes of a message whose handler raises.

Owns the policy, the middleware that carries it out, the headers of a dead letter and the way back from there. It is
built on public verbs: a consumer knows nothing of it.

A dead letter is published, confirmed by its stream, and only then is the message terminated. A worker that dies in
between leaves a message that comes again and is published again, with the same id, which the stream stores once.
"""

from __future__ import annotations

import inspect
import logging
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from natsproto._core.events import Event, HandlerFailed
from natsproto._durations import seconds
from natsproto._value import Value
from natsproto.errors import ConfigError, InvalidPayload, LocalProtocolError, MessageNotFound, NatsError
from natsproto.jetstream._direct import RawMessage
from natsproto.jetstream._message import JsMessage, Metadata
from natsproto.middleware import Call
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import publish_subject

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream

log: Final = logging.getLogger("natsproto")

Handler: TypeAlias = Callable[[JsMessage], Awaitable[object] | object]
Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]

SUBJECT, STREAM, SEQUENCE = "Dead-Letter-Subject", "Dead-Letter-Stream", "Dead-Letter-Sequence"
CONSUMER, ATTEMPTS = "Dead-Letter-Consumer", "Dead-Letter-Attempts"
ERROR_TYPE, ERROR = "Dead-Letter-Error-Type", "Dead-Letter-Error"

_MAX_ERROR = 1024
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f]+")
_NO_ANSWER = "no answer: its worker ended, or took longer than ack_wait"
_rng = random.SystemRandom()


class MessageRetried(Event):
    """A handler raised, and the message is delivered again in ``delay`` seconds; this was ``attempt`` (from 1)."""

    stream: str
    consumer: str
    sequence: int
    attempt: int
    delay: float
    error: BaseException


class MessageDeadLettered(Event):
    """A message was given up after so many attempts: it is in the stream that listens on ``dead_letters``.

    ``error`` is None when the last attempt was never answered.
    """

    stream: str
    consumer: str
    sequence: int
    attempts: int
    dead_letters: str
    error: BaseException | None

    level = logging.WARNING
    line = "message %(sequence)d of stream %(stream)r is a dead letter after %(attempts)d attempts of %(consumer)r"


class RetryPolicy(Value):
    """How often and when a message is tried again, and where it goes when it is given up.

    ``dead_letters`` is a subject that a stream listens on. ``max_attempts`` (5) counts all deliveries, those to other
    workers included. ``delays`` are seconds by attempt, the last one for all further ones; without them
    ``first_delay`` (1) doubles up to ``max_delay`` (60). Up to ``jitter`` (0.2) of a delay is added at random.

    ``retry_on`` (Exception) are the errors after which it is tried again, ``give_up_on`` (InvalidPayload) those that
    no attempt will mend, which end it at once and count first. ConfigError, InvalidSubject for values that cannot be.
    """

    dead_letters: str
    max_attempts: int = 5
    delays: Sequence[float | timedelta] = ()
    first_delay: float | timedelta = 1.0
    max_delay: float | timedelta = 60.0
    jitter: float = 0.2
    retry_on: Errors = Exception
    give_up_on: Errors = InvalidPayload

    def _check(self) -> None:
        publish_subject(self.dead_letters, "dead_letters")
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigError("max_attempts", self.max_attempts, "must be a positive number of deliveries")
        if not 0 <= self.jitter <= 1:
            raise ConfigError("jitter", self.jitter, "must be a part of the delay, from 0 to 1")
        made = self.__dict__
        made["delays"] = tuple(seconds("delays", delay) for delay in self.delays)
        for name in ("first_delay", "max_delay"):
            made[name] = seconds(name, getattr(self, name))

    def delay_of(self, attempt: int) -> float:
        """Seconds until the attempt behind this one (from 1), without the jitter."""
        if self.delays:
            return seconds("delays", self.delays[min(attempt, len(self.delays)) - 1])
        grown = seconds("first_delay", self.first_delay) * 2.0 ** min(attempt - 1, 60)
        return min(grown, seconds("max_delay", self.max_delay))

    def gives_up(self, error: BaseException, attempt: int) -> bool:
        """Whether this error of this attempt (from 1) is the last one."""
        if attempt >= self.max_attempts or isinstance(error, self.give_up_on):
            return True
        return not isinstance(error, self.retry_on)


class Retry:
    """Middleware that carries out a RetryPolicy, for handlers of consumers that acknowledge.

    ``js`` publishes the dead letters; its timeout is how long an outage of their stream may last. The error goes on to
    whoever called the handler, which is logged by ``consume`` and counted as ``failed``. A message that the handler
    has answered itself stays as it is. One that comes for the time behind ``max_attempts`` has killed its workers: it
    is a dead letter without another call. Leave ``max_deliver`` of the consumer unlimited, or higher.
    """

    def __init__(self, js: JetStream, policy: RetryPolicy) -> None:
        self._js = js
        self.policy: RetryPolicy = policy

    async def __call__(self, message: JsMessage, call: Call) -> None:
        """Calls the handler, and retries or gives up the message if it raises."""
        if message.metadata.num_delivered > self.policy.max_attempts:
            await self._give_up(message, None)
            return
        try:
            await call()
        except Exception as exc:
            await self.failed(message, exc)
            raise

    async def handle(self, message: JsMessage, handler: Handler) -> bool:
        """For loops over ``messages``: calls the handler, acknowledges what it has not answered, and returns True.

        False when it raised: that is logged and told by a HandlerFailed event, and the message tried again or given
        up. Cancelling leaves the message unanswered.
        """

        async def call() -> None:
            result = handler(message)
            if inspect.isawaitable(result):
                await result

        try:
            await self(message, call)
        except Exception as exc:
            where = f"handler of {message.metadata.consumer!r}"
            log.error("%s failed for a message of %r: %r", where, message.subject, exc, exc_info=exc)
            self._js.connection._emit(HandlerFailed(where=where, error=exc))
            return False
        if not message.is_acked:
            await message.ack()
        return True

    async def failed(self, message: JsMessage, error: BaseException) -> None:
        """Retries the message or gives it up, as the policy says. For code without a handler, as batches are.

        What goes wrong meanwhile is told by a HandlerFailed event; the message is delivered again then.
        """
        if message.is_acked:
            return
        place = message.metadata
        if self.policy.gives_up(error, place.num_delivered):
            await self._give_up(message, error)
            return
        delay = self.policy.delay_of(place.num_delivered)
        delay += delay * self.policy.jitter * _rng.random()
        if await self._nak(message, delay):
            self._js.connection._emit(
                MessageRetried(
                    stream=place.stream,
                    consumer=place.consumer,
                    sequence=place.stream_seq,
                    attempt=place.num_delivered,
                    delay=delay,
                    error=error,
                )
            )

    async def _give_up(self, message: JsMessage, error: BaseException | None) -> None:
        place, subject = message.metadata, self.policy.dead_letters
        try:
            await self._js.publish(
                subject, message.data, headers=_headers(message, place, error), msg_id=_dead_id(place)
            )
            await message.term(f"dead letter on {subject}")
        except NatsError as exc:
            self._told(f"dead letter of message {place.stream_seq} of stream {place.stream!r}", exc)
            if not message.is_acked:
                await self._nak(message, seconds("max_delay", self.policy.max_delay))
            return
        self._js.connection._emit(
            MessageDeadLettered(
                stream=place.stream,
                consumer=place.consumer,
                sequence=place.stream_seq,
                attempts=place.num_delivered,
                dead_letters=subject,
                error=error,
            )
        )

    async def _nak(self, message: JsMessage, delay: float) -> bool:
        try:
            await message.nak(delay)
        except NatsError as exc:  # the server delivers it again after ack_wait
            self._told(f"nak of a message of {message.subject!r}", exc)
            return False
        return True

    def _told(self, where: str, error: NatsError) -> None:
        log.warning("%s failed: %s", where, error)
        self._js.connection._emit(HandlerFailed(where=where, error=error))


class DeadLetter(Value):
    """A dead letter, read: the message as it was, and why it was given up.

    ``sequence`` is that in ``stream``, where it was consumed by ``consumer``. ``headers`` are its own but those that
    servers act upon (``Nats-…``). ``error_type`` and ``error`` are those of the last attempt.
    """

    subject: str
    data: bytes
    headers: Headers
    stream: str
    sequence: int
    consumer: str
    attempts: int
    error_type: str
    error: str

    @classmethod
    def of(cls, message: Message | RawMessage) -> DeadLetter:
        """What the headers of a message tell. LocalProtocolError when it is no dead letter."""
        headers = message.headers
        subject = headers.get(SUBJECT)
        try:
            if subject is None:
                raise ValueError
            return cls(
                subject=subject,
                data=message.data,
                headers=Headers(_own(headers)),
                stream=headers.get(STREAM) or "",
                sequence=int(headers.get(SEQUENCE) or 0),
                consumer=headers.get(CONSUMER) or "",
                attempts=int(headers.get(ATTEMPTS) or 0),
                error_type=headers.get(ERROR_TYPE) or "",
                error=headers.get(ERROR) or "",
            )
        except ValueError:
            raise LocalProtocolError(f"the message on {message.subject!r} is no dead letter") from None


async def replay(
    js: JetStream,
    stream: str,
    *,
    subject: str = ">",
    select: Callable[[DeadLetter], bool] | None = None,
    to: str | None = None,
) -> int:
    """Publishes the dead letters of a stream to where they came from, deletes them there, and returns their number.

    Those that are there now, the oldest first: of ``subject`` (wildcards allowed), that ``select`` returns True for.
    ``to`` is another subject to publish to. Each is deleted when its stream has it; a letter is published with an id,
    so that one whose deletion was lost is stored once by a replay within the stream's ``duplicate_window``. Other
    messages stay where they are.

    StreamNotFound; NoStream when nobody listens on the subject of a letter, which stays; and what ``js.publish`` and
    ``delete_message`` raise. Cancelling leaves the rest.
    """
    letters = await js.stream(stream)
    last = (await letters.info()).state.last_seq
    number, sequence = 0, 1
    while sequence <= last:
        try:
            message = await letters.get_next_message(subject, start_sequence=sequence)
        except MessageNotFound:
            break
        sequence = message.seq + 1
        if message.seq > last or SUBJECT not in message.headers:
            continue
        letter = DeadLetter.of(message)
        if select is not None and not select(letter):
            continue
        msg_id = f"replay:{stream}:{message.seq}:{message.time.ns}"
        await js.publish(to or letter.subject, letter.data, headers=letter.headers or None, msg_id=msg_id)
        try:
            await letters.delete_message(message.seq)
        except MessageNotFound:
            continue  # somebody else has replayed it as well
        number += 1
    return number


def _headers(message: JsMessage, place: Metadata, error: BaseException | None) -> Headers:
    kind, text = "", _NO_ANSWER
    if error is not None:
        kind, text = f"{type(error).__module__}.{type(error).__qualname__}", str(error)
    said = {
        SUBJECT: message.subject,
        STREAM: place.stream,
        SEQUENCE: str(place.stream_seq),
        CONSUMER: place.consumer,
        ATTEMPTS: str(place.num_delivered),
        ERROR_TYPE: kind,
        ERROR: _NOT_TEXT.sub(" ", text)[:_MAX_ERROR].encode("utf-8", "replace").decode().strip(),
    }
    return Headers([*_own(message.headers), *((name, value) for name, value in said.items() if value)])


def _own(headers: Headers) -> list[tuple[str, str]]:
    """The publisher's, without what a server would act upon (ids, expectations, TTLs) and those of an earlier death."""
    return [(name, value) for name, value in headers.pairs() if not name.lower().startswith(("nats-", "dead-letter-"))]


def _dead_id(place: Metadata) -> str:
    """The same for every attempt to bury a message, and another one in a stream that was made anew."""
    return f"dead:{place.stream}:{place.consumer}:{place.stream_seq}:{place.timestamp.ns}"
