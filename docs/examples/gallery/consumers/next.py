"""Read one message at a time."""

import asyncio

import natsproto.jetstream
from natsproto.errors import RequestTimeout
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(2):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        consumer = await stream.create_consumer("billing")
        message = await consumer.next(timeout=5)
        print(message.data, message.metadata.num_pending, "left")
        await message.ack_sync(timeout=5)  # waits for the server
        try:
            await (await consumer.next(timeout=5)).ack()
            await consumer.next(timeout=0.05)
        except RequestTimeout:
            print("empty")


asyncio.run(main())

# origin: nats.go JetStream guide, Next; nats.js JetStream guide, Requesting a single message
# about: `consumer.next` waits for one message. `ack_sync` of a `JsMessage` returns when the server has the
# about: acknowledgement.
# prints: b'0' 1 left
# prints: empty
