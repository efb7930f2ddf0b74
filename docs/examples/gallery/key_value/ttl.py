"""Keys that expire."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("sessions", limit_marker_ttl=60)
        async with kv.watch("ann") as watcher:
            await watcher.ready()
            await kv.create("ann", b"here", ttl=1)  # seconds
            for _ in range(2):
                entry = await watcher.next(timeout=30)
                print(entry.key, entry.operation.value)


asyncio.run(main())

# origin: NATS docs, Key/value store: TTL (2.11)
# about: A key that was made with `ttl=` expires. Because the bucket has `limit_marker_ttl`, `kv.watch` sees that as
# about: well.
# prints: ann PUT
# prints: ann PURGE
