"""Share work in a queue group."""

import asyncio
from collections import Counter

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        handled = Counter[str]()
        for name in ("first", "second", "third"):

            def handle(message: natsproto.Message, name: str = name) -> None:
                handled[name] += 1

            await nc.subscribe("jobs", queue="workers", cb=handle)
        for number in range(300):
            await nc.publish("jobs", b"%d" % number)
        await nc.drain()
        print(handled.total(), "jobs,", len(handled), "workers")


asyncio.run(main())

# origin: NATS docs, Queue groups; nats.js guide, Queue groups
# about: Subscriptions with the same `queue=` share the messages: each one goes to one of them. `nc.drain` waits until
# about: all are handled.
# prints: 300 jobs, 3 workers
