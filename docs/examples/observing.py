"""Observing a running client: health, and the trace of a message through a cluster of three servers started here.

Run it with ``python docs/examples/observing.py`` where ``natsproto[server]`` is installed.
"""

import asyncio

import natsproto
from natsproto.testing import run_cluster


async def main() -> None:
    """One client on each server; a message goes from the first to the others."""
    async with (
        run_cluster(3) as cluster,
        natsproto.connect(cluster.urls[0], name="shop") as shop,
        natsproto.connect(cluster.urls[1], name="billing") as billing,
        natsproto.connect(cluster.urls[2], name="audit") as audit,
    ):
        health = await shop.health()
        print(f"healthy: {health.ok}, {health.rtt * 1000:.1f} ms")

        await billing.subscribe("orders.*", queue="workers")
        await audit.subscribe(">")
        await asyncio.gather(billing.flush(), audit.flush())
        trace = await shop.trace("orders.eu", b"12 tulips")
        while len(trace.deliveries) < 2:  # servers tell each other of subscriptions in their own time
            trace = await shop.trace("orders.eu", b"12 tulips")
        print(trace)
        print(f"would go to: {', '.join(sorted(event.name for event in trace.deliveries))}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: healthy: True, ... ms
# prints: natsproto-1 (natsproto, ...)
# prints:   <-- client 'shop', subject 'orders.eu'
# prints:   --> router ...
# prints: ...
# prints: would go to: audit, billing
