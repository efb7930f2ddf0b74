"""The processor: checks its streams, and runs the partitions that this worker has."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from natsproto import errors
from natsproto._core.deadline import Backoff
from natsproto._durations import positive_seconds
from natsproto._handlers import check_handler, is_async_callable
from natsproto._signals import check_until
from natsproto.errors._base import is_transient
from natsproto.jetstream import JetStream, RawMessage, RetentionPolicy, Stream, StreamConfig
from natsproto.jetstream._cursor import cursor_subject
from natsproto.jetstream._values.codec import Duration
from natsproto.processor._members import Members
from natsproto.processor._partition import Handler, Partition, Settings, log, source_recreated
from natsproto.protocol.subject import matches
from natsproto.retry import RetryPolicy

MAX_PROCESSOR_PARTITIONS = 256
DEFAULT_MAX_STATE_BYTES = 64 * 2**20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_PARTITION = re.compile(r"\{\{\s*partition\(\s*(\d+)[^}]*\)\s*\}\}\.", re.IGNORECASE)
"""The beginning of a subject that a transform gives to messages of a partition."""


class Processor:
    """Calls a handler with each message of a stream, and stores its outputs, the state that it changed and the position
    in the source together, once (experimental).

    ``async def handler(message, state, out)``: ``state`` is a mapping of str to bytes, which belongs to the partition
    of the message; ``out.add(subject, payload, headers=...)`` adds a message for the sink. A handler that raises has
    changed nothing. It may be called again for a message whose batch was not stored: what it does elsewhere may happen
    twice. Any number of processes may run the same processor: they share the partitions, and the cursors in the sink
    decide which of them writes.

    The source needs ``retention="limits"``, and with ``partitions`` above 1 subjects that begin with the partition of
    the key. The sink is another stream with ``allow_atomic`` and the subject ``$CURSOR.<sink>.>``; it needs nats-server
    2.12. Workers announce themselves on the core subject ``$PROCESSOR.<sink>.<name>``.

    ConfigError and TypeError for arguments that are invalid. Sends nothing until ``run``.

    Args:
        js: The JetStream context of a client that reconnects.
        name: The name of the processor, as a consumer's, without dots. It owns the state and the positions.
        handler: Called as ``await handler(message, state, out)`` with one message of a partition after the other.
        source: The stream to read, from its first message on.
        sink: The stream that gets the outputs, the state and the positions.
        partitions: How many partitions the source has, 1 to 256; the number cannot change.
        retry: What happens to a message whose handler raises: when it is called again, and the subject of the sink for
            dead letters. None: ``run`` raises the error.
        timeout: Seconds for a call of the handler, which then fails with HandlerTimeout; None: no limit.
        max_state_bytes: The most bytes of the keys and values of a partition, all of which are in memory; beyond it
            ``run`` raises StateTooLarge.
    """

    def __init__(
        self,
        js: JetStream,
        name: str,
        handler: Handler,
        *,
        source: str,
        sink: str,
        partitions: int = 1,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
    ) -> None:
        if not isinstance(js, JetStream):
            raise TypeError(f"js must be a JetStream, as nc.jetstream() returns it, not {type(js).__name__}")
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(f"retry must be a RetryPolicy, not {type(retry).__name__}")
        check_handler("handler", handler, "message, state and outputs", 3)
        if not is_async_callable(handler):
            raise TypeError("handler must be an async def")
        if source == sink:
            raise errors.ConfigError("sink", sink, "must be another stream than the source")
        if type(partitions) is not int or not 1 <= partitions <= MAX_PROCESSOR_PARTITIONS:
            raise errors.ConfigError("partitions", partitions, f"must be a number from 1 to {MAX_PROCESSOR_PARTITIONS}")
        if type(max_state_bytes) is not int or max_state_bytes < 1:
            raise errors.ConfigError("max_state_bytes", max_state_bytes, "must be a positive number of bytes")
        self.name: str = name
        self._settings = Settings(
            js=js,
            name=name,
            handler=handler,
            source=source,
            sink=sink,
            partitions=partitions,
            retry=retry,
            timeout=None if timeout is None else positive_seconds("timeout", timeout),
            max_state_bytes=max_state_bytes,
            prefix=cursor_subject(sink, name),
            source_created=0,
        )
        self._running: dict[int, tuple[Partition, asyncio.Task[None]]] = {}
        self._handled = 0  # by partitions that have ended
        self._is_running = False

    def __repr__(self) -> str:
        return f"Processor({self.name!r}, source={self._settings.source!r}, sink={self._settings.sink!r})"

    @property
    def partitions(self) -> tuple[int, ...]:
        """The numbers, from 0, of the partitions that this worker has now."""
        return tuple(sorted(number for number, (one, _) in self._running.items() if not one.leaving.is_set()))

    @property
    def handled(self) -> int:
        """The number of messages of the source whose outcome this worker has stored."""
        return self._handled + sum(one.handled for one, _ in self._running.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of the keys and values of the largest partition that this worker has now."""
        return max((one.state.nbytes for one, _ in self._running.values()), default=0)

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Process messages until the event is set, and for ever without one; batches in progress are finished.

        Outages of the servers are waited for. Raises the error of the handler when there is no ``retry``;
        StateTooLarge;
        SourceChanged when the source was recreated or went back; StreamNotFound; ConfigError and UnsupportedByServer
        for streams that do not fit; ConnectionClosed; and every other error that does not pass. When the client drains,
        it ends as with the event. Cancelling may leave a batch stored or not: the cursor decides at the next run.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until cancelled.
        """
        check_until(until)
        if self._is_running:
            raise errors.LocalProtocolError(f"processor {self.name!r} is running already")
        self._is_running = True
        stop = asyncio.Event() if until is None else until
        stopping = asyncio.create_task(stop.wait())
        try:
            opening = asyncio.create_task(self._open())
            await _first(opening, stopping)
            if opening.done():
                settings = await opening
                members = Members(settings.js.connection, f"$PROCESSOR.{settings.sink}.{settings.name}")
                await self._share(settings, members, stopping)
        finally:
            self._is_running = False
            await _cancel(stopping, opening)

    # ---------------------------------------------------------------- internals

    async def _share(self, settings: Settings, members: Members, stopping: asyncio.Task[Any]) -> None:
        """Run the partitions of this worker, as other workers come and go, until it stops or one of them fails."""
        announcing = asyncio.create_task(members.run())
        changing: asyncio.Task[Any] = asyncio.create_task(members.changed.wait())
        try:
            while not stopping.done():
                tasks = [task for _, task in self._running.values()]
                await asyncio.wait({stopping, announcing, changing, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                if announcing.done():  # the client drains, or is closed, or may not subscribe
                    await announcing
                    break
                self._collect()
                if changing.done():
                    members.changed.clear()
                    changing = asyncio.create_task(members.changed.wait())
                self._adopt(settings, members.partitions(settings.partitions))
            await self._leave()
        finally:
            tasks = [task for _, task in self._running.values()]
            await _cancel(announcing, changing, *tasks)
            self._handled += sum(partition.handled for partition, _ in self._running.values())
            self._running.clear()
            members.leave()

    def _adopt(self, settings: Settings, wanted: set[int]) -> None:
        """Begin the partitions of this worker, and end the others after the messages in hand."""
        for number, (partition, _) in self._running.items():
            if number not in wanted:
                partition.leaving.set()
        for number in wanted - self._running.keys():
            partition = Partition(settings, number)
            self._running[number] = partition, asyncio.create_task(partition.run(), name=f"natsproto {partition}")

    def _collect(self) -> None:
        """Forget the partitions that have ended; raise the error of one that failed."""
        for number, (partition, task) in list(self._running.items()):
            if task.done():
                del self._running[number]
                self._handled += partition.handled
                task.result()

    async def _leave(self) -> None:
        """End all partitions after the messages in hand."""
        for partition, _ in self._running.values():
            partition.leaving.set()
        while self._running:
            await asyncio.wait({task for _, task in self._running.values()}, return_when=asyncio.FIRST_COMPLETED)
            self._collect()

    async def _open(self) -> Settings:
        """Check the streams, after outages; return the settings with the source's identity."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                return await self._check()
            except errors.NatsError as exc:
                if not is_transient(exc) and not isinstance(exc, (errors.PublishUncertain, errors.WrongExpectation)):
                    raise
                log.warning("processor %r: %s; it tries again", self.name, exc)
                await asyncio.sleep(backoff.next_delay())

    async def _check(self) -> Settings:
        settings = self._settings
        source, sink = await settings.js.stream(settings.source), await settings.js.stream(settings.sink)
        _check_source(source.cached_info.config, settings.partitions)
        if settings.retry is not None:
            letters = settings.retry.dead_letter_subject
            subjects = sink.cached_info.config.subjects
            if not any(matches(pattern, letters) for pattern in subjects) or letters.startswith(settings.prefix):
                raise errors.ConfigError(
                    "dead_letter_subject", letters, f"must be a subject of stream {settings.sink!r}"
                )
        # The first cursor is opened for the checks of the sink alone: its partition may belong to another worker.
        await settings.js.cursor(settings.sink, f"{self.name}-0", subject=f"{settings.prefix}.0.cursor")
        created = await self._identify(source, sink)
        return settings._replace(source_created=created)

    async def _identify(self, source: Stream, sink: Stream) -> int:
        """Compare the source and the partitions with those of the first run, which the sink has; return when the
        source was created.
        """
        settings = self._settings
        subject = f"{settings.prefix}.source"
        created = source.cached_info.created.ns
        mine = {"source": settings.source, "created": created, "partitions": settings.partitions}
        try:
            stored = _decode(await sink.get_last_message(subject, direct=False))
        except errors.MessageNotFound:
            ttl = {"ttl": "never"} if sink.cached_info.config.max_age else {}
            payload = json.dumps(mine).encode()
            await settings.js.publish(subject, payload, expected_last_subject_seq=0, **ttl)  # type: ignore[arg-type]
            return created
        if stored["partitions"] != settings.partitions:
            raise errors.ConfigError("partitions", settings.partitions, f"was {stored['partitions']}: it cannot change")
        if stored["source"] != settings.source:
            raise errors.SourceChanged(self.name, settings.source, f"is not {stored['source']!r}, which it read before")
        if stored["created"] != created:
            raise source_recreated(settings)
        return created


