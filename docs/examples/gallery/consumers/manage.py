"""List, inspect, pause and delete consumers."""

import asyncio
from datetime import UTC, datetime, timedelta

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(2):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        consumer = await stream.create_consumer("billing", description="bills")
        await stream.create_or_update_consumer("billing", description="bills of orders")
        print([(info.name, info.config.description, info.num_pending) async for info in stream.consumers()])
        await consumer.pause(datetime.now(UTC) + timedelta(hours=1))
        print("paused:", (await consumer.info()).paused)
        await consumer.resume()
        await stream.delete_consumer("billing")
        print([name async for name in stream.consumer_names()])


asyncio.run(main())

# origin: NATS docs, Consumer management; nats.go JetStream guide, Consumers management
# about: `stream.create_or_update_consumer` changes a consumer, `stream.consumers` lists them, and `consumer.pause`
# about: stops deliveries until a time.
# prints: [('billing', 'bills of orders', 2)]
# prints: paused: True
# prints: []
