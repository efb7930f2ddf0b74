"""Large messages: the content goes into an object store, and a message has its name."""

import asyncio

import natsproto.jetstream
from natsproto.errors import PayloadTooLarge
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        scan = bytes(20 * 2**20)
        try:
            await nc.publish("scans.new", scan)
        except PayloadTooLarge as error:
            print(f"{error.size} bytes are more than {error.limit}")

        files = await js.create_object_store("scans", ttl=24 * 3600)
        stream = await js.create_stream("SCANS", subjects=["scans.*"], max_age=24 * 3600)
        await files.put("scan-1", scan)  # complete before anybody hears of it
        await js.publish("scans.new", b"scan-1")

        consumer = await stream.create_consumer("reader")
        message = await consumer.next(timeout=5)
        size = 0
        async with files.get(message.data.decode()) as content:
            async for chunk in content:
                size += len(chunk)
        await files.delete(message.data.decode())
        await message.ack()
        print(f"{size} bytes read")


asyncio.run(main())

# origin: how-to guide
# about: `nc.publish` refuses what the server does not accept. `store.put` takes content of any size, and the message
# about: names it.
# prints: 20971520 bytes are more than 1048576
# prints: 20971520 bytes read
