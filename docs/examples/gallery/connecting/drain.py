"""Drain a connection: finish what was received, then close."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        handled = []

        async def handle(message: natsproto.Message) -> None:
            await asyncio.sleep(0.001)
            handled.append(message.data)

        await nc.subscribe("jobs", cb=handle)
        for number in range(50):
            await nc.publish("jobs", b"%d" % number)
        await nc.drain(timeout=30)  # leaving the block does the same
        print(len(handled), "handled,", nc.state.name)


asyncio.run(main())

# origin: NATS docs, Draining messages before disconnect
# about: `nc.drain` ends all subscriptions, waits until the callbacks have handled what had arrived, and closes the
# about: connection.
# prints: 50 handled, CLOSED
