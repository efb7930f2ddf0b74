"""The faults and checks of natsproto.testing: a proxy's bandwidth, links of a cluster, what a Recorder finds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

import natsproto
from natsproto.errors import ConfigError, NatsError, NoResponders
from natsproto.testing import Cluster, Direction, End, FaultProxy, Recorder, Server, run_cluster, run_server

# ---------------------------------------------------------------- proxy


async def test_bandwidth_is_limited(nats_server: Server) -> None:
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(proxy.url) as nc:
        proxy.bandwidth(100_000)
        began = time.monotonic()
        await nc.publish("s", bytes(20_000))
        await nc.flush()
        assert time.monotonic() - began >= 0.19
        proxy.heal()
        await nc.publish("s", bytes(1_000_000))
        async with asyncio.timeout(5):
            await nc.flush()
    with pytest.raises(ConfigError, match="stall"):
        proxy.bandwidth(0)


@pytest.mark.parametrize("port", [65536, -1, "4222"])
def test_impossible_ports_raise_before_start(port: Any) -> None:
    with pytest.raises(ConfigError, match="from 1 to 65535"):
        run_server(port=port)
    with pytest.raises(ConfigError, match="from 1 to 65535"):
        FaultProxy("127.0.0.1", 4222, port=port)


async def test_heal_forgets_faults_to_come(nats_server: Server) -> None:
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(proxy.url) as nc:
        proxy.cut_at(Direction.TO_SERVER, proxy.link.passed[Direction.TO_SERVER])
        proxy.delay(30)
        proxy.heal()
        async with asyncio.timeout(5):
            await nc.flush()
        assert proxy.accepted == 1


async def test_cut_ends_connections_being_made(nats_server: Server) -> None:
    async with FaultProxy(nats_server.host, nats_server.port) as proxy:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        async with asyncio.timeout(5):
            while not proxy.accepted:  # noqa: ASYNC110  # until the proxy dials
                await asyncio.sleep(0)
            proxy.cut(End.RST)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        assert not proxy.history


async def test_link_before_any_connection_raises() -> None:
    async with FaultProxy("127.0.0.1", 1) as proxy:
        with pytest.raises(LookupError, match="no client"):
            _ = proxy.link


# ---------------------------------------------------------------- cluster


async def _stream_leader(cluster: Cluster, nc: natsproto.Client) -> Server:
    info = await (await nc.jetstream().stream("S")).info()
    assert info.cluster is not None
    return next(server for server in cluster.servers if server.name == info.cluster.leader)


@pytest.mark.slow
@pytest.mark.parametrize("silently", [False, True])
async def test_isolated_leader_stores_nothing(silently: bool) -> None:
    async with run_cluster(3, link_faults=True) as cluster:
        async with natsproto.connect(cluster.urls) as nc:
            await nc.jetstream().create_stream("S", subjects=["s"], num_replicas=3)
            leader = await _stream_leader(cluster, nc)
        other = next(server for server in cluster.servers if server is not leader)
        async with natsproto.connect(leader.url) as parted, natsproto.connect(other.url) as nc:
            await nc.flush()
            await parted.flush()
            cluster.isolate(leader, silently=silently)
            with pytest.raises(NatsError):
                await parted.jetstream().publish("s", timeout=0.5, retry_attempts=0)
            await nc.jetstream().publish("s", b"by the majority", msg_id="1", timeout=30, retry_attempts=-1)
            await cluster.heal()
            await cluster.ready()
            await parted.jetstream().publish("s", msg_id="2", timeout=30, retry_attempts=-1)


async def test_one_link_of_a_cluster_is_slowed() -> None:
    async with run_cluster(2, jetstream=False, link_faults=True) as cluster:
        one, other = cluster.servers
        async with natsproto.connect(one.url) as nc, natsproto.connect(other.url) as replier:
            replier.subscribe("echo", cb=lambda message: message.respond(message.data))
            await replier.flush()
            async with asyncio.timeout(10):
                while True:
                    with contextlib.suppress(NoResponders):  # the subscription is on its way
                        await nc.request("echo")
                        break
            cluster.link(one, other).delay(0.1)
            began = time.monotonic()
            await nc.request("echo", timeout=10)
            assert time.monotonic() - began >= 0.2
            await cluster.heal()
        with pytest.raises(ConfigError, match="two different nodes"):
            cluster.link(one, one)


def test_link_faults_need_an_event_loop() -> None:
    with pytest.raises(ConfigError, match="async with"), run_cluster(2, link_faults=True):
        pass


async def test_link_faults_have_to_be_asked_for(nats_server: Server) -> None:
    async with run_cluster(2, jetstream=False) as cluster:
        with pytest.raises(ConfigError, match="link_faults=True"):
            cluster.isolate(cluster.servers[0])
    async with run_cluster(2, jetstream=False, link_faults=True) as cluster:
        with pytest.raises(ConfigError, match="not a node"):
            cluster.isolate(nats_server)


# ---------------------------------------------------------------- recorder


def test_recorder_finds_lost_repeated_and_unknown() -> None:
    recorder = Recorder()
    for item in range(3):
        recorder.sent(item)
    recorder.sent("perhaps", uncertain=True)
    for item in (0, 1, 1):
        recorder.handled(item)
    recorder.handled("never")
    assert recorder.lost == [2]
    assert recorder.repeated == [1]
    with pytest.raises(AssertionError, match=r"1 of 4 lost: 2; 1 of 4 handled but never sent: 'never'; .* once: 1"):
        recorder.check_each_once()
    with pytest.raises(AssertionError) as raised:
        recorder.check_each_once(allow_repeats=True)
    assert "more than once" not in str(raised.value)
    with pytest.raises(ValueError, match="sent before"):
        recorder.sent(0)


def test_recorder_finds_order_by_key() -> None:
    recorder = Recorder()
    for item in range(6):
        recorder.sent(item, key=item % 2)
    for item in (1, 0, 2, 3, 0, 4, 5):  # 0 again is a repetition
        recorder.handled(item)
    recorder.check_order_by_key()
    recorder.check_each_once(allow_repeats=True)
    other = Recorder()
    for item in range(4):
        other.sent(item, key="k")
    for item in (1, 0, 3, 2):
        other.handled(item)
    with pytest.raises(AssertionError, match="2 of 4 handled after a later item of the same key: 0, 2"):
        other.check_order_by_key()
