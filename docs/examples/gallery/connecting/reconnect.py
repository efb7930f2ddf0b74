"""Watch an outage: disconnected, reconnecting, reconnected."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with (
        run_server() as server,
        natsproto.connect(server.url, reconnect_wait=0.01, max_reconnect_attempts=-1) as nc,
    ):
        events = nc.events()
        server.kill()
        async for event in events:
            if isinstance(event, natsproto.Disconnected):
                await nc.publish("news", b"waits in the outbox")
                await server.restart()
            if isinstance(event, natsproto.Reconnected):
                break
        await nc.flush()
        print("reconnects:", nc.stats.reconnects)


asyncio.run(main())

# origin: NATS docs, Automatic reconnections; Listening for reconnect events
# about: `nc.events` reports the outage: `Disconnected`, then `Reconnected`. What was published in between was
# about: buffered, and is sent now.
# prints: reconnects: 1
