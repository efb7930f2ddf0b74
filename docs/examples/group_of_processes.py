"""Three processes share the messages of a stream by key. One is killed, and its partitions move.

Run it with ``python docs/examples/group_of_processes.py``.
"""

import asyncio
import sys

import natsproto
from natsproto.jetstream import JetStream, JsMessage, groups
from natsproto.jetstream.groups import ElasticGroup
from natsproto.testing import run_server

NAMES = ("ana", "ben", "cleo")
CITIES = ("athens", "berlin", "cairo", "dakar", "lisbon", "oslo", "paris", "quito", "rome", "tokyo")


async def member(url: str, name: str) -> None:
    """One process: handle the orders of its share of the cities until it is stopped."""
    async with natsproto.connect(url, name=name) as nc:

        async def pack(message: JsMessage) -> None:
            await nc.publish("packed", b"%s %s" % (message.subject.encode(), message.data))

        stream = await nc.jetstream().stream("ORDERS")
        packing = groups.join(stream, "packing", pack, partitions=12, filters={"orders.*": [1]}, name=name)
        await packing.run(until=natsproto.stop_event())


async def start(url: str, name: str) -> asyncio.subprocess.Process:
    """The member as a process of its own."""
    return await asyncio.create_subprocess_exec(sys.executable, __file__, url, name)


async def table_of(js: JetStream, count: int) -> dict[str, tuple[int, ...]]:
    """The partitions of each member, as soon as there are ``count`` members."""
    group = await ElasticGroup.create(js, "ORDERS", "packing", max_members=12, filters={"orders.*": [1]})
    while len((await group.info()).names) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return {name.removeprefix("join-"): group.config.partitions(name) for name in sorted(group.config.names)}


async def order(js: JetStream, number: int, packed: natsproto.Subscription) -> None:
    """Order something in each city, and wait until all of it is packed."""
    for city in CITIES:
        await js.publish(f"orders.{city}", b"%d" % number)
    left = {b"orders.%s %d" % (city.encode(), number) for city in CITIES}
    while left:
        left.discard((await packed.next(timeout=60)).data)


async def main() -> None:
    """Start three, kill one, stop another in order, and see all orders packed."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.*"], storage="memory")
        packed = await nc.subscribe("packed")
        processes = {name: await start(server.url, name) for name in NAMES}
        before = await table_of(js, 3)
        print(f"three members have {sorted(map(len, before.values()))} partitions: {before}")
        await order(js, 1, packed)

        processes["ben"].kill()  # kill -9: it cannot say goodbye
        after = await table_of(js, 2)
        print(f"two members have {sorted(map(len, after.values()))} partitions: {after}")
        kept = all(set(before[name]) <= set(after[name]) for name in after)
        print("only those of ben have moved" if kept else f"others have moved, too: {before}")
        await order(js, 2, packed)

        processes["cleo"].terminate()  # it leaves in order, and its partitions move at once
        last = await table_of(js, 1)
        print(f"one member has {len(last['ana'])} partitions")
        await order(js, 3, packed)
        processes["ana"].terminate()
        for process in processes.values():
            await process.wait()
        print("all orders are packed")


if __name__ == "__main__":
    asyncio.run(member(*sys.argv[1:]) if len(sys.argv) == 3 else main())

# prints: three members have [4, 4, 4] partitions: ...
# prints: two members have [6, 6] partitions: ...
# prints: only those of ben have moved
# prints: one member has 12 partitions
# prints: all orders are packed
