"""Request and reply at scale: many requests at a time, several instances, a limit on each side."""

import asyncio
from collections import Counter

import natsproto
from natsproto.service import Request
from natsproto.testing import run_server


async def instance(nc: natsproto.Client, name: str) -> None:
    async def square(request: Request) -> None:
        await request.respond(b"%d" % int(request.data) ** 2, headers={"From": name})

    service = await nc.add_service("squares", "1.0.0")
    service.add_endpoint("square", square, concurrency=64)  # more than 64 at a time wait


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as ana, natsproto.connect(server.url) as ben:
        await instance(ana, "ana")
        await instance(ben, "ben")
        await asyncio.gather(ana.flush(), ben.flush())
        answered_by, at_once = Counter[str](), asyncio.Semaphore(200)  # requests under way

        async with natsproto.connect(server.url) as nc:

            async def ask(number: int) -> int:
                async with at_once:
                    reply = await nc.call("square", b"%d" % number, timeout=10)
                answered_by[reply.headers["From"]] += 1
                return int(reply.data)

            total = sum(await asyncio.gather(*map(ask, range(2000))))
        print(total, sorted(answered_by))


asyncio.run(main())

# origin: how-to guide
# about: Two instances of a service share 2,000 requests of `nc.call`: at most 200 at a time from the requester, 64 in
# about: each instance.
# prints: 2664667000 ['ana', 'ben']
