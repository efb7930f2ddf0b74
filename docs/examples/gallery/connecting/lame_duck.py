"""A server retires: the client moves before it is cut off."""

import asyncio

import natsproto
from natsproto.testing import run_cluster


async def main() -> None:
    async with run_cluster(2) as cluster, natsproto.connect(cluster.urls[0], ignore_discovered_servers=False) as nc:
        while len(nc.servers) < 2:  # the cluster announces its other server
            await nc.flush()
        events = nc.events()
        retiring = asyncio.create_task(cluster.servers[0].lame_duck())
        async for event in events:
            if isinstance(event, natsproto.Moved):
                print("moved to the other server:", cluster.urls[1].endswith(event.server))
                break
        await retiring


asyncio.run(main())

# origin: NATS docs, Lame duck mode notifications
# about: A server in lame duck mode asks its clients to leave. This one connects to the other server first, and reports
# about: `Moved`.
# prints: moved to the other server: True
