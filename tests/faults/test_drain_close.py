"""drain() loses nothing, close() ends everybody at once, and neither depends on a peer that may be gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected, Reconnected
from natsproto.errors import ConnectionClosed, ConnectionLost, DrainTimeout
from natsproto.protocol.frames import Message
from natsproto.testing import End, FaultProxy, Server, run_server
from tests.faults.helpers import SOON, EventRecorder, nothing_left, only_these_are_left, worded
from tests.kit.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with run_server() as running:
        yield running


@pytest.fixture
async def peer(server: Server) -> AsyncIterator[Client]:
    async with natsproto.connect(server.url) as nc:
        yield nc


async def _by_handler(nc: Client) -> Callable[[], Awaitable[int]]:
    handled = 0

    async def handle(message: Message) -> None:
        nonlocal handled
        await asyncio.sleep(0)
        await message.respond(message.data)
        handled += 1

    await nc.subscribe("work", cb=handle)

    async def count() -> int:
        return handled

    return count


async def _by_iterator(nc: Client) -> Callable[[], Awaitable[int]]:
    async def read() -> int:
        handled = 0
        async for message in nc.subscribe("work"):
            await asyncio.sleep(0)
            await message.respond(message.data)
            handled += 1
        return handled

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    return lambda: reading


@pytest.mark.parametrize("way", [_by_handler, _by_iterator], ids=["handler", "iterator"])
async def test_drain_handles_500_of_500_messages(
    server: Server, peer: Client, way: Callable[[Client], Awaitable[Callable[[], Awaitable[int]]]]
) -> None:
    answers: list[int] = []
    peer.subscribe("answers", cb=lambda message: answers.append(int(message.data)))
    await peer.flush()
    async with nothing_left():
        nc = await natsproto.connect(server.url)
        handled = await way(nc)
        await nc.flush()
        for number in range(500):
            await peer.publish("work", b"%d" % number, reply="answers")
        await peer.flush()  # the server has them all; how many of them the client has is open
        await nc.drain()
        assert await handled() == 500
        assert await nc.wait_closed() is None
    await peer.flush()
    assert answers == list(range(500))
    await only_these_are_left(server, connections=1, subscriptions=1)


async def test_close_ends_20_pending_requests_at_once(server: Server, peer: Client) -> None:
    peer.subscribe("silent", cb=lambda message: None)
    await peer.flush()
    async with nothing_left():
        nc = await natsproto.connect(server.url)
        asking = [asyncio.create_task(nc.request("silent", timeout=30)) for _ in range(20)]
        await nc.flush()
        began = time.monotonic()
        closing = asyncio.create_task(nc.close())
        ends = await asyncio.gather(*asking, return_exceptions=True)
        assert time.monotonic() - began <= SOON
        assert all(isinstance(end, ConnectionClosed) and worded(end) for end in ends)
        await closing
        assert time.monotonic() - began <= SOON


async def test_killed_server_fails_pending_requests(server: Server) -> None:
    async with natsproto.connect(server.url) as nc:
        nc.subscribe("silent", cb=lambda message: None)
        asking = [asyncio.create_task(nc.request("silent", timeout=30)) for _ in range(5)]
        await nc.flush()
        began = time.monotonic()
        server.kill()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        assert time.monotonic() - began <= SOON
        assert all(isinstance(end, ConnectionLost) and worded(end) for end in ends)
        await nc.close()


@pytest.mark.slow
@pytest.mark.parametrize("unsent", [0, 64 << 20], ids=["idle", "megabytes unsent"])
async def test_close_ends_in_time_with_frozen_server(server: Server, unsent: int) -> None:
    async with nothing_left():
        nc = await natsproto.connect(server.url)
        await nc.flush()
        server.freeze()
        try:

            async def publish_on() -> None:
                for _ in range(unsent // 100_000):
                    await nc.publish("heard.by.nobody", bytes(100_000))

            publishing = asyncio.create_task(publish_on())
            if unsent:
                await until(lambda: nc.stats.buffered_bytes >= 262_144, 20)
            began = time.monotonic()
            await nc.close()
            assert time.monotonic() - began <= 2 + SOON
            end = (await asyncio.gather(publishing, return_exceptions=True))[0]
            assert end is None or isinstance(end, ConnectionClosed)
        finally:
            server.thaw()


@pytest.mark.slow
async def test_drain_deadline_with_frozen_server(server: Server) -> None:
    nc = await natsproto.connect(server.url)
    nc.subscribe("work")
    await nc.flush()
    server.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(DrainTimeout) as caught:
            await nc.drain(timeout=0.3)
        assert time.monotonic() - began <= 0.3 + 2 + SOON
        assert "confirm" in worded(caught.value)
        assert await nc.wait_closed() is None
    finally:
        server.thaw()


async def test_drain_timeout_with_slow_callbacks(server: Server, peer: Client) -> None:
    async with nothing_left():
        nc = await natsproto.connect(server.url)
        begun, go_on = 0, asyncio.Event()

        async def slow(message: Message) -> None:
            nonlocal begun
            begun += 1
            if begun == 4:
                await go_on.wait()

        nc.subscribe("work", cb=slow)
        await nc.flush()
        for _ in range(10):
            await peer.publish("work")
        await peer.flush()
        await nc.flush()  # all are here
        with pytest.raises(DrainTimeout) as caught:
            await nc.drain(timeout=1)
        assert "7 messages of 'work' not handled" in worded(caught.value)  # the one at work and six behind it
        assert caught.value.unfinished == ("7 messages of 'work' not handled",)
        assert begun == 4
        assert await nc.wait_closed() is None


async def test_drain_while_down_sends_after_reconnect(server: Server, peer: Client) -> None:
    got = peer.subscribe("later")
    await peer.flush()
    async with FaultProxy(server.host, server.port) as proxy:
        recorder = EventRecorder()
        nc = await natsproto.connect(proxy.url, on_event=recorder)
        nc.subscribe("work", cb=lambda message: None)
        await nc.flush()
        proxy.refuse()
        proxy.cut(End.RST)
        await recorder.wait(Disconnected)
        for number in range(50):
            await nc.publish("later", b"%d" % number)
        draining = asyncio.create_task(nc.drain(timeout=10))
        await asyncio.sleep(0)
        await proxy.allow()
        await draining
        assert [int((await got.next(20)).data) for _ in range(50)] == list(range(50))


async def test_drain_while_down_names_unsent_messages(
    server: Server,
) -> None:
    async with FaultProxy(server.host, server.port) as proxy, nothing_left():
        recorder = EventRecorder()
        nc = await natsproto.connect(proxy.url, on_event=recorder)
        await nc.flush()
        proxy.refuse()
        proxy.cut()
        await recorder.wait(Disconnected)
        for _ in range(50):
            await nc.publish("later")
        with pytest.raises(DrainTimeout) as caught:
            await nc.drain(timeout=0.3)
        assert "50 messages not sent" in worded(caught.value)
        await proxy.wait(lambda: not proxy.links)


async def test_drain_goes_on_over_a_cut(server: Server, peer: Client) -> None:
    answers: list[int] = []
    peer.subscribe("answers", cb=lambda message: answers.append(int(message.data)))
    await peer.flush()
    async with FaultProxy(server.host, server.port) as proxy:
        recorder = EventRecorder()
        nc = await natsproto.connect(proxy.url, on_event=recorder, reconnect_delay=lambda _: 0.01)
        half_way, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            if message.data == b"50":
                half_way.set()
                await go_on.wait()
            await message.respond(message.data)

        nc.subscribe("work", cb=handle)
        await nc.flush()
        for number in range(100):
            await peer.publish("work", b"%d" % number, reply="answers")
        await half_way.wait()
        await nc.flush()  # all are received, and half of the answers are out
        draining = asyncio.create_task(nc.drain(timeout=10))
        await asyncio.sleep(0)
        proxy.cut()
        await recorder.wait(Disconnected)
        go_on.set()
        await draining
        await peer.flush()
        assert answers == list(range(100))


@pytest.mark.parametrize("end", list(End), ids=lambda end: end.name)
@pytest.mark.parametrize("verb", ["close", "drain"])
async def test_close_and_drain_race_with_peer_end(server: Server, verb: str, end: End) -> None:
    async with FaultProxy(server.host, server.port) as proxy:
        for turns in range(12):
            async with nothing_left():
                nc = await natsproto.connect(proxy.url, drain_timeout=5)
                nc.subscribe("work", cb=lambda message: None)
                await nc.publish("work", bytes(10_000))
                ending = asyncio.create_task(nc.close() if verb == "close" else nc.drain())
                for _ in range(turns):
                    await asyncio.sleep(0)
                proxy.cut(end)
                [raised] = await asyncio.gather(ending, return_exceptions=True)
                if raised is not None:
                    assert verb == "drain", raised
                    assert worded(raised)
                assert await nc.wait_closed() is None
                await proxy.wait(lambda: proxy.is_idle)


async def test_close_while_reconnecting_is_immediate(server: Server) -> None:
    async with FaultProxy(server.host, server.port) as proxy, nothing_left():
        recorder = EventRecorder()
        nc = await natsproto.connect(proxy.url, on_event=recorder, fail_requests_on_disconnect=False)
        reading = asyncio.create_task(nc.subscribe("work").next())
        await nc.flush()
        proxy.refuse()
        proxy.cut()
        await recorder.wait(Disconnected)
        asking = asyncio.create_task(nc.request("work", timeout=30))
        flushing = asyncio.create_task(nc.flush(timeout=30))
        await asyncio.sleep(0)
        began = time.monotonic()
        await nc.close()
        assert time.monotonic() - began <= SOON
        ends = await asyncio.gather(asking, flushing, reading, return_exceptions=True)
        assert [type(end) for end in ends[:2]] == [ConnectionClosed, ConnectionClosed]
        assert worded(ends[2]) if isinstance(ends[2], BaseException) else False
        assert not recorder.of(Reconnected)
        await proxy.wait(lambda: not proxy.links)
