"""What an ordered consumer is told is done, or refused."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from natsproto import Client
from natsproto.errors import ConfigError, LocalProtocolError
from tests.jetstream.reading import make, numbers, store
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream

LONG = 30.0


async def test_ordered_push_heartbeat_honoured(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    heartbeat = round(random.uniform(0.2, 2.0), 3)
    ordered = stream.ordered_consumer(push=True, idle_heartbeat=heartbeat)
    async with ordered.messages():
        assert (await ordered.info()).config.idle_heartbeat == heartbeat
    ordered = stream.ordered_consumer(push=True, flow_control=True)
    async with ordered.messages():
        config = (await ordered.info()).config
        assert config.flow_control
        assert config.idle_heartbeat * 3 < 4  # how long a lost one goes unnoticed


async def test_ordered_push_lost_is_replaced(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    ordered = stream.ordered_consumer(push=True, idle_heartbeat=0.2)
    async with ordered.messages() as messages:
        assert numbers([await messages.next(LONG)]) == [1]
        await stream.delete_consumer(ordered.name)
        await store(stream, [2])
        assert numbers([await messages.next(LONG)]) == [2]


@pytest.mark.parametrize(
    ("push", "fields"),
    [
        (True, {"ack_wait": 5}),
        (False, {"ack_wait": 5}),
        (True, {"flow_control": False}),
        (False, {"flow_control": True}),
        (False, {"idle_heartbeat": 0.5}),
    ],
)
async def test_ordered_option_refused(jetstream: JetStream, push: bool, fields: dict[str, object]) -> None:
    stream = await jetstream.stream("S", bind=True)
    with pytest.raises(ConfigError) as caught:
        stream.ordered_consumer(push=push, **fields)  # type: ignore[arg-type]
    assert [caught.value.name] == list(fields)


async def test_ordered_info_before_reading(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    with pytest.raises(LocalProtocolError, match="has created no consumer yet: read it first"):
        await stream.ordered_consumer().info()


async def test_ordered_name_prefix(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    ordered = stream.ordered_consumer(name_prefix="app")
    async with ordered.messages() as messages:
        assert ordered.name == "app_1"
        await stream.delete_consumer("app_1")
        await store(stream, [3])
        assert numbers([await messages.next(LONG) for _ in range(3)]) == [1, 2, 3]
        await eventually(lambda: ordered.name == "app_2")
    with pytest.raises(ConfigError):
        stream.ordered_consumer(name_prefix="a.b")


async def test_ordered_name_prefix_shared(jetstream: JetStream) -> None:
    """Two readers of one prefix do not take each other's consumers."""
    stream = await make(jetstream, 50)
    first, second = (stream.ordered_consumer(name_prefix="app") for _ in range(2))
    async with first.messages() as one, second.messages() as other:
        assert {first.name, second.name} == {"app_1", "app_2"}
        assert numbers([await one.next(LONG) for _ in range(50)]) == list(range(1, 51))
        assert numbers([await other.next(LONG) for _ in range(50)]) == list(range(1, 51))


@pytest.mark.parametrize("turns", range(1, 24, 2))
async def test_ordered_name_prefix_cancelled(jetstream: JetStream, turns: int) -> None:
    """A reader that is cancelled while it creates its consumer deletes that, and not another reader's."""
    stream = await make(jetstream, 1)
    first, second = (stream.ordered_consumer(name_prefix="app") for _ in range(2))

    async def read() -> None:
        async with second.messages() as messages:
            await messages.next()

    async with first.messages() as one:
        task = asyncio.create_task(read())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(LONG):
            while len(names := [name async for name in stream.consumer_names()]) > 1:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
        assert names == [first.name] == ["app_1"]
        await store(stream, [2])
        assert numbers([await one.next(LONG) for _ in range(2)]) == [1, 2]
        assert first.name == "app_1"


@pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])
async def test_context_inbox_prefix(nats_client: Client, jetstream: JetStream, push: bool) -> None:
    await make(jetstream, 3)
    js = nats_client.jetstream(inbox_prefix="_APP.in")
    stream = await js.stream("S")
    consumer = await stream.create_consumer(durable_name="d")

    def subjects() -> list[str]:
        return [subscription.subject for subscription in nats_client._engine.registry.subscriptions]

    async with stream.ordered_consumer(push=push).messages() as messages:
        assert numbers([await messages.next(LONG)]) == [1]
        assert [subject for subject in subjects() if subject.startswith("_APP.in.")]
    assert numbers(await consumer.fetch(3)) == [1, 2, 3]
    assert (await stream.create_push_consumer(durable_name="p")).deliver_subject.startswith("_APP.in.")
    assert [message.seq async for message in stream.get_batch()] == [1, 2, 3]
    with pytest.raises(ConfigError):
        nats_client.jetstream(inbox_prefix="a b")
