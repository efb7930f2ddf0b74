"""Reading as a member of a group: follows the group's configuration, and reads the member's consumer.

Owns the adopted configuration, and the member's consumer while it is read. ``partitions`` computes the partitions of
each member from the configuration, so members do not communicate.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Final, Protocol

from natsproto import errors
from natsproto._core.consumer_stats import GroupStats
from natsproto._core.ending import readers_of_caller
from natsproto._core.events import Event
from natsproto.errors._base import is_transient
from natsproto.jetstream._consumer.consume import ConsumeContext
from natsproto.jetstream._consumer.handle import PullConsumer
from natsproto.jetstream._consumer.handler_options import Handler, HandlerOptions
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.codec import loads
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.policies import AckPolicy, PriorityPolicy
from natsproto.jetstream.groups._partitions import (
    MEMBER_ACK_WAIT_S,
    MIN_PULL_S,
    PRIORITY_GROUP,
    GroupConfig,
    StaticGroupConfig,
)
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.middleware import Call, with_middleware

JOIN_DELAYS_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds between attempts to join, the last ones again and again: the previous members may not have left their
partitions yet.
"""
YIELD_TO_PINNED_S: Final = 0.4
"""Seconds, and up to a quarter more, that an instance without the pin waits for the pinned one."""


class GroupSharesChanged(Event):
    """The partitions of this member of a group are others now: ``partitions``, in the configuration with the revision
    ``generation``.
    """

    stream: str
    group: str
    member: str
    partitions: tuple[int, ...]
    generation: int

    line = "member %(member)r of group %(group)r of stream %(stream)r has the partitions %(partitions)r"


class Membership(Protocol):
    """The lease of a member that comes and goes by itself, and its notices."""

    @property
    def is_valid(self) -> bool:
        """True while the member may handle messages and create its consumer."""
        ...

    def on_config(self, config: GroupConfig, revision: int) -> None:
        """This is the configuration."""
        ...

    async def on_blocked(self) -> None:
        """A partition of the member has another consumer."""
        ...


class MemberHandler:
    """The handler of a member with its ``options``; at most ``prefetch`` are buffered."""

    handler: Handler
    options: HandlerOptions
    prefetch: int | None

    def __init__(self, handler: Handler, options: HandlerOptions, prefetch: int | None) -> None:
        if prefetch is not None and prefetch < 1:
            raise errors.ConfigError("prefetch", prefetch, "must be at least 1")
        self.handler = with_middleware(options.wrap(handler), self._on_message)
        self.options, self.prefetch = options, prefetch
        self.membership: Membership | None = None
        """That of a member that comes and goes by itself."""
        self.pin: str = ""
        """The pin id of the instance that the server serves, from the last message."""
        self.handled: int = 0
        """The messages so far."""
        self._running = 0
        self._idle = asyncio.Event()

    def consume(self, consumer: PullConsumer, expires: float) -> ConsumeContext:
        """Start to handle the messages of a consumer."""
        options = self.options
        return consumer.consume(
            self.handler,
            priority_group=PRIORITY_GROUP,
            prefetch=self.prefetch,
            expires=expires,
            concurrency=options.concurrency,
            key=_partition_of if options.key is None else self._key_of,  # also for what follows a failed one
            on_success=options.on_success,
            on_error=options.on_error,
            nak_delay=options.nak_delay,
            keep_alive=options.keep_alive,
            error_cb=options.error_cb,
        )

    async def drop(self, context: ConsumeContext) -> None:
        """Cancel the running calls, and end. Those in threads cannot be cancelled, and are waited for."""
        if self.options.executor:
            while self._running:
                self._idle.clear()
                await self._idle.wait()
        with suppress(errors.DrainTimeout):
            await context.stop(0.0)
        with suppress(errors.NatsError):  # reported by who waits for it
            await context.wait()

    def _key_of(self, message: JsMessage) -> object:
        assert self.options.key is not None
        subject = message.subject
        message.subject = subject.partition(".")[2]
        try:
            return self.options.key(message)
        finally:
            message.subject = subject

    async def _on_message(self, message: JsMessage, call: Call) -> None:
        if self.membership is not None and not self.membership.is_valid:
            await asyncio.Event().wait()  # the lease is over: drop() is about to cancel this
        self.handled += 1
        if pin := message.headers.last("Nats-Pin-Id"):
            self.pin = pin
        message.subject = message.subject.partition(".")[2]  # the partition is no part of the user's subject
        self._running += 1
        try:
            await call()
        finally:
            self._running -= 1
            self._idle.set()


