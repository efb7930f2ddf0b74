"""Partitioned consumer groups: on paper as orbit.go's pcgroups has them, and at work on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto.errors import ConfigError, GroupChanged, GroupNotFound, LocalProtocolError, StreamNotFound
from natsproto.jetstream._values.codec import dumps, loads
from natsproto.jetstream.groups._group import ElasticGroup, StaticGroup
from natsproto.jetstream.groups._partitions import (
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    PartitioningFilter,
    StaticGroupConfig,
)
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.message import JsMessage
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 20.0
WAIT = 1.0  # ack_wait, and so the time after which an instance that is gone is replaced

# ---------------------------------------------------------------- on paper


@pytest.mark.parametrize(
    ("partitions", "members", "shares"),
    [
        (6, ["a", "b", "c"], {"a": (0, 1), "b": (2, 3), "c": (4, 5)}),
        (7, ["a", "b", "c"], {"a": (0, 1, 6), "b": (2, 3), "c": (4, 5)}),
        (8, ["c", "a", "b"], {"a": (0, 1, 6), "b": (2, 3, 7), "c": (4, 5)}),
        (3, ["a", "a"], {"a": (0, 1, 2)}),
        (2, ["c", "b", "a"], {"a": (0,), "b": (1,), "c": ()}),
        (3, [], {"a": ()}),
    ],
)
def test_partitions_as_other_clients_compute_them(
    partitions: int, members: list[str], shares: dict[str, tuple[int, ...]]
) -> None:
    config = StaticGroupConfig(max_members=partitions, members=members)
    assert {name: config.partitions(name) for name in shares} == shares
    assert config.partitions("stranger") == ()


@pytest.mark.parametrize("partitions", range(1, 14))
def test_every_partition_has_one_member(partitions: int) -> None:
    for count in range(1, 14):
        names = [f"m{number}" for number in range(count)]
        config = ElasticGroupConfig(max_members=partitions, members=names)
        given = [partition for name in names for partition in config.partitions(name)]
        assert sorted(given) == list(range(partitions))


def test_a_member_reads_its_partitions_of_every_filter() -> None:
    config = StaticGroupConfig(max_members=2, members=["a", "b"], filters=["x.*", "y.>"])
    assert config.subjects("b") == ("1.x.*", "1.y.>")
    by_hand = StaticGroupConfig(max_members=2, member_mappings=[MemberMapping(member="a", partitions=(1, 0))])
    assert by_hand.subjects("a") == ("1.>", "0.>")


@pytest.mark.parametrize(
    ("one", "transformed"),
    [
        (PartitioningFilter(filter=">"), "{{Partition(4)}}.>"),
        (PartitioningFilter(filter="a.*.b.*"), "{{Partition(4)}}.a.{{Wildcard(1)}}.b.{{Wildcard(2)}}"),
        (
            PartitioningFilter(filter="a.*.*.>", partitioning_wildcards=(2, 1)),
            "{{Partition(4,2,1)}}.a.{{Wildcard(1)}}.{{Wildcard(2)}}.>",
        ),
    ],
)
def test_filter_becomes_the_partition_transform(one: PartitioningFilter, transformed: str) -> None:
    one._check()
    assert one._transform(4).dest == transformed


def test_group_config_as_other_clients_write_it() -> None:
    config = ElasticGroupConfig(
        max_members=3,
        partitioning_filters=[PartitioningFilter(filter="a.*", partitioning_wildcards=(1,))],
        max_buffered_msgs=10,
        member_mappings=[MemberMapping(member="m", partitions=(0, 1, 2))],
    )
    written = {
        "max_members": 3,
        "partitioning_filters": [{"filter": "a.*", "partitioning_wildcards": [1]}],
        "max_buffered_msg": 10,
        "member_mappings": [{"member": "m", "partitions": [0, 1, 2]}],
    }
    assert json.loads(dumps(config)) == written
    assert loads(ElasticGroupConfig, json.dumps(written)) == config
    bare = loads(ElasticGroupConfig, '{"max_members":1,"partitioning_filters":null}')
    assert bare == ElasticGroupConfig(max_members=1)


@pytest.mark.parametrize(
    "config",
    [
        StaticGroupConfig(max_members=0, members=["a"]),
        StaticGroupConfig(max_members=1, members=["a"], filters=["a..b"]),
        StaticGroupConfig(max_members=1, members=["a"], member_mappings=[MemberMapping(member="a", partitions=(0,))]),
        StaticGroupConfig(max_members=2, member_mappings=[MemberMapping(member="a", partitions=(0,))]),
        StaticGroupConfig(max_members=1, member_mappings=[MemberMapping(member="a", partitions=(1,))]),
        StaticGroupConfig(max_members=1, member_mappings=[MemberMapping(member="a", partitions=(0, 0))]),
        StaticGroupConfig(
            max_members=2,
            member_mappings=[MemberMapping(member="a", partitions=(0,)), MemberMapping(member="a", partitions=(1,))],
        ),
        ElasticGroupConfig(max_members=1, partitioning_filters=[PartitioningFilter(filter="a.b")]),
        ElasticGroupConfig(max_members=1, partitioning_filters=[PartitioningFilter(filter="")]),
        *(
            ElasticGroupConfig(
                max_members=1,
                partitioning_filters=[PartitioningFilter(filter="a.*.*", partitioning_wildcards=numbers)],
            )
            for numbers in ((3,), (0,), (1, 1))
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: GroupConfig) -> None:
    with pytest.raises(ConfigError):
        config._check()


# ---------------------------------------------------------------- at work


class Desk:
    """Handles messages of keys ``o.0`` to ``o.9`` and sees to it that no key is handled by two at a time."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}
        self.by: dict[str, list[int]] = {}
        self.busy: set[str] = set()
        self.overlaps: list[str] = []

    def handler(self, name: str) -> Callable[[JsMessage], Awaitable[None]]:
        async def handle(message: JsMessage) -> None:
            if message.subject in self.busy:
                self.overlaps.append(message.subject)
            self.busy.add(message.subject)
            await asyncio.sleep(0)
            self.busy.discard(message.subject)
            numbers = self.seen.setdefault(message.subject, [])
            if int(message.data) not in numbers:  # or its acknowledgement was lost with the consumer
                numbers.append(int(message.data))
            self.by.setdefault(name, []).append(int(message.data))

        return handle

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def check(self, count: int) -> None:
        """All of them came, those of each key in order, and never two at a time."""
        assert self.overlaps == []
        assert sorted(number for numbers in self.seen.values() for number in numbers) == list(range(count))
        assert all(numbers == sorted(numbers) for numbers in self.seen.values())


