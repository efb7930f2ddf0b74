"""Test your own code against a real nats-server: start one, break it, see your code carry on."""

# prints: before the crash, on port ...
# prints: after the crash, on port ...
# prints: stopped: True

import asyncio
import logging

import natsproto
from natsproto import Disconnected
from natsproto.testing import Server, run_server


async def survives_a_crash(server: Server) -> None:
    async with (
        natsproto.connect(server.url, reconnect_wait=0.05) as nc,
        nc.subscribe("orders.*") as orders,
    ):
        await nc.publish("orders.eu", b"before")
        print((await orders.next(timeout=5)).data.decode(), "the crash, on port", server.port)

        events = nc.events()
        server.kill()  # SIGKILL; the port stays ours
        async for event in events:
            if isinstance(event, Disconnected):
                break
        await nc.publish("orders.eu", b"after")  # waits in the outbox
        await server.restart()  # same port, same store
        print((await orders.next(timeout=5)).data.decode(), "the crash, on port", server.port)


async def main() -> None:
    async with run_server(config="max_payload: 64KB") as server:
        await survives_a_crash(server)
    print("stopped:", not server.running)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # the warning about the lost connection is no news here
    asyncio.run(main())
