"""A slow consumer: a limit, and which messages stay."""

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
# about: A `Subscription` keeps at most `pending_msgs_limit` messages. With the policy `drop_oldest` the newest ones
# about: stay, and `dropped` counts the others.
# prints: [b'7', b'8', b'9'] dropped 7