async def orders(js: JetStream, **fields: object) -> None:
    await js.create_stream(name="O", subjects=["o.*"], storage="memory", **fields)  # type: ignore[arg-type]


async def send(js: JetStream, numbers: range) -> None:
    for number in numbers:
        await js.publish(f"o.{number % 10}", b"%d" % number)


async def within(*waits: Awaitable[object]) -> None:
    async with asyncio.timeout(LONG):
        await asyncio.gather(*waits)


@pytest.mark.slow
async def test_elastic_group_members_come_and_go(
    jetstream: JetStream,
) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=4, filters={"o.*": [1]})
    await ElasticGroup.create(js, "O", "g", max_members=4, filters={"o.*": [1]})  # the same once more
    assert [name async for name in ElasticGroup.names(js, "O")] == ["g"]
    other = await ElasticGroup.open(js, "O", "g")
    async with (
        group.consume("a", desk.handler("a"), ack_wait=WAIT, max_ack_pending=1) as a,
        other.consume("b", desk.handler("b"), ack_wait=WAIT, max_ack_pending=1) as b,
    ):
        await send(js, range(20))
        assert (a.is_joined, b.is_joined, desk.count) == (False, False, 0)
        assert await group.add_members("a") == ("a",)
        await within(a.wait_joined())
        await eventually(lambda: desk.count == 20, LONG)
        assert await group.add_members("b", "b") == ("a", "b")
        await within(b.wait_joined())
        await eventually(lambda: (a.partitions, b.partitions) == ((0, 1), (2, 3)))
        await send(js, range(20, 60))
        await eventually(lambda: desk.count == 60, LONG)
        assert len(desk.by["a"]) > 20, "both had some"
        assert len(desk.by["b"]) > 0
        assert sorted(await other.active_members()) == ["a", "b"]
        assert await other.drop_members("a") == ("b",)
        await send(js, range(60, 100))
        await eventually(lambda: desk.count == 100 and not a.is_joined, LONG)
        assert (await group.info()).members == ("b",)
        await group.delete()
        await within(a.wait(), b.wait())  # in good order
    desk.check(100)
    with pytest.raises(GroupNotFound):
        await ElasticGroup.open(js, "O", "g")
    assert sorted([name async for name in js.stream_names()]) == ["KV_elastic-consumer-groups", "O"]


