"""Request and reply."""

import asyncio

import natsproto
from natsproto.errors import NoResponders
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:

        async def tell_time(request: natsproto.Message) -> None:
            await request.respond(b"noon")

        async with nc.subscribe("time", cb=tell_time):
            reply = await nc.request("time", timeout=5)
            print(reply.data)
        try:
            await nc.request("time", timeout=5)
        except NoResponders as error:
            print(error)


asyncio.run(main())

# origin: NATS docs, Request-reply
# prints: b'noon'
# prints: no responders: nothing is subscribed to 'time': start a service, or check the subject
