"""What a peer may cost: a responder and a requester of parts bound what the other side can ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import ConfigError, StreamBroken
from natsproto.service import Request
from natsproto.service._endpoint import MAX_PAUSED, Places
from natsproto.service._stream_state import FIRST_SILENCE_S, OutgoingParts, Pulse
from natsproto.testing import Server


@pytest.fixture
async def peer(nats_server: Server) -> AsyncIterator[Client]:
    async with natsproto.connect(nats_server.url) as nc:
        yield nc


async def rows(request: Request) -> AsyncGenerator[bytes]:
    for _ in range(100):
        yield b"x" * 100


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("heartbeat", [50, 60_000])
async def test_waiting_requesters_take_no_places(
    nats_client: Client, peer: Client, concurrency: int, heartbeat: int
) -> None:
    service = await nats_client.add_service("export", "1.0.0")
    endpoint = service.add_endpoint("rows", rows, concurrency=concurrency)
    await nats_client.flush()
    inbox = peer.new_inbox()
    seen = asyncio.Event()
    await peer.subscribe(f"{inbox}.*", cb=lambda message: seen.set())
    for number in range(64):
        headers = {"Stream-Window": "1", "Stream-Heartbeat": str(heartbeat)}
        peer.publish_nowait("rows", reply=f"{inbox}.{number}", headers=headers)
    await peer.flush()
    await asyncio.wait_for(seen.wait(), 20)
    async with asyncio.timeout(20):
        assert len([part async for part in peer.stream("rows")]) == 100
    assert endpoint.pending == 0
    await service.stop()


async def test_no_more_than_concurrency_work_after_credit(nats_client: Client, peer: Client) -> None:
    """Those who get credit wait for a place, before new requests."""
    working = most = 0

    async def busy(request: Request) -> AsyncGenerator[bytes]:
        nonlocal working, most
        for _ in range(10):
            working += 1
            most = max(most, working)
            await asyncio.sleep(0)
            working -= 1
            yield b"x" * 100

    service = await nats_client.add_service("export", "1.0.0")
    service.add_endpoint("busy", busy, concurrency=3)
    await nats_client.flush()

    async def read() -> int:
        return len([part async for part in peer.stream("busy", window=150)])

    async with asyncio.timeout(30):
        assert await asyncio.gather(*(read() for _ in range(20))) == [10] * 20
    assert most <= 3


async def test_long_heartbeats_are_refused(nats_client: Client, peer: Client) -> None:
    service = await nats_client.add_service("export", "1.0.0")
    service.add_endpoint("rows", rows)
    await nats_client.flush()
    headers = {"Stream-Window": "1", "Stream-Heartbeat": "60001"}
    reply = await peer.request("rows", headers=headers, timeout=10)
    assert reply.headers["Nats-Service-Error-Code"] == "400"
    with pytest.raises(ConfigError, match=r"from 0\.05 to 60 seconds"):
        peer.stream("rows", heartbeat=3600)


def test_a_requester_without_life_is_given_up_soon() -> None:
    silent = OutgoingParts(1, 60.0, 0.0)
    assert silent.heartbeats.on_timer(silent.heartbeats.deadline) is Pulse.SEND
    while (now := silent.heartbeats.deadline) < FIRST_SILENCE_S:
        assert silent.heartbeats.on_timer(now) is not Pulse.SILENT
    assert silent.heartbeats.on_timer(FIRST_SILENCE_S) is Pulse.SILENT
    alive = OutgoingParts(1, 60.0, 0.0)
    alive.heartbeats.on_message(10.0)
    assert alive.heartbeats.silence == 180.0


def test_more_than_the_most_paused_take_places() -> None:
    async def body() -> tuple[bool, bool]:
        tasks: set[asyncio.Task[None]] = set()
        places = Places(tasks, 1, lambda: None)
        waiting = asyncio.Event()

        async def pause() -> None:
            places.pause()
            await waiting.wait()

        def start(count: int) -> None:
            tasks.update(asyncio.create_task(pause()) for _ in range(count))

        start(MAX_PAUSED)
        await asyncio.sleep(0)
        before = places.is_free
        start(1)
        await asyncio.sleep(0)
        after = places.is_free
        waiting.set()
        await asyncio.gather(*tasks)
        return before, after

    assert asyncio.run(body()) == (True, False)


async def test_plain_parts_end_when_nobody_reads(nats_client: Client, peer: Client) -> None:
    ended = asyncio.Event()

    async def ticks(request: Request) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    service = await nats_client.add_service("clock", "1.0.0")
    endpoint = service.add_endpoint("ticks", ticks)
    await nats_client.flush()
    peer.publish_nowait("ticks", reply="_INBOX.nobody.1")
    await peer.flush()
    await asyncio.wait_for(ended.wait(), 20)
    async with asyncio.timeout(20):
        while endpoint.in_progress:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    number = 0
    async for part in peer.request_many("ticks", timeout=2.0):  # somebody is there: it goes on
        number += part.data == b"x"
    assert number > 50
    await service.stop()


@pytest.mark.parametrize("window", [None, 1000])
async def test_parts_that_wait_are_bounded(nats_server: Server, nats_client: Client, window: int | None) -> None:
    """The responder ignores windows, and the reader is busy with its first part."""

    async def respond(message: natsproto.Message) -> None:
        assert message.reply
        for _ in range(1000):
            await nats_client.publish(message.reply, b"x" * 1000)

    await nats_client.subscribe("export", cb=respond)
    await nats_client.flush()
    async with natsproto.connect(nats_server.url, pending_bytes_limit=100_000) as nc:
        parts = []

        async def read() -> None:
            stream = nc.stream("export", window=window)
            async for part in stream:
                parts.append(part)
                while stream._stream.is_open:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

        with pytest.raises(StreamBroken, match="more than 100000 bytes"):
            await asyncio.wait_for(read(), 20)
        assert 1 < len(parts) < 100
