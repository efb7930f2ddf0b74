"""The server's version, limits and addresses."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        print("payloads of", nc.max_payload, "bytes")
        print("nats-server", nc.server_info.version.split(".")[0])
        print("JetStream:", nc.server_info.jetstream)


asyncio.run(main())

# origin: NATS docs, Get the maximum payload size; Connecting to the default server
# about: `nc.server_info` has what the server said about itself, and `nc.max_payload` is the largest message that it
# about: accepts.
# prints: payloads of 1048576 bytes
# prints: nats-server 2
# prints: JetStream: True
