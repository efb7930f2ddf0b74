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
                print("moved without an outage:", nc.stats.reconnects == 0 or nc.is_connected)
                break
        await retiring


asyncio.run(main())

# origin: NATS docs, Lame duck mode notifications
# prints: moved without an outage: True
