"""Watch keys: their current values, and every change."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("settings")
        await kv.put("eu.colour", b"red")
        async with kv.watch("eu.>") as watcher:
            print({entry.key: entry.value async for entry in watcher.initial()})
            await kv.put("eu.colour", b"blue")
            await kv.delete("eu.colour")
            for _ in range(2):
                entry = await watcher.next(timeout=5)
                print(entry.operation.value, entry.value)


asyncio.run(main())

# origin: NATS docs, Key/value store: watch; nats.js JetStream guide, Materialized views: KV watch
# about: `kv.watch` yields the current values that match, and then every change: `put`, `delete` or `purge`.
# prints: {'eu.colour': b'red'}
# prints: PUT b'blue'
# prints: DEL b''
