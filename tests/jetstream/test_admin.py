"""A cluster is administered: leaders step down, streams move, servers and accounts go, each call typed and told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto import Client, errors
from natsproto.errors import ConfigError, LocalProtocolError
from natsproto.jetstream import advisories as advisory
from natsproto.jetstream._api.admin import Admin
from natsproto.jetstream._values.config_parts import Placement
from natsproto.jetstream._values.info import ClusterInfo, MetaRescue
from natsproto.jetstream.advisories import Advisories, Advisory
from natsproto.testing import run_cluster, run_server
from natsproto.testing._cluster import Cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("admin")]

BRIEFLY = 2.0
"""Seconds for who is asked again: between two leaders nobody answers."""
LONG = 20.0

CONFIG = """
accounts {
  APP { jetstream: enabled, users: [{user: app, password: x}] }
  DOOMED { jetstream: enabled, users: [{user: doomed, password: x}] }
  SYS { users: [{user: sys, password: x}] }
}
system_account: SYS
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(config=CONFIG) as cluster:
        yield cluster


@asynccontextmanager
async def connected(cluster: Cluster, user: str) -> AsyncIterator[Client]:
    async with natsproto.connect(cluster.urls, user=user, password="x") as nc:
        yield nc


@pytest.fixture
async def app(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of an account that holds streams; they are deleted afterwards."""
    async with connected(cluster, "app") as nc:
        yield nc
        js = nc.jetstream()
        for name in [name async for name in js.stream_names()]:
            await js.delete_stream(name)


@pytest.fixture
async def system(cluster: Cluster) -> AsyncIterator[Client]:
    async with connected(cluster, "sys") as nc:
        yield nc


Look = Callable[[], Awaitable[ClusterInfo | None]]


async def info_when(look: Look, enough: Callable[[ClusterInfo], bool]) -> ClusterInfo:
    """Looks until what is seen is enough; every look is a round trip."""
    async with asyncio.timeout(30):
        while True:
            try:
                seen = await look()
            except (errors.JetStreamUnavailable, errors.RequestTimeout, errors.ConsumerNotFound):
                continue  # between two leaders, or on a server that does not have it yet
            assert seen is not None
            if enough(seen):
                return seen


async def next_advisory(events: Advisories, kind: type[Advisory]) -> Advisory:
    """The next event of this kind, which must be known to the last field."""
    while type(event := await events.next(LONG)) is not kind:
        assert type(event) is not Advisory, f"unknown: {event}"
    assert event.extra == {}
    return event


def members(info: ClusterInfo) -> set[str]:
    return {info.leader, *(peer.name for peer in info.replicas)}


async def test_leaders_of_stream_and_consumer_step_down(app: Client) -> None:
    js = app.jetstream(timeout=LONG)
    stream = await js.create_stream(name="S", subjects=["s"], num_replicas=3)
    consumer = await stream.create_consumer(durable_name="c")

    async def of_stream() -> ClusterInfo | None:
        return (await stream.info(timeout=BRIEFLY)).cluster

    async def of_consumer() -> ClusterInfo | None:
        return (await consumer.info(timeout=BRIEFLY)).cluster

    first = await info_when(of_stream, lambda info: bool(info.leader) and len(info.replicas) == 2)
    async with js.advisories() as events:
        await js.admin.step_down_stream_leader("S")
        elected = await next_advisory(events, advisory.StreamLeaderElected)
        assert getattr(elected, "stream", "") == "S"
    second = await info_when(of_stream, lambda info: info.leader not in ("", first.leader))
    wanted = next(peer.name for peer in second.replicas if peer.name != first.leader)
    async with asyncio.timeout(30):  # a wish, which an election that is under way does not hear
        while (await info_when(of_stream, lambda info: bool(info.leader))).leader != wanted:
            with contextlib.suppress(errors.JetStreamUnavailable, errors.RequestTimeout):
                await js.admin.step_down_stream_leader("S", placement=Placement(preferred=wanted), timeout=BRIEFLY)

    leader = (await info_when(of_consumer, lambda info: bool(info.leader))).leader
    await js.admin.step_down_consumer_leader("S", "c")
    await info_when(of_consumer, lambda info: info.leader not in ("", leader))
    with pytest.raises(errors.ApiError, match="nobody"):
        await js.admin.step_down_stream_leader("S", placement=Placement(preferred="nobody"))
    with pytest.raises(errors.StreamNotFound, match="step down leader of 'NONE'"):
        await js.admin.step_down_stream_leader("NONE")


async def test_stream_peer_is_removed_and_placed(app: Client) -> None:
    js = app.jetstream(timeout=LONG)
    stream = await js.create_stream(name="S", subjects=["s"], num_replicas=2, placement=Placement(cluster="natsproto"))
    assert stream.cached_info.config.placement == Placement(cluster="natsproto")

    async def look() -> ClusterInfo | None:
        return (await stream.info(timeout=BRIEFLY)).cluster

    before = await info_when(look, lambda info: len(members(info)) == 2 and "" not in members(info))
    gone = before.replicas[0].name
    await js.admin.remove_stream_peer("S", gone)
    after = await info_when(look, lambda info: len(members(info)) == 2 and gone not in members(info))
    leaving = after.replicas[0].name
    await js.admin.evacuate_stream_peer("S", leaving)
    await info_when(
        look, lambda info: len(members(info)) == 2 and leaving not in members(info) and info.desired is None
    )
    with pytest.raises(errors.ApiError):
        await js.admin.remove_stream_peer("S", "nobody")
    with pytest.raises(errors.ApiError):
        await js.admin.evacuate_stream_peer("S", "nobody")
    with pytest.raises(errors.ApiError, match="cancel move of stream 'S'"):
        await js.admin.cancel_stream_move("S")


async def test_consumers_leave_a_server(app: Client) -> None:
    js = app.jetstream(timeout=LONG)
    stream = await js.create_stream(name="S", subjects=["s"], num_replicas=3)
    consumer = await stream.create_consumer(durable_name="c", num_replicas=1)

    async def look() -> ClusterInfo | None:
        return (await consumer.info(timeout=BRIEFLY)).cluster or ClusterInfo()

    first = (await info_when(look, lambda info: bool(info.leader))).leader
    await js.admin.evacuate_consumer_peer("S", "c", first)
    second = (await info_when(look, lambda info: bool(info.leader) and info.leader != first)).leader
    await js.admin.remove_consumer_peer("S", "c", second)
    await info_when(look, lambda info: bool(info.leader) and info.leader != second)
    for call in (js.admin.evacuate_consumer_peer, js.admin.remove_consumer_peer):
        with pytest.raises(errors.ApiError, match="not a member"):
            await call("S", "c", "nobody")
        with pytest.raises(errors.ConsumerNotFound):
            await call("S", "none", first)


async def test_system_account_moves_streams(app: Client, system: Client) -> None:
    js, admin = app.jetstream(timeout=LONG), system.jetstream(timeout=LONG).admin
    stream = await js.create_stream(name="S", subjects=["s"], num_replicas=1)

    async def look() -> ClusterInfo | None:
        return (await stream.info(timeout=BRIEFLY)).cluster

    first = (await info_when(look, lambda info: bool(info.leader))).leader
    moved = await admin.move_stream("APP", "S", server=first)
    assert moved.config.name == "S"

    def is_settled(info: ClusterInfo) -> bool:
        return info.leader != "" and not info.replicas and info.desired is None

    second = (await info_when(look, lambda info: is_settled(info) and info.leader != first)).leader
    with pytest.raises(errors.ApiError, match="cancel move of stream 'S' of account 'APP'"):
        await admin.cancel_account_stream_move("APP", "S")
    await admin.evacuate_server(second)
    await info_when(look, lambda info: is_settled(info) and info.leader != second)
    for call in (admin.evacuate_server("nobody"), admin.remove_server("nobody"), admin.remove_server(peer_id="nobody")):
        with pytest.raises(errors.ApiError, match="server 'nobody'"):
            await call


async def test_meta_leader_steps_down(cluster: Cluster, system: Client) -> None:
    js = system.jetstream(timeout=LONG)
    first = (await cluster.meta_leader()).name
    wanted = next(server.name for server in cluster.servers if server.name != first)
    async with js.advisories() as events:
        await js.admin.step_down_meta_leader(placement=Placement(preferred=wanted))
        assert getattr(await next_advisory(events, advisory.MetaLeaderElected), "cluster", "") == "natsproto"
    async with asyncio.timeout(LONG):  # not all nodes have heard of it at once
        while (second := (await cluster.meta_leader()).name) == first:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(errors.ApiError, match="already leader"):
        await js.admin.step_down_meta_leader(placement=Placement(preferred=second))


async def test_purged_account_is_empty(cluster: Cluster, system: Client) -> None:
    async with connected(cluster, "doomed") as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s"], num_replicas=3)
        await stream.create_consumer(durable_name="c")
        assert await system.jetstream().admin.purge_account("DOOMED")
        async with asyncio.timeout(20):
            while [name async for name in js.stream_names()]:
                pass


async def test_system_account_calls_are_refused_elsewhere(app: Client) -> None:
    admin = app.jetstream().admin
    before = app.stats.out_msgs
    for call in (
        admin.step_down_meta_leader(),
        admin.remove_server("x"),
        admin.evacuate_server("x"),
        admin.move_stream("APP", "S"),
        admin.cancel_account_stream_move("APP", "S"),
        admin.purge_account("APP"),
        admin.rescue_meta(1),
    ):
        with pytest.raises(LocalProtocolError, match="the system account; this one is of account 'APP'"):
            await call
    assert app.stats.out_msgs == before


async def test_admin_arguments_are_checked_before_sending(system: Client) -> None:
    admin = system.jetstream().admin
    before = system.stats.out_msgs
    for call in (
        admin.remove_server(),
        admin.remove_server("a", peer_id="b"),
        admin.purge_account("a.b"),
        admin.purge_account(""),
        admin.move_stream("A", "a.b"),
        admin.rescue_meta(0),
        admin.step_down_stream_leader("a.b"),
        admin.step_down_consumer_leader("S", "a b"),
    ):
        with pytest.raises(ConfigError):
            await call
    assert system.stats.out_msgs == before


async def test_single_server_needs_no_administration() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream(name="S", storage="memory")
        for call in (js.admin.step_down_stream_leader("S"), js.admin.evacuate_stream_peer("S", "x")):
            with pytest.raises(errors.ApiError, match="clustering support required"):
                await call


async def rescued(admin: Admin) -> Sequence[MetaRescue]:
    """Rescues as soon as the survivor has noticed that it has no leader."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await admin.rescue_meta(1)
            except errors.ApiError as exc:
                if "leader is known" not in exc.description:
                    raise


@pytest.mark.slow
async def test_cluster_is_rescued_and_its_dead_are_removed() -> None:
    """Of three servers two are gone for good: the last one is given the say, then the dead are removed."""
    async with run_cluster(config=CONFIG) as cluster:
        survivor = cluster.servers[0]
        async with natsproto.connect(survivor.url, user="sys", password="x", ignore_discovered_servers=True) as nc:
            js = nc.jetstream(timeout=LONG)
            with pytest.raises(errors.ApiError, match="rescue meta with a quorum of 3"):
                await js.admin.rescue_meta(3)
            for server in cluster.servers[1:]:
                server.kill()
            async with js.advisories() as events:
                agreed = await rescued(js.admin)
                assert [(one.server, one.prev_quorum, one.new_quorum) for one in agreed] == [(survivor.name, 2, 1)]
                assert getattr(await next_advisory(events, advisory.MetaRescued), "new_quorum", 0) == 1
            async with asyncio.timeout(30):
                while True:
                    try:
                        await js.admin.remove_server(cluster.servers[1].name, timeout=BRIEFLY)
                        break
                    except (errors.RequestTimeout, errors.JetStreamNotEnabled, errors.NoResponders):
                        continue  # no meta leader yet
