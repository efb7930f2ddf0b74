"""Read a stream in order, without acknowledging."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(6):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        async with stream.ordered_consumer(filter_subjects=["orders.eu"]) as ordered:
            print([message.data for message in await ordered.fetch(3, timeout=5)])
        async with stream.ordered_consumer(start_seq=5) as ordered, ordered.messages(stop_after=2) as messages:
            print([message.data async for message in messages])


asyncio.run(main())

# origin: NATS docs, nats.go JetStream guide, nats.js JetStream guide: Ordered consumers
# about: `stream.ordered_consumer` reads from any point, without gaps and without acknowledgements. If it fails, the
# about: client creates it again.
# prints: [b'0', b'2', b'4']
# prints: [b'4', b'5']
