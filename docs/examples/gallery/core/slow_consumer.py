"""A slow consumer: limits, policies, and an event."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.subscribe("ticks", pending_msgs_limit=3, slow_policy="drop_oldest") as ticks:
            for number in range(10):
                await nc.publish("ticks", b"%d" % number)
            await nc.flush()
            print([(await ticks.next()).data for _ in range(3)], "dropped", ticks.dropped)


asyncio.run(main())

# origin: NATS docs, Slow consumers
# prints: [b'7', b'8', b'9'] dropped 7
