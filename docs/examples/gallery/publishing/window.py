"""Publish many messages without waiting for each."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        async with js.publisher(max_pending=256) as publisher:
            for number in range(1000):
                await publisher.publish("orders.eu", b"%d" % number)
        print(publisher.acknowledged, "acknowledged,", (await stream.info()).state.messages, "stored")


asyncio.run(main())

# origin: NATS docs, Asynchronous publishing; nats.go JetStream guide, Async publish
# about: `js.publisher` sends while up to `max_pending` acknowledgements are outstanding, and waits for all of them at
# about: the end of its block.
# prints: 1000 acknowledged, 1000 stored
