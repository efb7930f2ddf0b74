"""Every call on streams may be cancelled at any await; no request, inbox, listener or file is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from natsproto import Client
from tests.kit.interruption import interruptions

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream

Call = Callable[["JetStream", "Stream", Path], Awaitable[object]]


async def _create(js: JetStream, stream: Stream, index: Path) -> object:
    return await js.create_or_update_stream(name="T", subjects=["t"], storage="memory")


async def _list(js: JetStream, stream: Stream, index: Path) -> object:
    return [info async for info in js.streams()]


async def _get(js: JetStream, stream: Stream, index: Path) -> object:
    return await stream.get_message(1)


async def _get_batch(js: JetStream, stream: Stream, index: Path) -> object:
    return [message async for message in stream.get_batch()]


async def _get_last(js: JetStream, stream: Stream, index: Path) -> object:
    return [message async for message in stream.get_last_messages(["s.>"])]


async def _save(js: JetStream, stream: Stream, index: Path) -> object:
    done = await stream.backup(index / "s", chunk_size=1024, window_size=2048)
    shutil.rmtree(index / "s")
    return done


@pytest.mark.parametrize("call", [_create, _list, _get, _get_batch, _get_last, _save])
async def test_cancelled_call_leaves_nothing(
    jetstream: JetStream, nats_client: Client, tmp_path: Path, call: Call
) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"], allow_direct=True)
    for number in range(20):
        await nats_client.request(f"s.{number}", bytes(500))
    engine = nats_client._engine
    inboxes, listeners = len(engine.registry.table), len(engine.event_bus._listeners)
    tasks = asyncio.all_tasks()
    async for run in interruptions(lambda: call(jetstream, stream, tmp_path)):
        run.check()
        assert len(engine.registry.request_mux()) == 0, "a request was left"
        assert len(engine.registry.table) == inboxes, "an inbox was left"
        assert len(engine.event_bus._listeners) == listeners, "a listener was left"
        assert asyncio.all_tasks() <= tasks
        assert os.listdir(tmp_path) == []
        assert (await stream.get_message(3)).seq == 3


async def test_cancelled_restore_leaves_nothing_here(jetstream: JetStream, nats_client: Client, tmp_path: Path) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"])
    await nats_client.request("s.1", bytes(500))
    await stream.backup(tmp_path / "s")
    await jetstream.create_stream(name="KEEP", subjects=["k"])  # a server removes the folder of the last stream late
    await jetstream.delete_stream("S")
    engine = nats_client._engine
    inboxes, listeners = len(engine.registry.table), len(engine.event_bus._listeners)
    count = 0

    async def restore() -> object:
        nonlocal count
        count += 1
        return await jetstream.restore_stream(tmp_path / "s", name=f"R{count}", subjects=[f"r{count}"])

    async for run in interruptions(restore):
        run.check()
        assert len(engine.registry.request_mux()) == 0
        assert len(engine.registry.table) == inboxes
        assert len(engine.event_bus._listeners) == listeners


# ---------------------------------------------------------------- publishing


async def _publish_three(js: JetStream, run: int) -> None:
    for number in range(3):
        await js.publish(f"p.{run}", b"%d" % number, msg_id=f"{run}-{number}" if number else None)


async def _publish_windowed(js: JetStream, run: int) -> None:
    async with js.publisher(max_pending=4) as pub:
        for number in range(10):
            future = await pub.publish(f"p.{run}", b"%d" % number)
        await future
        await pub.flush()


async def _publish_fast(js: JetStream, run: int) -> None:
    async with js.fast_publisher(flow=2) as pub:
        for number in range(10):
            await pub.publish(f"p.{run}", b"%d" % number)
        await pub.flush()
        await pub.commit(f"p.{run}", b"10")


async def _publish_together(js: JetStream, run: int) -> None:
    async with js.atomic_batch() as batch:
        for number in range(4):
            await batch.publish(f"p.{run}", b"%d" % number)
        await batch.flush()


@pytest.mark.parametrize("call", [_publish_three, _publish_windowed, _publish_fast, _publish_together])
async def test_cancelled_publishing_stores_once_in_order(
    jetstream: JetStream, nats_client: Client, call: Callable[[JetStream, int], Awaitable[None]]
) -> None:
    stream = await jetstream.create_stream(
        name="P", subjects=["p.>"], storage="memory", allow_direct=True, allow_batched=True, allow_atomic=True
    )
    engine = nats_client._engine
    await jetstream.publish("p.first")
    inboxes, listeners, tasks = len(engine.registry.table), len(engine.event_bus._listeners), asyncio.all_tasks()
    count = 0

    async def once() -> None:
        nonlocal count
        count += 1
        await call(jetstream, count)

    async for run in interruptions(once):
        run.check()
        assert len(engine.registry.request_mux()) == 0, "a request was left"
        assert len(engine.registry.table) == inboxes, "an inbox was left"
        assert len(engine.event_bus._listeners) == listeners, "a listener was left"
        assert asyncio.all_tasks() <= tasks
        await jetstream.publish("p.last")  # what was sent before it is stored, or never will be
        held = [message.data async for message in stream.get_batch(subject=f"p.{count}")]
        assert held == [b"%d" % number for number in range(len(held))]
        assert call is not _publish_together or len(held) in (0, 4), "a part of an atomic batch"
    assert count > 3
    await call(jetstream, 0)
