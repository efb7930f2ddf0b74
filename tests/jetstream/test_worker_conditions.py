"""Slow workers under other conditions: long links, clusters, lists of backoff, groups, unknown and changed ack_wait.

Without faults no message is handled twice; with lost connections none is handled twice by one reader.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

import natsproto
from natsproto.jetstream import JetStream, JsMessage, PullConsumer
from natsproto.jetstream.groups import ElasticGroup
from natsproto.testing import FaultProxy, Server, run_cluster
from tests.kit.waiting import eventually

LIMIT_S = 60.0


class Setting(NamedTuple):
    """A worker, and what is special about it. ``part`` is that of ack_wait which a handler takes."""

    kind: str
    part: float = 0.6
    replicas: int = 1
    concurrency: int = 1
    ack_wait: float = 0.5
    messages: int = 6

    @property
    def fields(self) -> dict[str, Any]:
        """The configuration of the consumer."""
        if self.kind == "backoff":
            return {"backoff": [self.ack_wait, 10.0], "max_deliver": 5}
        if self.kind == "ack_all":
            return {"ack_policy": "all", "ack_wait": self.ack_wait}
        if self.kind == "changed":
            return {"ack_wait": 30.0}
        return {"ack_wait": self.ack_wait}


async def run_worker(url: str, setting: Setting, *, copies: int = 1) -> Counter[int]:
    """Work until every message is handled and its redelivery could have come; return the calls for each message."""
    calls, running = Counter[int](), 0

    async def handle(message: JsMessage) -> None:
        nonlocal running
        calls[int(message.data)] += 1
        running += 1
        await asyncio.sleep(setting.part * setting.ack_wait)
        running -= 1

    async with AsyncExitStack() as stack:
        js = (await stack.enter_async_context(natsproto.connect(url))).jetstream()
        stream = await js.create_stream("W", subjects=["w.*"], storage="memory", num_replicas=copies)
        group = None
        if setting.kind == "group":
            group = await ElasticGroup.create(js, "W", "g", max_members=2, filters=["w.*"])
            await group.add_members("m")
        else:
            await stream.create_consumer("d", **setting.fields)
        async with js.publisher() as publisher:
            for number in range(setting.messages):
                await publisher.publish(f"w.{number}", b"%d" % number)
        for _ in range(setting.replicas):
            proxy = None
            if setting.kind in ("link", "cuts"):
                host, port = url.removeprefix("nats://").split(":")
                proxy = await stack.enter_async_context(FaultProxy(host, int(port)))
                if setting.kind == "link":
                    proxy.delay(0.025)
            nc = await stack.enter_async_context(
                natsproto.connect(url if proxy is None else proxy.url, reconnect_wait=0.01)
            )
            task = asyncio.create_task(_read(nc.jetstream(), setting, handle))
            stack.push_async_callback(_end, task)
            if proxy is not None and setting.kind == "cuts":
                cutting = asyncio.create_task(_cut(proxy, setting))
                stack.push_async_callback(_end, cutting)
        if setting.kind == "changed":
            await eventually(lambda: calls)
            await stream.update_consumer("d", ack_wait=setting.ack_wait)
        await eventually(lambda: len(calls) == setting.messages and not running, LIMIT_S)
        await asyncio.sleep(1.3 * setting.ack_wait)
    return calls


async def _read(js: JetStream, setting: Setting, handle: Any) -> None:
    options: dict[str, Any] = {"concurrency": setting.concurrency}
    if setting.kind == "group":
        group = await ElasticGroup.open(js, "W", "g")
        await group.consume("m", handle, ack_wait=setting.ack_wait, **options).run()
        return
    consumer: PullConsumer = await (await js.stream("W")).consumer("d", bind=setting.kind == "unknown")
    while setting.kind == "leftovers":  # readers that leave while messages wait
        await consumer.consume(handle, stop_after=3, **options).run()
    await consumer.consume(handle, **options).run()


async def _cut(proxy: FaultProxy, setting: Setting) -> None:
    while True:
        await asyncio.sleep(0.9 * setting.ack_wait)
        proxy.cut()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


KINDS = ["link", "backoff", "ack_all", "unknown", "changed", "leftovers", "group"]
QUICK = [
    *(Setting(kind) for kind in KINDS),
    Setting("link", concurrency=4, replicas=2, messages=16),
    Setting("backoff", concurrency=3, replicas=2, messages=16),
    Setting("leftovers", concurrency=3, replicas=2, messages=16),
    Setting("group", concurrency=3, replicas=2, messages=16),
]


@pytest.mark.parametrize("setting", QUICK, ids=str)
async def test_slow_workers_double_nothing(nats_server: Server, setting: Setting) -> None:
    assert set((await run_worker(nats_server.url, setting)).values()) == {1}


async def test_cut_connections_double_nothing(nats_server: Server) -> None:
    """One reader whose connection is cut again and again handles each message once."""
    assert set((await run_worker(nats_server.url, Setting("cuts", 0.4, concurrency=3, messages=16))).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "cuts"])
async def test_drawn_conditions_double_nothing(nats_server: Server, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        ack_wait = rng.uniform(1.0, 2.0)
        most = 1 - max(0.2, 0.1 * ack_wait) / ack_wait
        part = rng.choice([most, rng.uniform(0.0, most), 0.01])
        # Nobody tells a client of a shorter ack_wait, or what another one has handled before the connection was lost.
        replicas = 1 if kind in ("cuts", "changed", "ack_all") else rng.choice([1, 2])
        setting = Setting(kind, part, replicas, 1 if kind == "ack_all" else rng.choice([1, 3, 8]), ack_wait, 16)
        assert set((await run_worker(nats_server.url, setting)).values()) == {1}, setting
        async with natsproto.connect(nats_server.url) as nc:
            js = nc.jetstream()
            for name in [name async for name in js.stream_names()]:
                await js.delete_stream(name)


@pytest.mark.slow
async def test_slow_workers_of_a_cluster_double_nothing(seed: int) -> None:
    rng = random.Random(seed)
    async with run_cluster(3) as cluster:
        for replicas in (1, 2):
            setting = Setting("r3", rng.uniform(0.1, 0.75), replicas, rng.choice([1, 4]), 1.0, 16)
            assert set((await run_worker(cluster.servers[0].url, setting, copies=3)).values()) == {1}, setting
            async with natsproto.connect(cluster.servers[0].url) as nc:
                await nc.jetstream().delete_stream("W")
