"""Link to objects and to stores."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store("files")
        await store.put("report-7", b"all is well")
        await store.add_link("newest", "report-7")
        print(await store.get_bytes("newest"), (await store.info("newest")).link is not None)


asyncio.run(main())

# origin: NATS docs, Object store: links
# about: `store.add_link` gives an object a second name; `store.get_bytes` follows it.
# prints: b'all is well' True
