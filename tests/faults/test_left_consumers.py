"""Ordered readers that are cancelled while the connection is cut: none of their consumers stays on the server."""

from __future__ import annotations

import asyncio
import random

import natsproto
from natsproto.jetstream import Stream
from natsproto.jetstream.kv import KeyValue
from natsproto.testing import FaultProxy, Server


async def read_stream(stream: Stream) -> None:
    async with stream.ordered_consumer().messages() as messages:
        async for _ in messages:
            pass


async def watch(bucket: KeyValue) -> None:
    async with bucket.watch() as entries:
        async for _ in entries:
            pass


async def test_cancelled_readers_leave_no_consumer(nats_server: Server, seed: int) -> None:
    draw = random.Random(seed)
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        natsproto.connect(nats_server.url) as other,
    ):
        stream = await nc.jetstream().create_stream("S", subjects=["s"])
        bucket = await nc.jetstream().create_key_value("B")
        for number in range(20):
            reader = asyncio.create_task(watch(bucket) if number % 2 else read_stream(stream))
            await asyncio.sleep(draw.uniform(0, 0.06))
            cut_first = draw.random() < 0.5
            if cut_first:
                proxy.cut()
                await asyncio.sleep(draw.choice([0.0, 0.01]))
            reader.cancel()
            await asyncio.wait({reader}, timeout=30)
            if not cut_first and draw.random() < 0.5:
                proxy.cut()
        js, left = other.jetstream(), ["?"]
        async with asyncio.timeout(60):
            while left:
                left = [name for each in ("S", "KV_B") async for name in (await js.stream(each)).consumer_names()]
                await asyncio.sleep(0.05)
