"""A member of a group that comes and goes by itself: joins, holds its lease, and joins again after it was lost.

Owns the tasks of a term: the lease, the keys of the other members, the sharing out, and the reading.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.deadline import Deadline
from natsproto._core.events import Disconnected, Event
from natsproto._durations import seconds
from natsproto.jetstream._consumer.handler_options import Handler, HandlerArgs, HandlerOptions, split
from natsproto.jetstream._consumer.pull_options import check_names
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.arguments import ConsumerArgs
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream.groups._coordinator import MAX_TTL_S, Coordinator
from natsproto.jetstream.groups._follower import ConfigFollower, MemberHandler
from natsproto.jetstream.groups._member import Member
from natsproto.jetstream.groups._partitions import ElasticGroupConfig
from natsproto.jetstream.groups._presence import Presence, open_bucket
from natsproto.jetstream.groups._shares import key_of, member_name
from natsproto.jetstream.groups._stall_watch import StallWatch
from natsproto.jetstream.kv._bucket import KeyValue

MIN_TTL_S = 1.0
"""Seconds; servers count whole ones."""
LEAVE_TIMEOUT_S = 2.0
"""Seconds in which a member that ends notifies the others. If the servers do not answer, its ``ttl`` ends it."""


class GroupLeaseLost(Event):
    """A member could not renew its lease in time: others may have its partitions. Its running calls are cancelled, and
    it joins again.
    """

    stream: str
    group: str
    member: str

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = "member %(member)r of group %(group)r of stream %(stream)r lost its lease and joins again"


class OpenGroup(NamedTuple):
    """A group that exists: the bucket and key of its configuration, its work queue, and who watches that."""

    js: JetStream
    configs: KeyValue
    key: str
    config: ElasticGroupConfig
    work_queue: Stream
    stall_watch: StallWatch


class WorkArgs(HandlerArgs, total=False):
    """How a member handles messages."""

    prefetch: int | None
    """Messages that may wait ahead of the handler; None (default): 500, fewer if handling takes long."""


class GroupArgs(WorkArgs, ConsumerArgs, total=False):
    """The arguments of ``consume`` of a group: how its member handles messages, and fields of the member's consumer."""


class JoinArgs(WorkArgs, total=False):
    """How a member handles messages: arguments of PullConsumer.consume, and fields of the member's consumer.

    Without ``key`` the order is kept by the key of the group.
    """

    ack_wait: Duration
    """Seconds for an acknowledgement, 5 by default. It need not be short: the partitions of a dead member move anyway.
    """
    max_deliver: int
    """How often a message is delivered at most; -1 (default): no limit."""
    backoff: Iterable[Duration]
    """Seconds for the acknowledgement of the first, second … delivery, instead of ``ack_wait``."""
    max_ack_pending: int
    """How many delivered messages may wait for their acknowledgement."""


def work_of(handler: Handler, options: Mapping[str, Any]) -> tuple[MemberHandler, ConsumerConfig]:
    """Return what a member does with its messages, and the configuration of its consumer as far as it was given."""
    fields, handling = split(options, HandlerArgs)
    prefetch = fields.pop("prefetch", None)
    return MemberHandler(handler, HandlerOptions(**handling), prefetch), ConsumerConfig().replace(**fields)


