"""A program of nats-py: its calls are coroutines, and its names are where it imports them."""

from __future__ import annotations

import asyncio
from typing import assert_type

import natsproto.compat.nats as nats
from natsproto.compat.nats.aio.errors import ErrTimeout
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.js import api
from natsproto.compat.nats.js.client import JetStreamContext, KeyValue, ObjectStore


async def callback(msg: Msg) -> None:
    await msg._client.publish("a", b"b")


async def program() -> None:
    nc = await nats.connect("nats://x")
    js = nc.jetstream()
    assert_type(js, JetStreamContext)
    assert_type(await asyncio.create_task(js.publish("a", b"b")), api.PubAck)
    assert_type(await asyncio.create_task(nc.request("a", b"b")), Msg)
    asyncio.run_coroutine_threadsafe(js.publish("a", b"b"), asyncio.get_running_loop())
    bucket = await js.key_value("b")
    assert_type(bucket, KeyValue)
    assert_type(await asyncio.create_task(bucket.get("a")), KeyValue.Entry)
    objects = await js.object_store("o")
    assert_type(objects, ObjectStore)
    await asyncio.create_task(objects.get("n"))
    subscription = await nc.subscribe("a", cb=callback)
    await asyncio.create_task(subscription.unsubscribe())
    async for message in subscription.messages:
        assert_type(message.data, bytes)
    try:
        print((await bucket.get("a")).revision, (await js.stream_info("a")).state.messages + 1)
    except ErrTimeout:
        pass
