"""Compute the partition of a subject before publishing; on a nats-server with that mapping.

Run it with ``python docs/examples/subjects.py`` where ``natsproto[server]`` is installed.
"""

import asyncio

import natsproto
from natsproto.subjects import SubjectMapping
from natsproto.testing import run_server

SOURCE, DESTINATION = "orders.*", "shard.{{partition(3,1)}}.$1"


async def main() -> None:
    """The computed partition equals the server's."""
    mapping = SubjectMapping(SOURCE, DESTINATION)
    async with (
        run_server(config=f'mappings {{ "{SOURCE}": "{DESTINATION}" }}') as server,
        natsproto.connect(server.url) as nc,
        nc.subscribe("shard.>") as shards,
    ):
        for customer in ("ana", "ben", "eva"):
            await nc.publish(f"orders.{customer}", b"3 tulips")
            message = await shards.next(timeout=10)
            print(f"{message.subject} as foretold: {message.subject == mapping.apply(f'orders.{customer}')}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: shard.0.ana as foretold: True
# prints: shard.1.ben as foretold: True
# prints: shard.1.eva as foretold: True
