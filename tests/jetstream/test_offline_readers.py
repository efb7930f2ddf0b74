"""Readers that begin before there was ever a connection, and messages that arrive while a reader drains."""

from __future__ import annotations

import asyncio
import random

import pytest

import natsproto
from natsproto.testing import run_server
from tests.core.helpers import scripted_network
from tests.jetstream.reading import make, numbers
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Behaviour

LONG = 60.0


@pytest.mark.parametrize("way", ["messages", "fetch", "ordered", "ordered messages"])
async def test_reader_begins_with_the_first_connection(way: str) -> None:
    async with run_server(jetstream=True) as server:
        async with natsproto.connect(server.url) as nc:
            stream = await make(nc.jetstream(), 5, storage="file")
            await stream.create_consumer(durable_name="d")
        server.kill()
        async with natsproto.connect(server.url, retry_on_failed_connect=True, reconnect_wait_max=0.05) as nc:
            stream = await nc.jetstream().stream("S", bind=True)
            consumer = await stream.consumer("d", bind=True)
            ordered = stream.ordered_consumer()

            async def read() -> list[int]:
                if way == "fetch":
                    return numbers(await consumer.fetch(5, timeout=LONG))
                if way == "ordered":
                    return numbers(await ordered.fetch(5, timeout=LONG))
                async with (ordered if way.startswith("ordered") else consumer).messages() as messages:
                    return numbers([await messages.next() for _ in range(5)])

            reading = asyncio.create_task(read())
            await asyncio.sleep(0)
            assert not nc.is_connected
            await server.restart()
            async with asyncio.timeout(LONG):
                assert await reading == [1, 2, 3, 4, 5]


async def test_drain_hands_over_what_is_on_its_way() -> None:
    """A message that the server takes from the stream in the moment in which the reader's subscription ends is dropped
    there; without acknowledgements it is lost. Such messages are the last of one pull.
    """
    pulled = 40
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        stream = await make(nc.jetstream(), 400)
        consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
        async with consumer.messages(prefetch=pulled) as messages:
            got = numbers([await messages.next() for _ in range(5)])
            draining = asyncio.create_task(messages.drain())
            got += numbers([message async for message in messages])
            await draining
        dropped = (await consumer.info()).delivered.consumer_seq - len(got)
        rest = await consumer.fetch(400 - len(got) - dropped, timeout=LONG)
        assert got + numbers(rest) == [*range(1, len(got) + 1), *range(len(got) + dropped + 1, 401)]
        assert len(got) >= pulled
        assert dropped <= pulled


@virtual_clock
async def test_drain_hands_over_all_messages_in_flight() -> None:
    """They arrive between the end of the reader's subscription and the server's confirmation of it."""
    before, after = random.randint(0, 20), random.randint(1, 20)
    print(f"{before} messages arrive before the end, {after} after it")
    async with scripted_network(Behaviour(first_ping=b"PONG\r\n", answer_ping=False, route=False)) as net:
        nc = await net.connect()
        stream = await nc.jetstream().stream("S", bind=True)
        consumer = await stream.consumer("d", bind=True)
        async with consumer.messages(prefetch=40) as messages:
            sid = (await net.server.expect("SUB")).args[-1]
            await net.server.expect("PUB", "$JS.API.CONSUMER.MSG.NEXT.S.d")

            def deliver(*sequences: int) -> None:
                for sequence in sequences:
                    ack = f"$JS.ACK.S.d.1.{sequence}.{sequence}.1795000000000000000.0"
                    net.server.deliver(sid, "s.a", b"%d" % sequence, reply=ack)

            deliver(*range(before))
            net.server.forget()
            draining = asyncio.create_task(messages.drain())
            await net.server.expect("UNSUB", sid)
            await net.server.expect("PING")
            assert not draining.done()
            deliver(*range(before, before + after))
            net.server.current.pong()
            got = numbers([message async for message in messages])
            await draining
        assert got == list(range(before + after))
