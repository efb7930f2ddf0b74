"""The moments between two states, where things get lost: in memory and on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsproto._client import Client
from natsproto._core.events import AttemptFailed, Closed, Disconnected, LameDuck, Moved, Reconnected
from natsproto._options.options import AuthChallenge
from natsproto.errors import ConnectionLost
from natsproto.protocol.auth import Credentials
from tests.faults.helpers import EventRecorder, connect_in, memory_runtime, nothing_left
from tests.kit.clock import advance, virtual_clock
from tests.kit.memory import MemoryNetwork, MemoryPeer
from tests.kit.scripted import ScriptedServer

A, B = "nats://a:4222", "nats://b:4222"


class TwoServers:
    """Two scripted servers, ``a`` and ``b``, on one imaginary network."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.a, self.b = ScriptedServer(), ScriptedServer()
        self.recorder = EventRecorder()
        self.runtime = memory_runtime(self.network)
        self.network.listen("a", 4222, self.a.accept)
        self.network.listen("b", 4222, self.b.accept)


@asynccontextmanager
async def network() -> AsyncIterator[TwoServers]:
    here = TwoServers()
    async with nothing_left():
        try:
            yield here
        finally:
            await here.a.stop()
            await here.b.stop()


async def _turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _published(server: ScriptedServer) -> list[int]:
    return [int(op.payload) for op in server.ops if op.name == "PUB" and op.args[0] == "a"]


@virtual_clock
async def test_publish_in_turn_of_disconnect_waits() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder)
        await nc.flush()
        number = 0

        async def publish_on() -> None:
            nonlocal number
            while not here.recorder.of(Reconnected):
                await nc.publish("a", b"%d" % number)
                number += 1
                await asyncio.sleep(0)

        publishing = asyncio.create_task(publish_on())
        await _turns()
        here.network.peers[0].reset()
        await publishing
        await nc.flush()
        lost = number - len(_published(here.a))
        assert lost <= 1  # the one that met the reset; asyncio takes what it cannot send in that moment
        assert lost <= (await here.recorder.wait(Disconnected)).in_flight
        await nc.close()


@virtual_clock
async def test_initially_full_wire_is_not_written_to() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder, ping_interval=1)
        await nc.flush()
        here.network.refuse("a", 4222)
        here.network.peers[0].cut()
        await here.recorder.wait(Disconnected)
        for number in range(4000):
            await nc.publish("a", b"%1000d" % number)

        def accept_and_stall(peer: MemoryPeer) -> None:
            peer.stall(100_000)  # what a kernel would take
            here.a.accept(peer)

        here.network.listen("a", 4222, accept_and_stall)
        await here.recorder.wait(Reconnected)
        await _turns()
        # What the kernel did not take stays in the outbox, whole frames, and not in the transport.
        transport = here.network.peers[1].transport
        assert transport.get_write_buffer_size() <= 65_536 + 2048
        assert nc.stats.buffered_msgs >= 3800
        here.network.listen("a", 4222, here.a.accept)
        await here.recorder.wait(Disconnected, 2)  # the peer that reads nothing is found out
        await here.recorder.wait(Reconnected, 2)
        await nc.flush()
        reported = here.recorder.of(Disconnected)[1].in_flight
        assert 4000 - reported <= len(set(_published(here.a))) <= 4000
        assert _published(here.a) == sorted(_published(here.a))
        assert reported < 200
        await nc.close()


@virtual_clock
async def test_slow_peer_is_not_dropped() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder, ping_interval=1)
        await nc.flush()
        peer = here.network.peers[0]
        chance = random.Random(3)

        async def publish_on() -> None:
            while True:
                await nc.publish("a", bytes(chance.randrange(1, 50_000)))

        peer.stall()
        publishing = asyncio.create_task(publish_on())
        for _ in range(200):
            await advance(0.5)
            peer.unstall()
            await asyncio.sleep(0)
            peer.stall()
        assert not here.recorder.of(Disconnected)
        publishing.cancel()
        peer.unstall()
        await nc.close()


@virtual_clock
async def test_pinging_peer_does_not_fill_memory() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder)
        await nc.flush()
        peer = here.network.peers[0]
        peer.stall()
        for _ in range(100):
            peer.send(b"PING\r\n" * 10_000)
            await peer.drain()
        assert peer.transport.get_write_buffer_size() <= 16 * 1024
        before = peer.received.count(b"PONG")
        peer.unstall()
        await nc.flush()
        assert peer.received.count(b"PONG") > before
        await nc.close()


