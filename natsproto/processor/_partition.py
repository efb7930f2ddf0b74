"""One partition of a processor: reads its state, then its part of the source, and stores what the handler makes of it.

Rules:

1. The cursor of the partition is a subject of the sink, and its state are the subjects beside it. Every batch has the
   outputs, the changed state and the new position, in this order: whoever has seen the cursor has seen its state.
2. State and cursor come from one reading, in the order of the stream, until the cursor that the leader has. State that
   is older than its cursor would be wrong in silence; whatever is newer fences the first batch.
3. After every error, and after a lost connection, the state is read again: if the sink went back meanwhile, another
   worker may have brought its cursor to the same sequence with another position. An error that passes is waited for;
   any other one ends the processor.
4. A position is the sequence of the last message of the source that was handled. Each consumer of the source is checked
   to be one of the same stream before its first message is handled.
5. A batch is committed when it is full, when no message waits, ``MAX_BATCH_S`` after its first one, and before a pause.
6. A worker that is fenced stands by while the cursor moves. Which worker has a partition only saves work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

from natsproto import errors
from natsproto._core.deadline import Backoff
from natsproto._core.events import Disconnected, Event
from natsproto._dead_letters import AttemptedMessage, forms_of
from natsproto.errors._base import is_transient
from natsproto.jetstream import Cursor, JetStream, JsMessage, Messages, Stream, StreamConfig
from natsproto.processor._state import (
    MAX_MESSAGES,
    CallLimits,
    HandlerCall,
    KeyedState,
    Output,
    Outputs,
    PartitionState,
)
from natsproto.retry import MessageDeadLettered, MessageRetried, RetryPolicy

Handler = Callable[[JsMessage, KeyedState, Outputs], Awaitable[object]]

STATE_HEADER = "Natsproto-State"
"""Marks the messages of the state: ``value`` or ``deleted``."""

MAX_READ_MESSAGES = 500
"""Messages of the source in one list, and so in a batch at most."""
MAX_BATCH_S = 0.5
"""Seconds after which a batch is committed although more messages wait."""
_MAX_BATCH_BYTES = 16 * 2**20
_MAX_TURN_S = 0.02
"""Seconds of handling after which others of the event loop get their turn."""
_READ_TIMEOUT_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_STAND_BY_S = 0.5
"""Seconds between two looks at a cursor that another worker moves."""
_MAX_READS = 5
"""Looks in a row, over about a second, that have to agree before a source counts as gone back, or a cursor as lost."""

log = logging.getLogger("natsproto.processor")


class Settings(NamedTuple):
    """The arguments of a processor, which all its partitions have."""

    js: JetStream
    name: str
    handler: Handler
    source: str
    sink: str
    partitions: int
    retry: RetryPolicy | None
    timeout: float | None
    max_state_bytes: int
    prefix: str
    """The beginning of all subjects of the processor: ``$CURSOR.<sink>.<name>``."""
    source_created: int
    """When the source was created, in nanoseconds."""


class GivenUp(Exception):
    """The handler has raised ``error``, and there is no retry policy."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception = error
        super().__init__(error)


class Outdated(Exception):
    """The connection was lost since the state was read, or the partition is left while it is read."""


