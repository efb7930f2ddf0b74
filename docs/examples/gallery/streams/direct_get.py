"""Read stored messages without a consumer."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(4):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        await stream.update(allow_direct=True)
        print([message.data async for message in stream.get_batch(start_seq=2)])
        print([message.data async for message in stream.get_last_messages(["orders.*"])])
        print([pair async for pair in stream.subjects()])


asyncio.run(main())

# origin: NATS docs, Direct get; nats.js JetStream guide, Message retrieval
# about: `stream.get_batch` and `stream.get_last_messages` read stored messages without a consumer, and
# about: `stream.subjects` counts them by subject.
# prints: [b'1', b'2', b'3']
# prints: [b'2', b'3']
# prints: [('orders.eu', 2), ('orders.us', 2)]
