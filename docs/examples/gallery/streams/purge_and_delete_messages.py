"""Purge a stream, delete and get single messages."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(6):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        print((await stream.get_message(2)).data, (await stream.get_last_message("orders.eu")).data)
        await stream.delete_message(2)
        await stream.purge(subject="orders.eu", keep=1)
        print((await stream.info()).state.messages, "messages left")


asyncio.run(main())

# origin: NATS docs, Stream management: purge; delete a message
# about: `stream.get_message` reads one message, `stream.delete_message` deletes one, and `stream.purge` deletes many,
# about: here all but the newest of a subject.
# prints: b'1' b'4'
# prints: 3 messages left
