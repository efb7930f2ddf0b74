"""Consumer groups: creating, changing and deleting them, and consuming as a member.

Owns the handles for programs. The state of a group is its configuration, which is in a key/value bucket.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import ClassVar, Generic, TypeVar, Unpack

from natsproto import errors
from natsproto._help.async_hints import items
from natsproto._options.rules import whole
from natsproto.jetstream._consumer.handler_options import Handler
from natsproto.jetstream._consumer.pull_options import check_names
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.asset_names import check_consumer_name
from natsproto.jetstream._values.codec import Duration, decode, dumps, encode, loads, parse
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.jetstream._values.policies import DiscardPolicy, RetentionPolicy, StorageType
from natsproto.jetstream.groups._follower import ConfigFollower
from natsproto.jetstream.groups._joined import GroupArgs, JoinArgs, JoinedMember, OpenGroup, work_of
from natsproto.jetstream.groups._member import Member
from natsproto.jetstream.groups._partitions import (
    PRIORITY_GROUP,
    ElasticGroupConfig,
    GroupConfig,
    PartitioningFilter,
    StaticGroupConfig,
    config_key,
    make_mappings,
)
from natsproto.jetstream.groups._stall_watch import StallWatch
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._entry import KeyValueEntry

C = TypeVar("C", bound=GroupConfig)
_GROUPS = RequiredFeature("a pinned consumer for each member", "2.11", 1)
_WHOLE_SUBJECTS = RequiredFeature("the whole subject as key", "2.12", 2)


class Group(Generic[C]):
    """The methods of both kinds of groups, created by ``create`` and ``open``.

    They raise the errors of the JetStream API and of key/value buckets.
    """

    _bucket_name: ClassVar[str]

    def __init__(self, js: JetStream, stream: str, name: str, config: C, bucket: KeyValue, members_on: Stream) -> None:
        self.stream_name: str = stream
        """The stream that is shared."""
        self.name: str = name
        """The group's name."""
        self.config: C = config
        """The last configuration."""
        self._js, self._bucket, self._stream = js, bucket, members_on
        self._key = config_key(stream, name)

    @classmethod
    @items
    async def names(cls, js: JetStream, stream: str) -> AsyncGenerator[str]:
        """Yield the names of the stream's groups of this kind.

        Args:
            js: A context of the account in question, from ``nc.jetstream()``.
            stream: Only groups that were created for this stream.
        """
        bucket = await js.key_value(cls._bucket_name, bind=True)
        async with aclosing(bucket.keys(f"{stream}.*")) as keys:
            with suppress(errors.BucketNotFound):  # there never was one
                async for key in keys:
                    yield key.partition(".")[2]

    async def info(self) -> C:
        """Get the current configuration. GroupNotFound."""
        self.config = loads(type(self.config), (await self._read()).data)
        return self.config

    def consume(self, member: str, handler: Handler, **options: Unpack[GroupArgs]) -> Member:
        """Consume as an instance of this member: use it with ``async with``, or ``await`` its ``run()``.

        The handler gets the messages of the member's partitions, under their own subjects. Several instances of a
        member may run; the server serves one of them, and another one after the first was gone for ``ack_wait`` seconds
        (default 5). With ``max_ack_pending=1`` each message is handled before the next is delivered. The other
        arguments are those of PullConsumer.consume and the fields of ConsumerConfig.

        ConfigError for fields that a group sets itself, and for an unknown member of a static group.

        Args:
            member: As whom to consume: one of the names that the group knows.
            handler: Called with each message, ``def`` or ``async def``.
            **options: How messages are handled, and fields of the member's consumer, by keyword: those of GroupArgs.
        """
        check_consumer_name(member)
        if isinstance(self.config, StaticGroupConfig) and not self.config.partitions(member):
            raise errors.ConfigError("member", member, f"has no partition of the static group {self.name!r}")
        check_names(options, GroupArgs)
        work, template = work_of(handler, options)
        follower = ConfigFollower(self._bucket, self._stream, self._key, member, self.config, template, work)
        return Member(member, self._js.connection._event_bus.log, follower, self._stall_watch())

    async def step_down(self, member: str) -> None:
        """Make the server choose another instance of the member. ConsumerNotFound when it has none.

        Args:
            member: The member, of which another instance is to be served.
        """
        await self._stream.unpin_consumer(self._consumer_of(member), PRIORITY_GROUP)

    async def active_members(self) -> list[str]:
        """Return the members that have an active instance, as far as the server knows."""
        names = {self._consumer_of(member): member for member in (await self.info()).names}
        return [
            names[info.name]
            async for info in self._stream.consumers()
            if info.name in names and (info.num_waiting or isinstance(self.config, ElasticGroupConfig))
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(stream_name={self.stream_name!r}, name={self.name!r})"

    # ---------------------------------------------------------------- internals

    def _consumer_of(self, member: str) -> str:
        return member

    def _stall_watch(self) -> StallWatch | None:
        return None  # its members read the stream itself

    async def _read(self) -> KeyValueEntry:
        try:
            return await self._bucket.get(self._key, direct=False)
        except (errors.KeyNotFound, errors.BucketNotFound):
            raise errors.GroupNotFound(self.stream_name, self.name) from None


class StaticGroup(Group[StaticGroupConfig]):
    """A group on a stream whose subjects begin with the partition, from a subject transform with ``{{partition()}}``.
    Its members cannot change; a change of its configuration ends it.
    """

    _bucket_name = StaticGroupConfig.bucket

    @classmethod
    async def create(
        cls,
        js: JetStream,
        stream: str,
        name: str,
        *,
        max_members: int,
        members: Iterable[str] = (),
        mappings: Mapping[str, Iterable[int]] | None = None,
        filters: Iterable[str] = (),
    ) -> StaticGroup:
        """Create a group of ``max_members`` partitions, assigned evenly to ``members`` or by ``mappings``.

        ``filters`` are subjects without the partition (default: all). Creating an existing group again does nothing;
        GroupChanged when its configuration differs. ConfigError; StreamNotFound.

        Args:
            js: A context of the account in question, from ``nc.jetstream()``.
            stream: The stream whose messages the members share.
            name: What instances open the group by; its consumers and streams have it in their names.
            max_members: The number of partitions, and so the most members that get messages.
            members: The members, among which the partitions are divided evenly.
            mappings: The partitions of each member, which must be all of them; None: ``members`` share them evenly.
            filters: The subjects of the group, without the partition; empty: all.
        """
        config = StaticGroupConfig(
            max_members=max_members,
            members=[check_consumer_name(member) for member in members],
            member_mappings=make_mappings(mappings or {}),
            filters=filters,
        )
        config._check()
        if not config.names:
            raise errors.ConfigError("members", (), "a static group needs them from the beginning")
        await js._api.require_feature(_GROUPS, f"create group {name!r} of stream {stream!r}", None)
        stream_handle = await js.stream(stream)
        bucket = await _create_config(js, stream, name, config, stream_handle)
        return cls(js, stream, name, config, bucket, stream_handle)

    @classmethod
    async def open(cls, js: JetStream, stream: str, name: str) -> StaticGroup:
        """Open an existing group; GroupNotFound if the stream has none of this name and kind.

        Args:
            js: A context of the account in question, from ``nc.jetstream()``.
            stream: The stream for which the group was created.
            name: The name with which the group was created.
        """
        bucket = await js.key_value(cls._bucket_name, bind=True)
        stream_handle = await js.stream(stream, bind=True)
        group = cls(js, stream, name, StaticGroupConfig(max_members=1), bucket, stream_handle)
        await group.info()
        return group

    async def delete(self) -> None:
        """Delete the group and the consumers of its members, which ends all members."""
        await self._bucket.delete(self._key)
        async for consumer in self._stream.consumer_names():
            if consumer.startswith(f"{self.name}-"):
                with suppress(errors.ConsumerNotFound):  # its member was faster
                    await self._stream.delete_consumer(consumer)

    def _consumer_of(self, member: str) -> str:
        return f"{self.name}-{member}"


class ElasticGroup(Group[ElasticGroupConfig]):
    """A group on any stream: its messages go through a work queue stream, ``STREAM-GROUP``, which adds the partition as
    the first token of the subjects. Members may be added and removed at any time.
    """

    _bucket_name = ElasticGroupConfig.bucket

    @classmethod
    async def create(
        cls,
        js: JetStream,
        stream: str,
        name: str,
        *,
        max_members: int,
        filters: Mapping[str, Iterable[int]] | Iterable[str] = (),
        max_buffered_msgs: int = 0,
        max_buffered_bytes: int = 0,
    ) -> ElasticGroup:
        """Create a group of ``max_members`` partitions without members, and its work queue stream.

        ``filters`` are the subjects of the group (default: all). Each may have the numbers of the ``*`` that form the
        key, starting with 1: ``{"orders.*.*": [1]}`` keeps messages with the same second token together. Without
        numbers the whole subject is the key. ``max_buffered_msgs`` and ``max_buffered_bytes`` limit the work queue
        stream (0: no limit); set them to more than the work of a second, since a full stream is refilled only after a
        second.

        Creating an existing group again does nothing; GroupChanged when its configuration, except for members, differs.
        ConfigError; StreamNotFound. Needs nats-server 2.11; 2.12 if the whole subject is the key.

        Args:
            js: A context of the account in question, from ``nc.jetstream()``.
            stream: The stream whose messages the members share.
            name: What instances open the group by; its consumers and streams have it in their names.
            max_members: The number of partitions, and so the most members that get messages.
            filters: The subjects of the group; empty: all. A mapping has the numbers of the ``*`` (from 1) that form
                the key, as in ``{"orders.*.*": [1]}``.
            max_buffered_msgs: The limit of the group's work queue stream, in messages; 0: none.
            max_buffered_bytes: The limit of the group's work queue stream, in bytes; 0: none.
        """
        numbers = filters if isinstance(filters, Mapping) else dict.fromkeys(filters, ())
        config = ElasticGroupConfig(
            max_members=max_members,
            partitioning_filters=[
                PartitioningFilter(filter=pattern, partitioning_wildcards=tuple(chosen))
                for pattern, chosen in numbers.items()
            ],
            max_buffered_msgs=max_buffered_msgs,
            max_buffered_bytes=max_buffered_bytes,
        )
        config._check()
        needed = _GROUPS if config._has_keys else _WHOLE_SUBJECTS
        await js._api.require_feature(needed, f"create group {name!r} of stream {stream!r}", None)
        stream_handle = await js.stream(stream)
        bucket = await _create_config(js, stream, name, config, stream_handle)
        work_queue = await js.create_stream(
            name=f"{stream}-{name}",
            retention=RetentionPolicy.WORK_QUEUE,
            num_replicas=stream_handle.cached_info.config.num_replicas,
            storage=stream_handle.cached_info.config.storage,
            max_msgs=max_buffered_msgs or -1,
            max_bytes=max_buffered_bytes or -1,
            discard=DiscardPolicy.NEW,
            sources=[config._source(stream)],
            allow_direct=True,
        )
        return cls(js, stream, name, config, bucket, work_queue)

    @classmethod
    async def open(cls, js: JetStream, stream: str, name: str) -> ElasticGroup:
        """Open an existing group; GroupNotFound if the stream has none of this name and kind.

        Args:
            js: A context of the account in question, from ``nc.jetstream()``.
            stream: The stream for which the group was created.
            name: The name with which the group was created.
        """
        bucket = await js.key_value(cls._bucket_name, bind=True)
        work_queue = await js.stream(f"{stream}-{check_consumer_name(name)}", bind=True)
        group = cls(js, stream, name, ElasticGroupConfig(max_members=1), bucket, work_queue)
        await group.info()
        return group

    async def add_members(self, *names: str) -> tuple[str, ...]:
        """Assign partitions to these members, too, taking them from the others; return all members.

        ConfigError when partitions are mapped explicitly; GroupNotFound. Members that keep their partitions are not
        interrupted.

        Args:
            *names: Names of your own choice; each then gets a part of the partitions.
        """
        new = {check_consumer_name(name) for name in names}
        return await self._change_members(lambda members: members | new)

    async def drop_members(self, *names: str) -> tuple[str, ...]:
        """Reassign the partitions of these members to the others; return the remaining members. Otherwise as
        ``add_members``.

        Args:
            *names: Whose partitions go to the others.
        """
        return await self._change_members(lambda members: members - set(names))

    async def set_mappings(self, mappings: Mapping[str, Iterable[int]]) -> None:
        """Map partitions to members explicitly, instead of evenly; ``{}`` ends that, and the group has no members then.

        ConfigError unless each partition is mapped once; GroupNotFound.

        Args:
            mappings: The partitions of each member, which must be all of them; ``{}`` ends the mapping, and the group
                then has no members.
        """
        written = [encode(mapping) for mapping in make_mappings(mappings)]
        await self._update_config(lambda config: {"members": [], "member_mappings": written})

    def join(
        self, handler: Handler, *, name: str | None = None, ttl: Duration = 5.0, **options: Unpack[JoinArgs]
    ) -> JoinedMember:
        """Join as a member that comes and goes by itself: use it with ``async with``, or ``await`` its ``run()``.

        The living members share the partitions; nobody assigns them. A member that stops hands over its partitions at
        once, one that dies after ``ttl`` seconds; the others keep theirs. Members named by ``add_members`` and by other
        clients stay. Members beyond the number of partitions stand by.

        Entering it raises UnsupportedByServer before nats-server 2.11, ConfigError when the bucket
        ``natsproto-group-presence`` has no ``limit_marker_ttl``, PermissionDenied, and the errors of key/value buckets.
        ConfigError, InvalidSubject, TypeError for invalid arguments.

        Args:
            handler: Called with each message, ``def`` or ``async def``.
            name: A name that stays when the process is replaced, such as that of a pod: the new one gets the same
                partitions, and the old one ends with GroupChanged. A-Z, a-z, 0-9, ``-``, ``_`` and ``=``. None: a new
                name for each member.
            ttl: Seconds after which a member that is silent has died, at least 1. A handler that blocks the event loop
                for two thirds of it looks dead.
            **options: How messages are handled, by keyword: those of JoinArgs.
        """

        async def opening() -> OpenGroup:
            await self.info()
            return self._parts()

        return JoinedMember(self._js.connection, opening, handler, name, ttl, options)

    async def delete(self) -> None:
        """Delete the group and its work queue stream, which ends all members."""
        await self._bucket.delete(self._key)
        await self._js.delete_stream(self._stream.name)

    def _parts(self) -> OpenGroup:
        return OpenGroup(self._js, self._bucket, self._key, self.config, self._stream, self._stall_watch())

    def _stall_watch(self) -> StallWatch:
        filters = [one.filter for one in self.config.partitioning_filters]
        return StallWatch(self._js, self.stream_name, self.name, self._stream, filters)

    async def _change_members(self, change: Callable[[set[str]], set[str]]) -> tuple[str, ...]:
        def changed(config: ElasticGroupConfig) -> dict[str, object]:
            if config.member_mappings:
                raise errors.ConfigError("members", config.names, "are given partitions by hand: change the mappings")
            return {"members": sorted(change(set(config.members)))}

        return tuple((await self._update_config(changed)).members)

    async def _update_config(self, change: Callable[[ElasticGroupConfig], dict[str, object]]) -> ElasticGroupConfig:
        """Change some fields of the stored configuration. All others are written back unchanged, because members
        compare them.
        """
        while True:
            entry = await self._read()
            written = parse(entry.data) | change(loads(ElasticGroupConfig, entry.data))
            config = decode(ElasticGroupConfig, written)
            config._check()
            with suppress(errors.WrongRevision):  # another client was faster
                await self._bucket.update(self._key, dumps(written), entry.revision)
                self.config = config
                return config


def join(
    stream: Stream,
    group: str,
    handler: Handler,
    *,
    partitions: int = 12,
    filters: Mapping[str, Iterable[int]] | Iterable[str] = (),
    name: str | None = None,
    ttl: Duration = 5.0,
    **options: Unpack[JoinArgs],
) -> JoinedMember:
    """Join a group whose members share the messages by key, and come and go by themselves: use it with ``async
    with``, or ``await`` its ``run()``. Experimental.

    Entering it creates the group if there is none. It raises GroupChanged when there is one with other partitions
    or filters, and StreamNotFound; otherwise as ``ElasticGroup.join``. Needs nats-server 2.11.

    Args:
        stream: The stream whose messages are shared.
        group: The name of the group, without dots, spaces and wildcards.
        handler: Called with each message, ``def`` or ``async def``.
        partitions: Into how many parts keys are divided: the most members that get messages.
        filters: The subjects of the group; empty: all. A mapping has the numbers of the ``*`` (from 1) that form the
            key, as in ``{"orders.*.*": [1]}``.
        name: A name that stays when the process is replaced, such as that of a pod: the new one gets the same
            partitions, and the old one ends with GroupChanged. A-Z, a-z, 0-9, ``-``, ``_`` and ``=``. None: a new name
            for each member.
        ttl: Seconds after which a member that is silent has died, at least 1. A handler that blocks the event loop for
            two thirds of it looks dead.
        **options: How messages are handled, by keyword: those of JoinArgs.
    """
    config_key(stream.name, group)
    whole(1)("partitions", partitions)
    js = JetStream._of(stream._api)

    async def opening() -> OpenGroup:
        made = await ElasticGroup.create(js, stream.name, group, max_members=partitions, filters=filters)
        return made._parts()

    return JoinedMember(js.connection, opening, handler, name, ttl, options)


async def _create_config(js: JetStream, stream: str, name: str, config: GroupConfig, stream_handle: Stream) -> KeyValue:
    """Write the configuration of a new group, or find the same one there; return the bucket."""
    try:
        bucket = await js.key_value(config.bucket)
    except errors.BucketNotFound:
        bucket = await js.create_key_value(
            bucket=config.bucket, num_replicas=stream_handle.cached_info.config.num_replicas, storage=StorageType.FILE
        )
    key = config_key(stream, name)
    try:
        await bucket.create(key, dumps(config))
    except errors.KeyExists:
        found = loads(type(config), (await bucket.get(key, direct=False)).data)
        if (isinstance(config, StaticGroupConfig) and found != config) or not config._equals_except_members(found):
            raise errors.GroupChanged(stream, name, "exists and is configured otherwise: delete it first") from None
    return bucket
