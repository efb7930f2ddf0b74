"""Handle messages in a callback, without end."""

import asyncio

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(10):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        consumer = await stream.create_consumer("billing")
        handled = 0

        async def handle(message: JsMessage) -> None:  # returning acknowledges, raising sends a nak
            nonlocal handled
            handled += 1

        async with consumer.consume(handle, concurrency=4, stop_after=10) as work:
            await work.wait()
        print(handled, "handled,", (await consumer.info()).num_pending, "left")


asyncio.run(main())

# origin: nats.go JetStream guide, Consume; nats.js JetStream guide, Processing messages; Python tutorial, Subscriber
# about: `consumer.consume` calls the handler, up to four at a time. A return acknowledges the message; an exception
# about: asks for it again.
# prints: 10 handled, 0 left
