"""Settings of a flower shop in a key/value bucket: run it with ``python docs/examples/key_value.py``."""

import asyncio
from dataclasses import dataclass

import natsproto
from natsproto.codecs import msgspec, pydantic
from natsproto.errors import KeyDeleted, KeyExists, WrongRevision
from natsproto.jetstream.kv import KeyValueEntry
from natsproto.testing import run_server


@dataclass
class Price:
    """The price of a flower."""

    flower: str
    cents: int


async def main() -> None:
    """Values, compare and set, watches, and leader election."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("shop", history=5, allow_atomic=True, limit_marker_ttl=60)

        revision = await kv.put("eu.tax", b"19")
        await kv.update("eu.tax", b"20", revision)
        for attempt in (kv.update("eu.tax", b"21", revision), kv.create("eu.tax", b"22")):
            try:
                await attempt
            except KeyExists as error:
                print(f"refused: {error}")
            except WrongRevision as error:
                print(f"refused: expected {error.expected}, it is {error.actual}")
        await kv.delete("eu.tax")
        try:
            await kv.get("eu.tax")
        except KeyDeleted as error:
            print(f"gone since revision {error.revision}")
        print("history:", *[entry.value.decode() or entry.operation for entry in await kv.history("eu.tax")])

        async with kv.atomic() as batch:
            await batch.create("eu.tax", b"19")
            await batch.create("us.tax", b"7")
        taxes = await kv.get_many(["eu.tax", "us.tax"])
        print("together:", *[f"{key}={entry.value.decode()}" for key, entry in taxes.items()])

        async with kv.watch("*.tax") as watcher:
            async for entry in watcher.initial():
                print(f"now: {entry.key} is {entry.value.decode()}")
            await kv.put("us.tax", b"8")
            entry = await watcher.next(timeout=5)
            print(f"new: {entry.key} is {entry.value.decode()}")

        def told(entry: KeyValueEntry[bytes]) -> None:
            print(f"told: {entry.key} is {entry.value.decode()}")

        async with kv.watch("us.*", cb=told) as watching:
            await watching.ready()

        async with kv.lock("baker", ttl=10, value=b"Ana") as lock:
            written = await lock.put("bread", b"baked")
            print(f"{(await kv.get('baker')).value.decode()} bakes: {lock.token < written}")

        for codec in (pydantic(), msgspec()):
            prices = kv.typed(Price, codec)
            await prices.put("price.rose", Price("rose", 500))
            print(f"{codec!r}: {(await prices.get('price.rose')).value.cents / 100:.2f} euros")


if __name__ == "__main__":
    asyncio.run(main())

# prints: refused: expected 1, it is 2
# prints: refused: key 'eu.tax' in bucket 'shop' already exists
# prints: gone since revision 3
# prints: history: 19 20 DEL
# prints: together: eu.tax=19 us.tax=7
# prints: now: eu.tax is 19
# prints: now: us.tax is 7
# prints: new: us.tax is 8
# prints: told: us.tax is 8
# prints: Ana bakes: True
# prints: pydantic: 5.00 euros
# prints: msgspec(json): 5.00 euros
