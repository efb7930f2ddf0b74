"""A server that hangs is noticed by its silence."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url, ping_interval=0.2, max_outstanding_pings=2) as nc:
        events = nc.events()
        server.freeze()  # connections stay open, without responses
        async for event in events:
            if isinstance(event, natsproto.Disconnected):
                print("lost:", type(event.cause).__name__)
                break
        server.thaw()
        await nc.flush(timeout=60)
        print("back:", nc.is_connected)


asyncio.run(main())

# origin: NATS docs, Pinging the server
# about: The server stops answering, with its connections open. The client finds out by its pings, reports
# about: `Disconnected`, and connects again.
# prints: lost: StaleConnection
# prints: back: True
