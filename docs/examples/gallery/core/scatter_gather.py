"""Send one request and get the replies of all subscribers."""

import asyncio
from contextlib import AsyncExitStack

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with AsyncExitStack() as stack:
            for city in ("Berlin", "Lisbon", "Oslo"):

                async def answer(request: natsproto.Message, city: str = city) -> None:
                    await request.respond(city.encode())

                await stack.enter_async_context(nc.subscribe("where", cb=answer))
            replies = [reply.data async for reply in nc.request_many("where", timeout=30, max_messages=3)]
            print(sorted(replies))


asyncio.run(main())

# origin: NATS docs, Request-reply; Scatter-gather
# about: Several subscribers reply to one request. `nc.request_many` yields the replies, here until there are three of
# about: them.
# prints: [b'Berlin', b'Lisbon', b'Oslo']
