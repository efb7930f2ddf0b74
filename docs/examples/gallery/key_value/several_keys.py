"""Read several keys as of one moment, write them all or none."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("accounts", allow_atomic=True)
        await kv.put("ann", b"100")
        await kv.put("bob", b"20")
        both = await kv.get_many(["ann", "bob"])
        async with kv.atomic() as transfer:
            await transfer.update("ann", b"90", both["ann"].revision)
            await transfer.update("bob", b"30", both["bob"].revision)
        print({key: entry.value for key, entry in (await kv.get_many(["*"])).items()})


asyncio.run(main())

# origin: NATS docs, Atomic batch publish (2.12)
# about: `kv.get_many` reads several keys as of one moment. The updates of a `kv.atomic` block are stored together, or
# about: none of them.
# prints: {'ann': b'90', 'bob': b'30'}
