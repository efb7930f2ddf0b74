"""Handlers that keep the event loop, and what else the program does: on the real server, with both event loops."""

from __future__ import annotations

import asyncio
import time

import pytest

from natsproto.jetstream import JsMessage, Messages
from natsproto.testing import Server
from tests.server.helpers import also_uvloop, client


@pytest.mark.parametrize(("seconds", "concurrency"), [(0.006, 1), (0.006, 8), (0.05, 1), (0.05, 8)])
@pytest.mark.parametrize("way", ["consume", "messages"])
@also_uvloop
async def test_timers_run_between_two_blocking_calls(
    nats_server: Server, seconds: float, concurrency: int, way: str
) -> None:
    """A task that sleeps for less than a call takes runs after each call, not only one that is ready all the time.

    A message that comes when none waits is handled in the turn in which it is read, before the timer that is due then.
    """
    count = 8 * concurrency if seconds > 0.01 else 40
    calls = 0
    between: list[int] = []

    def handle(message: JsMessage) -> None:
        nonlocal calls
        calls += 1
        time.sleep(seconds)

    async def tick() -> None:
        nonlocal calls
        while True:
            await asyncio.sleep(0.002)
            between.append(calls)
            calls = 0

    async def loop(messages: Messages) -> None:
        async for message in messages:
            handle(message)
            await message.ack()

    async with client(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("S", subjects=["s"], storage="memory")
        for _ in range(count):
            await js.publish("s")
        consumer = await stream.create_consumer("c")
        ticking = asyncio.create_task(tick())
        if way == "consume":
            await consumer.consume(handle, concurrency=concurrency, stop_after=count).run()
        else:
            async with consumer.messages(stop_after=count) as messages:
                await asyncio.gather(*(loop(messages) for _ in range(concurrency)))
        ticking.cancel()
    assert max(between) <= 2
    assert between.count(2) <= count // 4
