"""A node that is cut off from its cluster, while its clients stay connected to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.cut_off_watch import CutOffWatch
from natsproto._core.events import Moved
from natsproto.errors import NatsError, NoStream
from natsproto.jetstream import JetStream
from natsproto.testing import Cluster, Server, run_cluster, run_server
from natsproto.testing._ports import ReservedPort

pytestmark = pytest.mark.slow


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with run_cluster(link_faults=True) as running:
        yield running


async def node(cluster: Cluster, *, leads: bool) -> Server:
    leader = await cluster.meta_leader()
    return next(server for server in cluster.servers if (server is leader) is leads)


async def acknowledged_after(nc: Client, *, limit: float) -> float:
    """The seconds until a message to the stream is acknowledged, tried all the time."""
    js = nc.jetstream()
    started = time.monotonic()
    async with asyncio.timeout(limit):
        while True:
            try:
                await js.publish("s", b"x", timeout=1)
                return time.monotonic() - started
            except NatsError:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("silently", "leads", "limit"), [(False, False, 5), (True, False, 15), (False, True, 15), (True, True, 15)]
)
async def test_cut_off_server_is_left(cluster: Cluster, silently: bool, leads: bool, limit: float) -> None:
    server = await node(cluster, leads=leads)
    happened: list[natsproto.Event] = []
    async with natsproto.connect(server.url, on_event=happened.append) as nc:
        await nc.jetstream().create_stream("S", subjects=["s"], num_replicas=3)
        await nc.jetstream().publish("s", b"x")
        cluster.isolate(server, silently=silently)
        took = await acknowledged_after(nc, limit=40)
        print(f"acknowledged after {took:.1f} s")
        assert nc.connected_url != server.url
        moves = [event for event in happened if isinstance(event, Moved)]
        assert len(moves) == 1
        assert "cut off" in moves[0].reason
        assert took < limit


async def stays(nc: Client, caplog: pytest.LogCaptureFixture, *, probes: int = 2) -> bool:
    """Whether the client stays, although JetStream is silent and the other servers were probed."""
    url = nc.connected_url
    async with asyncio.timeout(30):
        while sum("JetStream here" in record.message for record in caplog.records) < probes:
            nc._outages.cut_off.on_silence()
            await asyncio.sleep(0.05)
    await nc.flush()
    return nc.connected_url == url


async def test_missing_stream_is_no_reason_to_leave(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "natsproto")
    async with natsproto.connect(cluster.urls[0]) as nc:
        with pytest.raises(NoStream):
            await nc.jetstream().publish("missing", b"")
        assert await stays(nc, caplog)


async def test_dead_leader_of_one_copy_is_no_reason(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "natsproto")
    async with natsproto.connect(cluster.urls) as other:
        info = await (await other.jetstream().create_stream("ONE", subjects=["one"], num_replicas=1)).info()
    assert info.cluster is not None
    leader = next(server for server in cluster.servers if server.name == info.cluster.leader)
    alive = next(server for server in cluster.servers if server is not leader)
    async with natsproto.connect(alive.url) as nc:
        leader.kill()
        with pytest.raises(NatsError):
            await nc.jetstream().publish("one", b"", timeout=2)
        assert await stays(nc, caplog)


async def test_partition_elsewhere_is_no_reason(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A client of the larger part stays, although a parted leader says that JetStream works there."""
    caplog.set_level(logging.DEBUG, "natsproto")
    leader = await cluster.meta_leader()
    server = await node(cluster, leads=False)
    async with natsproto.connect([server.url, *cluster.urls]) as nc:
        if nc.connected_url == leader.url:
            await nc.reconnect()
            await nc.flush()
        here = nc.connected_url
        nc.jetstream()
        cluster.isolate(leader, silently=True)
        assert await stays(nc, caplog, probes=4)
        assert here != leader.url


async def answers_api(js: JetStream) -> bool:
    try:
        await js.account_info(timeout=1)
    except NatsError:
        return False
    return True


async def test_hub_that_is_away_is_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "natsproto")
    with ReservedPort() as port:
        number = port.number
        port.release()
        hub_config = f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{number}" }}'
        async with run_server(jetstream=True, config=hub_config) as hub:
            remote = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{number}" }} ] }}'
            async with run_cluster(2, jetstream=False, config=remote) as leaves, natsproto.connect(leaves.urls) as nc:
                js = nc.jetstream(domain="hub")
                async with asyncio.timeout(20):
                    while not await answers_api(js):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                hub.kill()
                assert not await answers_api(js)
                assert await stays(nc, caplog)


async def test_denied_probe_is_the_last_one() -> None:
    users = 'authorization { users: [{ user: u, password: p, permissions: { publish: { deny: "$JS.API.INFO" } } }] }'
    async with run_cluster(config=users, user="u", password="p", link_faults=True) as cluster:
        server = await node(cluster, leads=False)
        async with natsproto.connect(server.url, user="u", password="p") as nc:
            nc.jetstream()
            cluster.isolate(server)
            async with asyncio.timeout(10):
                while not cast(CutOffWatch, nc._outages.cut_off)._plan.denied:
                    nc._outages.cut_off.on_silence()
                    await asyncio.sleep(0.05)
            assert nc.connected_url == server.url
            assert cast(CutOffWatch, nc._outages.cut_off)._plan.on_silence(1e9, 0.0) is None


async def test_option_keeps_the_client_there(cluster: Cluster) -> None:
    server = await node(cluster, leads=False)
    async with natsproto.connect(server.url, leave_cut_off_server=False) as nc:
        nc.jetstream()
        cluster.isolate(server)
        with pytest.raises(NatsError):
            await nc.jetstream().account_info(timeout=3)
        assert nc.connected_url == server.url
