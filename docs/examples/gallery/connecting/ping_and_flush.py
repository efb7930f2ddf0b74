"""Ping the server, measure the round trip, flush."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url, ping_interval=20, max_outstanding_pings=5) as nc:
        await nc.publish("news", b"hello")
        await nc.flush(timeout=5)  # the server has handled everything before
        print("round trip below a second:", await nc.rtt() < 1)


asyncio.run(main())

# origin: NATS docs, Pinging the server; Caches, flush and ping
# about: `nc.flush` returns when the server has handled everything that was sent before. `nc.rtt` measures a round
# about: trip.
# prints: round trip below a second: True
