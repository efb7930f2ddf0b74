"""Put, get and delete keys."""

import asyncio

import natsproto.jetstream
from natsproto.errors import KeyNotFound
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("settings", history=5)
        await kv.put("eu.colour", b"red")
        entry = await kv.get("eu.colour")
        print(entry.key, entry.value, entry.revision)
        await kv.delete("eu.colour")
        try:
            await kv.get("eu.colour")
        except KeyNotFound as error:
            print(type(error).__name__)


asyncio.run(main())

# origin: NATS docs, Key/value store; nats.js JetStream guide, Materialized views: KV
# about: `kv.get` returns the value and its revision. After `kv.delete` it raises `KeyDeleted`, which is a
# about: `KeyNotFound`.
# prints: eu.colour b'red' 1
# prints: KeyDeleted
