"""An instance of a member: joins the group, and rejoins when the partitions change.

Owns the task that watches the group's configuration, and the member's consumer while it is read. ``partitions``
computes the partitions of each member from the configuration, so members do not communicate.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Final

from natsproto._async_hints import RunHint
from natsproto.errors import (
    ApiError,
    ConfigError,
    ConnectionLost,
    ConsumerExists,
    ConsumerGone,
    ConsumerNotFound,
    GroupChanged,
    InvalidReply,
    JetStreamUnavailable,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    SubscriptionClosed,
)
from natsproto.jetstream._api_errors import ErrCode
from natsproto.jetstream._codec import loads
from natsproto.jetstream._config import ConsumerConfig
from natsproto.jetstream._consumer.consume import ConsumeContext, Handler, HandlerOptions
from natsproto.jetstream._consumer.handle import PullConsumer
from natsproto.jetstream._end_waiters import EndWaiters
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._policies import AckPolicy, PriorityPolicy
from natsproto.jetstream._stream import Stream
from natsproto.jetstream.groups._partitions import (
    DEFAULT_ACK_WAIT_S,
    MIN_PULL_S,
    PRIORITY_GROUP,
    GroupConfig,
    StaticGroupConfig,
)
from natsproto.jetstream.groups._stall_watch import StallWatch
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.middleware import Call, with_middleware

REJOIN_INTERVAL_S: Final = 0.5
"""Seconds between attempts to join: the previous members may not have left their partitions yet."""
YIELD_TO_PINNED_S: Final = 0.4
"""Seconds, and up to a quarter more, that an instance without the pin waits for the pinned one."""


class MemberHandler:
    """The handler of a member with its ``options``; at most ``prefetch`` are buffered."""

    handler: Handler
    options: HandlerOptions
    prefetch: int | None

    def __init__(self, handler: Handler, options: HandlerOptions, prefetch: int | None) -> None:
        if prefetch is not None and prefetch < 1:
            raise ConfigError("prefetch", prefetch, "must be at least 1")
        self.handler = with_middleware(options.with_executor(handler), self._on_message)
        self.options, self.prefetch = options, prefetch
        self.pin: str = ""
        """The pin id of the instance that the server serves, from the last message."""
        self.handled: int = 0
        """The messages so far."""

    def consume(self, consumer: PullConsumer, expires: float) -> ConsumeContext:
        """Start to handle the messages of a consumer."""
        options = self.options
        return consumer.consume(
            self.handler,
            priority_group=PRIORITY_GROUP,
            prefetch=self.prefetch,
            expires=expires,
            concurrency=options.concurrency,
            key=options.key,
            on_success=options.on_success,
            on_error=options.on_error,
            nak_delay=options.nak_delay,
            keep_alive=options.keep_alive,
            error_cb=options.error_cb,
        )

    async def _on_message(self, message: JsMessage, call: Call) -> None:
        self.handled += 1
        if pin := message.headers.last("Nats-Pin-Id"):
            self.pin = pin
        message.subject = message.subject.partition(".")[2]  # the partition is no part of the user's subject
        await call()


class Member(RunHint):
    """One instance of a member. Created by ``consume`` of a group: use it with ``async with``, or ``await`` its
    ``run()``.

    It ends by ``stop``, when the group is deleted, or on an error, which ``wait``, ``run`` and leaving the block raise
    (GroupChanged, PermissionDenied, BucketNotFound …). Leaving the block stops.
    """

    _unused_warning = "consume(...) of a group was never run or entered"

    def __init__(
        self,
        bucket: KeyValue,
        stream: Stream,
        key: str,
        name: str,
        config: GroupConfig,
        template: ConsumerConfig,
        work: MemberHandler,
        stall_watch: StallWatch | None,
    ) -> None:
        self.name = name
        """The name of the member."""
        self._bucket, self._stream, self._key = bucket, stream, key
        self._config, self._work, self._stall_watch = config, work, stall_watch
        self._static = isinstance(config, StaticGroupConfig)
        self._consumer_config = _member_config(template, key.partition(".")[2], name, static=self._static)
        self._consumer: PullConsumer | None = None
        self._context: ConsumeContext | None = None
        self._ended: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._end_waiters = EndWaiters(stream._api.connection._log)
        self._begun = False

    # ---------------------------------------------------------------- properties

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of the member in the last configuration."""
        return self._config.partitions(self.name)

    @property
    def is_joined(self) -> bool:
        """True while it reads the member's consumer; of several instances the server serves one."""
        return self._context is not None

    @property
    def closed(self) -> bool:
        """True after its end."""
        return self._task is not None and self._task.done()

    async def wait_joined(self) -> None:
        """Wait until it reads the member's consumer. Raises the error that ended it; LocalProtocolError when it was
        stopped.

        Cancelling ends the wait.
        """
        task = self._started()
        waiting = asyncio.ensure_future(self._joined.wait())
        with self._end_waiters.waiting():
            try:
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if not self._joined.is_set():
            await self.wait()
            raise LocalProtocolError(f"member {self.name!r} has ended before it joined")

    # ---------------------------------------------------------------- running

    async def __aenter__(self) -> Member:
        self._begun = True
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"natsproto member {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if exc is None:
            await self.wait()

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Join, and wait until it has ended, or until the event is set, which stops it. Raises the error that ended it.

        Cancelling stops it.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until stopped.
        """
        async with self:
            await self.wait(until)

    async def wait(self, until: asyncio.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set; raise its error, unless it was stopped or the group
        deleted. Cancelling ends the wait.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it waits until stopped.
        """
        task = self._started()
        with self._end_waiters.waiting():
            await self._end_waiters.wait((task,), until)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error.with_traceback(None)

    async def stop(self) -> None:
        """Wait for running handlers and end; another instance takes over. Never raises.

        The consumer is kept; in an elastic group the server removes it after ``ack_wait`` without instances.
        """
        self._begun = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with self._end_waiters.waiting():
                await asyncio.wait({self._task})

    def _started(self) -> asyncio.Task[None]:
        self._begun = True  # avoids the warning about an unused object
        if self._task is None:
            raise LocalProtocolError(f"enter member {self.name!r} with async with first")
        return self._task

    # ---------------------------------------------------------------- internals

    async def _run(self) -> None:
        watching = None
        if self._stall_watch is not None:
            watching = asyncio.ensure_future(self._stall_watch.run(self.name, lambda: self._work.handled))
        try:
            await self._follow_config()
        except NatsError as exc:
            self._end_waiters.on_end(f"group member {self.name!r}", exc, "mend the group, then join it again")
            raise
        finally:
            if watching is not None:
                watching.cancel()

    async def _follow_config(self) -> None:
        async with self._bucket.watch(self._key) as changes:
            change = asyncio.ensure_future(changes.next())
            lost = False
            try:
                while True:
                    if self._context is None and not lost:  # after a loss, wait for the change that explains it
                        await self._join()
                    lost = False
                    waiting: set[asyncio.Future[object]] = {change}  # type: ignore[arg-type]
                    if self._ended is not None:
                        waiting.add(self._ended)  # type: ignore[arg-type]
                    retry_after = REJOIN_INTERVAL_S if self._context is None and self.partitions else None
                    done, _ = await asyncio.wait(waiting, timeout=retry_after, return_when=asyncio.FIRST_COMPLETED)
                    if change in done:
                        entry = change.result()
                        change = asyncio.ensure_future(changes.next())
                        if not await self._on_config_change(entry):
                            return
                    elif done:
                        await self._on_consume_end()
                        lost = True
            except SubscriptionClosed:
                return  # the client is closed
            finally:
                change.cancel()
                await self._leave()

    async def _on_config_change(self, entry: KeyValueEntry) -> bool:
        """Handle a change of the configuration. False when the group was deleted."""
        config = self._config
        if entry.is_deleted:
            if self._static:
                await self._delete_consumer()
            return False
        try:
            new = loads(type(config), entry.data)
            new._check()
        except (ConfigError, InvalidReply) as exc:
            raise await self._end_group(f"its configuration is wrong: {exc}") from exc
        if new == config:
            return True
        if self._static:
            raise await self._end_group("its configuration was changed, which ends a static group")
        if not config._equals_except_members(new):
            raise await self._end_group("more than its members was changed")
        await self._change_partitions(new)
        return True

    async def _end_group(self, reason: str) -> GroupChanged:
        if self._static:
            await self._delete_consumer()
        stream, _, group = self._key.partition(".")
        return GroupChanged(stream, group, reason)

    async def _change_partitions(self, new: GroupConfig) -> None:
        """Replace the consumer for other partitions, since a changed one would not return to messages it has skipped.
        The pinned instance deletes it; the others wait for that.
        """
        if self._config.subjects(self.name) == new.subjects(self.name) and self._context is not None:
            self._config = new  # the others changed, and nothing is to be done
            return
        pinned = await self._is_pinned()
        if pinned:
            await self._delete_consumer()
        elif self.partitions:
            await self._leave()
            await asyncio.sleep(YIELD_TO_PINNED_S * random.uniform(1.0, 1.25))  # noqa: S311  # no secret
        self._config = new

    async def _is_pinned(self) -> bool:
        if self._consumer is None or not self._work.pin:
            return False
        try:
            info = await self._consumer.info()
        except NatsError:
            return False
        return any(
            state.group == PRIORITY_GROUP and state.pinned_client_id == self._work.pin for state in info.priority_groups
        )

    async def _join(self) -> None:
        subjects = self._config.subjects(self.name)
        if not subjects:
            return
        config = self._consumer_config.replace(filter_subjects=tuple(dict.fromkeys(subjects)))
        try:
            try:
                self._consumer = await self._stream.create_consumer(config)
            except ConsumerExists:
                if self._static:
                    raise
                await self._stream.delete_consumer(self.name)  # of other partitions
                self._consumer = await self._stream.create_consumer(config)
        except (ConsumerNotFound, RequestTimeout, ConnectionLost, JetStreamUnavailable):
            return  # in a moment
        except ApiError as exc:
            if exc.err_code == ErrCode.CONSUMER_WQ_CONSUMER_NOT_UNIQUE:
                return  # another member has not left one of the partitions yet
            raise
        context = self._work.consume(self._consumer, max(config.ack_wait / 2, MIN_PULL_S))
        await context.__aenter__()
        self._context, self._ended = context, asyncio.ensure_future(context.wait())
        self._joined.set()

    async def _on_consume_end(self) -> None:
        """Handle the end of reading. It starts again if the consumer was replaced."""
        ended = self._ended
        assert ended is not None
        error = ended.exception()
        await self._leave()
        if error is None:
            raise SubscriptionClosed(f"member {self.name!r}", "the client is closed")
        if not isinstance(error, ConsumerGone):
            raise error.with_traceback(None)

    async def _leave(self) -> None:
        """Stop reading: running handlers finish, waiting messages are returned."""
        context, self._context = self._context, None
        ended, self._ended = self._ended, None
        self._joined.clear()
        if context is not None:
            await context.stop(None)
        if ended is not None:
            ended.cancel()
            await asyncio.wait({ended})
            if not ended.cancelled():
                ended.exception()  # retrieve it: reported before, or not needed any more

    async def _delete_consumer(self) -> None:
        await self._leave()
        try:
            await self._stream.delete_consumer(self._consumer_config.durable_name or self.name)
        except NatsError:
            return  # it is gone, or goes after its inactive_threshold


def _member_config(template: ConsumerConfig, group: str, member: str, *, static: bool) -> ConsumerConfig:
    """The configuration of the member's consumer, without subjects. ConfigError for fields that a group sets."""
    for what in ("name", "durable_name", "filter_subject", "filter_subjects", "priority_groups", "deliver_subject"):
        if getattr(template, what):
            raise ConfigError(what, getattr(template, what), "a consumer group chooses this itself")
    ack_wait = template.ack_wait or DEFAULT_ACK_WAIT_S
    config = template.replace(
        ack_wait=ack_wait,
        priority_groups=[PRIORITY_GROUP],
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_timeout=max(ack_wait, MIN_PULL_S),
    )
    config.check()
    if static:
        return config.replace(durable_name=f"{group}-{member}")
    if config.ack_policy != AckPolicy.EXPLICIT:
        raise ConfigError("ack_policy", str(config.ack_policy), "members of an elastic group acknowledge each message")
    return config.replace(name=member, inactive_threshold=ack_wait)
