"""What those are told who forgot await, async with or async for."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import ConfigError, LocalProtocolError
from natsproto.jetstream import JetStream, PullConsumer
from natsproto.jetstream.groups import StaticGroup
from natsproto.service import Request
from natsproto.testing import Server

Making = Callable[[], object]


@pytest.fixture
async def consumer(jetstream: JetStream) -> PullConsumer:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"])
    return await stream.create_consumer(durable_name="c")


def warned(make: Making) -> list[str]:
    """What is said when the object is dropped."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
        del made
        gc.collect()
    assert all(warning.category is RuntimeWarning for warning in caught)
    return [str(warning.message) for warning in caught]


# ---------------------------------------------------------------- forgotten


def test_forgotten_connect_warns() -> None:
    assert warned(lambda: natsproto.connect("nats://127.0.0.1:1")) == ["connect(...) was never awaited or entered"]


async def test_forgotten_fetch_warns(consumer: PullConsumer) -> None:
    said = ["fetch(...) was never awaited or entered with async for"]
    assert warned(lambda: consumer.fetch(1)) == said
    assert warned(lambda: consumer.fetch_available(1)) == said


async def test_forgotten_consume_warns(consumer: PullConsumer) -> None:
    assert warned(lambda: consumer.consume(print)) == ["consume(...) was never run or entered"]


async def test_forgotten_group_consume_warns(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="G", subjects=["g.*"])
    group = await StaticGroup.create(jetstream, "G", "g", members=["m"], max_members=1)
    assert warned(lambda: group.consume("m", print)) == ["consume(...) of a group was never run or entered"]


async def test_forgotten_service_warns(nats_client: Client) -> None:
    said = "service 'calc' was never started: await it, or enter it with async with"
    assert warned(lambda: nats_client.add_service("calc", "1.0.0")) == [said]
    assert [info async for info in nats_client.discover_services(timeout=0.2)] == []


async def test_begun_objects_do_not_warn(nats_server: Server, jetstream: JetStream, consumer: PullConsumer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with natsproto.connect(nats_server.url) as nc:
            await (await nc.add_service("a", "1.0.0")).stop()
            async with nc.add_service("b", "1.0.0"):
                pass
            await nc.add_service("c", "1.0.0").stop()
        await (await natsproto.connect(nats_server.url)).close()
        for number in range(3):
            await jetstream.publish(f"s.{number}", b"")
        assert len(await consumer.fetch(1)) == 1
        async for message in consumer.fetch(1):
            await message.ack()
        consumer.fetch(1).close()
        async with consumer.consume(print, stop_after=1) as consumption:
            await consumption.wait()
        await consumer.consume(print).stop()
        gc.collect()


async def test_failed_construction_does_not_warn(nats_client: Client, consumer: PullConsumer) -> None:
    def make() -> None:
        with pytest.raises(ConfigError):
            natsproto.connect("nonsense://")
        with pytest.raises(TypeError):
            consumer.consume(5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            nats_client.add_service("calc", "1")

    assert warned(make) == []


# ---------------------------------------------------------------- used all the same


async def test_attribute_hint(nats_server: Server, consumer: PullConsumer) -> None:
    connecting: Any = natsproto.connect(nats_server.url)
    fetch: Any = consumer.fetch(1, no_wait=True)
    consumption: Any = consumer.consume(print)
    for unbegun, name, hint in (
        (connecting, "publish", "await it, or enter it with async with"),
        (connecting, "jetstream", "await it, or enter it with async with"),
        (fetch, "append", "await it, or iterate it with async for"),
        (consumption, "next", "await its run(), or enter it with async with"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': it has not started; {re.escape(hint)}"):
            getattr(unbegun, name)
        assert not hasattr(unbegun, name)
        with pytest.raises(AttributeError) as plain:
            unbegun.__deepcopy__  # noqa: B018
        assert "begun" not in str(plain.value)
    assert [inspect.isawaitable(one) for one in (connecting, fetch, consumption)] == [True] * 3
    async with connecting as nc:
        assert nc.is_connected
        with pytest.raises(AttributeError) as begun:
            connecting.publish  # noqa: B018
        assert "begun" not in str(begun.value)
    await fetch
    await consumption.stop()


async def test_endpoint_before_start(nats_client: Client) -> None:
    service = nats_client.add_service("calc", "1.0.0")
    with pytest.raises(LocalProtocolError, match="was not started: await it, or enter it with async with"):
        service.add_endpoint("add", print)
    async with service:
        service.add_endpoint("add", print)
        assert await service is service


async def test_endpoint_decorator_needs_parentheses(nats_client: Client) -> None:
    async with nats_client.add_service("calc", "1.0.0") as service:
        for group in (service, service.group("v1")):
            with pytest.raises(TypeError, match=r"needs parentheses: @service\.endpoint\(\)"):

                @group.endpoint  # type: ignore[arg-type]
                async def add(request: Request) -> None: ...

        assert service.endpoints == ()


# ---------------------------------------------------------------- async for


async def test_await_of_what_runs_names_run(jetstream: JetStream, consumer: PullConsumer) -> None:
    stream = await jetstream.create_stream(name="G", subjects=["g.*"])
    group = await StaticGroup.create(jetstream, "G", "g", members=["m"], max_members=1)
    kv = await jetstream.create_key_value(bucket="b")
    store = await jetstream.create_object_store(bucket="o")
    runnable: dict[str, Callable[[], Any]] = {
        "ConsumeContext": lambda: consumer.consume(print),
        "ConsumeContext ordered": lambda: stream.ordered_consumer().consume(print),
        "WatchCallback": lambda: kv.watch(cb=print),
        "WatchCallback of objects": lambda: store.watch(cb=print),
        "Member": lambda: group.consume("m", print),
    }
    for name, start in runnable.items():
        with pytest.raises(TypeError, match=rf"^{name.split()[0]} cannot be awaited: await its run\(\) .* async with$"):
            await start()
        stop = asyncio.Event()
        stop.set()
        async with asyncio.timeout(10):
            await start().run(stop)
