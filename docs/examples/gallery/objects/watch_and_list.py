"""List and watch objects, rename and delete them."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store("files")
        async with store.watch(updates_only=True) as watcher:
            await store.put("draft", b"one")
            await store.update_meta("draft", rename="final")
            await store.delete("final")
            for _ in range(2):
                info = await watcher.next(timeout=5)
                print(info.name, "deleted" if info.deleted else info.size)
        print([info.name async for info in store.list()])


asyncio.run(main())

# origin: NATS docs, Object store: watch, list, delete
# about: `store.watch` yields an `ObjectInfo` for each change, `store.list` those of all objects, and
# about: `store.update_meta` renames.
# prints: draft 3
# prints: final 3
# prints: []
