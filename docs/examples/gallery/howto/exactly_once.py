"""Exactly-once processing: an order is billed once, although it is delivered twice."""

import asyncio

import natsproto
from natsproto.jetstream import JetStream, JsMessage
from natsproto.testing import run_server


async def bill(js: JetStream, order: JsMessage) -> bool:
    """The result has an id made of that of its cause: the stream stores it once, however often this runs."""
    ack = await js.publish("bills.eu", b"bill for " + order.data, msg_id=f"bill-{order.headers['Nats-Msg-Id']}")
    return ack.duplicate


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        orders = await js.create_stream("ORDERS", subjects=["orders.*"])
        bills = await js.create_stream("BILLS", subjects=["bills.*"], duplicate_window=3600)
        for _ in range(2):  # 1. in: a publisher that does not know whether its message was stored sends it again
            await js.publish("orders.eu", b"12 tulips", msg_id="order-1")

        consumer = await orders.create_consumer("billing", ack_wait=30)
        order = await consumer.next(timeout=5)
        print("duplicate:", await bill(js, order))  # 2. work ...
        await order.nak()  # ... and crash before the acknowledgement

        order = await consumer.next(timeout=5)
        print("duplicate:", await bill(js, order))
        await order.ack_sync(timeout=5)  # 3. out: returns when the server has the acknowledgement
        print((await bills.info()).state.messages, "bill")


asyncio.run(main())

# origin: how-to guide
# about: The `msg_id` of the bill is made from that of the order: `js.publish` stores one bill, however often the order
# about: is handled.
# prints: duplicate: False
# prints: duplicate: True
# prints: 1 bill
