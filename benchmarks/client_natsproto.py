"""natsproto, used as its documentation shows; only the limits of what waits are so wide that nothing is dropped."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, Callable
from typing import Any

import natsproto
from benchmarks.drivers import Client
from natsproto import Message, Subscription, sync
from natsproto.jetstream import AckPolicy, JsMessage, PullConsumer
from natsproto.jetstream.objectstore import ObjectStore


class Natsproto(Client):
    takes_def = True

    async def connect(self, url: str, *, trusting: bool = False) -> natsproto.Client:
        if not trusting:
            return await natsproto.connect(url)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await natsproto.connect(url, tls=context)

    async def subscribe(
        self, nc: natsproto.Client, subject: str, handler: Callable[[Any], Any] | None
    ) -> Subscription[Message]:
        return await nc.subscribe(subject, cb=handler, pending_msgs_limit=1 << 20, pending_bytes_limit=1 << 30)

    def messages(self, sub: Subscription[Message]) -> AsyncIterable[Message]:
        return sub

    async def confirm(self, nc: natsproto.Client) -> None:
        await nc.flush()

    async def window(self, nc: natsproto.Client, messages: list[tuple[str, bytes, dict[str, str]]]) -> None:
        async with nc.jetstream().publisher(max_pending=1000) as publisher:
            for subject, payload, headers in messages:
                await publisher.publish(subject, payload, headers=headers)
            await publisher.flush()

    async def pull(self, nc: natsproto.Client, stream: str, *, acks: bool) -> PullConsumer:
        policy = AckPolicy.EXPLICIT if acks else AckPolicy.NONE
        return await (await nc.jetstream().stream(stream)).create_consumer("BENCH", ack_policy=policy)

    async def read_acked(
        self, nc: natsproto.Client, stream: str, handle: Callable[[JsMessage], object], count: int
    ) -> None:
        consumer = await (await nc.jetstream().stream(stream)).create_consumer(deliver_policy="new")
        left = count
        async with consumer.messages() as messages:
            async for msg in messages:
                handle(msg)
                await msg.ack()
                left -= 1
                if not left:
                    break

    async def create_bucket(self, nc: natsproto.Client, bucket: str) -> None:
        await nc.jetstream().create_key_value(bucket, storage="memory")

    async def watch(self, nc: natsproto.Client, bucket: str) -> int:
        got = 0
        kv = await nc.jetstream().key_value(bucket)
        async with kv.watch() as watcher:
            async for entry in watcher.initial():
                got += len(entry.value)
        return got

    async def object_store(self, nc: natsproto.Client, bucket: str) -> ObjectStore:
        return await nc.jetstream().create_object_store(bucket, storage="memory")

    async def object_get(self, store: ObjectStore, name: str) -> bytes:
        return await store.get_bytes(name)

    def blocking(self, url: str) -> Blocking:
        return Blocking(url)


class Blocking:
    """natsproto.sync."""

    def __init__(self, url: str) -> None:
        self._client = sync.connect(url)
        self._js = self._client.jetstream()

    def request(self, subject: str, payload: bytes) -> bytes:
        return self._client.request(subject, payload, timeout=30).data

    def publish(self, subject: str, payload: bytes) -> object:
        return self._js.publish(subject, payload)

    def open(self, stream: str, bucket: str) -> None:
        self._consumer = self._js.stream(stream).create_consumer("BENCH")
        self._bucket = self._js.key_value(bucket)

    def get(self, key: str) -> bytes:
        return self._bucket.get(key).value

    def fetch(self, count: int) -> list[sync.JsMessage]:
        messages = self._consumer.fetch(count)
        for message in messages:
            message.ack()
        return messages

    def close(self) -> None:
        self._client.close()