def _decode(message: RawMessage) -> dict[str, object]:
    try:
        value = json.loads(message.data)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.keys() < {"source", "created", "partitions"}:
        raise errors.InvalidReply("source", message.subject, value, "must be that of a processor")
    return value


def _check_source(config: StreamConfig, partitions: int) -> None:
    """Raise ConfigError for a stream whose messages would be removed or left out in silence."""
    name = config.name
    if config.retention is not RetentionPolicy.LIMITS:
        raise errors.ConfigError(
            "source", name, 'has consumers that remove messages: use a stream with retention="limits"'
        )
    if partitions == 1:
        return
    if config.subject_transform is not None:
        src = config.subject_transform.src
        ways = [config.subject_transform.dest]
        covers = all(matches(src, one) and (one[-1] != ">" or src[-1] == ">") for one in config.subjects)
    else:
        origins = [*config.sources, *([] if config.mirror is None else [config.mirror])]
        ways = [one.dest for origin in origins for one in origin.subject_transforms] or [""]
        covers = not config.subjects and all(origin.subject_transforms for origin in origins)
    found = [_PARTITION.match(way) for way in ways]
    if not covers or any(one is None or int(one[1]) != partitions for one in found):
        raise errors.ConfigError(
            "source",
            name,
            f"has subjects that do not all begin with one of {partitions} partitions: give it a subject_transform such"
            f' as src="in.*", dest="{{{{Partition({partitions},1)}}}}.in.{{{{Wildcard(1)}}}}"',
        )


async def _first(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end; their errors are of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
