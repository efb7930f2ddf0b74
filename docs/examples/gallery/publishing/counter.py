"""A distributed counter."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("HITS", subjects=["hits.*"], allow_msg_counter=True, allow_direct=True)
        for _ in range(3):
            total = await js.counter_add("hits.home")
        print(total, await js.counter_add("hits.home", 10))
        print((await js.counter_get("hits.home")).value)


asyncio.run(main())

# origin: NATS docs, Distributed counters (2.12)
# about: Each message of the stream is a number to add: `js.counter_add` returns the new total, and `js.counter_get`
# about: reads it.
# prints: 3 13
# prints: 13
