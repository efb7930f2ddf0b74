"""List keys, read a key's history, purge it."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("settings", history=5)
        for colour in (b"red", b"green", b"blue"):
            await kv.put("eu.colour", colour)
        await kv.put("us.colour", b"white")
        print(sorted([key async for key in kv.keys()]), [key async for key in kv.keys("us.>")])
        print([entry.value for entry in await kv.history("eu.colour")])
        await kv.purge("eu.colour")
        print([entry.operation.value for entry in await kv.history("eu.colour")])


asyncio.run(main())

# origin: NATS docs, Key/value store: history, keys, purge
# about: `kv.keys` lists keys, also by pattern. `kv.history` returns the last values of one; `kv.purge` deletes it with
# about: its history.
# prints: ['eu.colour', 'us.colour'] ['us.colour']
# prints: [b'red', b'green', b'blue']
# prints: ['PURGE']
