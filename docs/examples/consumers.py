"""Every way to read a stream: run it with ``python docs/examples/consumers.py``."""

import asyncio

import natsproto
from natsproto.errors import AlreadyAcked
from natsproto.jetstream import JsMessage
from natsproto.testing import run_server


async def main() -> None:
    """Orders of a flower shop are billed, packed and counted."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.>"], storage="memory")
        for number, flower in enumerate(("tulips", "roses", "a cactus", "lilies", "ivy", "ferns")):
            city = ("berlin", "lisbon")[number % 2]
            await js.publish(f"orders.{city}", flower.encode())

        billing = await stream.create_consumer("billing")
        for message in await billing.fetch(2):
            await message.ack()
            print(f"billed {message.seq}: {message.data.decode()}")
        async with billing.messages(stop_after=3) as messages:
            async for message in messages:
                await message.ack_sync()
        last = await billing.next()
        await last.term("out of stock")
        try:
            await last.ack()
        except AlreadyAcked as error:
            print(f"too late: answered with {error.first_ack}")
        print(f"nothing left: {await billing.fetch(10, no_wait=True)}")

        packing = await stream.create_consumer("packing", max_deliver=2)
        packed: dict[str, list[str]] = {}

        async def pack(message: JsMessage) -> None:
            if message.data == b"a cactus" and message.metadata.num_delivered == 1:
                await message.nak()  # the message is redelivered
                return
            packed.setdefault(message.subject, []).append(message.data.decode())

        cities = packing.consume(pack, concurrency=2, key=lambda message: message.subject, stop_after=7)
        async with cities as work:
            await work.wait()
        print(f"packed {sum(map(len, packed.values()))} in {work.handled} attempts")

        async with stream.ordered_consumer() as ordered:
            everything = [message.data.decode() for message in await ordered.fetch(6)]
        print(f"in order: {', '.join(everything)}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: billed 1: tulips
# prints: billed 2: roses
# prints: too late: answered with term
# prints: nothing left: []
# prints: packed 6 in 7 attempts
# prints: in order: tulips, roses, a cactus, lilies, ivy, ferns
