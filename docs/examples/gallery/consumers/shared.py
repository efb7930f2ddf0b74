"""Several workers share one consumer."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(100):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        await stream.create_consumer("workers")
        shares: list[int] = []

        async def work() -> None:  # in earnest: a process each
            async with natsproto.connect(server.url) as mine:
                consumer = await (await mine.jetstream().stream("ORDERS")).consumer("workers")
                share = 0
                while batch := await consumer.fetch(5, no_wait=True):
                    share += len(batch)
                    await asyncio.gather(*(message.ack() for message in batch))
                shares.append(share)

        await asyncio.gather(work(), work(), work())
        print(sum(shares), "by", len(shares), "workers")


asyncio.run(main())

# origin: NATS docs, Pull consumers: scaling; Python tutorial, Queue groups
# about: Three connections use one durable consumer by its name: `stream.consumer` finds it, and each message goes to
# about: one of them.
# prints: 100 by 3 workers
