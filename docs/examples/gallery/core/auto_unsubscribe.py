"""Unsubscribe after a number of messages."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        updates = await nc.subscribe("updates")
        await updates.unsubscribe(max_messages=2)
        for number in range(5):
            await nc.publish("updates", b"%d" % number)
        print([message.data async for message in updates])


asyncio.run(main())

# origin: NATS docs, Unsubscribing; Unsubscribing after N messages
# about: `unsubscribe(max_messages=2)` on a `Subscription` ends it after its second message: the server sends no more,
# about: and the loop ends.
# prints: [b'0', b'1']
