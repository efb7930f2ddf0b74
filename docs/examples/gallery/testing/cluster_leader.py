"""A cluster that loses the leader of a stream."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_cluster


async def main() -> None:
    async with run_cluster(3) as cluster, natsproto.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream("ORDERS", subjects=["orders"], num_replicas=3)
        await js.publish("orders", b"before", msg_id="1")
        placed = (await stream.info()).cluster
        leader = placed.leader if placed is not None else ""
        next(server for server in cluster.servers if server.name == leader).kill()
        await js.publish("orders", b"after", msg_id="2", timeout=60)  # waits for the election
        print((await stream.info()).state.messages, "messages")


asyncio.run(main())

# origin: NATS docs, JetStream clustering
# about: The server that leads the stream is killed. `js.publish` waits until another one leads, and nothing is lost or
# about: stored twice.
# prints: 2 messages
