"""Endings while the server stands still, or is gone: each is over in time, and names what is not handled or known."""

from __future__ import annotations

import asyncio
import random
import re
from asyncio import Runner
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from time import monotonic
from typing import Any

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.errors import DrainTimeout, NatsError
from natsproto.jetstream import StreamConfig, groups
from natsproto.testing import run_server
from tests.kit.tasks import end_of_tasks
from tests.kit.waiting import until

MARGIN_S = 1.0
"""Seconds on a busy machine; on a quiet one 0.1."""

LEAVES_S = {"member": 2.0, "messages": 2.0, "messages, drain": 2.0}
"""Seconds more: a member tells the others, and a reader waits for what is on its way to it."""

LIMIT_S = 20.0


@dataclass
class Scene:
    """What is ended, and what its handler has done."""

    nc: Client
    rng: random.Random
    work: str
    """How a handler spends its time: it ends "at once", "waits" for a moment, or "hangs"."""
    count: int
    handled: list[bytes] = field(default_factory=list)
    begun: int = 0
    cancelled: int = 0
    loop: asyncio.Task[None] | None = None
    note: str = ""

    async def handle(self, data: bytes) -> None:
        self.begun += 1
        try:
            if self.work == "waits":
                await asyncio.sleep(0.005 * self.rng.random())
            elif self.work == "hangs":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.handled.append(data)

    async def on_message(self, message: Any) -> None:
        await self.handle(message.data)


End = Callable[[], Awaitable[object]]


@asynccontextmanager
async def subscribed(scene: Scene, how: str) -> AsyncIterator[End]:
    """A callback or a loop; the client or the subscription ends."""
    nc = scene.nc
    subscription = await nc.subscribe("a", cb=None if "loop" in how else scene.on_message)

    async def read() -> None:
        async for message in subscription:
            await scene.on_message(message)

    if "loop" in how:
        scene.loop = asyncio.create_task(read())
    for number in range(scene.count):
        await nc.publish("a", b"%d" % number)
    await nc.flush()
    await until(lambda: subscription._limits.arrived == scene.count)
    yield (
        nc.close
        if "close" in how
        else nc.drain
        if "client" in how
        else lambda: subscription.drain(nc._options.drain_timeout)
    )


@asynccontextmanager
async def serving(scene: Scene, how: str) -> AsyncIterator[End]:
    nc = scene.nc
    service = await nc.add_service("s", "1.0.0")
    endpoint = service.add_endpoint("a", scene.on_message, concurrency=scene.rng.randint(1, 64))
    await nc.flush()
    for number in range(scene.count):
        await nc.publish("a", b"%d" % number)
    await nc.flush()
    await until(lambda: endpoint.pending + endpoint.in_progress + len(scene.handled) == scene.count)
    yield service.stop


@asynccontextmanager
async def consuming(scene: Scene, how: str) -> AsyncIterator[End]:
    nc = scene.nc
    js = nc.jetstream()
    stream = await js.create_stream(StreamConfig(name="S", subjects=["j.>"]))
    for number in range(scene.count):
        await js.publish("j.a", b"%d" % number)
    consumer = await stream.create_consumer(durable_name="C")
    if how == "batches":

        async def on_batch(batch: list[Any]) -> None:
            for message in batch:
                await scene.on_message(message)

        context = consumer.consume_batches(on_batch, max_messages=10, max_wait=0.01)
    else:
        context = consumer.consume(scene.on_message, concurrency=scene.rng.randint(1, 8))
    await context.__aenter__()
    await until(lambda: scene.begun)
    yield {"drain": context.drain, "client": nc.drain, "close": nc.close}.get(how, context.stop)


@asynccontextmanager
async def reading(scene: Scene, how: str) -> AsyncIterator[End]:
    nc = scene.nc
    js = nc.jetstream()
    stream = await js.create_stream(StreamConfig(name="S", subjects=["j.>"]))
    for number in range(scene.count):
        await js.publish("j.a", b"%d" % number)
    consumer = await stream.create_consumer(durable_name="C")
    messages = consumer.messages()
    await messages.__aenter__()

    async def read() -> None:
        async for message in messages:
            await scene.on_message(message)

    scene.loop = asyncio.create_task(read())
    await until(lambda: scene.begun)
    yield messages.stop if how == "stop" else messages.drain


@asynccontextmanager
async def watching(scene: Scene, how: str) -> AsyncIterator[End]:
    bucket = await scene.nc.jetstream().create_key_value("B")
    for number in range(scene.count):
        await bucket.put(f"k{number}", b"%d" % number)

    async def on_entry(entry: Any) -> None:
        await scene.handle(entry.value)

    watch = bucket.watch(cb=on_entry)
    await watch.__aenter__()
    await until(lambda: scene.begun)
    yield watch.stop


@asynccontextmanager
async def member(scene: Scene, how: str) -> AsyncIterator[End]:
    js = scene.nc.jetstream()
    stream = await js.create_stream(StreamConfig(name="S", subjects=["j.>"]))
    for number in range(scene.count):
        await js.publish("j.a", b"%d" % number)
    joined = groups.join(stream, "g", scene.on_message)
    await joined.__aenter__()
    await until(lambda: scene.begun)
    yield joined.stop


