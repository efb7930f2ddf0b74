"""Wait for the next message, with a timeout."""

import asyncio

import natsproto
from natsproto.errors import RequestTimeout
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.subscribe("updates") as updates:
            await nc.publish("updates", b"all is well")
            print((await updates.next(timeout=5)).data)
            try:
                await updates.next(timeout=0.05)
            except RequestTimeout:
                print("nothing more")


asyncio.run(main())

# origin: NATS docs, Synchronous subscriptions
# about: `next()` of a `Subscription` waits for one message, and raises `RequestTimeout` if none comes in time.
# prints: b'all is well'
# prints: nothing more
