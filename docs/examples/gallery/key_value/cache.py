"""A bucket as a dict in memory, kept up to date."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("prices")
        await kv.put("tulips", b"2")
        async with kv.cache() as prices:
            print(dict(prices))
            await prices.wait_for(await kv.put("tulips", b"3"))
            print(prices["tulips"], "roses" in prices)


asyncio.run(main())

# origin: NATS docs, Key/value store: materialized views
# about: `kv.cache` reads the bucket into a mapping and watches it. `wait_for` waits until it has a revision, such as
# about: that of `kv.put`.
# prints: {'tulips': b'2'}
# prints: b'3' False