class ConfigFollower:
    """Follows the configuration under ``key``, and reads the consumer of the member ``name`` meanwhile."""

    def __init__(
        self,
        bucket: KeyValue,
        stream: Stream,
        key: str,
        name: str,
        config: GroupConfig,
        template: ConsumerConfig,
        work: MemberHandler,
    ) -> None:
        self.name: str = name
        """The name of the member."""
        self.key: str = key
        """The key of the configuration."""
        self.config: GroupConfig = config
        """The adopted configuration."""
        self.revision: int = 0
        """Its revision, 0 before it is known."""
        self.work: MemberHandler = work
        """The handler."""
        self.joined: asyncio.Event = asyncio.Event()
        """Set while the consumer is read."""
        self._bucket, self._stream = bucket, stream
        self._static = isinstance(config, StaticGroupConfig)
        self._consumer_config = _member_config(template, key.partition(".")[2], name, static=self._static)
        self._consumer: PullConsumer | None = None
        self._context: ConsumeContext | None = None
        self._ended: asyncio.Task[None] | None = None
        self._interrupted = asyncio.Event()
        self._must_read = False  # the configuration, before it joins
        self._is_running = False

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of the member."""
        return self.config.partitions(self.name)

    async def run(self) -> None:
        """Follow the configuration until the group is deleted or the client closed. Raises the errors of the group."""
        self._must_read, self._is_running = self.work.membership is not None, True
        async with self._bucket.watch(self.key) as changes:
            change = asyncio.ensure_future(changes.next())
            interruption = asyncio.ensure_future(self._interrupted.wait())
            attempts = 0
            try:
                while True:
                    if not self.joined.is_set() and not await self._try_join():
                        return
                    waiting: set[asyncio.Future[object]] = {change, interruption}  # type: ignore[arg-type]
                    if self._ended is not None:
                        waiting.add(self._ended)  # type: ignore[arg-type]
                    retry_after = None
                    if not self.joined.is_set() and (self.partitions or self._must_read):
                        retry_after = JOIN_DELAYS_S[min(attempts, len(JOIN_DELAYS_S) - 1)]
                        attempts += 1
                    done, _ = await asyncio.wait(waiting, timeout=retry_after, return_when=asyncio.FIRST_COMPLETED)
                    if done:
                        attempts = 0
                    if change in done:
                        entry = change.result()
                        change = asyncio.ensure_future(changes.next())
                        if not await self._on_config_change(entry):
                            return
                    elif interruption in done:
                        await self._leave()
                        self._interrupted.clear()
                        interruption = asyncio.ensure_future(self._interrupted.wait())
                        self._must_read = True
                    elif done:
                        await self._on_consume_end()
                        self._must_read = True  # the change that explains it
            except errors.SubscriptionClosed:
                return  # the client is closed
            finally:
                change.cancel()
                interruption.cancel()
                self._is_running = False
                await self._leave()

    def stats(self) -> GroupStats | None:
        """Return the partitions and the generation; None unless it is running."""
        if not self._is_running:
            return None
        stream, _, group = self.key.partition(".")
        return GroupStats(
            stream=stream, group=group, member=self.name, partitions=self.partitions, generation=self.revision
        )

    def interrupt(self) -> None:
        """The connection is lost, and perhaps messages on their way: later ones of their keys must not be handled
        before them, so the consumer is made anew.
        """
        if self.joined.is_set():
            self._interrupted.set()

    @property
    def is_caller_inside(self) -> bool:
        """True if the caller is a handler of the member, or was started by one."""
        return self._context is not None and bool(readers_of_caller([self._context._messages._reader_tasks]))

    async def drop(self) -> None:
        """The lease is over: cancel running calls, and return what waits."""
        if self._context is not None:
            await self.work.drop(self._context)

    async def delete_consumer(self) -> None:
        """Wait for running calls, and delete the consumer, if it can be done now."""
        await self._leave()
        try:
            await self._stream.delete_consumer(self._consumer_config.durable_name or self.name)
        except errors.NatsError:
            return  # it is gone, or goes after its inactive_threshold

    # ---------------------------------------------------------------- the configuration

    async def _try_join(self) -> bool:
        """Join if that is possible now. False when the group was deleted."""
        if self._must_read:
            try:
                entry = await self._bucket.get(self.key, direct=False)
                if self.work.membership is not None:  # what an earlier consumer has in hand is delivered first
                    with suppress(errors.ConsumerNotFound):
                        await self._stream.delete_consumer(self.name)
            except (errors.KeyNotFound, errors.BucketNotFound):
                return await self._on_group_deleted()
            except errors.NatsError as exc:
                if is_transient(exc):
                    return True
                raise
            self._must_read = False
            if not await self._on_config_change(entry):
                return False
        await self._join()
        return True

    async def _on_config_change(self, entry: KeyValueEntry) -> bool:
        """Handle a change of the configuration. False when the group was deleted."""
        config, membership = self.config, self.work.membership
        if entry.revision <= self.revision:
            return True
        if entry.is_deleted:
            return await self._on_group_deleted()
        try:
            new = loads(type(config), entry.data)
            new._check()
        except (errors.ConfigError, errors.InvalidReply) as exc:
            raise await self._end_group(f"its configuration is wrong: {exc}") from exc
        if membership is not None:
            membership.on_config(new, entry.revision)
        if new != config:
            if self._static:
                raise await self._end_group("its configuration was changed, which ends a static group")
            if not config._equals_except_members(new):
                raise await self._end_group("more than its members was changed")
            await self._change_partitions(new)
        before, self.config, self.revision = self.partitions if self.revision else (), new, entry.revision
        if self.partitions != before:
            stream, _, group = self.key.partition(".")
            self._stream._api.connection._event_bus.emit(
                GroupSharesChanged(
                    stream=stream,
                    group=group,
                    member=self.name,
                    partitions=self.partitions,
                    generation=self.revision,
                )
            )
        return True

    async def _on_group_deleted(self) -> bool:
        if self._static:
            await self.delete_consumer()
        return False

    async def _end_group(self, reason: str) -> errors.GroupChanged:
        if self._static:
            await self.delete_consumer()
        stream, _, group = self.key.partition(".")
        return errors.GroupChanged(stream, group, reason)

    async def _change_partitions(self, new: GroupConfig) -> None:
        """Replace the consumer for other partitions, since a changed one would not return to messages it has skipped.
        The pinned instance deletes it; the others wait for that.
        """
        if not self.partitions or self.config.subjects(self.name) == new.subjects(self.name):
            return
        if self.work.membership is None and await self._is_another_pinned():
            await self._leave()
            await asyncio.sleep(YIELD_TO_PINNED_S * random.uniform(1.0, 1.25))  # noqa: S311  # no secret
        else:
            await self.delete_consumer()

    async def _is_another_pinned(self) -> bool:
        """True if the server serves another instance, or it is not known."""
        if self._consumer is None:
            return False
        try:
            info = await self._consumer.info()
        except errors.ConsumerNotFound:
            return False
        except errors.NatsError:
            return True
        if set(info.config.filter_subjects) != set(self._consumer.cached_info.config.filter_subjects):
            return True  # which has replaced the consumer already
        pins = [state.pinned_client_id for state in info.priority_groups if state.group == PRIORITY_GROUP]
        return any(pin and pin != self.work.pin for pin in pins)

    # ---------------------------------------------------------------- the consumer

    async def _join(self) -> None:
        subjects = self.config.subjects(self.name)
        membership = self.work.membership
        if not subjects:
            return
        config = self._consumer_config.replace(filter_subjects=tuple(dict.fromkeys(subjects)))
        try:
            if membership is not None and not membership.is_valid:
                return
            try:
                self._consumer = await self._stream.create_consumer(config)
            except errors.ConsumerExists:
                if self._static:
                    raise
                await self._stream.delete_consumer(self.name)  # of other partitions
                self._consumer = await self._stream.create_consumer(config)
        except errors.NatsError as exc:
            if is_transient(exc) or isinstance(exc, errors.ConsumerNotFound):
                return  # in a moment
            if not isinstance(exc, errors.ApiError) or exc.err_code != ErrCode.CONSUMER_WQ_CONSUMER_NOT_UNIQUE:
                raise
            if membership is not None:
                await membership.on_blocked()
            return  # another member has not left one of the partitions yet
        context = self.work.consume(self._consumer, max(config.ack_wait / 2, MIN_PULL_S))
        await context.__aenter__()
        self._context, self._ended = context, asyncio.ensure_future(context.wait())
        self.joined.set()

    async def _on_consume_end(self) -> None:
        """Handle the end of reading. It starts again if the consumer was replaced."""
        ended = self._ended
        assert ended is not None
        error = ended.exception()
        await self._leave()
        if error is None:
            raise errors.SubscriptionClosed(f"member {self.name!r}", "the client is closed")
        if not isinstance(error, errors.ConsumerGone):
            raise error.with_traceback(None)

    async def _leave(self) -> None:
        """Stop reading: running handlers finish, waiting messages are returned."""
        ended, self._ended = self._ended, None
        self.joined.clear()
        if (context := self._context) is not None:
            stopping = asyncio.ensure_future(_stop_in_time(context))
            try:
                await asyncio.shield(stopping)
            finally:
                await asyncio.wait({stopping})  # for the running handlers, although this was cancelled
            self._context = None
        if ended is not None:
            ended.cancel()
            await asyncio.wait({ended})
            if not ended.cancelled():
                ended.exception()  # retrieve it: reported before, or not needed any more


def _member_config(template: ConsumerConfig, group: str, member: str, *, static: bool) -> ConsumerConfig:
    """The configuration of the member's consumer, without subjects. ConfigError for fields that a group sets."""
    for what in ("name", "durable_name", "filter_subject", "filter_subjects", "priority_groups", "deliver_subject"):
        if getattr(template, what):
            raise errors.ConfigError(what, getattr(template, what), "a consumer group chooses this itself")
    ack_wait = template.ack_wait or MEMBER_ACK_WAIT_S
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
        raise errors.ConfigError(
            "ack_policy", str(config.ack_policy), "members of an elastic group acknowledge each message"
        )
    return config.replace(name=member, inactive_threshold=ack_wait)


def _partition_of(message: JsMessage) -> str:
    """The partition of a message: the first token of its subject."""
    return message.subject.partition(".")[0]


async def _stop_in_time(context: ConsumeContext) -> None:
    """Handlers get the option ``drain_timeout``. Those that take longer are cancelled, which is logged."""
    try:
        await context.stop()
    except errors.DrainTimeout as exc:
        context._connection._event_bus.log.warning("%s", exc)
