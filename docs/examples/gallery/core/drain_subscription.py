"""Drain a subscription: handle the received messages, but no new ones."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        handled = []
        sub = await nc.subscribe("jobs", cb=lambda message: handled.append(message.data))
        for number in range(100):
            await nc.publish("jobs", b"%d" % number)
        await sub.drain()
        print(len(handled), sub.closed)


asyncio.run(main())

# origin: NATS docs, Draining subscriptions
# about: `drain()` of a `Subscription` tells the server to send no more, and returns when the callback has handled what
# about: had arrived.
# prints: 100 True
