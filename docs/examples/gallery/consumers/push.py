"""A push consumer with a deliver group and flow control."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(4):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        push = await stream.create_push_consumer(
            "pushed", deliver_subject=nc.new_inbox(), deliver_group="workers", ack_policy="explicit"
        )
        async with push.messages(stop_after=4) as messages:
            async for message in messages:
                await message.ack_sync(timeout=5)
        print((await push.info()).num_ack_pending, "not acknowledged")


asyncio.run(main())

# origin: NATS docs, Push consumers; nats.js JetStream guide, Push subscriptions, Queue consumers
# about: The server sends to the `deliver_subject` of a `PushConsumer` without being asked; members of its
# about: `deliver_group` share the messages.
# prints: 0 not acknowledged