async def test_partitions_given_by_hand_may_be_given_anew(jetstream: JetStream) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=2)
    await group.set_mappings({"a": [0], "b": [1]})
    with pytest.raises(ConfigError):
        await group.add_members("c")
    with pytest.raises(ConfigError):
        await group.set_mappings({"a": [0]})
    async with (
        group.consume("a", desk.handler("a"), ack_wait=WAIT, max_ack_pending=1) as a,
        group.consume("b", desk.handler("b"), ack_wait=WAIT, max_ack_pending=1) as b,
    ):
        await within(a.wait_joined(), b.wait_joined())
        await send(js, range(20))
        await eventually(lambda: desk.count == 20, LONG)
        await group.set_mappings({"a": [0, 1]})
        await eventually(lambda: a.partitions == (0, 1) and not b.is_joined)
        await send(js, range(20, 40))
        await eventually(lambda: desk.count == 40, LONG)
        await group.set_mappings({})
        await eventually(lambda: not a.is_joined)
        assert await group.add_members("b") == ("b",)
        await within(b.wait_joined())
    desk.check(40)


@pytest.mark.slow
async def test_member_instance_takes_over(jetstream: JetStream, nats_server: Server) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=2, filters=["o.*"])
    await group.add_members("m")
    async with natsproto.connect(nats_server.url) as one, natsproto.connect(nats_server.url) as two:
        members = [
            (await ElasticGroup.open(client.jetstream(), "O", "g")).consume(
                "m", desk.handler(name), ack_wait=WAIT, max_ack_pending=1
            )
            for name, client in (("one", one), ("two", two))
        ]
        async with members[0], members[1]:
            await within(members[0].wait_joined())
            await send(js, range(10))
            await eventually(lambda: desk.count == 10, LONG)
            await within(members[1].wait_joined())
            await send(js, range(10, 20))
            await eventually(lambda: desk.count == 20, LONG)
            [served] = desk.by
            await group.step_down("m")
            await send(js, range(20, 30))
            await eventually(lambda: desk.count == 30, LONG)
            gone, left = (one, "two") if next(reversed(desk.by)) == "one" else (two, "one")
            assert served in desk.by
            await gone.close()
            await send(js, range(30, 40))
            await eventually(lambda: desk.count == 40, LONG)
            assert desk.by[left][-1] == 39
    desk.check(40)


async def test_a_consumer_that_somebody_deleted_is_made_anew(jetstream: JetStream) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=1)
    await group.add_members("m")
    async with group.consume("m", desk.handler("m"), ack_wait=WAIT) as member:
        await within(member.wait_joined())
        await send(js, range(5))
        await eventually(lambda: desk.count == 5, LONG)
        queue = await js.stream("O-g")
        created = (await queue.consumer_info("m")).created
        await queue.delete_consumer("m")
        await send(js, range(5, 10))
        await eventually(lambda: desk.count == 10, LONG)
        assert (await queue.consumer_info("m")).created > created
    desk.check(10)


