"""Connect to a cluster, and stay connected when a server dies."""

import asyncio

import natsproto
from natsproto.testing import run_cluster


async def main() -> None:
    async with run_cluster(3) as cluster, natsproto.connect(cluster.urls, name="shop") as nc:
        print(f"{len(nc.servers)} servers are known")
        events = nc.events()
        next(server for server in cluster.servers if server.url.endswith(nc.connected_url.partition("//")[2])).kill()
        async for event in events:
            if isinstance(event, natsproto.Reconnected):
                break
        await nc.flush()
        print("connected to another one:", nc.is_connected)


asyncio.run(main())

# origin: NATS docs, Connecting to a cluster
# about: The client knows all servers of the cluster. When its own dies, it connects to another one, and reports
# about: `Reconnected` as an event.
# prints: 3 servers are known
# prints: connected to another one: True
