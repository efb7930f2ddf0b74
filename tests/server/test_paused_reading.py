"""A full subscription with the policy ``pause``: messages are held back, replies are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import natsproto
from natsproto import Client, Message
from natsproto.service import Request
from natsproto.testing import Server

Work = Callable[[Client], Awaitable[object]]


async def request(nc: Client) -> object:
    return await nc.request("echo", b"x")


async def publish_to_a_stream(nc: Client) -> object:
    return await nc.jetstream(timeout=2).publish("s")


async def publish_with_a_window(nc: Client) -> object:
    async with nc.jetstream(timeout=2).publisher() as publisher:
        return await (await publisher.publish("s"))


async def publish_fast(nc: Client) -> object:
    async with nc.jetstream(timeout=2).fast_publisher() as publisher:
        return await publisher.publish("s")


async def flush(nc: Client) -> None:
    await nc.flush()


async def get_many(nc: Client) -> object:
    bucket = await nc.jetstream(timeout=2).key_value("B")
    return await bucket.get_many(["a", "b"])


async def collect(nc: Client) -> object:
    return [reply async for reply in nc.request_many("echo", b"x", max_messages=1)]


async def read_parts(nc: Client) -> object:
    return [part async for part in nc.stream("parts")]


WORKS: list[Work] = [
    get_many,
    request,
    publish_to_a_stream,
    publish_with_a_window,
    publish_fast,
    flush,
    collect,
    read_parts,
]


@pytest.mark.parametrize("work", WORKS, ids=[work.__name__ for work in WORKS])
async def test_paused_reader_may_ask(nats_server: Server, work: Work) -> None:
    async with (
        natsproto.connect(nats_server.url, request_timeout=5) as nc,
        natsproto.connect(nats_server.url) as other,
        other.add_service("calc", "1.0.0") as service,
    ):
        await other.jetstream().create_stream("S", subjects=["s"], allow_batched=True)
        await other.jetstream().create_key_value("B")

        async def echo(message: Message) -> None:
            await message.respond(message.data)

        async def parts(_: Request) -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d" % number

        await other.subscribe("echo", cb=echo)
        service.add_endpoint("parts", parts)
        handled: list[object] = []
        all_handled = asyncio.Event()

        async def handle(_: Message) -> None:
            handled.append(await work(nc))
            if len(handled) == 20:
                all_handled.set()

        await nc.subscribe("a", cb=handle, slow_policy="pause", pending_msgs_limit=3)
        await nc.flush()
        for _ in range(20):
            other.publish_nowait("a", bytes(10_000))
        await other.flush()
        assert (await nc.health(timeout=5)).alive
        await asyncio.wait_for(all_handled.wait(), 30)


async def test_paused_reader_holds_the_server_back(nats_server: Server) -> None:
    """While nobody waits for a reply, no more is read than fits."""
    async with (
        natsproto.connect(nats_server.url) as nc,
        natsproto.connect(nats_server.url) as other,
        nc.subscribe("a", slow_policy="pause", pending_msgs_limit=10) as messages,
    ):
        await nc.flush()
        for number in range(2000):
            await other.publish("a", b"%d" % number + bytes(10_000))
        await other.flush()
        received = -1
        while received != nc.stats.in_msgs:  # until nothing more comes
            received = nc.stats.in_msgs
            await asyncio.sleep(0.05)
        assert received < 200
        assert [int((await messages.next(5)).data.strip(b"\0")) for _ in range(2000)] == [*range(2000)]
