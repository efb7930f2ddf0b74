"""Limit the number and the rate of redeliveries."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("JOBS", subjects=["jobs"])
        await js.publish("jobs", b"poison")
        consumer = await stream.create_consumer("workers", max_deliver=3, backoff=[0.01, 0.02])
        for _ in range(3):
            message = await consumer.next(timeout=30)  # not acknowledged: redelivered with growing delays
            print("attempt", message.metadata.num_delivered)
        print(len(await consumer.fetch(1, no_wait=True)), "more")


asyncio.run(main())

# origin: NATS docs, Consumer configuration: MaxDeliver, BackOff
# about: What is not acknowledged comes again after the delays of `backoff`, until it was delivered `max_deliver`
# about: times. Both are fields of `ConsumerConfig`.
# prints: attempt 1
# prints: attempt 2
# prints: attempt 3
# prints: 0 more
