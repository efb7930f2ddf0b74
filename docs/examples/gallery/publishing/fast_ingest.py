"""Fast ingest: the stream acknowledges in batches."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("METRICS", subjects=["metrics.>"], allow_batched=True)
        async with js.fast_publisher() as publisher:
            for number in range(5000):
                await publisher.publish("metrics.cpu", b"%d" % number)
        print((await stream.info()).state.messages)


asyncio.run(main())

# origin: NATS docs, Fast batch publish (2.14)
# about: `js.fast_publisher` sends without waiting, and the stream acknowledges many messages at a time. It needs nats-
# about: server 2.14.
# prints: 5000