@virtual_clock
async def test_confirm_pings_once_a_second_after_outages() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder, ping_interval=3600, reconnect_delay=lambda _: 0)

        async def publish_on() -> None:
            while True:
                await nc.publish("a", b"0")
                await asyncio.sleep(0.01)

        publishing = asyncio.create_task(publish_on())
        for number in range(1, 30):
            await advance(0.1)
            here.network.peers[-1].reset()
            await here.recorder.wait(Reconnected, number)
        await advance(5)
        before = here.a.count("PING")
        await advance(10)
        assert 5 <= here.a.count("PING") - before <= 11
        publishing.cancel()
        await nc.close()


@virtual_clock
async def test_repeated_lame_duck_is_reported_once() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder)
        await nc.flush()
        for _ in range(3):
            here.a.info(ldm=True)
            await advance(2)
        assert len(here.recorder.of(LameDuck)) == 1
        assert nc.is_connected
        assert not here.recorder.of(Disconnected)  # nowhere to go: it stays as long as it may
        await nc.close()


@virtual_clock
async def test_lame_duck_moves_when_servers_are_announced() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder)
        await nc.flush()
        here.a.info(ldm=True)
        await advance(2)
        here.a.info(ldm=True, connect_urls=["b:4222"])
        assert (await here.recorder.wait(Moved)).server == "b:4222"
        assert len(here.recorder.of(LameDuck)) == 1
        assert not here.recorder.of(Disconnected)
        await nc.close()


@virtual_clock
async def test_lame_duck_death_during_move_is_an_outage() -> None:
    async with network() as here:
        nc = await connect_in(
            here.runtime, [A, B], on_event=here.recorder, randomize=False, connect_timeout=60, request_timeout=30
        )
        await nc.flush()
        here.network.black_hole("b", 4222)
        here.a.info(ldm=True)
        await here.recorder.wait(LameDuck)
        await advance(2)
        assert ("b", 4222) in here.network.dialled
        nc.subscribe("silent")
        asking = asyncio.create_task(nc.request("silent"))
        await _turns()
        here.network.listen("b", 4222, here.b.accept)
        here.network.peers[0].reset()
        await here.recorder.wait(Disconnected, timeout=0.1)
        for number in range(10):
            await nc.publish("a", b"%d" % number)
        with pytest.raises(ConnectionLost):
            await asking
        await here.recorder.wait(Reconnected)
        await nc.flush()
        assert sorted(_published(here.a) + _published(here.b)) == list(range(10))
        await nc.close()


@virtual_clock
async def test_close_during_move_leaves_nothing() -> None:
    async with network() as here:
        for wait in (0.0, 0.2, 0.5, 1.0, 1.5):
            nc = await connect_in(here.runtime, [A, B], randomize=False)
            here.network.black_hole("b", 4222)
            here.a.info(ldm=True)
            await advance(wait)
            await nc.close()
            assert await nc.wait_closed() is None


@virtual_clock
async def test_cancelled_credentials_fail_one_attempt() -> None:
    async with network() as here:
        calls = 0

        async def token() -> str:
            nonlocal calls
            calls += 1
            if calls == 2:
                refreshing = asyncio.get_running_loop().create_future()
                refreshing.cancel()
                await refreshing
            return "secret"

        nc = await connect_in(here.runtime, A, on_event=here.recorder, token=token)
        here.network.peers[0].reset()
        assert isinstance((await here.recorder.wait(AttemptFailed)).cause, ConnectionLost)
        await here.recorder.wait(Reconnected)
        await nc.flush()
        await nc.close()


@virtual_clock
async def test_a_credentials_callable_may_close_the_client() -> None:
    async with network() as here:
        clients: list[Client] = []

        async def auth(challenge: AuthChallenge) -> Credentials:
            if clients:
                await clients[0].close()
            return Credentials(token="secret")

        clients.append(await connect_in(here.runtime, A, on_event=here.recorder, auth=auth))
        here.network.peers[0].reset()
        assert (await here.recorder.wait(Closed)).reason is None
        assert await clients[0].wait_closed() is None
        await _turns()
        assert not clients[0].is_connected
