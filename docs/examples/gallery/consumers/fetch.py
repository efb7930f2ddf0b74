"""Fetch a batch of messages and acknowledge them."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(5):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        consumer = await stream.create_consumer("billing", ack_policy="explicit")
        for message in await consumer.fetch(3, timeout=5):
            print(message.seq, message.subject)
            await message.ack()
        print(len(await consumer.fetch(10, no_wait=True)), "more")


asyncio.run(main())

# origin: NATS docs, Pull consumers; nats.go JetStream guide, Fetch; nats.js JetStream guide, Fetching a batch
# about: `consumer.fetch` returns up to so many messages, after `timeout` seconds at the latest. With `no_wait` it
# about: takes what is there.
# prints: 1 orders.eu
# prints: 2 orders.us
# prints: 3 orders.eu
# prints: 2 more
