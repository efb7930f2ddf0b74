"""The figures of consumers in health checks and metrics, on the real server."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from natsproto import Client, otel, sync
from natsproto._core.consumer_stats import add_up
from natsproto.health import ConsumerStats
from natsproto.jetstream import JetStream, JsMessage
from natsproto.testing import Direction, FaultProxy, Server
from tests.kit.waiting import until


async def only(nc: Client) -> ConsumerStats:
    health = await nc.health(timeout=30)
    [stats] = health.consumers
    return stats


async def publish_empty(js: JetStream, count: int) -> None:
    async with js.publisher() as publisher:
        for _ in range(count):
            await publisher.publish("s")


async def test_health_has_the_figures_of_a_worker(jetstream: JetStream) -> None:
    nc: Any = jetstream.connection
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c", ack_wait=1)
    slow = asyncio.Event()

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.02)
        await slow.wait()

    assert (await nc.health()).consumers == ()
    async with consumer.consume(handle):
        stats = await only(nc)
        assert (stats.stream, stats.consumer, stats.num_pending, stats.age) == ("S", "c", None, None)
    await publish_empty(jetstream, 30)
    async with consumer.consume(handle) as work:
        await until(lambda: work.in_progress)
        stats = await only(nc)
        assert stats.num_pending == 29
        assert stats.age is not None
        assert 0 <= stats.age < 10
        slow.set()
        await until(lambda: work.handled >= 10)
        stats = await only(nc)
        assert stats.handle_time >= 0.02
        assert (stats.prefetch, stats.stale, stats.given_back) == (work.prefetch, 0, 0)
        await until(lambda: work.handled == 30)
        assert (await only(nc)).num_pending == 0
    assert (await nc.health()).consumers == (), "it has ended"


async def test_two_readers_of_a_consumer_are_added_up(jetstream: JetStream) -> None:
    nc: Any = jetstream.connection
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer, other = await stream.create_consumer("c"), await stream.create_consumer("d")
    await publish_empty(jetstream, 3)
    async with consumer.messages() as first, consumer.messages() as second, other.messages() as third:
        for messages in (first, second, third):
            await messages.next(timeout=10)
        found = {stats.consumer: stats for stats in (await nc.health()).consumers}
    assert list(found) == ["c", "d"]
    assert found["c"].prefetch == 2
    assert found["c"].num_pending in (0, 1), "either reader may have asked for the third"


def part(num_pending: int | None, age: float | None, handle_time: float, *counts: int) -> ConsumerStats:
    names = ("prefetch", "waiting", "stale", "given_back")
    figures = dict(zip(names, counts, strict=True))
    place: dict[str, Any] = {"stream": "S", "consumer": "c", **figures}
    return ConsumerStats(num_pending=num_pending, age=age, handle_time=handle_time, **place)


def test_the_youngest_message_tells_the_lag() -> None:
    parts = [part(5, 9.0, 0.5, 1, 2, 3, 4), part(2, 1.0, 0.1, 10, 20, 30, 40), part(None, None, 0.0, 1, 0, 0, 0)]
    for order in itertools.permutations(parts):
        assert add_up(order) == [part(2, 1.0, 0.5, 12, 22, 33, 44)]


@pytest.mark.parametrize("kind", ["push", "none"])
async def test_readers_without_deadlines_have_a_lag(jetstream: JetStream, kind: str) -> None:
    nc: Any = jetstream.connection
    stream = await jetstream.create_stream("S", subjects=["s"])
    await publish_empty(jetstream, 3)
    consumer: Any
    if kind == "push":
        consumer = await stream.create_push_consumer(durable_name="c", deliver_subject="to")
    else:
        consumer = await stream.create_consumer("c", ack_policy="none")
    async with consumer.messages() as messages:
        await until(lambda: messages.pending == 3)
        stats = await only(nc)
    assert (stats.consumer, stats.num_pending, stats.waiting, stats.handle_time) == ("c", 0, 3, 0.0)


async def test_blocking_workers_are_measured(nats_server: Server) -> None:
    def work() -> ConsumerStats:
        with sync.connect(nats_server.url) as nc:
            js = nc.jetstream()
            consumer = js.create_stream("S", subjects=["s"]).create_consumer("c")
            for _ in range(5):
                js.publish("s")
            with consumer.consume(lambda message: time.sleep(0.001), threads=2) as working:
                while working.handled < 5:
                    nc.flush()
                [stats] = nc.health().consumers
            return stats

    stats = await asyncio.to_thread(work)
    assert stats.num_pending == 0
    assert stats.handle_time >= 0.001


async def test_gauges_of_consumers(nats_server: Server) -> None:
    """They are there for each stream and consumer, and nothing is sent for them."""
    reader = InMemoryMetricReader()
    telemetry = otel.Telemetry(meter_provider=MeterProvider([reader]))

    def gauges() -> dict[str, dict[tuple[str, str], float]]:
        data: Any = reader.get_metrics_data()
        return {
            metric.name.removeprefix("natsproto.consumer."): {
                (
                    point.attributes["messaging.destination.name"],
                    point.attributes["messaging.consumer.group.name"],
                ): point.value
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("natsproto.consumer.") and metric.data.data_points
        }

    async with FaultProxy(nats_server.host, nats_server.port, record=True) as proxy, telemetry.connect(proxy.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("S", subjects=["s"])
        consumer = await stream.create_consumer("c")
        await publish_empty(js, 5)
        handled = asyncio.Event()
        go_on = asyncio.Event()

        async def handle(message: JsMessage) -> None:
            if message.seq == 3:
                handled.set()
                await go_on.wait()

        async with consumer.consume(handle):
            await handled.wait()
            await nc.flush()
            before = len(proxy.link.seen[Direction.TO_SERVER])
            found = gauges()
            assert len(proxy.link.seen[Direction.TO_SERVER]) == before
            assert found["pending.messages"][("S", "c")] <= 2
            assert 0 <= found["last_message.age"][("S", "c")] < 30
            assert found["prefetch.messages"][("S", "c")] >= 1
            assert found["stale.messages"] == {("S", "c"): 0}
            go_on.set()
        assert gauges() == {}, "the worker has ended"
