"""Read a part of an object."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store("files")
        await store.put("alphabet", b"abcdefghijklmnopqrstuvwxyz")
        async with store.get("alphabet", offset=10, length=5) as part:
            print(b"".join([chunk async for chunk in part]))


asyncio.run(main())

# origin: NATS docs, Object store
# about: `store.get` with `offset` and `length` reads a part of an object, and only the chunks that it needs.
# prints: b'klmno'
