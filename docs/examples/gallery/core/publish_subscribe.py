"""Publish and subscribe with wildcards."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.subscribe("time.*.east") as east, nc.subscribe("time.>") as everywhere:
            await nc.publish("time.us.east", b"noon")
            await nc.publish("time.eu.warsaw", b"six")
            print((await east.next(timeout=5)).subject)
            print([(await everywhere.next(timeout=5)).subject for _ in range(2)])


asyncio.run(main())

# origin: NATS docs, Publish-subscribe; Subject-based messaging
# about: `*` stands for one token of a subject and `>` for all that follow. Each `Subscription` gets the messages whose
# about: subjects match.
# prints: time.us.east
# prints: ['time.us.east', 'time.eu.warsaw']
