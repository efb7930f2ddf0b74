"""Iterate over messages, without end."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(5):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        consumer = await stream.create_consumer("billing")
        async with consumer.messages(prefetch=100) as messages:  # pulls ahead; survives reconnects
            async for message in messages:
                await message.ack()
                if message.metadata.num_pending == 0:
                    break
        print(message.data)


asyncio.run(main())

# origin: nats.go JetStream guide, Messages; nats.js JetStream guide, Processing messages with an iterator
# about: `consumer.messages` pulls ahead of the loop, and goes on after a reconnect. `num_pending` says how many
# about: messages are left.
# prints: b'4'
