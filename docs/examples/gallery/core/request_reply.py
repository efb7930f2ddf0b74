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
# about: `nc.request` waits for the first reply. If nobody has subscribed, it raises `NoResponders` at once.
# prints: b'noon'
# prints: no responders: nothing is subscribed to 'time': start a service, or check the subject
