"""Put and get an object of any size."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store("files")
        info = await store.put("weights", bytes(3_000_000), description="three megabytes")
        print(info.size, info.chunks)
        size = 0
        async with store.get("weights") as reader:
            async for chunk in reader:
                size += len(chunk)
        print(size, (await store.info("weights")).description)


asyncio.run(main())

# origin: NATS docs, Object store; nats.js JetStream guide, Materialized views: object store
# about: `store.put` cuts the content into chunks. `store.get` yields them, and raises `DigestMismatch` if they are not
# about: what was stored.
# prints: 3000000 23
# prints: 3000000 three megabytes
