"""Update, list and delete streams."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("FOO", subjects=["foo"], max_bytes=1024)
        stream = await js.stream("FOO")
        await stream.update(max_bytes=2048)
        print([(info.config.name, info.config.max_bytes) async for info in js.streams()])
        print(await js.stream_name_by_subject("foo"))
        await js.delete_stream("FOO")
        print([name async for name in js.stream_names()])


asyncio.run(main())

# origin: NATS docs, Stream management; nats.go JetStream guide, Listing streams
# about: `stream.update` changes the given fields and leaves the others alone. `js.streams` and `js.stream_names` list,
# about: `js.delete_stream` deletes.
# prints: [('FOO', 2048)]
# prints: FOO
# prints: []
