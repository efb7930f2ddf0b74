"""The usage and limits of the account."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("ORDERS", subjects=["orders"])
        account = await js.account_info()
        print(account.streams, "stream,", account.consumers, "consumers")


asyncio.run(main())

# origin: NATS docs, JetStream resource management; Account information
# about: `js.account_info` returns what the account uses of JetStream, and its limits.
# prints: 1 stream, 0 consumers