class JoinedMember(Member):
    """A member of a group that comes and goes by itself. Created by ``groups.join`` and ``join`` of a group:
    use it with ``async with``, or ``await`` its ``run()``.

    Entering it creates or finds the group, and announces the member; then the members share out the partitions. It
    ends as Member does: by ``stop``, when the group is deleted, or on an error, which ``wait``, ``run`` and leaving the
    block raise. When it stops, running calls end and its partitions move at once; when its process dies, after ``ttl``
    seconds. A member that cannot renew its lease for ``ttl`` seconds cancels its running calls, and joins again.
    """

    _unused_warning = "join(...) of a group was never run or entered"

    def __init__(
        self,
        connection: Connection,
        opening: Callable[[], Awaitable[OpenGroup]],
        handler: Handler,
        name: str | None,
        ttl: Duration,
        args: JoinArgs,
    ) -> None:
        check_names(args, JoinArgs)
        self._work, self._template = work_of(handler, args)
        self._ttl = seconds("ttl", ttl)
        if self._ttl < MIN_TTL_S:
            raise errors.ConfigError("ttl", ttl, "must be at least one second")
        if self._ttl > MAX_TTL_S:
            raise errors.ConfigError("ttl", ttl, "must be an hour at most")
        self._is_named = name is not None
        self._connection, self._opening = connection, opening
        self._presence: Presence | None = None
        self._coordinator: Coordinator | None = None
        self._leaving: Deadline | None = None
        super().__init__(
            member_name(_new_name(connection) if name is None else name), connection._event_bus.log, None, None
        )

    @property
    def generation(self) -> int:
        """The revision of the configuration that gave the member its partitions; 0 before it has read one.

        It grows whenever partitions move, and not while a handler of this member runs whose partition has moved. So a
        store that remembers the highest generation of each partition can refuse what a dead member still writes.
        """
        return 0 if self._follower is None else self._follower.revision

    async def __aenter__(self) -> Self:
        self._begun = True
        if self._task is None:
            await self._open()
        return await super().__aenter__()

    # ---------------------------------------------------------------- internals

    async def _open(self) -> None:
        group = await self._opening()
        bucket = await open_bucket(group.js, group.work_queue)
        if self._work.options.concurrency > 1 and self._work.options.key is None:
            self._work.options = self._work.options.replace(key=key_of(group.config.partitioning_filters))
        self._follower = ConfigFollower(
            group.configs, group.work_queue, group.key, self.name, group.config, self._template, self._work
        )
        self._stall_watch = group.stall_watch
        self._presence = Presence(bucket, group.key, self.name, self._ttl)
        self._coordinator = Coordinator(self._presence, group.configs, group.work_queue, group.key, self.name)
        self._work.membership = self._coordinator
        self._connection._readers.measured.add_member(self._follower)
        await self._presence.enter(takes_over=self._is_named)

    async def _run(self) -> None:
        presence, coordinator = self._presence, self._coordinator
        assert presence is not None
        assert coordinator is not None
        try:
            while await self._serve_term(presence, coordinator):
                self._leaving = None
                self._emit_lost()
                await presence.enter_again()
        except errors.ConnectionClosed:
            return
        except errors.NatsError as exc:
            self._on_error(exc)
            raise
        finally:
            leaving = self._leaving or Deadline(LEAVE_TIMEOUT_S)
            await leaving.wait(coordinator.leave())
            await leaving.wait(presence.leave())

    async def _serve_term(self, presence: Presence, coordinator: Coordinator) -> bool:
        """Be a member until the lease is over: True. False when the group was deleted or the client closed."""
        follower, me = self._opened, self._started()
        holding, following = asyncio.create_task(presence.hold()), asyncio.create_task(follower.run())
        others = [asyncio.create_task(coordinator.watch(me)), asyncio.create_task(coordinator.act())]
        tasks = {holding, following, *others}
        if (watching := self._watch_stalls()) is not None:
            others.append(watching)
        remove_listener = self._connection.add_listener(
            lambda event: follower.interrupt() if isinstance(event, Disconnected) else None
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = {task for task in tasks if task.done()}
        finally:
            remove_listener()
            for task in (*others, following):
                task.cancel()
            await asyncio.wait({holding, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                await follower.drop()
            await asyncio.wait({following})
            self._leaving = Deadline(LEAVE_TIMEOUT_S)
            await self._leaving.wait(follower.delete_consumer())
            holding.cancel()
            await asyncio.wait((holding, *others))
        failures = [task.exception() for task in (*tasks, *others) if not task.cancelled()]
        for error in filter(None, failures):
            raise error
        return ended == {holding}

    def _emit_lost(self) -> None:
        stream, _, group = self._opened.key.partition(".")
        self._connection._event_bus.emit(GroupLeaseLost(stream=stream, group=group, member=self.name))


def _new_name(connection: Connection) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", platform.node().partition(".")[0])
    return f"{host[:24]}-{connection._runtime.new_id()[-8:]}"
