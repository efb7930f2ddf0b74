"""natsio, used as its documentation shows; limits as wide as natsproto's. It runs on Python 3.13 only."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterable, Callable
from typing import Any

from benchmarks.drivers import Client


class Natsio(Client):
    takes_def = True

    def __init__(self) -> None:
        self._natsio: Any = importlib.import_module("natsio")
        self._jetstream: Any = importlib.import_module("natsio.jetstream")
        self._kv: Any = importlib.import_module("natsio.kv")

    async def connect(self, url: str, *, trusting: bool = False) -> Any:
        return await self._natsio.connect(url)

    async def subscribe(self, nc: Any, subject: str, handler: Callable[[Any], Any] | None) -> Any:
        return nc.subscribe(subject, cb=handler, pending_msgs_limit=1 << 20, pending_bytes_limit=1 << 30)

    def messages(self, sub: Any) -> AsyncIterable[Any]:
        return sub  # type: ignore[no-any-return]

    async def confirm(self, nc: Any) -> None:
        await nc.flush()

    async def window(self, nc: Any, messages: list[tuple[str, bytes, dict[str, str]]]) -> None:
        js = nc.jetstream(publish_async_max_pending=1000, publish_async_stall_wait=30.0)
        for subject, payload, headers in messages:
            await js.publish_async(subject, payload, headers=headers)
        await js.publish_async_complete()

    async def pull(self, nc: Any, stream: str, *, acks: bool) -> Any:
        policy = self._jetstream.AckPolicy
        config = self._jetstream.ConsumerConfig(
            durable_name="BENCH", ack_policy=policy.EXPLICIT if acks else policy.NONE
        )
        return await (await nc.jetstream().stream(stream)).create_consumer(config)

    async def read_acked(self, nc: Any, stream: str, handle: Callable[[Any], object], count: int) -> None:
        config = self._jetstream.ConsumerConfig(deliver_policy=self._jetstream.DeliverPolicy.NEW)
        consumer = await (await nc.jetstream().stream(stream)).create_consumer(config)
        left = count
        async with consumer.consume() as messages:
            async for msg in messages:
                handle(msg)
                await msg.ack()
                left -= 1
                if not left:
                    break

    async def create_bucket(self, nc: Any, bucket: str) -> None:
        config = self._kv.KeyValueConfig(bucket=bucket, storage=self._jetstream.StorageType.MEMORY)
        await nc.jetstream().create_key_value(config)

    async def watch(self, nc: Any, bucket: str) -> int:
        got = 0
        async with (await nc.jetstream().key_value(bucket)).watch() as watcher:
            async for entry in watcher:
                if entry is None:
                    break
                got += len(entry.value)
        return got

    async def object_store(self, nc: Any, bucket: str) -> Any:
        raise NotImplementedError("no scenario compares objects with natsio")

    async def object_get(self, store: Any, name: str) -> bytes:
        raise NotImplementedError("no scenario compares objects with natsio")

    def blocking(self, url: str) -> Any:
        raise NotImplementedError("natsio has no blocking client")
