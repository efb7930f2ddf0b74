"""Messages in other processes: they can be read there, and are answered where they came."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest

import natsproto
from natsproto import Client, Message
from natsproto.errors import LocalProtocolError
from natsproto.jetstream import JetStream
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.service import Request
from natsproto.testing import Server
from natsproto.typed import TypedMessage
from tests.jetstream.reading import make

READ = """
import pickle, sys
message = pickle.load(sys.stdin.buffer)
print(type(message).__qualname__, message.subject, message.reply, message.data, dict(message.headers))
"""


@dataclass
class NumberOrder:
    number: int


async def test_a_received_message_is_read_in_another_process(nats_client: Client) -> None:
    async with nats_client.subscribe("a.*") as subscription:
        await nats_client.publish("a.b", b"one", reply="r", headers={"A": "1"})
        message = await subscription.next(timeout=10)
    read = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", READ], input=pickle.dumps(message), capture_output=True, check=True
    )
    assert read.stdout.decode().strip() == "Message a.b r b'one' {'A': '1'}"
    again = pickle.loads(pickle.dumps(message))
    assert type(again) is Message
    with pytest.raises(LocalProtocolError, match="it has no reply subject"):
        await again.respond(b"no")


async def test_copy_of_a_message_is_answered(nats_client: Client) -> None:
    async with nats_client.subscribe("a") as subscription:
        reply = asyncio.create_task(nats_client.request("a", b"?", timeout=10))
        await copy.copy(await subscription.next(timeout=10)).respond(b"!")
        assert (await reply).data == b"!"


async def test_pickled_jetstream_message_keeps_its_state(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=30)
    first, second = await consumer.fetch(2)
    await first.ack()
    done, open_ = pickle.loads(pickle.dumps([first, second]))
    assert type(done) is JsMessage
    assert (done.metadata, done.seq, done.is_acked) == (first.metadata, 1, True)
    assert not open_.is_acked
    with pytest.raises(LocalProtocolError, match="it cannot be acknowledged"):
        await open_.ack()
    await second.ack_sync()


async def test_pickled_requests_and_typed_messages(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url) as nc:
        orders = nc.typed(NumberOrder)
        async with orders.subscribe("orders") as subscription:
            await orders.publish("orders", NumberOrder(7))
            message = await subscription.next(timeout=10)
        again = pickle.loads(pickle.dumps(message))
        assert isinstance(again, TypedMessage)
        assert again.value == NumberOrder(7)

        seen: list[Request] = []

        async with nc.add_service("s", "1.0.0") as service:

            @service.endpoint("e")
            async def answer(request: Request) -> None:
                seen.append(request)
                await request.respond_error(409, "taken")

            await nc.flush()
            await nc.request("e", b"x", timeout=10)
        kept = pickle.loads(pickle.dumps(seen[0]))
        assert type(kept) is Request
        assert kept.error is not None
        assert kept.error.code == 409


async def test_entries_of_a_bucket_are_read_elsewhere(jetstream: JetStream) -> None:
    bucket = await jetstream.create_key_value(bucket="b")
    await bucket.put("k", b"v")
    stored = await bucket.get("k")
    async with bucket.watch() as watcher:
        delivered = await watcher.next(timeout=10)
    for entry in (stored, delivered):
        again = pickle.loads(pickle.dumps(entry))
        assert (again.key, again.value, again.revision, again.created) == ("k", b"v", 1, entry.created)
        assert again == entry
