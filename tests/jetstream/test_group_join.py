"""Groups whose members come and go by themselves."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import natsproto
from natsproto import otel, sync
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    GroupChanged,
    InvalidSubject,
    PermissionDenied,
    StreamNotFound,
    UnsupportedByServer,
)
from natsproto.jetstream import groups
from natsproto.jetstream.groups import ElasticGroup, GroupLeaseLate, GroupLeaseLost, GroupSharesChanged, JoinedMember
from natsproto.jetstream.groups._presence import PRESENCE_BUCKET
from natsproto.testing import Direction, FaultProxy, run_server
from tests.jetstream.reading import ignore
from tests.jetstream.test_groups import Desk, orders, send, within
from tests.kit.servers import client_of
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.message import JsMessage
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0
ALL = tuple(range(12))


@asynccontextmanager
async def joined(
    js: JetStream, handler: object, *, group: str = "g", partitions: int = 12, **options: object
) -> AsyncIterator[JoinedMember]:
    stream = await js.stream("O")
    async with groups.join(stream, group, handler, partitions=partitions, filters={"o.*": [1]}, **options) as member:  # type: ignore[arg-type]
        yield member


def has(member: JoinedMember, count: int) -> bool:
    return member.is_joined and len(member.partitions) == count


# ---------------------------------------------------------------- coming and going


async def test_two_members_share_the_partitions(jetstream: JetStream, nats_server: Server) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    async with natsproto.connect(nats_server.url) as other, joined(js, desk.handler("a")) as a:
        await within(a.wait_joined())
        assert a.partitions == ALL
        await send(js, range(20))
        await eventually(lambda: desk.count == 20, LONG)
        async with joined(other.jetstream(), desk.handler("b")) as b:
            await eventually(lambda: has(a, 6) and has(b, 6), LONG)
            assert a.generation == b.generation
            await send(js, range(20, 60))
            await eventually(lambda: desk.count == 60, LONG)
            assert set(desk.by) == {"a", "b"}
        assert b.closed
        await eventually(lambda: has(a, 12), LONG)
        await send(js, range(60, 80))
        await eventually(lambda: desk.count == 80, LONG)
    desk.check(80)
    presence = await js.key_value(PRESENCE_BUCKET)
    assert [key async for key in presence.keys()] == []  # noqa: SIM118
    assert [name async for name in (await js.stream("O-g")).consumer_names()] == []


async def test_changes_of_shares_are_events(jetstream: JetStream) -> None:
    js, events = jetstream, list[GroupSharesChanged]()
    js.connection.add_listener(lambda event: events.append(event) if isinstance(event, GroupSharesChanged) else None)
    await orders(js)
    async with joined(js, ignore) as a:
        await eventually(lambda: has(a, 12), LONG)
        async with joined(js, ignore) as b:
            await eventually(lambda: has(a, 6) and has(b, 6), LONG)
    assert [len(event.partitions) for event in events if event.member == a.name] == [12, 6]
    assert [len(event.partitions) for event in events if event.member == b.name] == [6]
    assert {(event.stream, event.group) for event in events} == {("O", "g")}
    generations = [event.generation for event in events]
    assert generations == sorted(generations)


async def test_member_beyond_the_partitions_stands_by(jetstream: JetStream) -> None:
    js = jetstream
    await orders(js)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(joined(js, ignore, partitions=1))
        await within(first.wait_joined())
        async with joined(js, ignore, partitions=1) as second:
            waiting = asyncio.ensure_future(second.wait_joined())
            await stack.aclose()
            await within(waiting)
            assert second.partitions == (0,)


@pytest.mark.slow
async def test_twenty_members_settle_in_few_steps(jetstream: JetStream) -> None:
    js = jetstream
    await orders(js)
    async with AsyncExitStack() as stack:
        joining = [stack.enter_async_context(joined(js, ignore, partitions=64)) for _ in range(20)]
        members = await asyncio.gather(*joining)
        await eventually(lambda: sorted(len(one.partitions) for one in members) == [3] * 16 + [4] * 4, LONG)
        await eventually(lambda: all(one.is_joined for one in members), LONG)
        bucket = await js.key_value("elastic-consumer-groups")
        assert (await bucket.get("O.g")).revision <= 10


async def test_running_handler_ends_before_the_member_leaves(jetstream: JetStream) -> None:
    js, began, gate = jetstream, asyncio.Event(), asyncio.Event()
    await orders(js)

    async def handle(message: JsMessage) -> None:
        began.set()
        await gate.wait()
        handled.append(message.subject)

    handled: list[str] = []
    async with joined(js, handle, ttl=2) as member:
        await js.publish("o.1", b"0")
        await within(began.wait())
        stopping = asyncio.ensure_future(member.stop())
        presence = await js.key_value(PRESENCE_BUCKET)
        async with presence.watch(f"O.g.{member.name}") as renewals:
            for _ in range(5):  # the lease is held on
                assert not (await renewals.next(LONG)).is_deleted
        assert not stopping.done()
        gate.set()
        await within(stopping)
    assert handled == ["o.1"]
    async with asyncio.timeout(10):
        while (await (await js.stream("O-g")).info()).state.messages:
            pass  # the server removes an acknowledged message a moment later


async def test_drain_of_the_client_leaves_the_group(jetstream: JetStream, nats_server: Server) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    async with natsproto.connect(nats_server.url) as other, joined(js, desk.handler("a")) as a:
        member = groups.join(await other.jetstream().stream("O"), "g", desk.handler("b"), filters={"o.*": [1]}, ttl=60)
        running = asyncio.ensure_future(member.run())
        await eventually(lambda: has(a, 6) and has(member, 6), LONG)
        await other.drain()
        await within(running)
        await eventually(lambda: has(a, 12), LONG)


async def test_deleted_group_ends_its_members(jetstream: JetStream) -> None:
    js = jetstream
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=3)
    async with group.join(ignore) as member:
        await within(member.wait_joined())
        await group.delete()
        await within(member.wait())


async def test_shares_are_in_health_and_metrics(jetstream: JetStream) -> None:
    reader = InMemoryMetricReader()
    telemetry = otel.Telemetry(meter_provider=MeterProvider([reader]))
    await orders(jetstream)
    async with telemetry.connect(jetstream.connection.connected_url) as nc:
        assert (await nc.health()).groups == ()
        async with joined(nc.jetstream(), ignore) as member:
            await within(member.wait_joined())
            [stats] = (await nc.health()).groups
            assert (stats.stream, stats.group, stats.member) == ("O", "g", member.name)
            assert (stats.partitions, stats.generation) == (ALL, member.generation)
            data: Any = reader.get_metrics_data()
            points = {
                metric.name: [(point.value, dict(point.attributes)) for point in metric.data.data_points]
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                if metric.name.startswith("natsproto.group.")
            }
            attributes = {
                "messaging.system": "nats",
                "messaging.destination.name": "O",
                "messaging.consumer.group.name": "g",
                "natsproto.group.member": member.name,
            }
            assert points["natsproto.group.partitions"] == [(12, attributes)]
            assert points["natsproto.group.generation"] == [(member.generation, attributes)]
        assert (await nc.health()).groups == ()


# ---------------------------------------------------------------- order by key


async def test_concurrent_handlers_keep_the_order_of_a_key(jetstream: JetStream) -> None:
    js, desk = jetstream, Desk()
    await orders(js)
    async with joined(js, desk.handler("a"), concurrency=8) as a:
        await within(a.wait_joined())
        await send(js, range(200))
        await eventually(lambda: desk.count == 200, LONG)
    desk.check(200)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 8])
async def test_messages_lost_on_the_way_come_first(jetstream: JetStream, nats_server: Server, concurrency: int) -> None:
    """What was sent to a connection that broke is delivered again after ack_wait, and later messages before it."""
    js, desk = jetstream, Desk()
    await orders(js)
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        joined(nc.jetstream(), desk.handler("a"), ttl=20, concurrency=concurrency) as a,
    ):
        await within(a.wait_joined())
        await send(js, range(20))
        await eventually(lambda: desk.count == 20, LONG)
        queue = await js.stream("O-g")
        proxy.stall(Direction.TO_CLIENT)
        await send(js, range(20, 60))
        while not (await queue.consumer_info(a.name)).num_ack_pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        proxy.cut()
        proxy.heal()
        await send(js, range(60, 100))
        await eventually(lambda: desk.count == 100, LONG)
    desk.check(100)


async def test_key_function_sees_the_subject_of_the_user(jetstream: JetStream) -> None:
    js, subjects = jetstream, set[str]()
    await orders(js)

    def key(message: JsMessage) -> str:
        subjects.add(message.subject)
        return message.subject

    desk = Desk()
    async with joined(js, desk.handler("a"), concurrency=2, key=key):
        await send(js, range(20))
        await eventually(lambda: desk.count == 20, LONG)
    assert subjects == {f"o.{number}" for number in range(10)}


# ---------------------------------------------------------------- names


async def test_named_member_keeps_its_partitions(jetstream: JetStream, nats_server: Server) -> None:
    """The process of a pod is replaced within the ttl: nothing moves, and what the old one had in hand is delivered."""
    js, desk = jetstream, Desk()
    await orders(js)
    async with (
        joined(js, desk.handler("other"), ttl=20) as other,
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
    ):
        stream = await nc.jetstream().stream("O")

        async def hang(message: JsMessage) -> None:
            await asyncio.Event().wait()

        old = groups.join(stream, "g", hang, filters={"o.*": [1]}, name="pod-0", ttl=6, ack_wait=60)
        running = asyncio.ensure_future(old.run())
        await eventually(lambda: has(old, 6) and has(other, 6), LONG)
        await send(js, range(40))
        kept, generation = old.partitions, old.generation
        proxy.stall()
        async with joined(js, desk.handler("new"), name="pod-0", ttl=6) as new:
            await within(new.wait_joined())
            assert (new.name, new.partitions, new.generation) == (old.name, kept, generation)
            await eventually(lambda: desk.count == 40, LONG)
            proxy.heal()
            with pytest.raises(GroupChanged, match=r"process \d+ on .* is the member 'join-pod-0' now"):
                await within(running)
            assert new.is_joined
    desk.check(40)


async def test_administrators_members_stay(jetstream: JetStream) -> None:
    """A list of members becomes mappings once; the named ones count, and have all when no other is left."""
    js, desk = jetstream, Desk()
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=12, filters={"o.*": [1]})
    await group.add_members("anna", "bert")
    async with group.consume("anna", desk.handler("anna")) as anna, group.consume("bert", desk.handler("bert")) as bert:
        await within(anna.wait_joined(), bert.wait_joined())
        async with group.join(desk.handler("joined")) as member:
            await within(member.wait_joined())
            await eventually(lambda: (len(anna.partitions), len(bert.partitions)) == (4, 4), LONG)
            config = await group.info()
            assert config.members == ()
            assert (config.partitions("anna"), config.partitions("bert")) == ((0, 1, 2, 3), (6, 7, 8, 9))
            assert config.partitions(member.name) == (4, 5, 10, 11)
            await send(js, range(40))
            await eventually(lambda: desk.count == 40, LONG)
        await eventually(lambda: (len(anna.partitions), len(bert.partitions)) == (6, 6), LONG)
        assert (await group.info()).names == ("anna", "bert")
        await send(js, range(40, 60))
        await eventually(lambda: desk.count == 60, LONG)
    desk.check(60)


async def test_groups_share_the_bucket_of_keys(jetstream: JetStream) -> None:
    js, one, two = jetstream, Desk(), Desk()
    await orders(js)
    async with joined(js, one.handler("a")) as a, joined(js, two.handler("b"), group="h") as b:
        await within(a.wait_joined(), b.wait_joined())
        await send(js, range(20))
        await eventually(lambda: one.count == two.count == 20, LONG)
        assert a.partitions == b.partitions == ALL


# ---------------------------------------------------------------- the lease


@pytest.mark.slow
async def test_cut_off_member_stops_before_others_begin(jetstream: JetStream, nats_server: Server) -> None:
    """Its running handlers are cancelled at the end of its lease, and it joins again after the outage."""
    js, running, began = jetstream, set[str](), set[str]()
    await orders(js)

    async def hang(message: JsMessage) -> None:
        running.add(message.subject)
        began.add(message.subject)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(message.subject)

    async def handle(message: JsMessage) -> None:
        assert message.subject not in running
        handled.add(message.subject)

    handled: set[str] = set()
    events: list[object] = []
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        joined(nc.jetstream(timeout=30), hang, ttl=1, ack_wait=60, concurrency=16) as cut,
    ):
        nc.add_listener(events.append)
        await eventually(lambda: has(cut, 12), LONG)
        async with joined(js, handle, ttl=20) as other:
            await eventually(lambda: has(other, 6) and has(cut, 6), LONG)
            await send(js, range(10))
            await eventually(lambda: len(began | handled) == 10 and running, LONG)
            proxy.stall()
            await eventually(lambda: len(handled) == 10, LONG)
            assert not running
            proxy.heal()
            await eventually(lambda: has(other, 6) and has(cut, 6), LONG)
    seen = [type(event) for event in events if isinstance(event, GroupLeaseLate | GroupLeaseLost)]
    assert {GroupLeaseLate, GroupLeaseLost} <= set(seen)


async def test_forgotten_consumer_is_deleted(jetstream: JetStream) -> None:
    """Who wrote the shares died before it deleted the consumer of the member that was gone."""
    js = jetstream
    await orders(js)
    group = await ElasticGroup.create(js, "O", "g", max_members=2)
    queue = await js.stream("O-g")
    await queue.create_consumer(name="join-gone", filter_subjects=["1.>"], inactive_threshold=300)
    async with group.join(ignore) as member:
        await within(member.wait_joined())
        assert [name async for name in queue.consumer_names()] == [member.name]


async def test_closed_client_ends_its_member(jetstream: JetStream, nats_server: Server) -> None:
    await orders(jetstream)
    nc = await natsproto.connect(nats_server.url)
    stream = await nc.jetstream().stream("O")
    member = groups.join(stream, "g", ignore)
    running = asyncio.ensure_future(member.run())
    await eventually(lambda: has(member, 12), LONG)
    await nc.close()
    await within(running)


@pytest.mark.slow
async def test_members_at_random(jetstream: JetStream, nats_server: Server, seed: int) -> None:
    """They join, leave, and lose their connections, while messages come: each key stays in order."""
    js, desk, rng, sent = jetstream, Desk(), random.Random(seed), 0
    await orders(js)
    async with AsyncExitStack() as stack:
        members: list[tuple[FaultProxy, JoinedMember]] = []
        for step in range(12):
            what = rng.choice(["join", "join", "leave", "cut"]) if members else "join"
            if what == "join" and len(members) < 4:
                proxy = await stack.enter_async_context(FaultProxy(nats_server.host, nats_server.port))
                nc = await stack.enter_async_context(natsproto.connect(proxy.url, reconnect_wait=0.01))
                stream = await nc.jetstream().stream("O")
                options: Any = {"concurrency": rng.choice([1, 8]), "ttl": 2, "filters": {"o.*": [1]}}
                member = groups.join(stream, "g", desk.handler(f"m{step}"), **options)
                members.append((proxy, await stack.enter_async_context(member)))
            elif what == "leave":
                await members.pop(rng.randrange(len(members)))[1].stop()
            elif what == "cut":
                rng.choice(members)[0].cut()
            await send(js, range(sent, sent := sent + rng.randrange(40)))
            await asyncio.sleep(rng.uniform(0, 0.09))
        if not members:
            await stack.enter_async_context(joined(js, desk.handler("last")))
        await eventually(lambda: desk.count == sent, LONG)
        desk.check(sent)


async def test_renewal_whose_reply_was_lost_is_known_again(jetstream: JetStream) -> None:
    js, lost = jetstream, list[object]()
    js.connection.add_listener(lambda event: lost.append(event) if isinstance(event, GroupLeaseLost) else None)
    await orders(js)
    async with joined(js, ignore, ttl=1.5) as member:
        await within(member.wait_joined())
        presence = await js.key_value(PRESENCE_BUCKET)
        entry = await presence.get(f"O.g.{member.name}", direct=False)
        revision = await presence.put(f"O.g.{member.name}", entry.data, ttl=60)
        async with presence.watch(f"O.g.{member.name}") as renewals:
            while (renewed := await renewals.next(LONG)).revision <= revision:
                pass
            assert not renewed.is_deleted
        assert member.is_joined
    assert lost == []


async def test_member_declared_dead_joins_again(jetstream: JetStream) -> None:
    js, lost = jetstream, list[GroupLeaseLost]()
    js.connection.add_listener(lambda event: lost.append(event) if isinstance(event, GroupLeaseLost) else None)
    await orders(js)
    async with joined(js, ignore, ttl=1.5) as member:
        await within(member.wait_joined())
        presence = await js.key_value(PRESENCE_BUCKET)
        await presence.delete(f"O.g.{member.name}")
        await eventually(lambda: lost, LONG)
        assert (lost[0].stream, lost[0].group, lost[0].member) == ("O", "g", member.name)
        await eventually(lambda: has(member, 12), LONG)


# ---------------------------------------------------------------- what is refused


async def test_arguments_are_checked_at_once(jetstream: JetStream) -> None:
    await orders(jetstream)
    stream = await jetstream.stream("O")
    for name in ("a.b", "a b", "a*", ""):
        with pytest.raises(InvalidSubject):
            groups.join(stream, name, ignore)
        with pytest.raises(InvalidSubject):
            groups.join(stream, "g", ignore, name=name)
    with pytest.raises(ConfigError, match="ttl"):
        groups.join(stream, "g", ignore, ttl=0.5)
    with pytest.raises(ConfigError, match="concurrency"):
        groups.join(stream, "g", ignore, concurrency=0)
    with pytest.raises(TypeError, match="handler"):
        groups.join(stream, "g", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="durable"):
        groups.join(stream, "g", ignore, durable="x")  # type: ignore[call-arg]
    assert [name async for name in jetstream.stream_names()] == ["O"], "nothing was sent"
    with pytest.raises(ConfigError, match="partition"):
        await groups.join(stream, "g", ignore, partitions=0).run()


async def test_group_of_another_layout_is_refused(jetstream: JetStream) -> None:
    await orders(jetstream)
    await ElasticGroup.create(jetstream, "O", "g", max_members=3)
    stream = await jetstream.stream("O")
    with pytest.raises(GroupChanged, match="'g' of stream 'O': exists and is configured otherwise"):
        await groups.join(stream, "g", ignore, partitions=4).run()
    await jetstream.delete_stream("O")
    with pytest.raises(StreamNotFound):
        await groups.join(stream, "h", ignore).run()


async def test_bucket_without_marker_ttl_is_refused(jetstream: JetStream) -> None:
    await orders(jetstream)
    await jetstream.create_key_value(PRESENCE_BUCKET)
    stream = await jetstream.stream("O")
    with pytest.raises(ConfigError, match=r"js\.update_key_value"):
        await groups.join(stream, "g", ignore).run()
    await jetstream.update_key_value(PRESENCE_BUCKET, limit_marker_ttl=10)  # as the error says
    async with groups.join(stream, "g", ignore) as member:
        await within(member.wait_joined())


async def test_deleted_bucket_ends_the_member(jetstream: JetStream) -> None:
    await orders(jetstream)
    stream = await jetstream.stream("O")
    member = groups.join(stream, "g", ignore, ttl=1)
    running = asyncio.ensure_future(member.run())
    await eventually(lambda: has(member, 12), LONG)
    await jetstream.delete_key_value(PRESENCE_BUCKET)
    with pytest.raises(BucketNotFound):
        await within(running)


@pytest.mark.variant
async def test_older_server_is_refused_before_anything() -> None:
    async with client_of("2.10") as nc:
        js = nc.jetstream()
        await orders(js)
        stream = await js.stream("O")
        with pytest.raises(UnsupportedByServer, match=r"create group .g. of stream .O. .*: needs nats-server 2\.12"):
            await groups.join(stream, "g", ignore).run()
        assert [name async for name in js.stream_names()] == ["O"]


@pytest.mark.parametrize(
    "subject",
    [
        "$KV.natsproto-group-presence.>",
        "$KV.elastic-consumer-groups.>",
        "$JS.API.CONSUMER.CREATE.O-g.>",
        "$JS.API.STREAM.CREATE.O-g",
        "$JS.API.STREAM.CREATE.KV_natsproto-group-presence",
    ],
)
async def test_missing_permission_is_named(subject: str) -> None:
    rule = f'user: u, password: p, permissions: {{publish: {{deny: ["{subject}"]}}}}'
    async with (
        run_server(jetstream=True, config=f"authorization {{ users: [ {{ {rule} }} ] }}") as server,
        natsproto.connect(server.url, user="u", password="p") as nc,
    ):
        await orders(nc.jetstream())
        stream = await nc.jetstream().stream("O")
        with pytest.raises(PermissionDenied) as denied:
            await within(groups.join(stream, "g", ignore).run())
        assert denied.value.subject.startswith(subject.removesuffix(">"))


# ---------------------------------------------------------------- without asyncio


def test_blocking_members_share_the_partitions(nats_server: Server) -> None:
    handled: list[str] = []
    with sync.connect(nats_server.url) as one, sync.connect(nats_server.url) as two:
        js = one.jetstream()
        js.create_stream("O", subjects=["o.*"], storage="memory")
        all_handled = threading.Event()

        def handle(message: sync.JsMessage) -> None:
            handled.append(message.subject)
            if len(handled) == 20:
                all_handled.set()

        with js.stream("O").join_group("g", handle, threads=4, filters={"o.*": [1]}) as a:
            a.wait_joined()
            with two.jetstream().stream("O").join_group("g", handle, filters={"o.*": [1]}) as b:
                b.wait_joined()
                assert len(b.partitions) == 6
                assert b.generation > 0
                for number in range(20):
                    js.publish(f"o.{number}")
                assert all_handled.wait(LONG)
        assert a.closed
        assert b.closed
    assert sorted(handled) == sorted(f"o.{number}" for number in range(20))


def test_blocking_member_runs_until_its_event(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        js.create_stream("O", subjects=["o.*"], storage="memory")
        js.publish("o.1")
        stop = threading.Event()
        member = js.stream("O").join_group("g", lambda message: stop.set())
        member.run(until=stop)
        assert member.closed


def test_blocking_member_may_stop_in_its_handler(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        js.create_stream("O", subjects=["o.*"], storage="memory")
        member = js.stream("O").join_group("g", lambda message: member.stop())
        js.publish("o.1")
        member.wait()
        assert member.closed
