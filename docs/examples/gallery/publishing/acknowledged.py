"""Publish and get the stream's acknowledgement."""

import asyncio

import natsproto.jetstream
from natsproto.errors import NoStream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.*"])
        ack = await js.publish("orders.eu", b"tulips", headers={"Customer": "ann"}, timeout=5)
        print(ack.stream, ack.seq, ack.duplicate)
        try:
            await js.publish("nowhere", b"lost?", retry_attempts=0)
        except NoStream as error:
            print("not stored:", error.subject)


asyncio.run(main())

# origin: NATS docs, Publishing to streams; Python tutorial, Publisher; nats.go JetStream guide, Synchronous publish
# about: `js.publish` returns the `PubAck` of the stream. If no stream has the subject, it raises `NoStream`.
# prints: ORDERS 1 False
# prints: not stored: nowhere
