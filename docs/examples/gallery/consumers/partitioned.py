"""In order by key, in parallel otherwise: a partitioned group."""

import asyncio

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.jetstream.groups import ElasticGroup
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.*"])
        group = await ElasticGroup.create(js, "ORDERS", "packing", max_members=4, filters={"orders.*": [1]})
        await group.add_members("anna", "bert")
        packed: list[str] = []
        done = asyncio.Event()

        async def pack(message: JsMessage) -> None:
            packed.append(message.subject)
            if len(packed) == 4:
                done.set()

        async with group.consume("anna", pack) as anna, group.consume("bert", pack):
            for city in ("berlin", "lisbon", "oslo", "rome"):
                await js.publish(f"orders.{city}", b"...")
            await anna.wait(done)  # raises the error of a member that ends
        print(sorted(packed))


asyncio.run(main())

# origin: NATS docs, Partitioned consumer groups (orbit)
# about: Members of an `ElasticGroup` share the subjects: all messages of one subject go to the same member, one after
# about: another.
# prints: ['orders.berlin', 'orders.lisbon', 'orders.oslo', 'orders.rome']