KINDS: dict[str, tuple[Callable[[Scene, str], Any], str]] = {
    "client, callback": (subscribed, "client"),
    "client, loop": (subscribed, "client loop"),
    "close": (subscribed, "close"),
    "subscription": (subscribed, "callback"),
    "subscription, loop": (subscribed, "loop"),
    "service": (serving, "stop"),
    "consume": (consuming, "stop"),
    "consume, drain": (consuming, "drain"),
    "consume, client": (consuming, "client"),
    "consume, close": (consuming, "close"),
    "consume_batches": (consuming, "batches"),
    "messages": (reading, "stop"),
    "messages, drain": (reading, "drain"),
    "watch": (watching, "stop"),
    "member": (member, "stop"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_endings_are_over_in_time(kind: str, seed: int) -> None:
    rng, loop = random.Random(seed), asyncio.get_running_loop()
    setting, how = KINDS[kind]
    drain_timeout = round(rng.uniform(0.1, 0.6), 2)
    fault = rng.choice(["none", "frozen", "killed"])
    work, count = rng.choice(["at once", "waits", "hangs"]), rng.choice([1, 5, 60])
    before = asyncio.all_tasks()
    async with run_server(jetstream=True) as server:
        nc = await natsproto.connect(server.url, drain_timeout=drain_timeout, reconnect_wait=0.05)
        scene = Scene(nc, rng, work, count)
        entered = setting(scene, how)
        end = await entered.__aenter__()
        inject = {"none": lambda: None, "frozen": server.freeze, "killed": server.kill}[fault]
        if (moment := rng.uniform(-0.01, 0.05)) < 0:
            inject()
        else:
            loop.call_later(moment, inject)
        began = loop.time()
        task = asyncio.ensure_future(end())
        await asyncio.wait([task], timeout=LIMIT_S)
        took = loop.time() - began
        error = task.exception() if task.done() else None
        scene.note = (
            f"{kind}, {fault} at {moment:.3f}, {count} messages, handler {work}, timeout {drain_timeout}: "
            f"{took:.2f} s, {error if task.done() else 'goes on'!r}; {scene.begun} begun, {len(scene.handled)} handled"
        )
        print(scene.note)
        assert took < drain_timeout + LEAVES_S.get(kind, 0.0) + MARGIN_S, scene.note
        assert error is None or isinstance(error, DrainTimeout), scene.note
        if scene.loop is None:
            assert scene.begun == len(scene.handled) + scene.cancelled, scene.note  # nothing runs on
        if kind in ("client, callback", "subscription", "service"):
            named = 0 if error is None else sum(map(int, re.findall(r"(\d+) (?:messages of|unfinished)", str(error))))
            assert named + len(scene.handled) == count, scene.note
        if error is not None and fault == "none":
            assert "confirm" not in str(error), scene.note
            assert " 0 messages" not in str(error), scene.note
        if server.running:
            server.thaw()
        await nc.close()
        if scene.loop:
            scene.loop.cancel()
            await asyncio.wait([scene.loop])
    await end_of_tasks(before)


def blocking_ends(
    nc: sync.Client, handle: Callable[[Any], None], answer: Callable[[Any], None]
) -> dict[str, Callable[[], object]]:
    """Ways to end something that handles messages, which is made here."""
    js = nc.jetstream()
    js.create_stream(StreamConfig(name="S", subjects=["j.>"]))
    for number in range(20):
        js.publish("j.a", b"%d" % number)
    context = js.stream("S").create_consumer(durable_name="C").consume(handle, threads=2)
    service = nc.add_service("s", "1.0.0")
    service.add_endpoint("a", answer)
    nc.flush()
    for _ in range(3):
        nc.publish("a")
    return {
        "drain": nc.drain,
        "close": nc.close,
        "consume, stop": context.stop,
        "consume, drain": context.drain,
        "service": service.stop,
    }


def do_nothing(message: object) -> None: ...


@pytest.mark.parametrize("kind", ["drain", "close", "consume, stop", "consume, drain", "service"])
def test_blocking_endings_are_over_in_time(kind: str, seed: int) -> None:
    """Its threads cannot be cancelled: those that hang are named, and go on."""
    rng = random.Random(seed)
    drain_timeout, fault = round(rng.uniform(0.1, 0.6), 2), rng.choice(["none", "frozen", "killed"])
    hangs, go_on = rng.random() < 0.5, Event()
    begun = SimpleQueue[None]()

    def handle(message: Any) -> None:
        begun.put(None)
        if hangs:
            go_on.wait(LIMIT_S)

    with Runner() as runner:
        servers = run_server(jetstream=True)
        server = runner.run(servers.__aenter__())
        nc = sync.connect(server.url, drain_timeout=drain_timeout, reconnect_wait=0.05)
        end = blocking_ends(
            nc, do_nothing if kind == "service" else handle, do_nothing if "consume" in kind else handle
        )[kind]
        begun.get(timeout=LIMIT_S)
        {"none": lambda: None, "frozen": server.freeze, "killed": server.kill}[fault]()
        began, error = monotonic(), None
        try:
            end()
        except NatsError as exc:
            error = exc
        took = monotonic() - began
        note = f"{kind}, {fault}, timeout {drain_timeout}, hangs {hangs}: {took:.2f} s, {error!r}"
        print(note)
        go_on.set()
        if server.running:
            server.thaw()
        nc.close()
        runner.run(servers.__aexit__(None, None, None))
    assert took < drain_timeout + 2.0 + MARGIN_S, note
    assert error is None or isinstance(error, DrainTimeout), note
    assert not hangs or kind == "close" or error is not None, note
