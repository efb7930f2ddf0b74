"""ack_sync behind a restart of the server: nothing waits for an answer that cannot come, nothing is given up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client
from natsproto._core.events import HandlerFailed
from natsproto.errors import ConsumerGone, DeliveryUnknown, NatsError, RequestTimeout
from natsproto.testing import run_server
from tests.jetstream.reading import crash, events, make, store
from tests.kit.acknowledged import until_all_acknowledged
from tests.kit.interruption import interruptions
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.message import JsMessage
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 50.0


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_consume_ack_sync_server_killed(nats_server: Server, concurrency: int) -> None:
    """What the server has forgotten to have delivered is pulled again, and not waited for message by message."""
    count, before = 1000, random.randint(20, 300)
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc, events(nc) as seen:
        stream = await make(nc.jetstream(), count, storage="file")
        consumer = await stream.create_consumer(durable_name="d", ack_wait=10)
        handled: list[int] = []

        async def handle(message: JsMessage) -> None:
            handled.append(message.seq)
            if len(handled) == before:
                nats_server.kill()
                await eventually(lambda: not nc.is_connected)
                await nats_server.restart()

        async with asyncio.timeout(LONG):
            async with consumer.consume(handle, on_success="ack_sync", concurrency=concurrency):
                await eventually(lambda: len(set(handled)) == count, LONG)
    assert sorted(set(handled)) == list(range(1, count + 1))
    # The server has forgotten acknowledgements too, though it had confirmed them; what waited here comes once.
    assert len(handled) <= count + before + 2 * concurrency
    assert len([event for event in seen if isinstance(event, HandlerFailed)]) <= concurrency


async def test_forgotten_messages_dropped(nats_server: Server) -> None:
    """Of what waits to be read, that which the restarted server has not delivered comes once, from a new pull."""
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc:
        stream = await make(nc.jetstream(), 600, storage="file")
        consumer = await stream.create_consumer(durable_name="d", ack_wait=10)
        read: list[set[int]] = [set()]  # between two crashes each
        doubles: list[int] = []

        async def read_one() -> None:
            message = await messages.next()
            if message.seq in read[-1]:
                doubles.append(message.seq)
            read[-1].add(message.seq)
            with contextlib.suppress(DeliveryUnknown):
                await message.ack_sync()

        async with asyncio.timeout(LONG), consumer.messages(prefetch=rng.randint(50, 500)) as messages:
            for at in sorted(rng.sample(range(1, 500), 2)):
                while len(set().union(*read)) < at:
                    await read_one()
                await crash(nats_server, stream)
                read.append(set())
            while len(set().union(*read)) < 600:
                await read_one()
        assert set().union(*read) == set(range(1, 601)), seed
        assert len(doubles) <= 4, (doubles, seed)  # what was in our hands, and not acknowledged, at each crash


async def test_consume_ack_sync_server_stopped(nats_server: Server) -> None:
    """On SIGTERM JetStream ends before the connection does: acknowledgements are sent again."""
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc, events(nc) as seen:
        stream = await make(nc.jetstream(), 1000, storage="file")
        consumer = await stream.create_consumer(durable_name="d")
        handled: list[int] = []

        async def handle(message: JsMessage) -> None:
            handled.append(message.seq)
            await asyncio.sleep(0)

        async with consumer.consume(handle, on_success="ack_sync", concurrency=32, stop_after=1000) as consumption:
            await eventually(lambda: len(handled) > 100)
            await nats_server.stop()
            await nats_server.restart()
            async with asyncio.timeout(LONG):
                await consumption.wait()
        assert [event for event in seen if isinstance(event, HandlerFailed)] == []
        assert len(handled) == 1000
        await until_all_acknowledged(consumer)


async def test_ack_sync_waits_for_reconnect(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc:
        stream = await make(nc.jetstream(), 1, storage="file")
        consumer = await stream.create_consumer(durable_name="d")
        message = await consumer.next()
        await nats_server.stop()
        await eventually(lambda: not nc.is_connected)
        waiting = asyncio.ensure_future(message.ack_sync(timeout=LONG))
        await nats_server.restart()
        await waiting
        assert message.is_acked
        assert (await consumer.info()).num_ack_pending == 0


@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_ack_sync_consumer_gone(jetstream: JetStream, what: str) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    message = await consumer.next()
    await (consumer.delete() if what == "consumer" else jetstream.delete_stream("S"))
    with pytest.raises(ConsumerGone, match=f"{what} not found") as caught:
        await message.ack_sync()
    assert (caught.value.consumer, caught.value.stream) == ("d", "S")
    assert not message.is_acked


async def test_ack_sync_consumer_gone_behind_a_prefix() -> None:
    accounts = """
    jetstream: enabled
    accounts {
        A { jetstream: enabled, users: [{user: a, password: x}], exports: [
            {service: "$JS.API.>", response: stream}, {service: "$JS.ACK.>"}]}
        I { users: [{user: i, password: x}], imports: [
            {service: {account: A, subject: "$JS.API.>"}, to: "fromA.>"},
            {service: {account: A, subject: "$JS.ACK.>"}}]}
    }
    """
    async with run_server(jetstream=True, config=accounts) as server:
        owner_url, user_url = (server.url.replace("nats://", f"nats://{user}:x@") for user in "ai")
        async with natsproto.connect(owner_url) as owner, natsproto.connect(user_url) as nc:
            stream = await make(owner.jetstream(), 1)
            await stream.create_consumer(durable_name="d")
            consumer = await (await nc.jetstream(prefix="fromA").stream("S")).consumer("d")
            message = await consumer.next()
            await consumer.delete()
            with pytest.raises(ConsumerGone, match="consumer not found"):
                await message.ack_sync()


async def test_ack_sync_unanswered_ends_in_time(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc:
        stream = await make(nc.jetstream(), 2, storage="file")
        consumer = await stream.create_consumer(durable_name="d")
        (message,) = await consumer.fetch(1)
        timeout = random.uniform(0.05, 1.3)
        nats_server.freeze()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            with pytest.raises(RequestTimeout):
                await message.ack_sync(timeout=timeout)
        finally:
            nats_server.thaw()
        assert timeout - 0.01 <= loop.time() - begun < timeout + 5.0
        await message.ack_sync()


async def test_ack_sync_cancelled_can_be_repeated(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 100)
    consumer = await stream.create_consumer(durable_name="d")

    async def acknowledge() -> None:
        (message,) = await consumer.fetch(1)
        unacked.append(message)
        await message.ack_sync()
        unacked.remove(message)

    unacked: list[JsMessage] = []
    async for run in interruptions(acknowledge):
        run.check()
        for message in unacked:
            await message.ack_sync()
        unacked.clear()
    await store(stream, [1])
    with pytest.raises(NatsError):
        await (await consumer.next()).ack_sync(timeout=0.0)
