"""One at a time: a lock that fences."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("locks", limit_marker_ttl=60)
        inside = 0

        async def paint(name: str) -> None:
            nonlocal inside
            async with kv.lock("painter", ttl=30) as lock:
                inside += 1
                assert inside == 1
                await lock.put("painter.last", name.encode())  # stored only while the lock is held
                inside -= 1

        await asyncio.gather(*map(paint, ("ann", "bob", "eve")))
        print("one of them was the last:", (await kv.get("painter.last")).value in (b"ann", b"bob", b"eve"))


asyncio.run(main())

# origin: NATS docs, Key/value store: distributed locks
# about: `kv.lock` admits one holder at a time. Values that are written through the `Lock` are stored only while it is
# about: held.
# prints: one of them was the last: True