class Partition:
    """One partition, while this worker has it."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.number: int = number
        self.leaving: asyncio.Event = asyncio.Event()
        """Set it to end ``run`` after the messages in hand."""
        self.state: PartitionState = PartitionState()
        self.handled: int = 0
        """Messages whose batches this worker has stored."""
        self._settings = settings
        self._where = f"processor {settings.name!r}, partition {number}"  # also for the watch of the event loop
        self._own = f"{settings.prefix}.{number}."
        self._cursor: Cursor | None = None
        self._limits: CallLimits | None = None
        self._state_args: dict[str, Any] = {}
        self._outputs: list[Output] = []
        self._nbytes = 0
        self._position, self._count = 0, 0
        self._began = 0.0
        self._is_outdated = False
        self._rival_seq: int | None = None  # of the cursor of another worker, which may go on
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    async def run(self) -> None:
        """Process until ``leaving`` is set; raises what does not pass. Cancelling may leave a batch stored or not."""
        remove_listener = self._settings.js.connection.add_listener(self._on_event)
        try:
            while not self.leaving.is_set():
                await self._try_to_work()
        finally:
            remove_listener()

    async def _try_to_work(self) -> None:
        """Process until it ends, or an error that passes."""
        try:
            await self._work()
        except GivenUp as exc:
            raise exc.error  # noqa: B904  # the error of the handler, with its own traceback
        except Outdated:
            log.debug("%s: what was read is outdated", self)
        except errors.CursorMoved as exc:
            log.debug("%s: %s", self, exc)
            self._rival_seq = exc.seq if exc.seq > exc.expected_seq else None
        except errors.NatsError as exc:
            if not is_transient(exc) and not isinstance(exc, errors.PublishUncertain):
                raise
            log.warning("%s: %s; it reads its state and continues", self, exc)
            await self.pause(self._backoff.next_delay())

    def _on_event(self, event: Event) -> None:
        self._is_outdated |= isinstance(event, Disconnected)

    def __str__(self) -> str:
        return self._where

    async def pause(self, seconds: float) -> None:
        """Sleep, but not longer than until ``leaving``."""
        try:
            await asyncio.wait_for(self.leaving.wait(), seconds)
        except TimeoutError:
            pass

    async def _pause_or_leave(self, seconds: float) -> None:
        """Sleep before another look; Outdated when it leaves, since too few looks prove nothing."""
        await self.pause(seconds)
        if self.leaving.is_set():
            raise Outdated

    # ---------------------------------------------------------------- one term

    async def _work(self) -> None:
        """Read the state, and process until it ends."""
        settings = self._settings
        if self._rival_seq is not None:
            await self.pause(_STAND_BY_S)
        self._is_outdated = False
        cursor = await settings.js.cursor(settings.sink, f"{settings.name}-{self.number}", subject=f"{self._own}cursor")
        if self._rival_seq is not None and cursor.seq > self._rival_seq:
            self._rival_seq = cursor.seq
            return
        self._rival_seq = None
        sink = await settings.js.stream(settings.sink)
        await self._load(sink, cursor)
        config = sink.cached_info.config
        self._cursor, self._state_args = cursor, _state_args(config)
        self._limits = CallLimits(
            settings.name,
            self.number,
            settings.max_state_bytes,
            min(settings.js.connection.max_payload, config.max_msg_size if config.max_msg_size > 0 else 2**63),
            config.subjects,
            f"{settings.prefix}.",
        )
        self._outputs, self._nbytes, self._position, self._count = [], 0, position_of(cursor), 0
        await self._read(await self._open_source(self._position))

    async def _load(self, sink: Stream, cursor: Cursor) -> None:
        """Read the state as of the cursor, and the cursor, from one consumer."""
        self.state = state = PartitionState()
        prefix = f"{self._own}state."
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        for attempt in count(1):
            if cursor.seq:
                break
            if not (await sink.info(subjects_filter=f"{prefix}>")).state.subjects:
                return
            if attempt >= _MAX_READS:
                raise errors.InvalidReply(
                    "cursor", cursor.subject, None, "is missing, but its state is there: purge both"
                )
            await self._pause_or_leave(backoff.next_delay())  # another worker may have begun just now
            await cursor.load()
        consumer = sink.ordered_consumer(filter_subjects=[f"{self._own}>"], deliver_policy="last_per_subject")
        async with consumer, consumer.messages() as reader:
            while True:
                message = await reader.next(_READ_TIMEOUT_S)
                if message.subject.startswith(prefix):
                    is_deleted = message.headers.get(STATE_HEADER) == "deleted"
                    state.apply(message.subject[len(prefix) :], None if is_deleted else bytes(message.data))
                    if state.nbytes > self._settings.max_state_bytes:
                        raise self._too_large(state.nbytes)
                elif message.subject == cursor.subject and message.seq >= cursor.seq:
                    await cursor.load()
                    if message.seq == cursor.seq:
                        return

    async def _open_source(self, position: int) -> Stream:
        """Return the source. SourceChanged when its sequences are not those of the position."""
        settings = self._settings
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        for attempt in count(1):
            source = await settings.js.stream(settings.source)
            info = source.cached_info
            if info.created.ns != settings.source_created:
                raise source_recreated(settings)
            if info.state.last_seq >= position:
                break
            if attempt >= _MAX_READS:
                why = f"went back to message {info.state.last_seq}, while {position} was processed"
                raise errors.SourceChanged(settings.name, settings.source, why)
            await self._pause_or_leave(backoff.next_delay())  # a new leader may not have applied all messages yet
        if settings.partitions == 1 and 0 < position < info.state.first_seq - 1:
            log.warning(
                "%s: messages %d to %d of stream %r were removed before they were processed",
                *(self, position + 1, info.state.first_seq - 1, settings.source),
            )
        return source

    async def _read(self, source: Stream) -> None:
        """Handle the messages after the position until ``leaving``."""
        consumer = source.ordered_consumer(
            start_seq=self._position + 1,
            filter_subjects=[f"{self.number}.>"] if self._settings.partitions > 1 else [],
        )
        async with consumer, consumer.messages() as reader:
            stopping = asyncio.create_task(self._stop(reader))
            checked = ""
            try:
                async for messages in reader.batches(MAX_READ_MESSAGES):
                    if consumer.name != checked:  # a new consumer may be one of a stream that was recreated
                        await self._open_source(self._position)
                        checked = consumer.name
                    await self._handle(messages)
                if reader.error is not None:
                    raise reader.error
            finally:
                stopping.cancel()

    async def _stop(self, reader: Messages) -> None:
        await self.leaving.wait()
        await reader.stop()

    # ---------------------------------------------------------------- messages

    async def _handle(self, messages: list[JsMessage]) -> None:
        """Handle the messages one after the other, and commit."""
        if self._is_outdated:
            raise Outdated
        loop = asyncio.get_running_loop()
        turn = loop.time()
        for message in messages:
            if self.leaving.is_set():
                break
            if self._settings.partitions > 1:
                message.subject = message.subject.partition(".")[2]  # the partition is no part of the user's subject
            if not self._count:
                self._began = loop.time()
            call = await self._call(message)
            if call is None:
                break
            await self._add(message.seq, call)
            now = loop.time()
            if now - self._began > MAX_BATCH_S:
                await self._commit()
            if now - turn > _MAX_TURN_S:
                await asyncio.sleep(0)
                turn = loop.time()
        await self._commit()

    async def _call(self, message: JsMessage) -> HandlerCall | None:
        """Call the handler until it succeeds, or set the message aside; None when this worker leaves meanwhile."""
        settings, limits = self._settings, self._limits
        assert limits is not None
        attempt = 0
        while True:
            call = HandlerCall(self.state, limits)
            error = await self._invoke(message, call)
            if error is None:
                return call
            if isinstance(error, errors.StateTooLarge):
                raise error
            policy = settings.retry
            if policy is None:
                error.add_note(f"{self}: message {message.seq} of stream {settings.source!r} ({message.subject!r})")
                await self._commit()
                raise GivenUp(error)
            is_free = isinstance(error, policy.free)
            attempt += not is_free
            if not is_free and policy.gives_up(error, attempt):
                return self._set_aside(message, attempt, error, policy)
            delay = policy.delay_of(max(attempt, 1))
            settings.js.connection._event_bus.emit(
                MessageRetried(
                    stream=settings.source,
                    consumer=settings.name,
                    seq=message.seq,
                    attempt=attempt,
                    max_attempts=policy.max_attempts,
                    delay=delay,
                    error=error,
                )
            )
            await self._commit()
            await self.pause(delay)
            if self.leaving.is_set():
                return None

    async def _invoke(self, message: JsMessage, call: HandlerCall) -> Exception | None:
        """Call the handler once, and return its error."""
        settings = self._settings
        error: Exception | None = None
        expiry = asyncio.timeout(settings.timeout)
        try:
            async with expiry:
                await settings.handler(message, KeyedState(call), Outputs(call))
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = RuntimeError("the handler was cancelled by something that it awaited")
            error.__cause__ = exc
        except Exception as exc:
            error = exc
            if expiry.expired() and isinstance(exc, TimeoutError) and settings.timeout is not None:
                error = errors.HandlerTimeout(settings.timeout, False)
                error.__cause__ = exc
        refusal = call.end()
        if isinstance(refusal, errors.StateTooLarge):
            return refusal
        return error or refusal

    def _set_aside(self, message: JsMessage, attempts: int, error: Exception, policy: RetryPolicy) -> HandlerCall:
        """Return a call whose only output is the dead letter of the message."""
        settings, limits = self._settings, self._limits
        assert limits is not None
        call = HandlerCall(self.state, limits)
        metadata = message.metadata.replace(consumer=settings.name)
        refusal: errors.PayloadTooLarge | None = None
        for data, headers in forms_of(AttemptedMessage(message, metadata, attempts, error)):
            try:
                call.add(policy.dead_letter_subject, data, headers)
                break
            except errors.PayloadTooLarge as exc:
                refusal = exc
        else:
            assert refusal is not None
            raise refusal
        call.end()
        settings.js.connection._event_bus.emit(
            MessageDeadLettered(
                stream=settings.source,
                consumer=settings.name,
                seq=message.seq,
                attempts=attempts,
                dead_letter_subject=policy.dead_letter_subject,
                error=error,
            )
        )
        return call

    # ---------------------------------------------------------------- batches

    async def _add(self, seq: int, call: HandlerCall) -> None:
        """Add a call to the batch, which is committed before if there is no room."""
        used = len(self._outputs) + len(self.state.changed)
        if used + call.room_for() > MAX_MESSAGES or self._nbytes + call.nbytes > _MAX_BATCH_BYTES:
            await self._commit()
        call.merge()
        self._outputs += call.outputs
        self._nbytes += call.nbytes
        self._position = seq
        self._count += 1

    async def _commit(self) -> None:
        """Store the outputs, the changed state and the position together."""
        if not self._count:
            return
        if self._is_outdated:
            raise Outdated
        cursor, state = self._cursor, self.state
        assert cursor is not None
        async with cursor.advance(to=self._position) as batch:
            for output in self._outputs:
                await batch.publish(output.subject, output.payload, headers=output.headers)
            for key, value in state.changed.items():
                kind = "deleted" if value is None else "value"
                await batch.publish(
                    f"{self._own}state.{key}", value or b"", headers={STATE_HEADER: kind}, **self._state_args
                )
        self.handled += self._count
        self._outputs, self._nbytes, self._count = [], 0, 0
        state.changed.clear()
        self._backoff.reset()

    def _too_large(self, size: int) -> errors.StateTooLarge:
        settings = self._settings
        return errors.StateTooLarge(settings.name, self.number, size, settings.max_state_bytes)


def source_recreated(settings: Settings) -> errors.SourceChanged:
    """Return the error of a source that has the name of the one that was read, and maybe other messages."""
    why = f"was created again (after a restore with the same messages, purge '{settings.prefix}.source' of the sink)"
    return errors.SourceChanged(settings.name, settings.source, why)


def position_of(cursor: Cursor) -> int:
    """Return the value of a cursor that counts messages of a source; 0: none was processed."""
    value = cursor.value or 0
    if not isinstance(value, int):
        raise errors.InvalidReply("cursor", cursor.subject, value, "must be an int: another program uses this cursor")
    return value


def _state_args(config: StreamConfig) -> dict[str, Any]:
    """Return the options that keep messages of the state, and no more of them than needed."""
    args: dict[str, Any] = {}
    if config.max_age:
        args["ttl"] = "never"
    if config.allow_rollup_hdrs:
        args["rollup"] = "sub"
    return args
