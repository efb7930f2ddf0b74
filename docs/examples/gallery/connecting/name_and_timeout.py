"""Name a connection, limit the time to connect, turn echo off."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with (
        run_server() as server,
        natsproto.connect(server.url, name="shop", connect_timeout=2, no_echo=True) as nc,
    ):
        async with nc.subscribe("news") as mine:
            await nc.publish("news", b"for others only")
            await nc.flush()
            print("echoed:", mine.pending_msgs)


asyncio.run(main())

# origin: NATS docs, Connection name; Connect timeout; Turning off echoed messages
# about: The server's monitoring shows the name, an attempt to connect ends after two seconds, and with `no_echo` a
# about: client gets none of its own messages. They are fields of `Options`.
# prints: echoed: 0
