"""A work queue: acknowledged messages are removed."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("JOBS", subjects=["jobs"], retention="workqueue")
        for number in range(3):
            await js.publish("jobs", b"%d" % number)
        consumer = await stream.create_consumer("workers")
        for message in await consumer.fetch(2, timeout=5):
            await message.ack_sync(timeout=5)
        print((await stream.info()).state.messages, "left")


asyncio.run(main())

# origin: NATS docs, Retention policies: work queue
# about: With the retention `workqueue`, a message is removed when it is acknowledged: one of three is left.
# prints: 1 left
