"""Mirror a stream, and collect several in one."""

import asyncio

import natsproto
from natsproto.jetstream import StreamSource
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        for region in ("EU", "US"):
            await js.create_stream(region, subjects=[f"orders.{region}"])
            await js.publish(f"orders.{region}", b"tulips")
        mirror = await js.create_stream("COPY", mirror=StreamSource(name="EU"))
        world = await js.create_stream("WORLD", sources=[StreamSource(name="EU"), StreamSource(name="US")])
        async with mirror.ordered_consumer() as copied, world.ordered_consumer() as collected:
            print([message.subject for message in await copied.fetch(1, timeout=30)])
            print(sorted(message.subject for message in await collected.fetch(2, timeout=30)))


asyncio.run(main())

# origin: NATS docs, Source and mirror streams
# about: A mirror copies one stream, and a stream with sources collects several. `StreamSource` names the origins of
# about: both.
# prints: ['orders.EU']
# prints: ['orders.EU', 'orders.US']
