"""What tests of processors share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from natsproto.jetstream import JetStream, JsMessage, Stream
from natsproto.processor import KeyedState, Outputs, Processor
from tests.kit.contents import payloads, publish_numbers

Handler = Callable[[JsMessage, KeyedState, Outputs], Awaitable[object]]


def copying(js: JetStream, handler: Handler, **options: Any) -> Processor:
    return Processor(js, "p", handler, source="IN", sink="OUT", **options)


@asynccontextmanager
async def running(processor: Processor) -> AsyncIterator[asyncio.Task[None]]:
    """Run a processor within the block; at its end it stops in order."""
    stop = asyncio.Event()
    task = asyncio.create_task(processor.run(until=stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task})
    await task


async def run_until(processor: Processor, is_done: Callable[[], bool]) -> None:
    async with running(processor) as task, asyncio.timeout(60):
        while not is_done() and not task.done():  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(0.01)


async def outputs(stream: Stream, subject: str = "out.>") -> list[bytes]:
    return await payloads(stream, subject)


async def publish_inputs(js: JetStream, numbers: range, subject: str = "in.a") -> None:
    await publish_numbers(js, numbers, subject)


async def copy(message: JsMessage, state: KeyedState, out: Outputs) -> None:
    out.add("out.copy", message.data)
