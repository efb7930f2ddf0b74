"""Send and read headers."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.subscribe("orders") as orders:
            await nc.publish("orders", b"12 tulips", headers={"Customer": "ann", "Tag": ["spring", "gift"]})
            order = await orders.next(timeout=5)
            print(order.headers["Customer"], order.headers.get_all("Tag"), "Price" in order.headers)


asyncio.run(main())

# origin: NATS docs, Message headers
# about: `nc.publish` takes a dict of headers, whose values may be lists. The receiver has them as `Headers`, a
# about: mapping.
# prints: ann ['spring', 'gift'] False
