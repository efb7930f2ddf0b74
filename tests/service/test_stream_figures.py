"""Figures of responses in parts: memory, the time of a cancellation, and many at once."""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from natsproto._client import Client
from natsproto.service import Endpoint, Request
from natsproto.testing import Server
from tests.faults.helpers import resident
from tests.kit.waiting import until
from tests.server.helpers import client

PIECES = 4096
PIECE = 65_536
MIB = 1 << 20

RESPONDER = """
import asyncio, sys, natsproto
from tests.faults.helpers import resident

async def main():
    async with natsproto.connect(sys.argv[1]) as nc, nc.add_service("big", "1.0.0") as service:
        most = 0

        @service.endpoint()
        async def big(request):
            nonlocal most
            count, size = map(int, request.data.split())
            piece = bytes(size)
            for number in range(count):
                if not number % 64:
                    most = max(most, resident())
                yield piece

        @service.endpoint()
        async def memory(request):
            nonlocal most
            await request.respond(b"%d" % max(most, resident()))
            most = 0

        await nc.flush()
        print("ready", flush=True)
        await nc.wait_closed()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_slow_reader_of_much_takes_no_memory(nats_server: Server) -> None:
    """256 MiB in pieces of 64 KiB through a window of 1 MiB, with a reader that pauses."""
    responder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RESPONDER, nats_server.url), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert responder.stdout is not None
        assert await responder.stdout.readline()
        async with client(nats_server.url) as nc:
            assert len([part async for part in nc.stream("big", b"256 65536")]) == 256  # what grows once
            before, theirs = resident(), int((await nc.request("memory")).data)
            most = nbytes = 0
            async for part in nc.stream("big", b"%d %d" % (PIECES, PIECE)):
                nbytes += len(part.data)
                if not nbytes % (64 * PIECE):
                    most = max(most, resident())
                    await asyncio.sleep(0.02)
            assert nbytes == PIECES * PIECE
            assert most - before < 8 * MIB
            assert int((await nc.request("memory")).data) - theirs < 8 * MIB
    finally:
        responder.kill()
        await responder.wait()


@pytest.mark.slow
async def test_window_is_the_only_limit_of_a_reader(nats_client: Client) -> None:
    """More parts wait than the pending limits of a subscription allow, and none is lost."""
    service = await nats_client.add_service("small", "1.0.0")
    count, sent = 200_000, 0

    @service.endpoint()
    async def small(request: Request) -> AsyncIterator[bytes]:
        nonlocal sent
        for number in range(count):
            sent = number
            yield b"x"

    await nats_client.flush()
    async with nats_client.stream("small", window=65 * 100_000) as parts:
        async for _ in parts:
            break
        await until(lambda: sent > 90_000, 60)
        await nats_client.flush()
        assert parts._stream.waiting > 65_536
        assert len([part async for part in parts]) == count - 1


@pytest.mark.slow
async def test_many_responses_at_once(nats_server: Server) -> None:
    """10,000 of 10 parts each take at most 8 KiB on either side, and leave nothing."""
    count = 10_000
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        service = await nc.add_service("many", "1.0.0")
        go = asyncio.Event()

        @service.endpoint(concurrency=count)
        async def ten(request: Request) -> AsyncIterator[bytes]:
            for number in range(10):
                if number == 5:
                    await go.wait()
                yield b"%d" % number

        await nc.flush()

        async def read() -> int:
            read = 0
            async for part in other.stream("ten", heartbeat=60):
                assert int(part.data) == read
                read += 1
            return read

        go.set()
        assert await read() == 10
        go.clear()
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        readers = [asyncio.create_task(read()) for _ in range(count)]
        inbox = service._credit_inbox
        assert inbox is not None
        await until(lambda: len(inbox.streams) == count, 120)
        await until(lambda: all(stream._state.sent == 5 for stream in inbox.streams.values()), 120)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"{(after - before) / count:.0f} bytes for both sides of a response")
        assert (after - before) / count < 2 * 8 * 1024
        go.set()
        assert await asyncio.gather(*readers) == [10] * count
        await until(lambda: not inbox.streams, 20)
        assert not other._engine.registry.reply_handlers
        assert service.endpoints[0].stats().num_requests == count + 1


@pytest.mark.slow
async def test_cancellation_is_quick(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        service = await nc.add_service("quick", "1.0.0")
        ended = asyncio.Queue[float]()

        @service.endpoint()
        async def endless(request: Request) -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 100
                    await asyncio.sleep(0.001)
            finally:
                ended.put_nowait(time.perf_counter())

        await nc.flush()
        times = []
        for _ in range(50):
            async with other.stream("endless") as parts:
                async for _ in parts:
                    if parts.received == 5:
                        break
                began = time.perf_counter()
            times.append(await ended.get() - began)
        print(f"median {statistics.median(times) * 1000:.1f} ms, longest {max(times) * 1000:.1f} ms")
        assert statistics.median(times) < 0.02


async def test_endpoint_without_parts_has_nothing_more(nats_client: Client) -> None:
    """Its handler is called as before: no wrapper, no table, no subscription."""

    async def handler(request: Request) -> None:
        await request.respond(b"x")

    service = await nats_client.add_service("plain", "1.0.0")
    endpoint = service.add_endpoint("plain", handler)
    assert type(endpoint) is Endpoint
    assert endpoint._handler is handler
    assert (await nats_client.request("plain")).data == b"x"
    assert service._credit_inbox is None
    assert not nats_client._engine.registry.reply_handlers
