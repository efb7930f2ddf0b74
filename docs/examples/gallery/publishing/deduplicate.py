"""Store a message once, however often it is sent."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.*"], duplicate_window=120)
        for _ in range(3):
            ack = await js.publish("orders.eu", b"tulips", msg_id="order-1")
            print(ack.seq, ack.duplicate)


asyncio.run(main())

# origin: NATS docs, Message deduplication; nats.go JetStream guide, Publish options
# about: Within `duplicate_window` seconds the stream stores a `msg_id` once. The `PubAck` of the others says that they
# about: are duplicates.
# prints: 1 False
# prints: 1 True
# prints: 1 True
