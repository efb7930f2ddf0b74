"""What type checkers see of buckets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import assert_type

from natsproto.codecs import msgspec
from natsproto.jetstream import JetStream
from natsproto.jetstream.kv import KeyValue, KeyValueCache, KeyValueEntry, KeyWatcher


@dataclass
class Order:
    amount: int


async def bytes_by_default(js: JetStream, named: KeyValue) -> None:
    kv = await js.create_key_value(bucket="b")
    assert_type(kv, KeyValue[bytes])
    assert_type(named, KeyValue[bytes])
    assert_type(await js.key_value("b"), KeyValue[bytes])
    assert_type(await kv.put("a", b"1"), int)
    assert_type((await kv.get("a")).value, bytes)
    assert_type(await kv.history("a"), list[KeyValueEntry[bytes]])
    assert_type(await kv.get("a", default=None), KeyValueEntry[bytes] | None)
    assert_type(await kv.get("a"), KeyValueEntry[bytes])
    assert_type(await kv.get_many(["a"]), dict[str, KeyValueEntry[bytes]])
    assert_type(kv.keys(), AsyncGenerator[str])
    async with kv.watch("a") as watcher:
        assert_type(watcher, KeyWatcher[bytes])
        async for entry in watcher:
            assert_type(entry, KeyValueEntry[bytes])


async def or_a_type(js: JetStream) -> None:
    kv = await js.key_value("b", kind=Order, codec=msgspec())
    assert_type(kv, KeyValue[Order])
    assert_type((await kv.get("a")).value, Order)
    await kv.put("a", b"1")  # type: ignore[arg-type]
    async with kv.cache() as cache, kv.atomic() as batch:
        assert_type(cache, KeyValueCache[Order])
        assert_type(cache["a"], Order)
        await batch.put("a", Order(1))
        await batch.put("a", 1)  # type: ignore[arg-type]
    assert_type(batch.revisions, dict[str, int])
