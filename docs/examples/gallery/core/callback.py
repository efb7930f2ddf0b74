"""Subscribe with a callback, and with async for."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:

        async def shout(message: natsproto.Message) -> None:
            print("callback:", message.data.decode().upper())

        async with nc.subscribe("updates", cb=shout) as shouted, nc.subscribe("updates", max_messages=2) as updates:
            for word in ("one", "two"):
                await nc.publish("updates", word.encode())
            await shouted.drain()  # the callback has handled both
            async for message in updates:  # ends after max_messages
                print("loop:", message.data.decode())


asyncio.run(main())

# origin: NATS docs, Asynchronous subscriptions
# about: With `cb=`, `nc.subscribe` calls a function for each message. Without it, the `Subscription` is read with
# about: `async for`, which ends after `max_messages`.
# prints: callback: ONE
# prints: callback: TWO
# prints: loop: one
# prints: loop: two