async def test_error_of_wait_joined_is_not_logged(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    await orders(jetstream)
    group = await StaticGroup.create(jetstream, "O", "g", max_members=1, members=["a"])
    await jetstream.delete_stream("O")
    with pytest.raises(StreamNotFound):
        async with group.consume("a", print) as member:
            await within(member.wait_joined())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_static_group_ends_with_its_config(
    jetstream: JetStream,
) -> None:
    js, desk = jetstream, Desk()
    transform = natsproto.jetstream.SubjectTransform(src="o.*", dest="{{partition(4,1)}}.o.{{wildcard(1)}}")
    await orders(js, subject_transform=transform)
    group = await StaticGroup.create(js, "O", "g", max_members=4, members=["a", "b"], filters=["o.*"])
    with pytest.raises(GroupChanged, match="configured otherwise"):
        await StaticGroup.create(js, "O", "g", max_members=4, members=["a"], filters=["o.*"])
    with pytest.raises(ConfigError):
        group.consume("stranger", desk.handler("stranger"))
    other = await StaticGroup.open(js, "O", "g")
    async with (
        group.consume("a", desk.handler("a"), ack_wait=WAIT, max_ack_pending=1) as a,
        other.consume("b", desk.handler("b"), ack_wait=WAIT, max_ack_pending=1) as b,
    ):
        await within(a.wait_joined(), b.wait_joined())
        await send(js, range(40))
        await eventually(lambda: desk.count == 40, LONG)
        assert set(desk.by) == {"a", "b"}
        assert sorted(await group.active_members()) == ["a", "b"]
        await group.delete()
        await within(a.wait(), b.wait())
    desk.check(40)
    assert [name async for name in (await js.stream("O")).consumer_names()] == []


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("static", b'{"max_members":2,"members":["a"]}'),
        ("static", b"nonsense"),
        ("elastic", b'{"max_members":2,"members":["a"]}'),
        ("elastic", b'{"max_members":0}'),
    ],
)
async def test_group_members_end_with_a_fatal_change(jetstream: JetStream, kind: str, written: bytes) -> None:
    js, desk = jetstream, Desk()
    await js.create_stream(name="O", subjects=["0.o"], storage="memory")
    group: StaticGroup | ElasticGroup
    if kind == "static":
        group = await StaticGroup.create(js, "O", "g", max_members=1, members=["a"])
    else:
        group = await ElasticGroup.create(js, "O", "g", max_members=1)
        await group.add_members("a")
    member = group.consume("a", desk.handler("a"), ack_wait=WAIT)
    running = asyncio.ensure_future(member.run())
    await eventually(lambda: member.is_joined)
    await (await js.key_value(f"{kind}-consumer-groups")).put("O.g", written)
    with pytest.raises(GroupChanged) as changed:
        await within(running)
    assert (changed.value.stream, changed.value.group) == ("O", "g")
    assert member.closed


async def test_group_consumer_as_other_clients_configure_it(jetstream: JetStream) -> None:
    """They create it with the same words, and one that differs would be deleted by the next who joins."""
    js = jetstream
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=2, filters={"o.*": [1]})
    await group.add_members("m")
    async with group.consume("m", lambda message: None) as member:
        await within(member.wait_joined())
        config = (await (await js.stream("O-g")).consumer_info("m")).config
    assert (config.name, config.durable_name, config.filter_subjects) == ("m", "", ("0.o.*", "1.o.*"))
    assert (config.ack_policy, config.ack_wait, config.inactive_threshold) == ("explicit", 5.0, 5.0)
    assert (config.priority_groups, config.priority_policy, config.priority_timeout) == (
        ("PCG",),
        "pinned_client",
        5.0,
    )
    between = (await js.stream("O-g")).cached_info.config
    assert (between.retention, between.discard, between.allow_direct, between.storage) == (
        "workqueue",
        "new",
        True,
        "memory",
    )


async def test_members_change_only_their_part_of_the_config(jetstream: JetStream) -> None:
    """Members compare the rest, and in other languages an empty list is not the same as none."""
    js = jetstream
    await orders(js)
    await ElasticGroup.create(js, "O", "g", max_members=2)
    bucket = await js.key_value("elastic-consumer-groups")
    await bucket.put("O.g", b'{"max_members":2,"partitioning_filters":[],"new":{"a":1}}')
    await (await ElasticGroup.open(js, "O", "g")).add_members("m")
    assert json.loads((await bucket.get("O.g")).data) == {
        "max_members": 2,
        "partitioning_filters": [],
        "new": {"a": 1},
        "members": ["m"],
    }


async def test_group_arguments_are_checked_before_sending(jetstream: JetStream) -> None:
    js = jetstream
    await orders(js)
    with pytest.raises(GroupNotFound):
        await StaticGroup.open(js, "O", "g")
    with pytest.raises(ConfigError):
        await StaticGroup.create(js, "O", "g", max_members=1)
    with pytest.raises(ConfigError):
        await ElasticGroup.create(js, "O", "g.h", max_members=1)
    group = await ElasticGroup.create(js, "O", "g", max_members=1)
    with pytest.raises(ConfigError):
        group.consume("m", lambda message: None, durable_name="mine")
    with pytest.raises(ConfigError):
        group.consume("m", lambda message: None, ack_policy="none")
    with pytest.raises(ConfigError):
        group.consume("m", lambda message: None, concurrency=0)
    with pytest.raises(ConfigError):
        group.consume("m", lambda message: None, prefetch=0)
    with pytest.raises(TypeError):
        group.consume("m", None)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        await group.consume("m", lambda message: None).wait()
