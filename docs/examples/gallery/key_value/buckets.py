"""Create, change, list and delete buckets."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_key_value("settings", ttl=3600, description="what users chose")
        await js.update_key_value(bucket="settings", ttl=7200)
        print([name async for name in js.key_value_names()])
        kv = await js.key_value("settings")
        status = await kv.status()
        print(status.bucket, status.history, status.ttl)
        await js.delete_key_value("settings")


asyncio.run(main())

# origin: NATS docs, Key/value store management
# about: `js.create_key_value`, `js.update_key_value` and `js.delete_key_value` manage buckets; `kv.status` shows one.
# prints: ['settings']
# prints: settings 1 7200.0
