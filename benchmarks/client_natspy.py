"""nats-py, used as its documentation shows, in the fastest way where it has several; limits as wide as natsproto's."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, Callable
from typing import Any

import nats
import uvloop
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, ObjectStoreConfig, StorageType
from nats.js.client import JetStreamContext
from nats.js.object_store import ObjectStore

from benchmarks.drivers import Client


class NatsPy(Client):
    takes_def = False

    async def connect(self, url: str, *, trusting: bool = False) -> NatsClient:
        if not trusting:
            return await nats.connect(url)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await nats.connect(url, tls=context)

    async def subscribe(self, nc: NatsClient, subject: str, handler: Callable[[Any], Any] | None) -> Subscription:
        return await nc.subscribe(subject, cb=handler, pending_msgs_limit=1 << 20, pending_bytes_limit=1 << 30)

    def messages(self, sub: Subscription) -> AsyncIterable[Msg]:
        return sub.messages

    async def confirm(self, nc: NatsClient) -> None:
        """Twice, because the PING of its flush() overtakes what waits in its buffer (up to 2 MB): the first PONG says
        nothing about that, but by then the buffer has been written.
        """
        await nc.flush()
        await nc.flush()

    async def window(self, nc: NatsClient, messages: list[tuple[str, bytes, dict[str, str]]]) -> None:
        js = nc.jetstream(publish_async_max_pending=1000)
        for subject, payload, headers in messages:
            await js.publish_async(subject, payload, headers=headers)  # wait_stall would start a timer for each
        await js.publish_async_completed()

    async def pull(self, nc: NatsClient, stream: str, *, acks: bool) -> JetStreamContext.PullSubscription:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT if acks else AckPolicy.NONE)
        return await nc.jetstream().pull_subscribe("", durable="BENCH", stream=stream, config=config)

    async def read_acked(self, nc: NatsClient, stream: str, handle: Callable[[Msg], object], count: int) -> None:
        # A push consumer with a callback: fetch() asks for every message anew, which takes twice the CPU.
        left, done = count, asyncio.Event()

        async def handler(msg: Msg) -> None:
            nonlocal left
            handle(msg)
            await msg.ack()
            left -= 1
            if not left:
                done.set()

        config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
        sub = await nc.jetstream().subscribe("", stream=stream, cb=handler, manual_ack=True, config=config)
        await done.wait()
        await sub.unsubscribe()

    async def create_bucket(self, nc: NatsClient, bucket: str) -> None:
        # Direct get, which is not its default, is its faster way.
        await nc.jetstream().create_key_value(bucket=bucket, storage=StorageType.MEMORY, direct=True)

    async def watch(self, nc: NatsClient, bucket: str) -> int:
        got = 0
        watcher = await (await nc.jetstream().key_value(bucket)).watchall()
        async for entry in watcher:
            if entry is None:
                break
            got += len(entry.value or b"")
        await watcher.stop()  # type: ignore[no-untyped-call]
        return got

    async def object_store(self, nc: NatsClient, bucket: str) -> ObjectStore:
        config = ObjectStoreConfig(bucket=bucket, storage=StorageType.MEMORY)
        return await nc.jetstream().create_object_store(bucket, config)

    async def object_get(self, store: ObjectStore, name: str) -> bytes:
        return (await store.get(name)).data or b""

    def blocking(self, url: str) -> Blocking:
        return Blocking(url)


class Blocking:
    """nats-py has no blocking client: its users run an event loop for each call."""

    def __init__(self, url: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._nc = self._loop.run_until_complete(nats.connect(url))
        self._js = self._nc.jetstream()

    def request(self, subject: str, payload: bytes) -> bytes:
        return self._loop.run_until_complete(self._nc.request(subject, payload, timeout=30)).data

    def publish(self, subject: str, payload: bytes) -> object:
        return self._loop.run_until_complete(self._js.publish(subject, payload))

    def open(self, stream: str, bucket: str) -> None:
        self._sub = self._loop.run_until_complete(self._js.pull_subscribe("", durable="BENCH", stream=stream))
        self._bucket = self._loop.run_until_complete(self._js.key_value(bucket))

    def get(self, key: str) -> bytes:
        return self._loop.run_until_complete(self._bucket.get(key)).value or b""

    def fetch(self, count: int) -> list[Msg]:
        return self._loop.run_until_complete(self._fetch(count))

    async def _fetch(self, count: int) -> list[Msg]:
        messages = await self._sub.fetch(count)
        for message in messages:
            await message.ack()
        return messages

    def close(self) -> None:
        self._loop.run_until_complete(self._nc.close())
        self._loop.close()
