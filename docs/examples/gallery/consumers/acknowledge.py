"""Acknowledge, request redelivery, terminate, and extend the deadline."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("JOBS", subjects=["jobs"])
        for job in (b"easy", b"busy", b"broken", b"long"):
            await js.publish("jobs", job)
        consumer = await stream.create_consumer("workers", ack_wait=30)
        easy, busy, broken, long = await consumer.fetch(4, timeout=5)
        await easy.ack()
        await busy.nak(0.01)  # again, this many seconds later
        await broken.term("cannot be parsed")  # never again
        await long.in_progress()  # restarts ack_wait
        again = await consumer.next(timeout=5)
        print(again.data, again.metadata.num_delivered)


asyncio.run(main())

# origin: NATS docs, Acknowledging messages; nats.go JetStream guide, Message acknowledgement
# about: A `JsMessage` is acknowledged, redelivered later, given up or worked on for longer. Only the one with `nak`
# about: comes again.
# prints: b'busy' 2
