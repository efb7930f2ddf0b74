"""What a peer may cost: a responder and a requester of parts bound what the other side can ask of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.errors import ConfigError, ServiceError, StreamBroken
from natsproto.service import Request, _stream_state
from natsproto.service._endpoint import MAX_PAUSED, Places
from natsproto.service._stream_state import (
    EXPORT_CREDIT_S,
    FIRST_CREDIT_S,
    FIRST_SILENCE_S,
    PLAIN_SILENCE_S,
    OutgoingParts,
    Pulse,
)
from natsproto.testing import Server


@pytest.fixture
async def peer(nats_server: Server) -> AsyncIterator[Client]:
    async with natsproto.connect(nats_server.url) as nc:
        yield nc


async def hundred_parts(request: Request) -> AsyncGenerator[bytes]:
    for _ in range(100):
        yield b"x" * 100


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("heartbeat", [50, 60_000])
async def test_waiting_requesters_take_no_places(
    nats_client: Client, peer: Client, concurrency: int, heartbeat: int
) -> None:
    service = await nats_client.add_service("export", "1.0.0")
    endpoint = service.add_endpoint("rows", hundred_parts, concurrency=concurrency)
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
    service.add_endpoint("rows", hundred_parts)
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
    alive.on_alive(10.0)
    assert alive.heartbeats.silence == 180.0


def given_up_at(state: OutgoingParts, *, alive: bool, until: float = 10_000.0) -> float:
    """When the responder gives the requester up, which shows life, or does not, before each look at the timer."""
    while (now := state.heartbeats.deadline) < until:
        if alive:
            state.on_alive(now)
        if state.heartbeats.on_timer(now) is Pulse.SILENT:
            return now
    return until


@pytest.mark.parametrize("heartbeat", [0.05, 5.0, 60.0])
def test_life_without_credit_does_not_count_for_ever(heartbeat: float) -> None:
    reads = OutgoingParts(1, heartbeat, 0.0)
    assert given_up_at(reads, alive=True) == 10_000.0  # nothing was sent that it could have read
    reads.on_sent(10, 10_000.0)
    reads.on_credit(1, 10_001.0)
    assert given_up_at(reads, alive=True, until=20_000.0) == 20_000.0
    reads_nothing = OutgoingParts(1, heartbeat, 0.0)
    reads_nothing.on_sent(10, 0.0)
    reads_nothing.on_credit(0, 0.0)
    assert FIRST_CREDIT_S <= given_up_at(reads_nothing, alive=True) <= FIRST_CREDIT_S + 4 * heartbeat
    exported = OutgoingParts(1, heartbeat, 0.0, is_exported=True)
    exported.on_sent(10, 0.0)
    assert EXPORT_CREDIT_S <= given_up_at(exported, alive=True) <= EXPORT_CREDIT_S + 4 * heartbeat


def test_the_plain_form_ends_without_parts() -> None:
    state = OutgoingParts(None, 5.0, 0.0)
    assert given_up_at(state, alive=False) == pytest.approx(PLAIN_SILENCE_S)
    state = OutgoingParts(None, 5.0, 0.0)
    state.on_sent(10, 200.0)
    assert given_up_at(state, alive=False) == pytest.approx(200.0 + PLAIN_SILENCE_S)


async def test_a_requester_that_reads_nothing_is_told(
    nats_client: Client, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream_state, "FIRST_CREDIT_S", 0.2)
    service = await nats_client.add_service("export", "1.0.0")
    endpoint = service.add_endpoint("rows", hundred_parts)
    await nats_client.flush()
    async with asyncio.timeout(20), peer.stream("rows", window=1, heartbeat=0.05) as parts:
        while endpoint.stats().num_errors == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(ServiceError, match="read none of the parts") as caught:
            assert [part.data async for part in parts] == [b"never"]
    assert caught.value.code == 408
    assert endpoint.in_progress == 0


async def test_a_plain_response_without_parts_ends(
    nats_client: Client, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream_state, "PLAIN_SILENCE_S", 0.2)
    ended = asyncio.Event()

    async def wait(request: Request) -> AsyncGenerator[bytes]:
        try:
            await asyncio.Event().wait()
            yield b"never"
        finally:
            ended.set()

    service = await nats_client.add_service("export", "1.0.0")
    endpoint = service.add_endpoint("wait", wait)
    await nats_client.flush()
    peer.publish_nowait("wait", reply="_INBOX.nobody.1")
    with pytest.raises(ServiceError, match="without flow control"):
        assert [part.data async for part in peer.stream("wait", window=None)] == [b"never"]
    await asyncio.wait_for(ended.wait(), 20)
    async with asyncio.timeout(20):
        while endpoint.in_progress:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_threads_of_requesters_that_leave_are_bounded(nats_server: Server) -> None:
    lock, release = threading.Lock(), threading.Event()
    working = most = 0

    def slow(request: sync.Request) -> Iterator[bytes]:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        release.wait(30)
        yield b"x"
        with lock:
            working -= 1

    with sync.connect(nats_server.url) as nc, nc.add_service("export", "1.0.0") as service:
        endpoint = service.add_endpoint("slow", slow, concurrency=2)
        headers = {"Stream-Window": "1", "Stream-Heartbeat": "50"}
        for number in range(20):
            nc.publish("slow", reply=f"_INBOX.nobody.{number}", headers=headers)
        nc.flush()
        deadline = time.monotonic() + 20
        while (endpoint.stats().num_requests < 20 or endpoint.in_progress) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert endpoint.in_progress == 0
        assert 1 <= most <= 4
        release.set()
        assert [part.data for part in nc.stream("slow")] == [b"x"]


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
